"""The metrics of a run on the host, in memory or in a file that only grows at its end.

The file is one line of JSON, which says what a row is, and then rows of bytes, all of one size. After a kill it is cut back to
the rows that the checkpoint knows of.
"""

import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

from purerl import metrics as kinds
from purerl.errors import CheckpointCorrupt
from purerl.metrics import add_up

KINDS = {kind.__name__: kind for kind in (kinds.Sum, kinds.Mean, kinds.Max)}


class Curves:
    """Rows of metrics, one for each `every` updates in whatever chunks they come.

    Attributes:
        pending: the sum of the updates after the last whole row, leaves `[...]`; nothing counted if there are none.
        finished: updates so far.

    Args:
        row: the metrics of one update, as shapes `[...]`: a leading axis for several runs, or none.
        every: updates in a row.
        path: the file; None for memory.
    """

    def __init__(self, row: dict[str, Any], every: int, path: pathlib.Path | None = None):
        self._row, self._every = row, every
        self._rows: list[dict[str, Any]] = []
        self.finished, self.pending = 0, _nothing(row)
        self._path, self._file = path, None

    def begin(self, finished: int) -> None:
        """Opens the file with the rows that are whole after `finished` updates, and no others.

        Raises:
            CheckpointCorrupt: it has fewer.
        """
        self.finished = finished
        if self._path is None:
            return
        header = _header(self._row, self._every)
        if finished == 0 or not self._path.exists():
            self._path.write_bytes(header)
        length = len(header) + finished // self._every * _dtype(self._row).itemsize
        if self._path.stat().st_size < length:
            raise CheckpointCorrupt(f"{self._path} ends before update {finished}")
        self._file = open(self._path, "r+b")  # noqa: SIM115
        self._file.truncate(length)
        self._file.seek(0, os.SEEK_END)

    def append(self, rows: dict[str, Any]) -> None:
        """Adds the metrics of some updates, leaves `[..., updates]`."""
        start, count = 0, jax.tree.leaves(rows)[0].shape[-1]
        while start < count:
            filled = self.finished % self._every
            # To the end of the row that was begun, or as many whole rows as there are, or what is left.
            size = self._every - filled if filled else max(self._every, (count - start) // self._every * self._every)
            size = min(size, count - start)
            part = jax.tree.map(lambda x: x[..., start : start + size], rows)  # noqa: B023
            if size > self._every:
                self._write(_added(_nothing(self._row), part, self._every))
            else:
                added = _added(self.pending, part, size)
                ends = filled + size == self._every
                self.pending = _nothing(self._row) if ends else jax.tree.map(lambda x: x[..., 0], added)
                if ends:
                    self._write(added)
            self.finished, start = self.finished + size, start + size

    def _write(self, rows: dict[str, Any]) -> None:
        if self._file is None:
            self._rows.append(rows)
        else:
            self._file.write(_packed(rows, self._row))

    def flush(self) -> None:
        """Everything so far is in the file."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())

    def whole(self) -> dict[str, Any]:
        """All rows, the last one of fewer updates where they do not divide. Leaves `[..., rows]`."""
        if self._file is None:
            nothing = jax.tree.map(lambda x: np.zeros((*x.shape, 0), x.dtype), self._row)
            rows = jax.tree.map(lambda *x: np.concatenate(x, -1), nothing, *self._rows)
        else:
            self.flush()
            rows = read(self._path)[0]
        if self.finished % self._every:
            rows = jax.tree.map(lambda a, b: np.concatenate([a, b[..., None]], -1), rows, self.pending)
        return rows

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read(path: pathlib.Path) -> tuple[dict[str, Any], int]:
    """The whole rows of a file, leaves `[..., rows]`, and the updates in each."""
    with open(path, "rb") as file:
        header = json.loads(file.readline())
        data = file.read()
    row = {
        name: KINDS[kind](**{part: jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype)) for part, (dtype, shape) in parts.items()})
        for name, (kind, parts) in header["row"].items()
    }
    dtype = _dtype(row)
    records = np.frombuffer(data, dtype, count=len(data) // dtype.itemsize)
    unpacked = {
        name: type(metric)(**{part: np.moveaxis(records[f"{name}/{part}"], 0, -1) for part in vars(metric)})
        for name, metric in row.items()
    }
    return unpacked, header["every"]


def _nothing(row: dict[str, Any]) -> dict[str, Any]:
    start = lambda metric: lambda x: np.full(x.shape, metric.start, x.dtype)
    return {name: jax.tree.map(start(metric), metric) for name, metric in row.items()}


def _added(before: dict[str, Any], rows: dict[str, Any], every: int) -> dict[str, Any]:
    """Each `every` rows added up on top of `before`, `[..., rows] -> [..., rows / every]`."""

    def cut(x, first):
        x = x.reshape(*x.shape[:-1], -1, every)
        first = np.broadcast_to(first[..., None, None], (*x.shape[:-1], 1))
        return np.concatenate([first, x], -1)

    return jax.tree.map(lambda x, first: x.astype(first.dtype), add_up(jax.tree.map(cut, rows, before)), before)


def _parts(row: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}/{part}": x for name, metric in row.items() for part, x in vars(metric).items()}


def _dtype(row: dict[str, Any]) -> np.dtype:
    return np.dtype([(name, np.dtype(x.dtype).newbyteorder("<"), x.shape) for name, x in _parts(row).items()])


def _header(row: dict[str, Any], every: int) -> bytes:
    parts = lambda metric: {part: [np.dtype(x.dtype).str, list(x.shape)] for part, x in vars(metric).items()}
    described = {name: [type(metric).__name__, parts(metric)] for name, metric in row.items()}
    return json.dumps({"every": every, "row": described}).encode() + b"\n"


def _packed(rows: dict[str, Any], like: dict[str, Any]) -> bytes:
    parts = _parts(rows)
    records = np.zeros(next(iter(parts.values())).shape[-1], _dtype(like))
    for name, x in parts.items():
        records[name] = np.moveaxis(x, -1, 0)
    return records.tobytes()
