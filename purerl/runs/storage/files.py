"""Atomic writes, append-only files, and journals, for files other than checkpoints.

A checksum is a part of a SHA-256. If a write fails, nothing is lost: an atomic write leaves the previous file unchanged, and data
to append stay in memory for the next flush.

A journal is an append-only file of JSON objects, one per line, each with a checksum. A line without a line end is ignored: either
a kill cut the line off, or another process is about to write the rest.
"""

import contextlib
import functools
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from purerl.core.errors import CheckpointError

Entry = dict[str, Any]
CHECK = b'{"check": "%s", '  # prefix of each line
BEGIN = len(CHECK % (b"0" * 16))


def checksum(data: bytes) -> bytes:
    """Return the first 8 bytes of the SHA-256 of 8 zero bytes followed by the data."""
    return hashlib.sha256(bytes(8) + data).digest()[:8]


@contextlib.contextmanager
def _os_errors(what: str, path: Any = None) -> Iterator[None]:
    """Turn an OSError into a CheckpointError that names the file: `path`, or that of the OSError. Also works as a decorator."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path or error.filename} {what}: {error.strerror or error}") from None


write_errors = functools.partial(_os_errors, "could not be written")
read_errors = functools.partial(_os_errors, "cannot be read")


class AppendOnlyFile:
    """An append-only file. With `path=None` nothing is written.

    Args:
        path: path of the file.
        content: initial content. An existing file that begins with this content is cut back to it; any other file is replaced.
    """

    def __init__(self, path: pathlib.Path | None, content: bytes):
        self._path, self._file = path, None
        self._content, self._new = content, []  # content is empty once the file is open

    def add(self, data: bytes) -> None:
        """Append data, in memory until the next flush."""
        if self._path is not None:
            self._new.append(data)

    def flush(self) -> None:
        """Write all pending data to the file.

        Raises:
            CheckpointError: the write failed; nothing is lost, and the next flush tries again.
        """
        if self._path is None:
            return
        with write_errors(self._path):
            file = self._open(self._path) if self._file is None else self._file
            if self._new:
                file.truncate(self._end)  # removes the remains of a failed write
                file.seek(self._end)
                data = rest = memoryview(b"".join(self._new))
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
                self._end, self._new = self._end + len(data), []

    def _open(self, path: pathlib.Path) -> io.FileIO:
        if not (path.is_file() and path.read_bytes().startswith(self._content)):
            atomic_write(path, self._content)
        file = self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
        self._end, self._content = len(self._content), b""
        file.truncate(self._end)
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@read_errors()
def read_file(path: pathlib.Path) -> bytes:
    """Return the contents of a file; empty if the file does not exist.

    Raises:
        CheckpointError: the file cannot be read.
    """
    return path.read_bytes() if path.exists() else b""


def atomic_write(path: pathlib.Path, data: bytes) -> None:
    """Replace a file atomically.

    Raises:
        OSError: the write failed; the previous file is unchanged.
    """
    beside = path.with_name(path.name + ".new")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


# --- journals ---------------------------------------------------------------------------------------------------------


@read_errors()
def read_journal(path: pathlib.Path) -> list[Entry | None]:
    """Return the entries of a file, with None for each damaged line; return [] if the file does not exist.

    Raises:
        CheckpointError: the file cannot be read.
    """
    return list(iterate(path))


def iterate(path: pathlib.Path) -> Iterator[Entry | None]:
    """Yield the entries of a file one by one, with None for each damaged line.

    Raises:
        OSError: the file cannot be read.
    """
    if path.exists():
        with open(path, "rb") as file:
            yield from (from_line(line) for line in file if line.endswith(b"\n"))


def to_line(entry: Entry) -> bytes:
    """Return an entry as a line with a checksum."""
    text = json.dumps(entry).encode()
    return CHECK % checksum(text).hex().encode() + text[1:] + b"\n"


def from_line(line: bytes) -> Entry | None:
    """Return the entry of a line; None if the line is damaged."""
    try:
        entry = json.loads(line)
        return entry if entry.pop("check") == checksum(b"{" + line[BEGIN:-1]).hex() else None
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
