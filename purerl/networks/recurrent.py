"""Recurrent networks: GRU, LSTM, minimal GRU and LRU as flax linen modules, over the steps of training sequences.

The usual bug of recurrent agents is a carry that is reset one step early or late. The rule here: at the first step of an episode,
marked by `first`, the carry is set to zero *before* the observation is read. Acting uses sequences of one step.

**Which one to choose.** If single observations lack relevant information, try the GRU first. The GRU infers unseen velocities,
and learnt MiniGrid-MemoryS8 in five of eight seeds within four million steps. On this task, all seeds of feed-forward networks
guess, and the minimal GRU learnt nothing. The GRU is the best at counting marks in noise, where the LRU is the worst.

If information must be kept over many steps, or many things must be kept apart, try the LRU. The LRU remembers over 100, 300 and
1,000 steps of MemoryChain in all eight seeds (over 1,000 steps with scores of at least 0.91, and of 0.61 to 0.92 with
hyperparameters that were tuned on 100 steps). The LRU also names the card of 32 steps ago, which the minimal GRU and the GRU
hardly learn. The minimal GRU, which is simpler, remembers over 100 steps in all eight seeds, over 300 steps in seven or three
of them, depending on its hyperparameters, and over 1,000 steps in none. With four sets of hyperparameters, the GRU remembers
over 100 steps in six, one, none and three of eight seeds.

Training sequences should be longer than what is remembered. With sequences of 32 steps, only the LRU of these memories remembers
over 100 steps; with sequences of 128 steps, its scores on the chain of 300 are from 0.4 to 0.7; with sequences of 512 steps, it
learns nothing on the chain of 1,000; with sequences of 16 steps, no memory names the card of 32 steps ago.
`tests/benchmarks/RESULTS.md` has all scores, also of S5 and a gated transformer, which are custom modules there. ONNX files can
hold every memory but the LRU.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from purerl.core.platform import scan
from purerl.core.types import PyTree
from purerl.networks.recurrences import linear_recurrence


class Kernel(nn.Module):
    """A weight matrix, as a parameter with its own name. `purerl.networks.initializers.initialize` replaces its zeros."""

    inputs: int
    size: int

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param("kernel", nn.initializers.zeros, (self.inputs, self.size), jnp.float32)


class Gates(nn.Module):
    """Several weight matrices side by side, `[inputs, len(names) * size]`, each of which `initialize` samples separately."""

    names: tuple[str, ...]
    size: int

    @nn.compact
    def __call__(self, inputs: int) -> jax.Array:
        return jnp.concatenate([Kernel(inputs, self.size, name=name)() for name in self.names], axis=-1)


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Return `x @ kernel` in float32, computed in the dtype of x. One flat batch axis halves the gradient's time on a CPU."""
    rows = x.reshape(-1, x.shape[-1]) @ kernel.astype(x.dtype)
    return rows.reshape(*x.shape[:-1], -1).astype(jnp.float32)


class GRU(nn.Module):
    """A gated recurrent unit (Cho et al. 2014, arXiv:1406.1078), with the reset gate applied after the product, as in cuDNN.

        r = sigmoid(x W_r + b_r + h U_r)
        z = sigmoid(x W_z + b_z + h U_z)
        n = tanh(x W_n + b_n + r * (h U_n + c))
        h' = (1 - z) * n + z * h

    The carry is `h [N, size]`. The output of each step is `h'`. The vector c is a bias of the recurrent product.
    """

    size: int

    @nn.compact
    def __call__(self, carry: PyTree, inputs: jax.Array, first: jax.Array) -> tuple[jax.Array, PyTree]:
        kernel = Gates(("candidate", "reset", "update"), self.size, name="input")(inputs.shape[-1])
        recurrent_kernel = Gates(("reset", "update", "candidate"), self.size, name="recurrent")(self.size)
        bias = self.param("bias", nn.initializers.zeros, (3, self.size), jnp.float32)
        recurrent_bias = self.param("recurrent_bias", nn.initializers.zeros, (self.size,), jnp.float32)

        def step(h, n, gates):
            r, z, h_n = jnp.split(gates, 3, axis=-1)
            n = jnp.tanh(n + nn.sigmoid(r) * h_n)
            z = nn.sigmoid(z)
            h = (1 - z) * n + z * h
            return h, h

        x = product(inputs, kernel) + jnp.roll(bias, 1, axis=0).reshape(1, 1, -1)
        n, gates = x[..., : self.size], x[..., self.size :]
        gates = jnp.concatenate([gates, jnp.broadcast_to(recurrent_bias, n.shape)], axis=-1)
        return scan_cells(step, inputs.dtype, recurrent_kernel, carry, n, gates, first)


class LSTM(nn.Module):
    """A long short-term memory (Hochreiter & Schmidhuber 1997).

        i, f, o = sigmoid(x W + b + h U),    g = tanh(x W_g + b_g + h U_g)
        c' = f * c + i * g
        h' = o * tanh(c')

    The carry is `(c, h)`, each `[N, size]`. The output of each step is `h'`.
    """

    size: int

    @nn.compact
    def __call__(self, carry: PyTree, inputs: jax.Array, first: jax.Array) -> tuple[jax.Array, PyTree]:
        names = ("input", "forget", "output", "candidate")
        kernel = Gates(names, self.size, name="input")(inputs.shape[-1])
        recurrent_kernel = Gates(names, self.size, name="recurrent")(self.size)
        bias = self.param("bias", nn.initializers.zeros, (4, self.size), jnp.float32)

        def step(carry, _, gates):
            c, _ = carry
            i, f, o, g = jnp.split(gates, 4, axis=-1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (c, h), h

        gates = product(inputs, kernel) + bias.reshape(1, 1, -1)
        return scan_cells(step, inputs.dtype, recurrent_kernel, carry, None, gates, first)


LRU_STEPS = 1000.0  # maximum number of steps over which a state of a newly initialised LRU decays
GOLDEN_RATIO = 0.618034  # its multiples, modulo 1, are spread evenly between 0 and 1
MIN_GRU_STEPS = 128.0  # maximum number of steps over which a unit of a newly initialised minimal GRU forgets


class MinGRU(nn.Module):
    """A minimal gated recurrent unit (Feng et al. 2024, arXiv:2410.01201), whose gate and candidate read the input alone.

        z = sigmoid(x W_z + b_z)
        h' = (1 - z) * h + z * (x W_h + b_h)

    The recurrence is linear, so an accelerator computes blocks of steps side by side (`linear_recurrence`). The carry is
    `h [N, size]`. The output of each step is `h'`. The gate's biases are initialised so that the units forget over 2 to 129 steps
    (Tallec & Ollivier 2018, arXiv:1804.11188). With biases of 0, no seed learnt to remember over 64 steps of MemoryChain.
    """

    size: int

    @nn.compact
    def __call__(self, carry: PyTree, inputs: jax.Array, first: jax.Array) -> tuple[jax.Array, PyTree]:
        kernel = Gates(("update", "candidate"), self.size, name="input")(inputs.shape[-1])
        spread = jnp.linspace(1.0, MIN_GRU_STEPS, self.size, dtype=jnp.float32)
        bias = self.param("bias", lambda key: jnp.stack([-jnp.log(spread), jnp.zeros_like(spread)]))
        z, candidate = jnp.split(product(inputs, kernel) + bias.reshape(1, 1, -1), 2, axis=-1)
        z = nn.sigmoid(z)
        outputs = linear_recurrence(jnp.where(first[..., None], jnp.zeros_like(z), 1 - z), z * candidate, carry)
        return outputs.astype(inputs.dtype), outputs[-1]


class LRU(nn.Module):
    """A linear recurrent unit (Orvieto et al. 2023, arXiv:2303.06349), with learnt rates of decay.

        s' = lambda * s + sqrt(1 - |lambda|^2) * (x B),    lambda = exp(-exp(nu) + i exp(theta))
        y = gelu(Re(s') C_r + Im(s') C_i + x D + c)

    The carry is `(Re(s), Im(s))`, each `[N, size]`. The output of each step is y. In a newly initialised LRU, the states decay
    over 1 to 1,000 steps, and rotate by 0 to pi per step. Without rotation, constant inputs add up in the slow states, and their
    sum hides a single early input.
    """

    size: int

    @nn.compact
    def __call__(self, carry: PyTree, inputs: jax.Array, first: jax.Array) -> tuple[jax.Array, PyTree]:
        kernel = Gates(("real", "imaginary", "direct"), self.size, name="input")(inputs.shape[-1])
        steps = jnp.geomspace(1.0, LRU_STEPS, self.size, dtype=jnp.float32)
        nu = self.param("nu", lambda key: -jnp.log(steps))
        rotations = np.pi * (np.arange(1, self.size + 1) * GOLDEN_RATIO % 1)  # per step; spread over all rates of decay
        theta = self.param("theta", lambda key: jnp.log(jnp.asarray(rotations, jnp.float32)))
        bias = self.param("bias", nn.initializers.zeros, (self.size,), jnp.float32)
        real, imaginary, direct = jnp.split(product(inputs, kernel), 3, axis=-1)
        added = jax.lax.complex(real, imaginary) * jnp.sqrt(-jnp.expm1(-2 * jnp.exp(nu)))[None, None]
        # A product instead of `where`, since XLA for CPUs would compute the cosines again for each step and environment.
        decay = jnp.exp(-jnp.exp(nu))[None] * jnp.stack([jnp.cos(jnp.exp(theta)), jnp.sin(jnp.exp(theta))])
        stays = jnp.where(first, 0.0, 1.0).reshape(-1, 1)
        keep = [jnp.dot(stays, part[None], precision="highest").reshape(added.shape) for part in decay]
        states = linear_recurrence(jax.lax.complex(*keep), added, jax.lax.complex(*carry))
        read = jnp.concatenate([states.real, states.imag], axis=-1).astype(inputs.dtype)
        outputs = nn.gelu(product(read, Kernel(2 * self.size, self.size, name="output")()) + direct + bias[None, None])
        return outputs.astype(inputs.dtype), (states[-1].real, states[-1].imag)


CELLS = {"gru": GRU, "lstm": LSTM, "min_gru": MinGRU, "lru": LRU}


def scan_cells(
    step: Callable, dtype: Any, kernel: jax.Array, carry: PyTree, inputs: PyTree, gates: jax.Array, first: jax.Array
) -> tuple[jax.Array, PyTree]:
    """Run a cell over L steps. Before each step where `first` is set, the carry is set to zero.

    Recurrent gates are `a_t = x_t + h_(t-1) U`. The gradient of U is one product over all steps, `dU = sum_t h_(t-1)^T da_t`,
    computed after the backward loop. Autodiff of `lax.scan` would compute a small product and a sum in each step. With
    minibatches of 8 sequences of 128 steps, a GRU on two cores trains 1.4 times as fast with the one product.

    Args:
        step: function from the carry, `inputs` of one step and `a [N, gates]` to the next carry and the output h.
        dtype: dtype of the product `h U`.
        kernel: U `[size, gates]`.
        carry: the carry before the first step; h is its last array.
        inputs: further inputs of `step`, `[L, N, ...]`; None if there are none.
        gates: x `[L, N, gates]`.
        first: `[L, N]` bool, True at the first step of an episode.

    Returns:
        The outputs `[L, N, size]`, converted to `dtype`, and the carry after the last step.
    """
    hidden = lambda carry: jax.tree.leaves(carry)[-1]

    def run(kernel, carry, inputs, gates, first):
        def one(carry, x):
            inputs, gates, first = x
            carry = jax.tree.map(lambda h: jnp.where(first[:, None], jnp.zeros_like(h), h), carry)
            return step(carry, inputs, gates + product(hidden(carry).astype(dtype), kernel))

        carry, outputs = scan(one, carry, (inputs, gates, first), recomputes=True)
        return outputs, carry

    def forward(kernel, carry, inputs, gates, first):
        found, back = jax.vjp(lambda carry, inputs, gates: run(kernel, carry, inputs, gates, first), carry, inputs, gates)
        before = jnp.concatenate([hidden(carry)[None], found[0][:-1]])
        return found, (back, jnp.where(first[..., None], jnp.zeros_like(before), before).astype(dtype))

    def backward(kept, cotangents):
        back, before = kept
        d_carry, d_inputs, d_gates = back(cotangents)
        d_kernel = jnp.einsum("lnh,lng->hg", before, d_gates.astype(dtype)).astype(jnp.float32)
        return d_kernel, d_carry, d_inputs, d_gates, None

    outputs = jax.custom_vjp(run)
    outputs.defvjp(forward, backward)
    found, carry = outputs(kernel, carry, inputs, gates, first)
    return found.astype(dtype), carry


class Memory(nn.Module):
    """Stacked recurrent layers, `[L, N, F] -> [L, N, size]`. The carry has one entry per layer."""

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
        """Return a carry of zeros."""
        zeros = lambda: jnp.zeros((num_envs, self.size), jnp.float32)
        return tuple((zeros(), zeros()) if self.kind in ("lstm", "lru") else zeros() for _ in range(self.layers))
