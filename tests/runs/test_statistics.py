"""Intervals over seeds."""

import numpy as np
import pytest
from scipy.stats import norm

import purerl
from purerl.runs.analysis import statistics


@pytest.mark.parametrize(("seeds", "share"), statistics.COVERAGE.items())
def test_intervals_of_few_seeds_have_the_documented_coverage(seeds, share):
    scores = np.random.default_rng(0).normal(size=(seeds, 2000))
    low, high = purerl.interval(scores, resamples=300)
    assert 100 * np.mean((low < 0) & (high > 0)) == pytest.approx(share, abs=3)


@pytest.mark.parametrize(
    ("ours", "theirs", "shift", "tasks"),
    [(3, 3, 1, 1), (5, 5, 0, 1), (5, 5, 2, 1), (8, 8, 1, 1), (8, 40, 1, 1), (40, 8, 2, 1), (5, 5, 1, 4), (5, 8, 2, 4)],
)
def test_improvement_interval_contains_the_true_probability(ours, theirs, shift, tasks):
    rng, true = np.random.default_rng(0), norm.cdf(shift / np.sqrt(2))
    draw = lambda mean, seeds: list(rng.normal(mean, 1, (tasks, seeds)))
    found = [statistics.improvement_interval(draw(shift, ours), draw(0, theirs)) for _ in range(300)]
    assert np.mean([low <= true <= high for low, high in found]) >= 0.9


def test_improvement_interval_of_separate_scores_has_a_width():
    low, high = statistics.improvement_interval([np.arange(5.0) + 9], [np.arange(5.0)])
    assert (round(low, 2), high) == (0.64, 1.0)
