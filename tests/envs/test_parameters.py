"""Overrides of environment parameters."""

import jax
import numpy as np
import pytest

import purerl
from purerl import PPOConfig


def test_lists_and_invalid_swept_values_of_a_parameter_are_refused():
    for values in ([1.0, 2.0], (1.0, 2.0)):
        with pytest.raises(purerl.ConfigError, match=r"env_params = .*must be a single number; for a sweep, use jax.vmap"):
            purerl.make_train(PPOConfig(env_params={"gravity": values}))
    sweep = jax.vmap(lambda x: PPOConfig(env_params={"max_steps_in_episode": x}))(np.array([5, 0]))
    with pytest.raises(purerl.ConfigError, match=r"max_steps_in_episode.*must be between 1 and"):
        purerl.fit(sweep)
