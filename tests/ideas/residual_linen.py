"""A residual MLP with LayerNorm as a torso, in flax linen."""

import flax.linen as nn


class Residual(nn.Module):
    width: int = 32
    blocks: int = 2

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.width)(x.reshape(x.shape[0], -1))
        for _ in range(self.blocks):
            y = nn.relu(nn.Dense(self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(y)
        return nn.LayerNorm()(x)
