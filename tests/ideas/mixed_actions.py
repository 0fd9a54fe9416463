"""Discrete and continuous actions together: choose the right tool, and a force for it."""

import jax
import jax.numpy as jnp
import numpy as np

import purerl


class Workshop:
    action_space = {"tool": purerl.Discrete(3), "force": purerl.Box(np.zeros(1), np.full(1, 40.0))}
    max_steps = 10

    def reset(self, key):
        task = jax.random.uniform(key, (2,))
        return (key, task), task

    def step(self, key, state, action):
        right = action["tool"] == (3 * state[1][0]).astype(jnp.int32)
        distance = jnp.abs(action["force"][0] / 40 - state[1][1])
        state, task = self.reset(jax.random.fold_in(state[0], 1))
        return state, task, right - distance, False, False, {}
