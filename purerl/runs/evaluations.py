"""Evaluations during a run, and the best state of each run. Neither affects training."""

import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from purerl.core.errors import CheckpointMismatch, warn
from purerl.core.metrics import LAST
from purerl.runs.storage.arrays import describe, to_arrays
from purerl.runs.storage.checkpoint import CLOCK, Store, broadcast_checkpoint
from purerl.runs.storage.files import AppendOnlyFile, Entry, read_journal, to_line

COLUMNS = ("episode_return", "episode_length", "finished")


class Evaluations:
    """The table of evaluations, in memory and in a journal (a JSON Lines file with checksums).

    Args:
        path: path of the journal; None keeps the table only in memory.
        updates: finished updates of the resumed run; 0 for a new run. Later rows and damaged rows of the journal are dropped.
        runs: number of runs.
        expected: number of rows that the journal should contain up to `updates`; a warning reports missing rows. Rows beyond
          this number are dropped: a call wrote them that was killed before its first checkpoint. None if the number is unknown.

    Raises:
        CheckpointError: the journal cannot be read.
    """

    def __init__(self, path: pathlib.Path | None, updates: int, runs: int, expected: int | None = None):
        self._runs = runs
        found = read_journal(path) if path is not None and updates else []
        self._rows = [row for row in found if row is not None and row["update"] <= updates][:expected]
        lost = max((expected or 0) - len(self._rows), found.count(None))
        if lost and path is not None:
            warn(f"{path}: {lost} evaluations are damaged or missing, and are skipped")
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
        """Return `update [evaluations]` and the columns, each `[evaluations, runs]`."""
        return _table(self._rows, self._runs)


def is_current(updates: np.ndarray, finished: int) -> bool:
    """Return True if the last evaluation was in the last tenth of the finished updates.

    Args:
        updates: `[evaluations]`, the update of each evaluation.
        finished: number of finished updates.
    """
    return len(updates) > 0 and finished - updates[-1] <= LAST * finished


def read_evaluations(path: pathlib.Path, runs: int) -> dict[str, np.ndarray]:
    """Return the table of a journal, as `Evaluations.table` does; empty without a journal. Damaged rows are left out."""
    return _table([row for row in read_journal(path) if row is not None], runs)


def _table(rows: list[Entry], runs: int) -> dict[str, np.ndarray]:
    names = dict.fromkeys((*COLUMNS, *(name for name in (rows[-1] if rows else ()) if name != "update")))
    unknown = [math.nan] * runs  # rows written by purerl 0.3 have no entries of `info`
    columns = {name: np.array([row.get(name, unknown) for row in rows], np.float32).reshape(-1, runs) for name in names}
    return {"update": np.array([row["update"] for row in rows], np.int64), **columns}


class Best:
    """The state of each run at its best evaluation, on the host and as a checkpoint.

    Unless a save fails, all best states are saved before each checkpoint. So if a run is killed between an evaluation and the
    save of its best states, the resumed run repeats the evaluation, and compares its scores with those of the saved best states.

    Args:
        store: store of the checkpoint.
        record: JSON entries that identify the run, saved with the states.
        runs: number of runs.
        by: name of the evaluation column that contains the scores; None if this run is not evaluated.
        wanted: dtypes and shapes of a state, from `arrays.describe`, for a resumed run. Saved best states are then restored,
          unless they are damaged or have other dtypes or shapes. None, for a new run, removes saved best states.
    """

    def __init__(self, store: Store, record: dict[str, Any], runs: int, by: str | None, wanted: dict[str, str] | None = None):
        self._store, self._record, self._by, self._by_before, self._name = store, record, by, by, 0
        self._arrays, self._leaves, self._behind = {}, wanted or {}, False
        self._updates, self._scores = np.zeros(runs, int), np.full(runs, -math.inf)
        if wanted is None:
            store.clear()  # left by a run that was killed before its first checkpoint
        elif saved := broadcast_checkpoint(store.newest_like(wanted)):
            best = saved.record["best"]
            self._by_before, self._name = best.get("by", COLUMNS[0]), saved.updates
            self._arrays, self._updates, self._scores = saved.arrays, np.array(best["updates"]), np.array(best["returns"])

    def resume(self, after: int, updates: int, state: Callable[[], Any]) -> None:
        """Replace restored best states from later updates than `after`, which the run does not reach, by the resumed state.

        Args:
            after: the last update whose best states are kept.
            updates: finished updates.
            state: returns the resumed state on the host. This state has no score, so the next evaluation replaces it.

        Raises:
            CheckpointMismatch: the best states that are kept were chosen by another column.
        """
        scored, late = self._scores > -math.inf, self._updates > after
        lost = scored & late
        if self._by not in (None, self._by_before) and (scored & ~late).any():
            raise CheckpointMismatch(self._store.directory, [f"best_by: {self._by_before} in the checkpoint, {self._by} here"])
        if lost.any() and after >= updates:  # otherwise the resumed run repeats the evaluation at once
            hint = f"after update {after}, which the resumed run does not reach again, and are chosen anew"
            warn(f"{self._store.directory}: the best states of {lost.sum()} runs are from {hint}")
        if lost.any():
            self._replace(lost, updates, np.full(len(lost), -math.inf), state())

    def update(self, updates: int, scores: np.ndarray, state: Any) -> None:
        """Replace the best state of each run whose score improved, and begin to save all best states.

        Raises:
            CheckpointError: the previous save or this one failed; `settle` tries again.
        """
        better = scores > self._scores
        if self._store.is_kept and better.any():
            self._replace(better, updates, scores, state)
            self._begin()

    def _replace(self, which: np.ndarray, updates: int, scores: np.ndarray, state: Any) -> None:
        """Replace the best states of some runs, `which [runs]`."""
        tree = {"state": state}
        arrays, self._leaves = to_arrays(tree), describe(tree)
        if not which.all() and self._arrays:
            rows = lambda new, old: np.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
            arrays = {path: x if path.startswith(CLOCK) else rows(x, self._arrays[path]) for path, x in arrays.items()}
        self._arrays, self._behind = arrays, True
        self._updates, self._scores = np.where(which, updates, self._updates), np.where(which, scores, self._scores)

    def _begin(self) -> None:
        best = {"updates": self._updates.tolist(), "returns": self._scores.tolist(), "by": self._by}
        record = {**self._record, "seconds": 0.0, "best": best}
        self._name = max(self._name, int(self._updates.max()))  # of all saves, the newest must have the largest number
        self._store.write(self._name, self._arrays, self._leaves, record)
        self._behind = False

    def settle(self) -> None:
        """Wait until all best states are saved.

        Raises:
            CheckpointError: a save failed; the next call tries again.
        """
        if self._behind:
            self._begin()
        self._behind = True  # until the save is complete
        self._store.wait()
        self._behind = False
