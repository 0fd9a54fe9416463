"""A residual MLP with LayerNorm as a torso, in flax nnx: a pair of functions."""

import jax
from flax import nnx


class Residual(nnx.Module):
    def __init__(self, inputs, width, rngs):
        self.enter = nnx.Linear(inputs, width, rngs=rngs)
        self.norm, self.last = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.widen, self.back = (nnx.Linear(width, width, rngs=rngs) for _ in range(2))

    def __call__(self, x):
        x = self.enter(x.reshape(x.shape[0], -1))
        return self.last(x + self.back(jax.nn.relu(self.widen(self.norm(x)))))


def split(key, x):
    return nnx.split(Residual(x[0].size, 32, nnx.Rngs(key)))


def init(key, x):
    return nnx.to_pure_dict(split(key, x)[1])


def apply(params, x):
    graph, state = jax.eval_shape(split, jax.random.key(0), x)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graph, state)(x)


residual = (init, apply)
