"""The score of a run: what sweeps, tuning and comparisons hold against each other."""

from typing import NamedTuple

import numpy as np

from purerl.core.metrics import Mean
from purerl.runs.analysis.statistics import interval, iqm
from purerl.runs.fit import FitResult

LAST = 0.1  # of training, whose episodes are the final ones


class Summary(NamedTuple):
    """A config's scores over seeds.

    label: the config in words.
    seeds: how many have a score.
    iqm: the interquartile mean, NaN without any.
    low, high: its 95 % bootstrap interval.
    """

    label: str
    seeds: int
    iqm: float
    low: float
    high: float


def summary_of(label: str, scores: np.ndarray) -> Summary:
    """Of scores `[seeds]`, of which NaN are left out."""
    scores = scores[~np.isnan(scores)]
    if not len(scores):
        return Summary(label, 0, np.nan, np.nan, np.nan)
    return Summary(label, len(scores), float(iqm(scores)), *map(float, interval(scores)))


def final_returns(result: FitResult) -> np.ndarray:
    """The score of each run, `[runs]`: the last evaluation's, or without one that of the last tenth of training."""
    if len(result.evaluations["update"]):
        return result.evaluations["episode_return"][-1].astype(np.float64)
    return training_returns(result.metrics["episode_return"], LAST)


def training_returns(episode_return: Mean, last: float) -> np.ndarray:
    """The mean return of the episodes that ended in the last share of training, `[runs]`.

    Where none did, the mean over all of training; NaN where no episode ended at all.

    Args:
        episode_return: the metric, `[rows]` or `[runs, rows]`, on the host.
        last: the share.
    """
    totals, counts = (np.atleast_2d(x).astype(np.float64) for x in (episode_return.total, episode_return.count))
    tail = slice(-max(1, round(totals.shape[1] * last)), None)
    none = counts[:, tail].sum(1) == 0
    total, count = (np.where(none, x.sum(1), x[:, tail].sum(1)) for x in (totals, counts))
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
