"""Metrics of a rollout."""

import math

import jax
import numpy as np

import purerl
from tests.helpers.probes import Rich
from tests.helpers.tiny import CFG, tiny

KEY = jax.random.key(0)


def test_info_entries_appear_in_metrics_and_episodes():
    train = purerl.make_train(CFG.replace(info=("time",)), env=Rich())
    result = jax.jit(train)(KEY)
    metrics = result.metrics["info/time"]
    assert (metrics.count == 64).all()
    assert (metrics.total > 64).all()
    episodes = train.evaluate(result.state, KEY, 16, max_steps=6)
    n = episodes.lengths
    np.testing.assert_array_equal(episodes.info["time"], n * (n + 1) // 2)  # 1 + 2 + ... + n


def test_gaussian_policy_reports_its_standard_deviation():
    metrics = purerl.summarize(jax.jit(tiny(CFG.replace(log_std_init=-1.0), box=True))(KEY).metrics)
    np.testing.assert_allclose(metrics["policy_std"][0], math.exp(-1), rtol=1e-3)
