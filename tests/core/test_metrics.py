"""Summaries of metrics whose means may count nothing."""

import numpy as np

import purerl
from purerl.core.metrics import Mean, Sum


def test_summarize_carries_the_newest_mean_forward_if_asked():
    count = np.array([[0, 1, 0, 2, 0], [1, 0, 0, 0, 1]])
    metrics = {"episode_return": Mean(count * np.arange(1.0, 6.0), count), "episodes": Sum(count)}
    nan = np.nan
    plain, filled = purerl.summarize(metrics), purerl.summarize(metrics, fill=True)
    np.testing.assert_array_equal(plain["episode_return"], [[nan, 2, nan, 4, nan], [1, nan, nan, nan, 5]])
    np.testing.assert_array_equal(filled["episode_return"], [[nan, 2, 2, 4, 4], [1, 1, 1, 1, 5]])
    np.testing.assert_array_equal(filled["episodes"], count)


def test_diverged_runs_keep_their_nan():
    metrics = {"episode_return": Mean(np.array([3.0, 0.0, np.nan, 0.0]), np.array([1, 0, 2, 0]))}
    np.testing.assert_array_equal(purerl.summarize(metrics, fill=True)["episode_return"], [3, 3, np.nan, np.nan])


def test_summarize_accepts_metrics_of_one_update():
    assert np.isnan(purerl.summarize({"loss": Mean(np.float32(0), np.int32(0))}, fill=True)["loss"])
