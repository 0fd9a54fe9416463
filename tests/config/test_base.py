import jax.numpy as jnp
import pytest

import purerl
from purerl import ConfigError


def test_metrics_counts_must_fit_int32():
    with pytest.raises(ConfigError, match="metrics_every = 2000000: an entry of metrics would cover"):
        purerl.make_train(purerl.APPOConfig(metrics_every=2_000_000, replay=4))  # 512 steps of each of four rollouts
    wide = purerl.distributions.DiagGaussian(jnp.zeros((8, 4, 17)), jnp.zeros((8, 4, 17)))
    assert wide.metrics()["policy_std"].count == 32
