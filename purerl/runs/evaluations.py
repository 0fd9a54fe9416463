"""Evaluations during a run, and the best state of each run. Neither affects training."""

import math
import pathlib
from typing import Any

import numpy as np

from purerl.core.errors import CheckpointMismatch, warn
from purerl.core.metrics import LAST
from purerl.runs.storage.arrays import describe, to_arrays
from purerl.runs.storage.checkpoint import CLOCK, Store, share
from purerl.runs.storage.files import AppendOnlyFile, Entry, read_journal, to_line

COLUMNS = ("episode_return", "episode_length", "finished")


class Evaluations:
    """The table of evaluations, in memory and in a journal (a JSON Lines file with checksums).

    Args:
        path: path of the journal; None keeps the table only in memory.
        updates: finished updates of the resumed run; 0 for a new run. Later rows and damaged rows of the journal are dropped.
        runs: number of runs.
        expected: number of rows that the journal should contain up to `updates`; a warning reports missing rows. Further rows are
          of a call that was killed before its first checkpoint, and are dropped. None if the number is unknown.

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
    Best states from after the checkpoint are kept, unless `total_timesteps` has changed: the run would not reach them again.

    Args:
        store: store of the checkpoint.
        record: JSON entries that identify the run, saved with the states.
        runs: number of runs.
        by: name of the evaluation column that contains the scores; None if this run is not evaluated.
        wanted: dtypes and shapes of a state, from `arrays.describe`, for a resumed run. Saved best states are then restored,
          unless they are damaged or have other dtypes or shapes. None removes saved best states, for a new run, and for a run
          whose checkpoint has no evaluations: a call that was killed before its first checkpoint left them.
        after: finished updates of a run whose `total_timesteps` has changed: later best states are removed; None keeps all.

    Raises:
        CheckpointMismatch: the saved best states were chosen by another column.
    """

    def __init__(
        self,
        store: Store,
        record: dict[str, Any],
        runs: int,
        by: str | None,
        wanted: dict[str, str] | None = None,
        after: int | None = None,
    ):
        self._store, self._record, self._by = store, record, by
        self._arrays, self._leaves, self._behind = {}, wanted or {}, False
        self._updates, self._scores = np.zeros(runs, int), np.full(runs, -math.inf)
        if after is not None and store.clear(after):
            hint = "are removed, since a run of other total_timesteps does not reach them"
            warn(f"{store.directory}: the best states after update {after}, where the run resumes, {hint}")
        if wanted is None:
            store.clear()
        elif saved := share(store.newest_like(wanted)):
            best = saved.record["best"]
            before = best.get("by", COLUMNS[0])
            if by not in (None, before):
                raise CheckpointMismatch(store.directory, [f"best_by: {before} in the checkpoint, {by} here"])
            self._arrays, self._updates, self._scores = saved.arrays, np.array(best["updates"]), np.array(best["returns"])

    def update(self, updates: int, scores: np.ndarray, state: Any) -> None:
        """Replace the best state of each run whose score improved, and begin to save all best states.

        Raises:
            CheckpointError: the previous save or this one failed; `settle` tries again.
        """
        better = scores > self._scores
        if not (self._store.is_kept and better.any()):
            return
        tree = {"state": state}
        arrays, self._leaves = to_arrays(tree), describe(tree)
        if not better.all() and self._arrays:
            rows = lambda new, old: np.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
            arrays = {path: x if path.startswith(CLOCK) else rows(x, self._arrays[path]) for path, x in arrays.items()}
        self._arrays, self._behind = arrays, True
        self._updates, self._scores = np.where(better, updates, self._updates), np.where(better, scores, self._scores)
        self._begin()

    def _begin(self) -> None:
        best = {"updates": self._updates.tolist(), "returns": self._scores.tolist(), "by": self._by}
        record = {**self._record, "seconds": 0.0, "best": best}
        self._store.write(int(self._updates.max()), self._arrays, self._leaves, record)
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
