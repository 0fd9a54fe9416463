"""Warnings and errors for what the metrics of a run count as wrong: numbers that are not finite, and action masks."""

import warnings
from typing import Any

import numpy as np

from purerl.core.errors import NotFiniteError
from purerl.core.masks import VALUES
from purerl.runs.processes import is_first

ENOUGH = 10  # updates after which a share of them is judged
RESETS, SKIPS = "resets", "skips"
SHARE = 0.1  # of updates, that may be skipped without a warning
MASKS = {  # metrics that are 0 unless the environment is wrong
    "empty_masks": "observations have an action mask without a valid action, and any action was taken; purerl.check_env tells",
    "malformed_masks": f"observations have an action mask with values other than 0 and 1. {VALUES[:1].upper()}{VALUES[1:]}",
}


class MetricWatch:
    """Read the metrics of each chunk, and warn once of each kind: environments that were reset, skipped updates, wrong masks.

    Args:
        labels: of the runs.
        batch_size: steps of one update of one run.
        updates: before the first chunk.
    """

    def __init__(self, labels: tuple[str, ...], batch_size: int, updates: int):
        self._labels, self._batch_size, self._began = labels, batch_size, updates
        self._skipped = np.zeros(len(labels), np.int64)
        self._warned = set() if is_first() else {RESETS, SKIPS, *MASKS}  # the other processes have the same to say

    def __call__(self, rows: dict[str, Any], updates: int, last: bool, raises: bool) -> None:
        """Judge a chunk.

        Args:
            rows: metrics of its updates, `[(runs,) length]`.
            updates: after it.
            last: the run ends with it.
            raises: an update without any finite step is an error.

        Raises:
            NotFiniteError: every step of an update was not finite.
        """
        for name in MASKS.keys() & rows.keys() - self._warned:
            if count := int(np.sum(rows[name].total)):
                self._warned.add(name)
                warnings.warn(f"{name}: {count:,} {MASKS[name]}", stacklevel=3)
        counts = {name: np.atleast_2d(x.total) for name, x in rows.items() if name.startswith("nonfinite")}
        if any(x.any() for name, x in counts.items() if name.startswith("nonfinite/")):
            self._judge_resets(counts, updates, raises)
        if "nonfinite" in counts:
            self._skipped += counts["nonfinite"].sum(1)
            if last or updates - self._began >= ENOUGH:
                self._judge_skips(updates - self._began)

    def _judge_resets(self, counts: dict[str, np.ndarray], updates: int, raises: bool) -> None:
        resets = counts["nonfinite_resets"]  # [runs, length]
        entries = {name.removeprefix("nonfinite/"): x for name, x in counts.items() if name.startswith("nonfinite/")}
        stacked = np.stack(list(entries.values()))
        bad = resets == self._batch_size if raises and (resets == self._batch_size).any() else np.any(stacked, 0)
        place = int(np.argmax(bad.any(0)))
        run = int(np.argmax(bad[:, place]))
        name = list(entries)[int(np.argmax(stacked[:, run, place] > 0))]
        at = f"{self._labels[run]}, update {updates - resets.shape[1] + place + 1}: the environment's {name}"
        if raises and resets[run, place] == self._batch_size:
            raise NotFiniteError(f"{at} is not finite, or above 1e18, and no step of the update was finite; see purerl.check_env")
        if RESETS not in self._warned:
            self._warned.add(RESETS)
            left_out = f"left out of its mean in {stacked[:, run, place].max()} steps"
            ended = f"in {resets[run, place]} of its {self._batch_size} steps the environment was reset, with a reward of 0"
            then = left_out if name.startswith("info/") else ended
            warnings.warn(f"{at} is not finite, or above 1e18; {then}. The metrics nonfinite/... count it", stacklevel=4)

    def _judge_skips(self, updates: int) -> None:
        run = int(np.argmax(self._skipped))
        if SKIPS not in self._warned and self._skipped[run] > SHARE * updates:
            self._warned.add(SKIPS)
            text = f"{self._labels[run]}: nonfinite='freeze' has skipped {self._skipped[run]} of {updates} updates"
            hint = "if single environments are not finite, nonfinite='reset' resets them and learns from the others"
            warnings.warn(f"{text}; {hint}", stacklevel=4)
