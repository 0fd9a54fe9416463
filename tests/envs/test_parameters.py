"""Overrides of environment parameters."""

import gymnax
import jax
import numpy as np
import pytest
from flax import struct

import purerl
from purerl import PPOConfig
from purerl.envs.parameters import override
from tests.helpers.tiny import CFG


def test_lists_and_invalid_swept_values_of_a_parameter_are_refused():
    for values in ([1.0, 2.0], (1.0, 2.0)):
        with pytest.raises(purerl.ConfigError, match=r"env_params = .*must be a single number; for a sweep, use jax.vmap"):
            purerl.make_train(PPOConfig(env_params={"gravity": values}))
    sweep = jax.vmap(lambda x: PPOConfig(env_params={"max_steps_in_episode": x}))(np.array([5, 0]))
    with pytest.raises(purerl.ConfigError, match=r"max_steps_in_episode.*must be between 1 and"):
        purerl.fit(sweep)


@struct.dataclass
class Weights:
    w: np.ndarray


def test_lists_for_an_array_of_parameters_are_refused():
    weights = Weights(np.ones(2, np.float32))
    with pytest.raises(purerl.ConfigError, match="is an array in the environment; pass an object"):
        override(weights, {"w": [2.0, 2.0]})
    np.testing.assert_array_equal(override(weights, {"w": np.full(2, 2.0)}).w, 2)


def test_parameters_that_do_not_follow_those_they_are_made_of_warn():
    with pytest.warns(UserWarning, match="randomize: (total_mass|polemass_length) .* does not follow masspole") as found:
        purerl.make_train(CFG.replace(randomize={"masspole": purerl.Uniform(0.1, 0.5)}))
    assert len(found) == 2
    with pytest.warns(UserWarning, match="env_params: polemass_length is a separate parameter"):
        purerl.make_train(CFG.replace(env_params={"length": 1.0}))
    purerl.make_train(CFG.replace(env_params={"length": 1.0, "polemass_length": 0.1, "gravity": 5.0}))


@pytest.mark.parametrize(
    ("changes", "env"),
    [
        ({"env_params": {"masscart": 5.0, "total_mass": 5.1}}, None),
        ({"randomize": {"masscart": purerl.Uniform(1, 5)}, "env_params": {"total_mass": 5.1}}, gymnax.make("CartPole-v1")[0]),
        ({"env": "Acrobot-v1", "randomize": {"link_length_2": purerl.Uniform(0.5, 2)}}, None),
        ({"env": "Asterix-MinAtar", "env_params": {"shot_cool_down": 50}}, None),
    ],
)
def test_parameters_that_nothing_reads_warn(changes, env):
    with pytest.warns(UserWarning, match=r"(masscart|link_length_2|shot_cool_down) has no effect, since neither reset nor step"):
        purerl.make_train(CFG.replace(**changes), env=env)


def test_parameters_of_evaluations_that_nothing_reads_warn():
    train = purerl.make_train(CFG)
    state = train.init(jax.random.key(0))
    with pytest.warns(UserWarning, match="masscart has no effect"):
        train.evaluate(state, jax.random.key(0), 2, max_steps=2, env_params={"masscart": 5.0, "total_mass": 5.1})


def test_parameters_that_are_read_do_not_warn():
    purerl.make_train(CFG.replace(env="Pendulum-v1", env_params={"max_torque": 1.0, "g": 9.0, "max_steps_in_episode": 9}))
    purerl.make_train(CFG.replace(env="MountainCarContinuous-v0", env_params={"max_action": 2.0}))
    jax.vmap(lambda g: purerl.make_train(CFG.replace(env_params={"gravity": g})).init(jax.random.key(0)).params)(np.ones(2))
