"""Summaries of metrics whose means may count nothing."""

import jax.numpy as jnp
import numpy as np

import purerl
from purerl.core.metrics import Max, Mean, Sum, accumulate, aggregate, over_the_last


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


def test_maximum_ignores_nan_beside_numbers():
    values = jnp.array([np.nan, 2.0, 1.0, np.nan, np.nan])
    update = lambda i: (i + 1, {"reward_max": Max(values[i])})
    assert accumulate(update, jnp.int32(0), 4)[1]["reward_max"].read() == 2
    assert np.isnan(accumulate(update, jnp.int32(3), 2)[1]["reward_max"].read())
    assert aggregate({"x": Max(np.asarray(values))})["x"].read() == 2


def rows_of(totals, counts, steps):
    return {"x": Mean(np.float32(totals), np.int32(counts)), "steps": Sum(np.int32(steps))}


def test_last_tenth_is_counted_in_steps():
    full = rows_of(np.arange(40), np.ones(40), np.full(40, 8))
    assert over_the_last(full, "x", 0.1) == np.mean([36, 37, 38, 39])
    short = rows_of(np.arange(11), np.ones(11), [32] * 10 + [8])  # the last row has one update, the others four
    assert over_the_last(short, "x", 0.1) == np.mean([9, 10])


def test_last_tenth_without_counts_is_doubled():
    counts = np.zeros((2, 40), int)
    counts[0, [0, 33, 37]] = 1
    counts[1, [0, 5]] = 1
    metrics = rows_of(counts * np.arange(40), counts, np.full((2, 40), 8))
    assert over_the_last(metrics, "x", 0.05).tolist() == [37, 2.5]
    assert np.isnan(over_the_last(rows_of([0, 0], [0, 0], [8, 8]), "x", 0.1)).all()
    assert np.isnan(over_the_last(rows_of([], [], []), "x", 0.1)).all()
