"""Warnings and errors about a run's metrics: numbers that are not finite, invalid action masks, values far from returns."""

from typing import Any

import numpy as np

from purerl.core.errors import NotFiniteError, warn
from purerl.core.masks import VALUES
from purerl.runs.devices.processes import is_first

ENOUGH = 10  # updates before the share of skipped updates is judged
SHARE = 0.1  # largest share of updates that may be skipped without a warning
# SETTLED: updates before values are judged. FAR: largest value error without a warning, as a multiple of the change that the
# value clip allows in all updates so far.
SETTLED, FAR = 100, 5
MASKS = {  # metrics that are 0 unless the environment is faulty
    "empty_masks": "observations have an action mask without a valid action, so all actions were allowed; see purerl.check_env",
    "malformed_masks": f"observations have an action mask with values other than 0 and 1. {VALUES[:1].upper()}{VALUES[1:]}",
}

REUSED = "resets_reused"


class MetricWatch:
    """A check of the metrics of each chunk, which warns once about each kind of problem.

    The kinds are environment steps with numbers that are not finite, skipped updates, invalid masks, first states that are used
    again, episodes beyond the time limit, and values that the value clip keeps far from returns.

    Args:
        labels: labels of the runs.
        batch_size: steps per update of one run.
        updates: finished updates before the first chunk.
        value_clip: range of the value clip, in units of the return; None without a clip.
        max_steps: the time limit of the environments; None if unknown.
    """

    def __init__(
        self,
        labels: tuple[str, ...],
        batch_size: int,
        updates: int,
        value_clip: float | None = None,
        max_steps: int | None = None,
    ):
        self._labels, self._batch_size, self._began, self._value_clip = labels, batch_size, updates, value_clip
        self._max_steps = max_steps
        self._skipped = np.zeros(len(labels), np.int64)
        self._warned: set[str] = set()

    def __call__(self, rows: dict[str, Any], updates: int, last: bool, raises: bool) -> None:
        """Check a chunk.

        Args:
            rows: metrics of the chunk's updates, `[(runs,) length]`.
            updates: finished updates after the chunk.
            last: True if the run ends with this chunk.
            raises: raise an error if no step of an update is finite.

        Raises:
            NotFiniteError: no step of an update was finite.
        """
        for name in MASKS.keys() & rows.keys():
            if count := int(np.sum(rows[name].total)):
                self._warn(name, f"{name}: {count:,} {MASKS[name]}")
        if REUSED in rows:
            resets, reused = int(np.sum(rows[REUSED].count)), float(np.sum(rows[REUSED].total))
            if reused > 0.01 * resets:
                text = f"{reused / resets:.0%} of new episodes start like an earlier episode of the same rollout"
                self._warn(REUSED, f"{REUSED}: {text}; a larger reset_pool gives more first states")
        if self._max_steps is not None and "episode_length" in rows:
            longest = np.nanmax(rows["episode_length"].read(), initial=0)
            if longest > self._max_steps + 1:
                text = f"episodes last {longest:,.0f} steps, but max_steps of the environment is {self._max_steps:,}, at which"
                self._warn("length", f"{text} evaluations end and truncations are expected; use wrap_env(max_steps=...)")
        if self._value_clip is not None and updates >= SETTLED and "value_loss" in rows:
            self._judge_values(np.sqrt(2 * np.atleast_2d(rows["value_loss"].read())[:, -1]), updates, self._value_clip)
        counts = {name: np.atleast_2d(x.total) for name, x in rows.items() if name.startswith("nonfinite")}
        entries = {name.removeprefix("nonfinite/"): x for name, x in counts.items() if name.startswith("nonfinite/")}
        if any(x.any() for x in entries.values()):
            self._judge_resets(entries, counts["nonfinite_resets"], updates, raises)
        if "nonfinite" in counts:
            self._skipped += counts["nonfinite"].sum(1)
            if last or updates - self._began >= ENOUGH:
                self._judge_skips(updates - self._began)

    def _warn(self, kind: str, text: str) -> None:
        """Warn once about each kind of problem, in the first process only."""
        if kind not in self._warned and is_first():
            warn(text)
        self._warned.add(kind)

    def _judge_resets(self, entries: dict[str, np.ndarray], resets: np.ndarray, updates: int, raises: bool) -> None:
        """Raise an error about an update without a finite step, or warn about nonfinite steps. Counts are `[runs, length]`."""
        stacked, useless = np.stack(list(entries.values())), (resets == self._batch_size) & raises
        bad = useless if useless.any() else np.any(stacked, 0)
        place = int(np.argmax(bad.any(0)))
        run = int(np.argmax(bad[:, place]))
        name = list(entries)[int(np.argmax(stacked[:, run, place] > 0))]
        at = f"{self._labels[run]}, update {updates - resets.shape[1] + place + 1}: the environment's {name}"
        if useless[run, place]:
            raise NotFiniteError(f"{at} is not finite, or above 1e18, and no step of the update was finite; see purerl.check_env")
        then = f"{resets[run, place]} of {self._batch_size} steps reset the environment, with a reward of 0"
        if name.startswith("info/"):
            then = f"its mean excludes {stacked[:, run, place].max()} steps"
        self._warn("resets", f"{at} is not finite, or above 1e18; {then}. The metrics nonfinite/... count these steps")

    def _judge_values(self, errors: np.ndarray, updates: int, value_clip: float) -> None:
        """Warn if a value error `[runs]` exceeds 5 times the change that the clip allows: about `value_clip` per update."""
        run = int(np.argmax(np.nan_to_num(errors)))
        if errors[run] > FAR * value_clip * updates:
            text = f"{self._labels[run]}: after {updates} updates the value error is {errors[run]:,.0f}"
            then = f"and value_clip lets values move by about {value_clip:g} per update"
            hint = "normalize_reward=True scales the returns, and value_clip='none' removes the clip"
            self._warn("far values", f"{text}, {then}; {hint}")

    def _judge_skips(self, updates: int) -> None:
        run = int(np.argmax(self._skipped))
        if self._skipped[run] > SHARE * updates:
            text = f"{self._labels[run]}: nonfinite='freeze' has skipped {self._skipped[run]} of {updates} updates"
            hint = "if only some environments are not finite, nonfinite='reset' resets them and learns from the others"
            self._warn("skips", f"{text}; {hint}")
