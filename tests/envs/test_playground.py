"""Privileged observations of MuJoCo Playground, and its implementations of physics."""

import jax
import jax.numpy as jnp
import pytest

import purerl
from purerl import PPOConfig
from purerl.envs import make_env

pytestmark = pytest.mark.usefixtures("ranks")

KEY = jax.random.key(0)


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

    assert purerl.make_train(PPOConfig(), env=adapted(Robot(), None)).cfg.critic_obs == "privileged_state"
    assert make_env("playground/CartpoleBalance", (), {}).critic_obs == ""


@pytest.mark.slow
def test_masses_of_a_model_are_scaled():
    """The same force moves heavy carts less."""
    pytest.importorskip("mujoco_playground")
    randomize = {"body_mass": purerl.Scale(0.5, 2)}
    env = make_env("playground/CartpoleBalance", (), {}, info=("body_mass",), randomize=randomize)
    state, obs = jax.jit(env.reset)(jax.random.split(KEY, 8))
    after = jax.jit(env.step)(jax.random.split(KEY, (2, 8)), state, jnp.ones((8, 1)))
    gains = (after.obs - obs)[:, 3][jnp.argsort(after.info["body_mass"])]  # of the cart's speed
    assert (jnp.diff(gains) < 0).all()


def test_warp_is_refused_since_its_environments_share_arrays():
    pytest.importorskip("mujoco_playground")
    with pytest.raises(purerl.ConfigError, match=r"impl.*contacts of all environments in shared arrays.*use 'jax'"):
        purerl.make_train(PPOConfig(env="playground/CartpoleBalance", env_kwargs=(("impl", "warp"),)))
