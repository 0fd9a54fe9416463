"""Journals: append-only files of JSON objects, one per line, each with a checksum.

`encode` stores an array as base64 of little-endian bytes, so that NaN, infinity and float32 values are exact. A line without a
line end is ignored: either a kill cut the line off, or another process is about to write the rest.
"""

import base64
import binascii
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from purerl.runs.storage.files import AppendOnlyFile, checksum, read_errors

Entry = dict[str, Any]
CHECK = b'{"check": "%s", '  # prefix of each line
BEGIN = len(CHECK % (b"0" * 16))


class Journal:
    """A journal that this process writes to. With `path=None` nothing is written.

    Args:
        path: path of the file.
        entries: initial entries. The first flush replaces an existing file.
    """

    def __init__(self, path: pathlib.Path | None, entries: Iterable[Entry] = ()):
        self._file = AppendOnlyFile(path, b"".join(map(to_line, entries)) if path is not None else b"")
        self.flush, self.close = self._file.flush, self._file.close

    def add(self, entry: Entry) -> None:
        """Append an entry, in memory until the next flush."""
        self._file.add(to_line(entry))


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


def encode(x: np.ndarray) -> str:
    """Return the little-endian bytes of an array as base64."""
    return base64.b64encode(x.astype(x.dtype.newbyteorder("<"), copy=False).tobytes()).decode()


def decode(text: str) -> bytes:
    """Return the bytes of an array from the text that `encode` returned."""
    return binascii.a2b_base64(text)


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
