import math

import jax.numpy as jnp
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from purerl.studies.tune import as_code


def test_metrics_counts_must_fit_int32():
    with pytest.raises(ConfigError, match="metrics_every = 2000000: an entry of metrics would cover"):
        purerl.make_train(purerl.APPOConfig(metrics_every=2_000_000, replay=4))  # 512 steps of each of four rollouts
    wide = purerl.distributions.DiagGaussian(jnp.zeros((8, 4, 17)), jnp.zeros((8, 4, 17)))
    assert wide.metrics()["policy_std"].count == 32


def test_as_code_writes_python_that_rebuilds_the_config():
    cfg = PPOConfig(max_grad_norm=math.inf, rnd=purerl.RNDConfig(obs_clip=math.inf))
    assert eval(as_code(cfg), {"math": math, "PPOConfig": PPOConfig, "RNDConfig": purerl.RNDConfig}) == cfg
