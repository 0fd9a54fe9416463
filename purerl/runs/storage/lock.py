"""Run directories: created, tested by a write, and locked by the process that writes to them."""

import contextlib
import os
import pathlib
import socket
import tempfile
from typing import Any

import filelock

from purerl.core.errors import ConfigError, DirectoryLocked, Problem
from purerl.runs.processes import by_first


class Lock:
    """A lock on a directory, which lets one process at a time write to it. The end of the process releases the lock.

    Between hosts, the lock works only if the file system's locks (`flock`) do: on a network disk, start each run only once.

    Raises:
        DirectoryLocked: another process holds the lock.
    """

    def __init__(self, directory: pathlib.Path):
        self._lock, self._holder = filelock.FileLock(directory / ".lock"), directory / ".holder"
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            other = "another process"
            with contextlib.suppress(OSError):
                other = self._holder.read_text()
            raise DirectoryLocked(f"{directory} is in use by {other}; choose another directory") from None
        with contextlib.suppress(OSError):  # optional: only the message above reads this file
            self._holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._holder.unlink()
        self._lock.release()


def absolute(directory: Any) -> pathlib.Path:
    """Return the absolute path of a directory that the user gave."""
    if not isinstance(directory, str | os.PathLike) or not str(directory):
        raise ConfigError([Problem("directory", directory, "must be a path")])
    return pathlib.Path(directory).expanduser().absolute()


def run_directory(directory: Any) -> pathlib.Path:
    """Return the absolute path of a directory, which the first process creates if needed and tests by a write.

    Raises:
        ConfigError: the path is not valid, or cannot be written to.
    """
    path, text = absolute(directory), os.fspath(directory)
    if any(ord(character) < 32 for character in text):
        raise ConfigError([Problem("directory", directory, "must not contain control characters such as newlines")])
    if "://" in text:
        raise ConfigError([Problem("directory", directory, "must be on a local or mounted file system")])
    by_first(lambda: _try_to_write(path, directory))
    return path


def _try_to_write(path: pathlib.Path, directory: Any) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, delete=False) as probe:
            probe.write(b"probe")
            os.fsync(probe.fileno())
        moved = f"{probe.name}.moved"  # a name that no other process has
        os.replace(probe.name, moved)
        os.unlink(moved)
    except OSError as error:
        raise ConfigError([Problem("directory", directory, f"is not writable: {error.strerror}")]) from error
