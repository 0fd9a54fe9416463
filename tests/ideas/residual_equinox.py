"""A residual MLP with LayerNorm as a torso, in equinox: a pair of functions."""

import equinox as eqx
import jax


class Residual(eqx.Module):
    enter: eqx.nn.Linear
    widen: eqx.nn.Linear
    back: eqx.nn.Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, key, inputs, width):
        keys = jax.random.split(key, 3)
        self.enter = eqx.nn.Linear(inputs, width, key=keys[0])
        self.widen, self.back = (eqx.nn.Linear(width, width, key=k) for k in keys[1:])
        self.norm = eqx.nn.LayerNorm(width)

    def __call__(self, x):
        x = self.enter(x.ravel())
        return x + self.back(jax.nn.relu(self.widen(self.norm(x))))


def init(key, x):
    return eqx.filter(Residual(key, x[0].size, 32), eqx.is_array)


residual = (init, lambda module, x: jax.vmap(module)(x))
