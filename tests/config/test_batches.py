"""Sizes of batches and minibatches."""

import pytest

import purerl
from purerl import ConfigError, PPOConfig


def test_indivisible_minibatches_are_refused_with_divisors_that_work():
    with pytest.raises(ConfigError, match=r"num_minibatches = 7: must divide num_envs \* num_steps = 512; 4 or 8 would work"):
        purerl.make_train(PPOConfig(num_minibatches=7))


def test_standardised_minibatch_of_one_step_is_refused():
    cfg = PPOConfig(num_envs=2, num_steps=4, num_minibatches=8)
    with pytest.raises(ConfigError, match="advantage"):
        purerl.make_train(cfg)
    purerl.make_train(cfg.replace(advantage_norm="batch"))


def test_whole_floats_are_accepted_as_step_counts():
    assert PPOConfig(total_timesteps=1e6).num_updates == PPOConfig(total_timesteps=1_000_000).num_updates
    with pytest.raises(ConfigError, match="total_timesteps"):
        purerl.make_train(PPOConfig(total_timesteps=1.5))
