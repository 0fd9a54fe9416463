import math

import jax.numpy as jnp
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from purerl.studies.tune import as_code


def test_what_a_row_of_metrics_counts_fits_its_integers():
    with pytest.raises(ConfigError, match="metrics_every = 2000000: a row of metrics would count"):
        purerl.make_train(purerl.APPOConfig(metrics_every=2_000_000, replay=4))  # 512 steps of each of four rollouts
    wide = purerl.distributions.DiagGaussian(jnp.zeros((8, 4, 17)), jnp.zeros((8, 4, 17)))
    assert wide.metrics()["policy_std"].count == 32


def test_configs_are_written_as_python_that_gives_them_back():
    cfg = PPOConfig(max_grad_norm=math.inf, rnd=purerl.RNDConfig(obs_clip=math.inf))
    assert eval(as_code(cfg), {"math": math, "PPOConfig": PPOConfig, "RNDConfig": purerl.RNDConfig}) == cfg
