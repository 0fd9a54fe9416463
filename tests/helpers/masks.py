"""Environments with action masks."""

import jax
import jax.numpy as jnp

import purerl


class Doors:
    """A task with a reward of 1 for choosing the open door of three, which changes in each step; `mask` maps it to a mask."""

    action_space, max_steps = purerl.Discrete(3), 6

    def __init__(self, mask=lambda door: jax.nn.one_hot(door, 3, dtype=bool), name="action_mask"):
        self.mask, self.name = mask, name

    def obs(self, door):
        return {"seen": jnp.ones(2), self.name: self.mask(door)}

    def reset(self, key):
        door = jax.random.randint(key, (), 0, 3)
        return door, self.obs(door)

    def step(self, key, door, action):
        after = (door + 1) % 3
        return after, self.obs(after), jnp.mean(action == door), False, False, {}
