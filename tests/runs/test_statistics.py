"""Intervals over seeds."""

import numpy as np
import pytest

import purerl
from purerl.runs.analysis import statistics


@pytest.mark.parametrize(("seeds", "share"), statistics.COVERAGE.items())
def test_intervals_of_few_seeds_have_the_documented_coverage(seeds, share):
    scores = np.random.default_rng(0).normal(size=(seeds, 2000))
    low, high = purerl.interval(scores, resamples=300)
    assert 100 * np.mean((low < 0) & (high > 0)) == pytest.approx(share, abs=3)


@pytest.mark.parametrize("sizes", [(8, 40), (40, 8), (20, 20)])
def test_improvement_interval_reflects_the_seeds_of_both_sides(sizes):
    """The standard deviation has a closed form (DeLong et al. 1988): the variance of the ranks of each side in the other."""
    rng, widths, known = np.random.default_rng(0), [], []
    for _ in range(6):
        x, y = rng.normal(0.3, 1, sizes[0]), rng.normal(size=sizes[1])
        above = x[:, None] > y
        variance = above.mean(1).var() / len(x) + above.mean(0).var() / len(y)
        low, high = statistics.improvement_interval([x], [y], resamples=500)
        widths.append(high - low)
        known.append(2 * 1.96 * np.sqrt(variance))
    assert np.mean(widths) == pytest.approx(np.mean(known), rel=0.1)
