"""The metrics history of a run on the host, in memory and in a journal.

The first entry of the journal describes the rows and the runs. Later entries contain rows, as base64 of the little-endian
bytes of NumPy records, so that NaN, infinity and float32 values are exact. When a run resumes, rows after the last checkpoint are
cut off. A damaged or missing row is replaced by a row that counts only steps.
"""

import base64
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from purerl.core.errors import CheckpointCorrupt, CheckpointError, warn
from purerl.core.metrics import Max, Mean, Sum, aggregate
from purerl.runs.storage.files import AppendOnlyFile, Entry, iterate, read_errors, to_line

FILE = "curves.jsonl"
LINE = 64  # largest number of rows per line: one damaged byte destroys at most one line
KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Sum, Mean, Max)}
Rows = dict[str, Any]  # metrics by name, leaves `[..., rows]`


class Header(NamedTuple):
    """The header of a journal, its first entry.

    Attributes:
        row: NumPy dtype of a row, from `row_dtype`.
        every: updates per row.
        steps: environment steps per row, of one run.
        runs: config index and seed of each run; the index is None without a batch of configs.
        configs: for each config of a batch, its swept values as text; () without a batch of configs.
        devices_per_run: number of devices per run; the default when the run is resumed.
        first_step: environment steps before the first update; above 0 only with `continue_steps` of `fit`.
    """

    row: np.dtype
    every: int
    steps: int
    runs: tuple[tuple[int | None, int], ...] = ()
    configs: tuple[str, ...] = ()
    devices_per_run: int = 1
    first_step: int = 0


class Curves:
    """Rows of metrics, each over `header.every` updates, whatever the lengths of chunks.

    Attributes:
        finished: finished updates.

    Args:
        header: description of the rows.
        path: path of the journal; None keeps the rows only in memory.
    """

    def __init__(self, header: Header, path: pathlib.Path | None = None):
        self._header, self._path = header, path
        self.finished, self._pending, self._whole = 0, nothing(header.row), bytearray()
        self._journal = AppendOnlyFile(path, _head(header))

    @read_errors()
    def begin(self, finished: int) -> None:
        """Resume after `finished` updates, with the journal's rows up to then. Warn about damaged or missing rows.

        Metrics of the journal that this call does not have, such as those of `measure`, keep their earlier rows. If a new run
        replaces rows of a run without checkpoints, warn.

        Raises:
            CheckpointError: the journal cannot be read.
        """
        self.finished = finished
        if self._path is not None and not finished and len(list(itertools.islice(iterate(self._path), 2))) > 1:
            hint = "the run has no checkpoint, so that it begins anew, and replaces its metrics, evaluations and best states"
            warn(f"{self._path.parent}: {hint}")
        if self._path is not None and finished:
            self._header = self._header._replace(row=_extend(self._header.row, read_header(self._path)))
            records, self._pending = _resume(self._path, self._header, finished)
            self._whole += records.tobytes()
            self._journal = AppendOnlyFile(self._path, _head(self._header) + _lines(records, 0))

    def append(self, rows: Rows) -> None:
        """Add the metrics of some updates, leaves `[..., updates]`."""
        start, count, every = 0, jax.tree.leaves(rows)[0].shape[-1], self._header.every
        if {metric for _, metric, *_ in _fields(self._header.row)} - rows.keys():
            rows = _unpack(_blank(self._header, count)) | rows
        while start < count:
            filled = self.finished % every
            # Complete the pending row first, then take all whole rows, then the rest.
            size = every - filled if filled else max(every, (count - start) // every * every)
            size = min(size, count - start)
            added = add_rows(self._pending, jax.tree.map(lambda x: x[..., start : start + size], rows), min(size, every))  # noqa: B023
            is_whole = (filled + size) % every == 0
            self._pending = nothing(self._header.row) if is_whole else added
            if is_whole:
                records = _pack(added, self._header.row)
                self._journal.add(_lines(records, len(self._whole) // records.itemsize))
                self._whole += records.tobytes()
            self.finished, start = self.finished + size, start + size

    def flush(self) -> None:
        """Write all rows so far to the journal, including an incomplete last row.

        Raises:
            CheckpointError: the write failed; the next flush tries again.
        """
        if self.finished % self._header.every:
            records, place = _pack(self._pending, self._header.row), self.finished // self._header.every
            self._journal.add(_lines(records, place, updates=self.finished))
        self._journal.flush()

    def whole(self) -> Rows:
        """Return all rows, leaves `[..., rows]`; the last row may cover fewer updates."""
        rows = _unpack(np.frombuffer(bytes(self._whole), self._header.row))
        begun = self.finished % self._header.every
        return jax.tree.map(lambda *x: np.concatenate(x, -1), rows, self._pending) if begun else rows

    def close(self) -> None:
        self._journal.close()


@read_errors()
def read(directory: pathlib.Path) -> tuple[Rows, Header]:
    """Return the rows of a run's directory, leaves `[..., rows]`, and the header of its journal. Warn about damaged rows.

    The last row may cover fewer updates than the other rows.

    Raises:
        CheckpointError: the journal is missing or cannot be read, or its first line is damaged.
    """
    path = directory / FILE
    if not path.exists():
        raise CheckpointError(f"no metrics in {directory}")
    header, entries, damaged = _parse(path)
    if header is None:
        raise CheckpointCorrupt(f"the first line of {path} is damaged; resume the run to repair the file")
    records, lost = _place(entries, header.row, header)
    if lost or damaged:
        _tell(path, lost, len(records), header.every)
    return _unpack(records), header


def read_header(path: pathlib.Path) -> Header | None:
    """Return the header of a journal; None if the journal is missing or its header is damaged."""
    try:
        return _to_header(next(iterate(path), None))
    except OSError:
        return None


@read_errors()
def _resume(path: pathlib.Path, header: Header, updates: int) -> tuple[np.ndarray, Rows]:
    """Return the whole rows up to `updates` as records, and the incomplete last row, from a journal that may be damaged."""
    saved, entries, _ = _parse(path)
    dtype, whole = (saved or header).row, updates // header.every
    records, lost = _place([entry for entry in entries if "updates" not in entry], dtype, header, whole)
    begun = [{**entry, "first": 0} for entry in entries if entry.get("updates") == updates]
    pending, none = _place(begun, dtype, header._replace(steps=0), 1)
    if lost := lost + (none if updates % header.every else 0):
        _tell(path, lost, len(records), header.every)
    elif saved is None:
        warn(f"{path}: the first line was damaged, and has been rewritten")
    return records, _unpack(pending)


def _parse(path: pathlib.Path) -> tuple[Header | None, list[Entry], bool]:
    """Return the header of a journal (None if it is damaged), the other entries, and True if any line is damaged."""
    header, entries, damaged = None, [], False
    for entry in iterate(path):
        if entry is None:
            damaged = True
        elif "row" in entry:
            header = _to_header(entry)
        else:
            entries.append({**entry, "rows": base64.b64decode(entry["rows"])})
    return header, entries, damaged


def _place(entries: list[Entry], dtype: np.dtype, header: Header, count: int | None = None) -> tuple[np.ndarray, int]:
    """Return the rows of all entries as records, in order of their index, and the number of missing rows.

    If several entries contain the same row, the last entry is used. A missing row is replaced by a blank record.

    Args:
        entries: entries with rows of `dtype`.
        dtype: dtype of the written rows. A metric that is missing in this dtype, or has another shape, stays blank.
        header: header of the returned records.
        count: number of records to return; None returns all records up to the last row.
    """
    ranges = [np.arange(x["first"], x["first"] + len(x["rows"]) // dtype.itemsize) for x in entries]
    places, found = np.concatenate([np.zeros(0, int), *ranges]), np.frombuffer(b"".join(x["rows"] for x in entries), dtype)
    count = int(places.max(initial=-1)) + 1 if count is None else count
    if dtype == header.row and np.array_equal(places, np.arange(count)):
        return found, 0
    records, inside = _blank(header, count), places < count
    for name in set(records.dtype.names or ()) & set(dtype.names or ()):
        if records.dtype[name] == dtype[name]:
            records[name][places[inside]] = found[name][inside]
    return records, count - len(np.unique(places[inside]))


def _tell(path: pathlib.Path, lost: int, count: int, every: int) -> None:
    each = "" if every == 1 else f" ({every} updates each)"
    what = f"{lost} of {count} records{each}" if lost else "the last records"
    warn(f"{path}: damaged or missing: {what}; gaps are filled with step counts only")


def _lines(records: np.ndarray, first: int, **more: int) -> bytes:
    """Return records as lines of a journal. `first`: index of the first record's row."""
    parts = ((first + i, records[i : i + LINE]) for i in range(0, len(records), LINE))
    return b"".join(to_line({"first": i, "rows": base64.b64encode(x.tobytes()).decode(), **more}) for i, x in parts)


def _head(header: Header) -> bytes:
    return to_line({**header._asdict(), "row": header.row.descr})


def _to_header(entry: Entry | None) -> Header | None:
    if entry is None or "row" not in entry:
        return None
    row = np.dtype([(name, dtype, *map(tuple, shape)) for name, dtype, *shape in entry["row"]])
    return Header(**{**entry, "row": row, "runs": tuple(map(tuple, entry["runs"])), "configs": tuple(entry["configs"])})


# --- rows -------------------------------------------------------------------------------------------------------------


def row_dtype(row: Rows) -> np.dtype:
    """Return the NumPy dtype of a row, with a field for each part of each metric, such as "loss/Mean/total".

    Args:
        row: metrics of one update, shapes `[...]`.
    """
    parts = [(f"{name}/{type(metric).__name__}/{part}", x) for name, metric in row.items() for part, x in vars(metric).items()]
    return np.dtype([(name, np.dtype(x.dtype).newbyteorder("<"), x.shape) for name, x in parts])


def _extend(row: np.dtype, saved: Header | None) -> np.dtype:
    """Return the dtype of a row, extended by the fields of the metrics that only the journal has."""
    known = {metric for _, metric, *_ in _fields(row)}
    more = [] if saved is None else [field for field, metric, *_ in _fields(saved.row) if metric not in known]
    return np.dtype([*row.descr, *((field, saved.row[field]) for field in more)]) if saved and more else row


def _fields(dtype: np.dtype) -> Iterator[tuple[str, str, str, str]]:
    """Yield each field with its metric, kind and part."""
    for field in dtype.names or ():
        metric, kind, part = field.rsplit("/", 2)
        yield field, metric, kind, part


def _pack(rows: Rows, dtype: np.dtype) -> np.ndarray:
    """Convert rows to records, a structured array `[rows]`."""
    records = np.zeros(jax.tree.leaves(rows)[0].shape[-1], dtype)
    for field, metric, _, part in _fields(dtype):
        records[field] = np.moveaxis(getattr(rows[metric], part), -1, 0)
    return records


def _unpack(records: np.ndarray) -> Rows:
    """Convert records `[rows]` to rows."""
    parts: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for field, metric, kind, part in _fields(records.dtype):
        parts.setdefault((metric, kind), {})[part] = np.ascontiguousarray(np.moveaxis(records[field], 0, -1))
    return {metric: KINDS[kind](**x) for (metric, kind), x in parts.items()}


def _blank(header: Header, count: int) -> np.ndarray:
    """Return records that count steps and nothing else."""
    records = np.zeros(count, header.row)
    for field, metric, kind, _ in _fields(header.row):
        records[field] = header.steps if metric == "steps" else KINDS[kind].start
    return records


def nothing(row: np.dtype) -> Rows:
    """Return one row that counts nothing."""
    return _unpack(_blank(Header(row, 1, 0), 1))


def add_rows(before: Rows, rows: Rows, every: int) -> Rows:
    """Aggregate each group of `every` rows with the row `before`, `[..., rows] -> [..., rows / every]`."""

    def cut(x, first):
        x = x.reshape(*x.shape[:-1], -1, every)
        first = np.broadcast_to(first[..., None], (*x.shape[:-1], 1))
        return np.concatenate([first, x], -1)

    return jax.tree.map(lambda x, first: x.astype(first.dtype), aggregate(jax.tree.map(cut, rows, before)), before)
