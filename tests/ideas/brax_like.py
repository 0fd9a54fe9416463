"""An environment like Brax's, whose state holds observation, reward and done, adapted for `purerl.wrap_env`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import purerl


class State(NamedTuple):
    pipeline: jax.Array
    obs: jax.Array
    reward: jax.Array
    done: jax.Array


class Hopper:
    def reset(self, rng):
        x = jax.random.normal(rng, (3,)) / 10
        return State(x, x, jnp.float32(0), jnp.float32(0))

    def step(self, state, action):
        x = 0.9 * state.pipeline + 0.1 * action
        return State(x, x, -jnp.square(x).sum(), (jnp.abs(x) > 3).any().astype(jnp.float32))


class Bare:
    env, action_space = Hopper(), purerl.Box(-np.ones(3, np.float32), np.ones(3, np.float32))

    def reset(self, key):
        state = self.env.reset(key)
        return state, state.obs

    def step(self, key, state, action):
        new = self.env.step(state, action)
        return new, new.obs, new.reward, new.done > 0, False, {}


hopper = purerl.wrap_env(Bare(), max_steps=50)
