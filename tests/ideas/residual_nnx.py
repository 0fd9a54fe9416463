"""A residual MLP with LayerNorm as a torso, in flax nnx: a pair of functions."""

import functools

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


@functools.cache
def abstract(inputs):
    return nnx.split(nnx.eval_shape(lambda: Residual(inputs, 32, nnx.Rngs(0))))


def init(key, x):
    return nnx.to_pure_dict(nnx.state(Residual(x[0].size, 32, nnx.Rngs(key))))


def apply(params, x):
    graph, state = abstract(x[0].size)
    state = jax.tree.map(lambda x: x, state)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graph, state)(x)


residual = (init, apply)
