"""The score of a run: what sweeps, tuning and comparisons hold against each other."""

from typing import NamedTuple

import numpy as np

from purerl.core.metrics import LAST, over_the_last
from purerl.runs.analysis.statistics import interval, iqm
from purerl.runs.fit import FitResult


class Summary(NamedTuple):
    """A config's scores over seeds.

    label: the config in words.
    seeds: how many have a score.
    iqm: the interquartile mean, NaN without any.
    low, high: its 95 % bootstrap interval; NaN of one seed, and too narrow below five.
    """

    label: str
    seeds: int
    iqm: float
    low: float
    high: float


def summary_of(label: str, scores: np.ndarray) -> Summary:
    """Summarise scores `[seeds]`, leaving out NaN."""
    scores = scores[~np.isnan(scores)]
    if not len(scores):
        return Summary(label, 0, np.nan, np.nan, np.nan)
    return Summary(label, len(scores), float(iqm(scores)), *map(float, interval(scores)))


def final_returns(result: FitResult) -> np.ndarray:
    """Return the score of each run, `[runs]`: the last evaluation's, or without one that of the last tenth of training.

    NaN where the run diverged or no episode ended.
    """
    if len(result.evaluations["update"]):
        scores = result.evaluations["episode_return"][-1].astype(np.float64)
    else:
        scores = over_the_last(result.metrics["episode_return"], LAST)
    return np.where(result.finite, scores, np.nan)
