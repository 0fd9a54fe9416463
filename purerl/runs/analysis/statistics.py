"""Aggregate statistics over seeds: the interquartile mean and its bootstrap interval (Agarwal et al. 2021, arXiv:2108.13264)."""

from collections.abc import Callable

import numpy as np


def mean(scores: np.ndarray) -> np.ndarray:
    """Over the first axis. `[seeds, ...] -> [...]`"""
    return np.mean(scores, axis=0)


def iqm(scores: np.ndarray) -> np.ndarray:
    """The interquartile mean over the first axis, `[seeds, ...] -> [...]`: of the middle half.

    Its outermost scores count in part where the seeds do not divide by 4.

    Example:
        >>> float(purerl.iqm(np.array([-100.0, 1, 2, 3, 4, 5, 6, 100])))
        3.5
    """
    edges = np.linspace(0, 1, len(scores) + 1)
    weight = np.maximum(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0)
    return np.average(np.sort(scores, axis=0), axis=0, weights=weight)


def interval(scores: np.ndarray, statistic: Callable = iqm, resamples: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % percentile bootstrap interval of a statistic over seeds: the low end and the high one, `[...]` each.

    Example:
        >>> low, high = purerl.interval(np.arange(8.0))
        >>> bool(low < 3.5 < high)
        True
    """
    rng = np.random.default_rng(0)
    draws = scores[rng.integers(len(scores), size=(resamples, len(scores)))]  # [resamples, seeds, ...]
    low, high = np.percentile(statistic(draws.swapaxes(0, 1)), [2.5, 97.5], axis=0)
    return low, high
