"""A whole custom recurrent network in flax linen, for `purerl.from_linen`."""

import flax.linen as nn
import jax.numpy as jnp

from tests.ideas.own_memory import MovingAverage


class Tower(nn.Module):
    sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, carry, x, first):
        x, carry = MovingAverage(16)(carry, x, first)
        return [nn.Dense(size)(x) for size in self.sizes], carry


class Recurrent(nn.Module):
    num_actions: int
    streams: int = 1

    def setup(self):
        self.policy, self.value = Tower((self.num_actions, 16)), Tower((self.streams,))
        self.aux_value, self.advantage = nn.Dense(1), nn.Dense(1 + self.num_actions)

    def initial_carry(self, num_envs):
        return (jnp.zeros((num_envs, 16)), jnp.zeros((num_envs, 16)))

    def __call__(self, carry, obs, first):
        (logits, x), h = self.policy(carry[0], obs, first)
        (value,), g = self.value(carry[1], obs, first)
        constant, weight = jnp.split(self.advantage(x), [1], -1)
        heads = {"aux_value": self.aux_value(x)[..., 0], "advantage": (constant[..., 0], weight)}
        return (logits, value, heads), (h, g)
