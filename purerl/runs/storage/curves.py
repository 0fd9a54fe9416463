"""The metrics of a run on the host, in memory or in an append-only file.

The file is one line of JSON, which describes the rows and the runs, and then rows of bytes, all of one size, each with its
checksum. Rows after the last checkpoint are cut off on resuming. A damaged or missing row counts steps and nothing else.
"""

import json
import pathlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from purerl.core import metrics as kinds
from purerl.core.errors import CheckpointCorrupt, CheckpointError
from purerl.core.metrics import add_up
from purerl.runs.storage.checkpoint import read_arrays, read_record, saved_updates
from purerl.runs.storage.files import AppendOnlyFile, checksum, read_file

CHECK = 8  # bytes of a checksum
KINDS: dict[str, Callable[..., kinds.Sum | kinds.Mean | kinds.Max]] = {k.__name__: k for k in (kinds.Sum, kinds.Mean, kinds.Max)}


class Header(NamedTuple):
    """The header of a file, its first line.

    row: the metrics of one update, as shapes `[...]`.
    every: updates in a row.
    steps: environment steps in a row, of one run.
    runs: the config index and the seed of each run; the index is None if there is one config only.
    configs: what the configs differ in, in words; () where there is one only.
    devices_per_run: what the run resumes with, if it is not told otherwise.
    """

    row: dict[str, Any]
    every: int
    steps: int
    runs: tuple[tuple[int | None, int], ...] = ()
    configs: tuple[str, ...] = ()
    devices_per_run: int = 1


class Curves:
    """Rows of metrics, one for each `every` updates in whatever chunks they come.

    Attributes:
        pending: the sum of the updates after the last whole row, leaves `[...]`; nothing counted if there are none.
        finished: updates so far.

    Args:
        header: what a row is.
        path: the file; None for memory.
    """

    def __init__(self, header: Header, path: pathlib.Path | None = None):
        self._header, self._every, self._row = header, header.every, header.row
        self._rows: list[dict[str, Any]] = []
        self.finished, self.pending = 0, _nothing(header.row)
        self._path, self._file = path, AppendOnlyFile(path, _packed_header(header))

    def begin(self, finished: int) -> None:
        """Resume after `finished` updates, with the rows of the file up to then.

        Of rows that are damaged or missing it warns; they count nothing but their steps.
        """
        self.finished = finished
        path = self._path
        if path is None or not finished:
            return
        rows = self._adopt(lambda: read_file(path))
        self._file = AppendOnlyFile(path, _packed_header(self._header) + _packed(rows, self._row, 0))

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
        if self._path is None:
            self._rows.append(rows)
        else:
            self._file.add(_packed(rows, self._row, self.finished // self._every))

    def flush(self) -> None:
        """Writes everything so far to the file.

        Raises:
            CheckpointError: it could not be written; the next flush tries again.
        """
        self._file.flush()

    def whole(self) -> dict[str, Any]:
        """Return all rows; the last one may have fewer updates. Leaves `[..., rows]`."""
        if self._path is None:
            rows = jax.tree.map(lambda *x: np.concatenate(x, -1), _blank(self._header, 0), *self._rows)
        else:
            rows = self._adopt(self._file.read)
        if self.finished % self._every:
            rows = jax.tree.map(lambda a, b: np.concatenate([a, b[..., None]], -1), rows, self.pending)
        return rows

    def _adopt(self, read: Callable[[], bytes]) -> dict[str, Any]:
        """Return the rows so far, of a file that may be damaged, in words where it is."""
        count, data = self.finished // self._every, b""
        try:
            data = read()
        except CheckpointError as error:
            warnings.warn(str(error), stacklevel=4)
        rows, lost = _adopted(data, self._header, count)
        if lost:
            _tell(self._path, lost, count, self._every)
        elif data and _split(data)[0] is None:
            warnings.warn(f"{self._path}: the first line was damaged, and is written anew", stacklevel=4)
        return rows

    def close(self) -> None:
        self._file.close()


def read(directory: pathlib.Path) -> tuple[dict[str, Any], Header]:
    """Return the rows of a run's directory, leaves `[..., rows]`, and the header of its file. Warns of damaged rows.

    The last row may have fewer updates than the others: those that the newest checkpoint keeps until the row is whole.

    Raises:
        CheckpointError: the file cannot be read, or its first line is damaged.
    """
    path = directory / "curves.bin"
    header, body = _split(read_file(path))
    if header is None:
        raise CheckpointCorrupt(f"the first line of {path} is damaged; resuming the run repairs it")
    rows, lost = _rows(body, header, None)
    if lost:
        _tell(path, lost, jax.tree.leaves(rows)[0].shape[-1], header.every)
    return (rows if header.every == 1 else _with_pending(rows, header, directory / "checkpoints")), header


def pending_of(arrays: dict[str, np.ndarray], row: dict[str, Any], name: str = "pending") -> dict[str, Any]:
    """Return the row of this name in the arrays of a checkpoint; a metric that these do not have counts nothing.

    `pending` is the row of the updates after the last whole row.
    """

    def leaf(path: Any, x: np.ndarray) -> np.ndarray:
        saved = arrays.get(jax.tree_util.keystr(path), x)
        return saved if (saved.shape, saved.dtype) == (x.shape, x.dtype) else x

    return jax.tree_util.tree_map_with_path(leaf, {name: _nothing(row)})[name]


def _with_pending(rows: dict[str, Any], header: Header, checkpoints: pathlib.Path) -> dict[str, Any]:
    """Return the whole rows of a run, and as the last one the updates after them, if its newest checkpoint is of those."""
    updates = max(saved_updates(checkpoints), default=0)
    if not updates % header.every or updates // header.every != jax.tree.leaves(rows)[0].shape[-1]:
        return rows
    place = checkpoints / str(updates)
    try:
        leaves = read_record(place)["leaves"]
        arrays = read_arrays(place, {name: leaves[name] for name in leaves if name.startswith("['pending']")})
    except CheckpointError as error:
        warnings.warn(f"{error}; the metrics of the last {updates % header.every} updates are left out", stacklevel=4)
        return rows
    return jax.tree.map(lambda a, b: np.concatenate([a, b[..., None]], -1), rows, pending_of(arrays, header.row))


def read_header(path: pathlib.Path) -> Header | None:
    """Return the header of a file; None if there is none, or it is damaged."""
    try:
        with open(path, "rb") as file:
            return _split(file.readline())[0]
    except OSError:
        return None


def _tell(path: pathlib.Path | None, lost: int, count: int, every: int) -> None:
    counted = "they count nothing" if lost > 1 else "it counts nothing"
    each = "" if every == 1 else f" of {every} updates each"
    rows = "rows" if lost > 1 else "row"
    warnings.warn(f"{path}: {lost} {rows} of {count}{each} damaged or missing; {counted} but the steps", stacklevel=5)


# --- bytes ------------------------------------------------------------------------------------------------------------


def _packed_header(header: Header) -> bytes:
    parts = lambda metric: {part: [np.dtype(x.dtype).str, list(x.shape)] for part, x in vars(metric).items()}
    described = {name: [type(metric).__name__, parts(metric)] for name, metric in header.row.items()}
    text = json.dumps({**header._asdict(), "row": described}).encode()
    return text + b" " + checksum(text).hex().encode() + b"\n"


def _split(data: bytes) -> tuple[Header | None, bytes]:
    """Return the header, None if it is damaged, and the rest."""
    line, _, body = data.partition(b"\n")
    text, _, mark = line.rpartition(b" ")
    try:
        if checksum(text).hex().encode() == mark:
            header = json.loads(text)
            runs = tuple(tuple(run) for run in header["runs"])
            return Header(**{**header, "row": _row_of(header["row"]), "runs": runs, "configs": tuple(header["configs"])}), body
        return None, body
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, body


def _row_of(described: dict[str, Any]) -> dict[str, Any]:
    shaped = lambda dtype, shape: jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype))
    return {name: KINDS[kind](**{part: shaped(*x) for part, x in parts.items()}) for name, (kind, parts) in described.items()}


def _packed(rows: dict[str, Any], like: dict[str, Any], first: int) -> bytes:
    """Rows `[..., rows]` as bytes, each followed by its checksum; `first` is the place of the first of them."""
    parts = _parts(rows)
    records = np.zeros(next(iter(parts.values())).shape[-1], _dtype(like))
    for name, x in parts.items():
        records[name] = np.moveaxis(x, -1, 0)
    data, size = records.tobytes(), records.dtype.itemsize
    each = (data[i * size : (i + 1) * size] for i in range(len(records)))
    return b"".join(row + checksum(row, first + i) for i, row in enumerate(each))


def _rows(body: bytes, header: Header, count: int | None) -> tuple[dict[str, Any], int]:
    """Return the rows in what follows a header, leaves `[..., rows]`, and how many of them are blank.

    Args:
        body: after the first line.
        header: of the file.
        count: how many rows there should be; None for as many as there are.
    """
    dtype = _dtype(header.row)
    size = dtype.itemsize
    there = len(body) // (size + CHECK)
    count = there if count is None else count
    pieces = [body[i * (size + CHECK) : (i + 1) * (size + CHECK)] for i in range(min(there, count))]
    right = [checksum(piece[:size], i) == piece[size:] for i, piece in enumerate(pieces)]
    records = np.frombuffer(b"".join(piece[:size] for piece in pieces), dtype)
    rows = _blank(header, count)
    where = np.flatnonzero(right)
    for name, x in _parts(rows).items():
        x[..., where] = np.moveaxis(records[name][where], 0, -1)
    return rows, count - len(where)


def _adopted(data: bytes, header: Header, count: int) -> tuple[dict[str, Any], int]:
    """Return the first `count` rows of a file that may be damaged, or have other metrics, as rows of this header.

    A metric that the file does not have counts nothing.
    """
    saved, body = _split(data)
    saved = (saved or header)._replace(steps=header.steps)
    rows, lost = _rows(body, saved, count)
    blank = _blank(header, count)
    alike = lambda name: name in rows and _shape(saved.row[name]) == _shape(header.row[name])
    return {name: rows[name] if alike(name) else blank[name] for name in header.row}, lost


def _shape(metric: Any) -> tuple:
    return type(metric).__name__, {part: (x.shape, np.dtype(x.dtype)) for part, x in vars(metric).items()}


def _parts(row: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}/{part}": x for name, metric in row.items() for part, x in vars(metric).items()}


def _dtype(row: dict[str, Any]) -> np.dtype:
    return np.dtype([(name, np.dtype(x.dtype).newbyteorder("<"), x.shape) for name, x in _parts(row).items()])


# --- rows -------------------------------------------------------------------------------------------------------------


def _nothing(row: dict[str, Any]) -> dict[str, Any]:
    start = lambda metric: lambda x: np.full(x.shape, metric.start, x.dtype)
    return {name: jax.tree.map(start(metric), metric) for name, metric in row.items()}


def _blank(header: Header, count: int) -> dict[str, Any]:
    """Rows that count steps and nothing else, leaves `[..., count]`."""
    rows = jax.tree.map(lambda x: np.repeat(x[..., None], count, axis=-1), _nothing(header.row))
    if "steps" in rows:
        rows["steps"] = jax.tree.map(lambda x: np.full_like(x, header.steps), rows["steps"])
    return rows


def _added(before: dict[str, Any], rows: dict[str, Any], every: int) -> dict[str, Any]:
    """Each `every` rows added up on top of `before`, `[..., rows] -> [..., rows / every]`."""

    def cut(x, first):
        x = x.reshape(*x.shape[:-1], -1, every)
        first = np.broadcast_to(first[..., None, None], (*x.shape[:-1], 1))
        return np.concatenate([first, x], -1)

    return jax.tree.map(lambda x, first: x.astype(first.dtype), add_up(jax.tree.map(cut, rows, before)), before)
