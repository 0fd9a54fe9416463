"""Evaluations during a run, and the best state of each run. Neither affects training."""

import math
import pathlib
import warnings
from typing import Any

import numpy as np

from purerl.core.errors import CheckpointError, CheckpointMismatch
from purerl.runs.processes import from_first
from purerl.runs.storage.checkpoint import CLOCK, Store, describe, first_readable, leaf_differences, to_arrays
from purerl.runs.storage.files import AppendOnlyFile, Entry, read_journal, to_line

COLUMNS = ("episode_return", "episode_length", "finished")


class Evaluations:
    """The table of evaluations, in memory and in a journal.

    Args:
        path: path of the journal; None keeps the table only in memory.
        updates: finished updates of the run that resumes. Later rows and damaged rows are dropped.
        runs: number of runs.
        expected: number of rows that the journal should contain up to then; a warning reports missing rows.

    Raises:
        CheckpointError: the journal cannot be read.
    """

    def __init__(self, path: pathlib.Path | None, updates: int, runs: int, expected: int = 0):
        self._runs = runs
        found = read_journal(path) if path is not None and updates else []
        self._rows = [row for row in found if row is not None and row["update"] <= updates]
        lost = max(expected - len(self._rows), found.count(None))
        if lost and path is not None:
            warnings.warn(f"{path}: {lost} evaluations are damaged or missing, and are skipped", stacklevel=4)
        self._journal = AppendOnlyFile(path, b"".join(map(to_line, self._rows)))
        self.flush, self.close = self._journal.flush, self._journal.close

    def add(self, updates: int, columns: dict[str, np.ndarray]) -> None:
        """Add the columns of an evaluation, each `[runs]`."""
        row = {"update": updates} | {name: x.tolist() for name, x in columns.items()}
        self._rows.append(row)
        self._journal.add(to_line(row))

    def newest(self) -> dict[str, np.ndarray] | None:
        """Return the columns of the latest evaluation, each `[runs]`; None before the first evaluation."""
        return {name: np.array(x) for name, x in self._rows[-1].items() if name != "update"} if self._rows else None

    def __len__(self) -> int:
        return len(self._rows)

    def table(self) -> dict[str, np.ndarray]:
        """Return `update [n]` and the columns, each `[n, runs]`."""
        return _table(self._rows, self._runs)


def read_evaluations(path: pathlib.Path, runs: int) -> dict[str, np.ndarray]:
    """Return the table of a journal, as `Evaluations.table` does; empty without a journal. Damaged rows are left out."""
    return _table([row for row in read_journal(path) if row is not None], runs)


def _table(rows: list[Entry], runs: int) -> dict[str, np.ndarray]:
    names = dict.fromkeys((*COLUMNS, *(rows[0] if rows else ())))
    columns = {name: np.array([row[name] for row in rows], np.float32).reshape(-1, runs) for name in names if name != "update"}
    return {"update": np.array([row["update"] for row in rows], np.int64), **columns}


class Best:
    """The state of each run at its best evaluation, on the host and as a checkpoint.

    A resumed run compares new scores with those of the saved best states. So a kill between an evaluation and the save of its
    best states loses nothing.

    Args:
        store: store of the checkpoint.
        record: record of the run, for the checkpoint.
        runs: number of runs.
        by: name of the evaluation column that contains the scores; None if this run is not evaluated.
        wanted: dtypes and shapes of a state, from `checkpoint.describe`, if the run resumes. Saved best states are then restored,
          unless they are damaged or have other dtypes or shapes. None removes saved best states.

    Raises:
        CheckpointMismatch: the saved best states were chosen by another column.
    """

    def __init__(self, store: Store, record: dict[str, Any], runs: int, by: str | None, wanted: dict[str, str] | None = None):
        self._store, self._record, self._by = store, record, by
        self._arrays, self._leaves, self._behind = {}, {}, False
        self._updates, self._scores = [0] * runs, [-math.inf] * runs
        if wanted is None:
            store.clear()  # left by a run that was killed before its first checkpoint
        else:
            self._restore(store, wanted)
            record = {"leaves": self._leaves, "updates": self._updates, "returns": self._scores}
            self._arrays, record = from_first(self._arrays, record)
            self._leaves, self._updates, self._scores = record["leaves"], record["updates"], record["returns"]

    def _restore(self, store: Store, wanted: dict[str, str]) -> None:
        try:
            there = store.updates()  # in all processes: see `Directory.saved`
            saved = first_readable(there, store.load) if there else None
        except CheckpointError as error:
            warnings.warn(f"{error}; earlier best states are ignored", stacklevel=4)
            return
        if saved is None or leaf_differences({path: x for path, (x, _) in saved.record["leaves"].items()}, wanted):
            return
        before = saved.record["best"].get("by", COLUMNS[0])
        if self._by not in (None, before):
            raise CheckpointMismatch(store.directory, [f"best_by: {before} in the checkpoint, {self._by} here"])
        self._arrays, self._leaves = saved.arrays, wanted
        self._updates, self._scores = saved.record["best"]["updates"], saved.record["best"]["returns"]

    def update(self, updates: int, scores: np.ndarray, state: Any) -> None:
        """Keep the state of each run whose score improved, and begin to save the kept states.

        Raises:
            CheckpointError: the previous save or this one failed; `settle` tries again.
        """
        better = scores > np.array(self._scores)
        if not (self._store.is_kept and better.any()):
            return
        tree = {"state": state}
        arrays, self._leaves = to_arrays(tree), describe(tree)
        if not better.all() and self._arrays:
            rows = lambda new, old: np.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
            arrays = {path: x if path.startswith(CLOCK) else rows(x, self._arrays[path]) for path, x in arrays.items()}
        chosen = lambda new, old: [n if b else o for n, o, b in zip(new, old, better, strict=True)]
        self._arrays, self._behind = arrays, True
        self._updates = chosen([updates] * len(better), self._updates)
        self._scores = chosen(scores.tolist(), self._scores)
        self._begin()

    def _begin(self) -> None:
        best = {"best": {"updates": self._updates, "returns": self._scores, "by": self._by}}
        self._store.write(max(self._updates), self._arrays or {}, self._leaves, {**self._record, "seconds": 0.0, **best})
        self._behind = False

    def settle(self) -> None:
        """Wait until all best states are saved.

        Raises:
            CheckpointError: a save failed; the next call tries again.
        """
        if self._behind:
            self._begin()
        try:
            self._store.wait()
        except CheckpointError:
            self._behind = True
            raise
