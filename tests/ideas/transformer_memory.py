"""A recurrent part with gated attention over the last steps of an episode."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class Window(nn.Module):
    size: int = 16
    steps: int = 8
    heads: int = 2

    def initial_carry(self, num_envs):
        return jnp.zeros((num_envs, self.steps, self.size)), jnp.zeros((num_envs, self.steps), bool)

    @nn.compact
    def __call__(self, carry, x, first):
        inputs = nn.Dense(self.size)(x)

        def push(carry, now):
            (past, known), (y, first) = carry, now
            known = known & ~first[:, None]
            past = jnp.concatenate([past[:, 1:], y[:, None]], axis=1)
            known = jnp.concatenate([known[:, 1:], jnp.ones_like(known[:, :1])], axis=1)
            return (past, known), (past, known)

        carry, (seen, known) = jax.lax.scan(push, carry, (inputs, first))
        seen = seen + self.param("place", nn.initializers.normal(0.1), (1, 1, self.steps, self.size))
        attend = nn.MultiHeadDotProductAttention(self.heads)
        found = attend(seen[..., -1:, :], seen, mask=known[..., None, None, :])[..., 0, :]
        gate = nn.sigmoid(nn.Dense(self.size, bias_init=nn.initializers.constant(-1.0))(inputs))
        return (1 - gate) * inputs + gate * found, carry
