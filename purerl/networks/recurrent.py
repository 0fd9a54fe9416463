"""Recurrent networks: GRU, LSTM and a minimal GRU as flax linen modules, over the steps of training sequences.

The usual bug of recurrent agents is a carry that is reset one step early or late. Here there is one rule: where `first` is set
the carry is set to zero, and *then* the observation is read. Acting is the same program on sequences of one step.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from purerl.core.platform import scan

PyTree = Any


class Kernel(nn.Module):
    """The matrix of one gate, under its name."""

    inputs: int
    size: int

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param("kernel", nn.initializers.zeros, (self.inputs, self.size), jnp.float32)


class Gates(nn.Module):
    """`x W` for several gates at once: `[..., inputs]` to a function of them; each gate's matrix begins by itself."""

    names: tuple[str, ...]
    size: int

    @nn.compact
    def __call__(self, inputs: int) -> Callable[[jax.Array], jax.Array]:
        kernel = jnp.concatenate([Kernel(inputs, self.size, name=name)() for name in self.names], axis=-1)
        return lambda x: x @ kernel.astype(x.dtype)


class GRU(nn.Module):
    """A gated recurrent unit (Cho et al. 2014, arXiv:1406.1078), its reset gate applied after the product as in cuDNN:

        r = sigmoid(x W_r + b_r + h U_r)
        z = sigmoid(x W_z + b_z + h U_z)
        n = tanh(x W_n + b_n + r * (h U_n + c))
        h' = (1 - z) * n + z * h

    The carry is `h [N, size]`, and the output of each step its `h'`.
    """

    size: int

    @nn.compact
    def __call__(self, carry: PyTree, inputs: jax.Array, first: jax.Array) -> tuple[jax.Array, PyTree]:
        names = ("reset", "update", "candidate")
        input_gates, recurrent_gates = (
            Gates(names, self.size, name="input")(inputs.shape[-1]),
            Gates(names, self.size, name="recurrent")(self.size),
        )
        bias = self.param("bias", nn.initializers.zeros, (3, self.size), jnp.float32)
        recurrent_bias = self.param("recurrent_bias", nn.initializers.zeros, (self.size,), jnp.float32)

        def step(h, x):
            r, z, n = jnp.split(x, 3, axis=-1)
            h_r, h_z, h_n = jnp.split(recurrent_gates(h.astype(inputs.dtype)).astype(jnp.float32), 3, axis=-1)
            n = jnp.tanh(n + nn.sigmoid(r + h_r) * (h_n + recurrent_bias[None]))
            z = nn.sigmoid(z + h_z)
            h = (1 - z) * n + z * h
            return h, h

        outputs, carry = unrolled(step, carry, input_gates(inputs).astype(jnp.float32) + bias.reshape(1, 1, -1), first)
        return outputs.astype(inputs.dtype), carry


class LSTM(nn.Module):
    """A long short-term memory (Hochreiter & Schmidhuber 1997):

        i, f, o = sigmoid(x W + b + h U),    g = tanh(x W_g + b_g + h U_g)
        c' = f * c + i * g
        h' = o * tanh(c')

    The carry is `(c, h)`, each `[N, size]`, and the output of each step its `h'`.
    """

    size: int

    @nn.compact
    def __call__(self, carry: PyTree, inputs: jax.Array, first: jax.Array) -> tuple[jax.Array, PyTree]:
        names = ("input", "forget", "output", "candidate")
        input_gates, recurrent_gates = (
            Gates(names, self.size, name="input")(inputs.shape[-1]),
            Gates(names, self.size, name="recurrent")(self.size),
        )
        bias = self.param("bias", nn.initializers.zeros, (4, self.size), jnp.float32)

        def step(carry, x):
            c, h = carry
            i, f, o, g = jnp.split(x + recurrent_gates(h.astype(inputs.dtype)).astype(jnp.float32), 4, axis=-1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (c, h), h

        outputs, carry = unrolled(step, carry, input_gates(inputs).astype(jnp.float32) + bias.reshape(1, 1, -1), first)
        return outputs.astype(inputs.dtype), carry


LONGEST_MEMORY = 128.0  # steps, as a minimal GRU begins


class MinGRU(nn.Module):
    """A minimal gated recurrent unit (Feng et al. 2024, arXiv:2410.01201), whose gate and candidate read the input alone:

        z = sigmoid(x W_z + b_z)
        h' = (1 - z) * h + z * (x W_h + b_h)

    The recurrence is linear, so that all steps are computed by an associative scan, `log2(L)` operations deep. The carry is
    `h [N, size]`, and the output of each step its `h'`. The biases of the gate begin such that the units forget over 2 to 129
    steps (Tallec & Ollivier 2018, arXiv:1804.11188): with biases of 0 no seed remembers 64 steps.
    """

    size: int

    @nn.compact
    def __call__(self, carry: PyTree, inputs: jax.Array, first: jax.Array) -> tuple[jax.Array, PyTree]:
        gates = Gates(("update", "candidate"), self.size, name="input")(inputs.shape[-1])
        spread = jnp.linspace(1.0, LONGEST_MEMORY, self.size)
        bias = self.param("bias", lambda key: jnp.stack([-jnp.log(spread), jnp.zeros(self.size)]))
        z, candidate = jnp.split(gates(inputs).astype(jnp.float32) + bias.reshape(1, 1, -1), 2, axis=-1)
        z = nn.sigmoid(z)
        keep, added = jnp.where(first[..., None], jnp.zeros_like(z), 1 - z), z * candidate

        def after(one, other):  # h -> keep * h + added, one after the other
            return one[0] * other[0], other[0] * one[1] + other[1]

        keep, added = jax.lax.associative_scan(after, (keep, added))
        outputs = keep * carry[None] + added
        return outputs.astype(inputs.dtype), outputs[-1]


CELLS = {"gru": GRU, "lstm": LSTM, "min_gru": MinGRU}


def unrolled(step: Callable, carry: PyTree, inputs: jax.Array, first: jax.Array) -> tuple[jax.Array, PyTree]:
    """A cell's outputs `[L, N, size]` over L steps, and the carry after the last; emptied before each step that is a first."""

    def one(carry, x):
        inputs, first = x
        carry = jax.tree.map(lambda h: jnp.where(first[:, None], jnp.zeros_like(h), h), carry)
        return step(carry, inputs)

    carry, outputs = scan(one, carry, (inputs, first), recomputes=True)
    return outputs, carry


class Memory(nn.Module):
    """Layers of cells, each reading what the one before gives. `[L, N, F] -> [L, N, size]`; the carry is one of each layer."""

    kind: str
    size: int
    layers: int

    @nn.compact
    def __call__(self, carry: PyTree, x: jax.Array, first: jax.Array) -> tuple[jax.Array, PyTree]:
        after = []
        for i, before in enumerate(carry):
            x, last = CELLS[self.kind](self.size, name=f"layer_{i}")(before, x, first)
            after.append(last)
        return x, tuple(after)

    def initial_carry(self, num_envs: int) -> PyTree:
        """Zeros."""
        zeros = lambda: jnp.zeros((num_envs, self.size), jnp.float32)
        return tuple((zeros(), zeros()) if self.kind == "lstm" else zeros() for _ in range(self.layers))
