"""Privileged observations of MuJoCo Playground, and its implementations of physics."""

import jax.numpy as jnp
import pytest

import purerl
from purerl import PPOConfig
from purerl.envs import make_env

pytestmark = pytest.mark.usefixtures("ranks")


@pytest.mark.slow
def test_only_the_value_network_reads_playgrounds_privileged_state():
    """A stand-in has the observations of playground's robots, whose models would need a download."""
    pytest.importorskip("mujoco_playground")
    from ml_collections import ConfigDict
    from mujoco_playground._src.mjx_env import State

    from purerl.envs.playground import adapted

    class Robot:
        _config, action_size, dt = ConfigDict({"episode_length": 5, "action_repeat": 1}), 2, 0.02

        def reset(self, key):
            obs = {"state": jnp.ones(2), "privileged_state": jnp.ones(5)}
            return State(None, obs, jnp.float32(0), jnp.float32(0), {}, {})

        def step(self, state, action):
            return state.replace(reward=action.sum())

    assert purerl.make_train(PPOConfig(), env=adapted(Robot())).cfg.critic_obs == "privileged_state"
    assert make_env("playground/CartpoleBalance", (), {}).critic_obs == ""


def test_warp_is_refused_since_its_environments_share_arrays():
    pytest.importorskip("mujoco_playground")
    with pytest.raises(purerl.ConfigError, match=r"impl.*contacts of all environments in shared arrays.*use 'jax'"):
        purerl.make_train(PPOConfig(env="playground/CartpoleBalance", env_kwargs=(("impl", "warp"),)))
