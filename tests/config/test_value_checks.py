"""Refused values of fields."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from purerl.config.fields import is_float_leaf

LEAVES = [f.name for f in dataclasses.fields(PPOConfig) if is_float_leaf(f)]


def test_all_problems_are_reported_at_once():
    cfg = PPOConfig(env="CartPol-v1", lr=-1.0, gamma=math.nan, num_minibatches=7, hidden=(0,), activation="sine", num_epochs=2.0)
    with pytest.raises(ConfigError) as error:
        purerl.make_train(cfg)
    fields = [problem.field for problem in error.value.problems]
    assert fields == ["lr", "gamma", "hidden", "activation", "num_epochs", "env"]
    for problem in error.value.problems:
        assert problem.field in str(error.value)
        assert repr(problem.value) in str(error.value)


def test_traced_static_field_is_refused():
    with pytest.raises(ConfigError, match=r"num_envs.*static"):
        jax.jit(lambda n: purerl.make_train(PPOConfig().replace(num_envs=n)).init(jax.random.key(0)))(4)


def test_array_of_learning_rates_needs_vmap():
    with pytest.raises(ConfigError, match="vmap"):
        purerl.make_train(PPOConfig(lr=np.array([1e-3, 1e-4, 1e-5])))


def test_concrete_swept_values_are_checked():
    sweep = jax.vmap(lambda lr: PPOConfig().replace(lr=lr))(jnp.array([1e-3, -1.0, jnp.nan]))
    with pytest.raises(ConfigError, match=r"lr = .*invalid: -1.0, nan"):
        purerl.validate(sweep)
    purerl.validate(jax.vmap(lambda lr: PPOConfig().replace(lr=lr))(jnp.array([1e-3, 1e-4])))


@pytest.mark.parametrize("name", LEAVES)
def test_every_float_field_refuses_nan_and_text(name):
    for wrong in (math.nan, "0.1", True, None):
        with pytest.raises(ConfigError) as error:
            purerl.validate(PPOConfig().replace(**{name: wrong}))
        assert error.value.problems[0].field == name


@pytest.mark.parametrize("value", ["0.2", None])
def test_invalid_clip_eps_is_refused_under_a_schedule_too(value):
    with pytest.raises(ConfigError, match="clip_eps"):
        purerl.make_train(PPOConfig(clip_schedule="linear", clip_eps=value))
