"""Repeated actions."""

import jax
import jax.numpy as jnp
import pytest
from flax import struct

from purerl.envs.one_state import OneState

KEY = jax.random.key(0)


@struct.dataclass
class Countdown:
    """A state that pays the remaining count, and ends at 0."""

    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    metrics: dict
    info: dict


class Counter:
    action_size = 1

    def step(self, state, action):
        obs = state.obs - 1
        return state.replace(obs=obs, reward=obs.sum(), done=(obs.sum() <= 0).astype(jnp.float32))


@pytest.mark.parametrize(("left", "paid", "after"), [(9.0, 8 + 7 + 6, 6.0), (3.0, 2 + 1 + 0, 0.0), (2.0, 1 + 0, 0.0)])
def test_action_is_repeated_until_the_episode_ends(left, paid, after):
    before = Countdown(jnp.array([left]), jnp.float32(0), jnp.float32(0), {}, {})
    _, obs, reward, terminated, *_ = OneState(Counter(), action_repeat=3).step(KEY, before, jnp.zeros(1))
    assert (obs.tolist(), float(reward), bool(terminated)) == ([after], paid, after == 0)
