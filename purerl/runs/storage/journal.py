"""Journals: append-only files of JSON objects, one per line, each with a checksum.

A line without a line end is ignored: either a kill cut the line off, or another process is about to write the rest.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from purerl.runs.storage.files import checksum, read_errors

Entry = dict[str, Any]
CHECK = b'{"check": "%s", '  # prefix of each line
BEGIN = len(CHECK % (b"0" * 16))


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
