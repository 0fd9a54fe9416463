"""The rule that ends a run early: a function of the run's progress, called at given updates, never at given times."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from purerl.core.errors import config_error, is_number
from purerl.core.metrics import summarize
from purerl.runs.devices.processes import is_first
from purerl.runs.logging.progress import Progress
from purerl.runs.storage.checkpoint import Checkpoint
from purerl.runs.storage.curves import Rows, add_rows, nothing

Rule = Callable[[Progress], Any]
STOPPED = "stop_when"


class Stopping:
    """The rule that ends a run early, and the metrics since the rule's last call.

    Neither the updates after which the rule is called nor the metrics that the rule receives depend on the lengths of chunks or
    on where the run resumed. So the run ends after the same update however fast the machine is. In a job of several processes,
    only the first process calls the rule.

    Args:
        rule: the function, or None.
        every: intervals in updates; the rule is called at all multiples of each interval. An interval of 0 is ignored.
        row: dtype of a row of metrics.
        saved: the checkpoint that the run resumes from, if any.
    """

    def __init__(self, rule: Rule | None, every: tuple[int, ...], row: np.dtype, saved: Checkpoint | None = None):
        self._rule, self.every, self._row = rule, tuple(n for n in every if n) if rule else (), row
        arrays, record = (saved.arrays, saved.record) if saved is not None else ({}, {})
        self._asked = _restore(arrays, _nothing(row))
        self.was_stopped = rule is not None and record.get("stopped_by") == STOPPED

    @property
    def saved(self) -> dict[str, Any]:
        """Return the metrics since the rule's last call, as a part of a checkpoint's tree."""
        return {"asked": self._asked} if self._rule else {}

    def append(self, rows: Rows) -> None:
        """Add the metrics of a chunk, leaves `[..., updates]`."""
        if self._rule:
            self._asked = add_rows(self._asked, rows, jax.tree.leaves(rows)[0].shape[-1])

    def is_over(self, progress: Progress) -> bool:
        """Return True if the rule is due and ends the run. The rule receives `progress` with the metrics since its last call."""
        if self._rule is None or not any(progress.updates % every == 0 for every in self.every) or not is_first():
            return False
        found = self._rule(progress._replace(metrics=self._asked))
        if np.size(found) != 1:
            hint = "not one; reduce the values of several runs, for example by .mean() or .all()"
            raise config_error("stop_when", ..., f"returned {np.size(found)} values, {hint}")
        if found:
            return True
        self._asked = _nothing(self._row)
        return False


def _nothing(row: np.dtype) -> Rows:
    """Return one row that counts nothing, in 64 bits, since more than 2^31 steps may lie between two calls of the rule."""
    return jax.tree.map(lambda x: x.astype(np.float64 if x.dtype.kind == "f" else np.int64), nothing(row))


def _restore(arrays: dict[str, np.ndarray], row: Rows) -> Rows:
    """Return the saved row from a checkpoint's arrays. A metric that is missing or has another shape or dtype starts empty."""

    def leaf(path: Any, x: np.ndarray) -> np.ndarray:
        saved = arrays.get(jax.tree_util.keystr(path), x)
        return saved.astype(x.dtype) if saved.shape == x.shape and np.can_cast(saved.dtype, x.dtype) else x

    return jax.tree_util.tree_map_with_path(leaf, {"asked": row})["asked"]


def at_return(value: float) -> Rule:
    """Return a rule that ends training once the mean return over all runs is at least `value`.

    The rule uses the latest evaluation, without returns that are not finite. Without evaluations, the rule averages each run's
    mean return in the training episodes since the rule's last call. If a run has ended no episode since then, training continues.

    Raises:
        ConfigError: `value` is not a number, or NaN.

    Example:
        >>> rule = purerl.at_return(20)
        >>> cfg = purerl.PPOConfig(env="CartPole-v1", total_timesteps=2048)
        >>> purerl.fit(cfg, stop_when=rule, stop_every=1).stopped_by
        'stop_when'
    """
    if not is_number(value) or value != value:
        raise config_error("value", value, "must be a number")

    def is_reached(progress: Progress) -> bool:
        if progress.evaluation is None:
            return bool(np.mean(summarize(progress.metrics)["episode_return"]) >= value)
        returns = progress.evaluation["episode_return"]
        finite = returns[np.isfinite(returns)]
        return finite.size > 0 and bool(finite.mean() >= value)

    return is_reached
