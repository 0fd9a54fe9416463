"""Rungs: the parts that the training of a study's trials is cut into, and which trials go on after each."""

from collections.abc import Iterable, Sequence

import numpy as np

from purerl.core.errors import ConfigError, Problem
from purerl.pure import Train


def end_of_rung(rung: int, rungs: int, num_updates: int) -> int:
    """Return the number of updates after which a rung ends; each rung has twice the updates of the one before."""
    return 0 if rung < 0 else max(rung + 1, num_updates >> (rungs - 1 - rung))


def going_on(values: Sequence[float], rungs: Sequence[int]) -> np.ndarray:
    """Return which trials go on: those that are not below the median of all values at their rung.

    A simulation chose the rule, `tests/benchmarks/pruning.py`: with as many steps, an allowance for the noise of a value finds no
    better trials, since noisy ones profit from it.

    Args:
        values: `[reported]` means over seeds, of everything reported so far; NaN if unknown, which stops no trial.
        rungs: `[reported]` at which they were reported.
    """
    reported, at = np.asarray(values, float), np.asarray(rungs)
    kept = np.ones(len(reported), bool)
    for rung in np.unique(at):
        here = (at == rung) & ~np.isnan(reported)
        if here.any():
            kept[here] = reported[here] >= np.median(reported[here])
    return kept


def check_rungs(trains: Iterable[Train], rungs: int) -> str:
    """Check that an episode fits into the first rung. Return what is to be warned of, or "".

    Raises:
        ConfigError: fewer rungs would be long enough.
    """
    most, hint, warning = rungs, "", ""
    for train in trains:
        limit, updates = train.env.max_steps or 0, train.plan.num_updates
        steps = {n: end_of_rung(0, n, updates) * train.cfg.num_steps for n in range(1, rungs + 1)}
        most_here = max((n for n in steps if steps[n] >= limit), default=0)
        if not most_here:
            warning = f"an episode may take {limit:,} steps, and training has {steps[1]:,} of each environment: "
            warning += "a trial has a score only if episodes end earlier; a larger total_timesteps would make sure of it"
        elif most_here < most:
            hint = f"an episode may take {limit:,} steps, and the first rung has {steps[rungs]:,} of each environment"
            most = most_here
    if most < rungs:
        raise ConfigError([Problem("rungs", rungs, f"{hint}; {most} would do, or a larger total_timesteps")])
    return warning
