"""A recurrent cell: a moving average with learnt rates, reset at the start of an episode."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class MovingAverage(nn.Module):
    size: int = 16

    def initial_carry(self, num_envs):
        return jnp.zeros((num_envs, self.size))

    @nn.compact
    def __call__(self, carry, x, first):
        inputs = nn.tanh(nn.Dense(self.size)(x))
        keep = nn.sigmoid(self.param("rate", nn.initializers.ones, (self.size,)))[None]

        def step(h, now):
            y, first = now
            h = jnp.where(first[:, None], 0.0, h)
            h = keep * h + (1 - keep) * y
            return h, h

        carry, y = jax.lax.scan(step, carry, (inputs, first))
        return jnp.concatenate([x, y], axis=-1), carry
