import math

import jax
import jax.numpy as jnp
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from purerl.runs.run_batch import settled, swept
from purerl.studies.tune import as_code


def test_what_a_row_of_metrics_counts_fits_its_integers():
    with pytest.raises(ConfigError, match="metrics_every = 2000000: a row of metrics would count"):
        purerl.make_train(purerl.APPOConfig(metrics_every=2_000_000, replay=4))  # 512 steps of each of four rollouts
    wide = purerl.distributions.DiagGaussian(jnp.zeros((8, 4, 17)), jnp.zeros((8, 4, 17)))
    assert wide.metrics()["policy_std"].count == 32


def test_configs_are_written_as_python_that_gives_them_back():
    cfg = PPOConfig(max_grad_norm=math.inf, rnd=purerl.RNDConfig(obs_clip=math.inf))
    assert eval(as_code(cfg), {"math": math, "PPOConfig": PPOConfig, "RNDConfig": purerl.RNDConfig}) == cfg


def test_the_fields_that_a_batch_varies_are_those_that_differ():
    cfg = PPOConfig(env_params={"max_steps_in_episode": 200})
    batch = settled(jax.vmap(lambda lr: cfg.replace(lr=lr))(jnp.array([1e-3, 1e-2])))
    assert list(swept(batch)) == ["lr"]
