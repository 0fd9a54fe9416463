"""Dense layers as one GPU kernel forward and one GPU kernel backward, for configs with `kernels="fused"`.

XLA computes two hidden layers and their gradient with some twenty GPU kernels, each of which reads and writes activations
`[N, width]`. The kernels of `fused_kernels.py` read inputs and write outputs, and compute activations again for the gradient. In
an update of 65,536 CartPoles x 32 steps, compiled for an H100, a minibatch has 16 kernels instead of 37, which move 0.4 kB for
each batch row instead of 12 kB (`tests/benchmarks/programs.md`). The time on a GPU has not been measured yet.

This module checks which layers can be fused, and packs their parameters. It imports Pallas only to compute fused layers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from purerl.config.base import OnPolicyConfig
from purerl.core.errors import Problem
from purerl.core.platform import FEW

# Limits within which no kernel spills registers, as ptxas reports for an H100 (`programs_fused.py --registers`).
NARROW, WIDE = 64, 128  # maximum widths of narrow and of wide hidden layers
LAYERS = {NARROW: 3, WIDE: 2}  # maximum number of hidden layers
INPUTS = {NARROW: 64, WIDE: 16}  # maximum input size of a first layer that can be fused
OUTPUTS = 32  # maximum number of outputs of a head

Layer = dict[str, jax.Array]  # `kernel [inputs, width]` and `bias [width]`


def kernel_problems(cfg: OnPolicyConfig) -> list[Problem]:
    """Report the config's layers that cannot be fused, since they would not fit into registers."""
    if cfg.kernels != "fused":
        return []
    found = []
    for name in ("hidden", "critic_hidden"):
        widths = getattr(cfg, name)
        most = LAYERS[_limit_of(widths)] if widths else 0
        if max(widths, default=1) > WIDE or len(widths) > most or (name == "hidden" and not widths):
            hint = f"cannot be fused; use 1 to 3 layers of width up to {NARROW}, 1 or 2 of width up to {WIDE}, or kernels='xla'"
            found.append(Problem(name, widths, hint))
    if cfg.matmul_precision != "default" and max((*cfg.hidden, *cfg.critic_hidden), default=0) > NARROW:
        hint = f"needs layers of width up to {NARROW} if they are fused; use 'default', or kernels='xla'"
        found.append(Problem("matmul_precision", cfg.matmul_precision, hint))
    return found


def _limit_of(widths: Sequence[int]) -> int:
    return NARROW if max(widths) <= NARROW else WIDE


def fuses_first_layer(inputs: int, hidden: Sequence[int]) -> bool:
    """Return True if the first layer is fused. XLA computes a first layer with a large input, and the first of three layers."""
    return len(hidden) < 3 and inputs <= INPUTS[_limit_of(hidden)]


class FusedLayers(struct.PyTreeNode):
    """Layers of `n` networks with equal hidden widths, packed for the GPU kernels.

    Attributes:
        first: the first layers, stacked, if XLA computes them; None if they are fused.
        weights: the weight matrix and the bias of each fused layer, below one another and padded with zeros on the right:
          `[n, height, width]`. The weight matrix of a head of up to 8 outputs is transposed.
        sizes: the input size of the fused layers, then the width of each fused layer.
        linear: True if the last layer has no activation.
    """

    first: Layer | None
    weights: jax.Array
    sizes: tuple[int, ...] = struct.field(pytree_node=False)
    linear: bool = struct.field(pytree_node=False)


def pack_layers(networks: Sequence[list[Layer]], linear: bool = False) -> FusedLayers:
    """Pack the layers of networks with equal hidden widths. The last layers are padded to the width of the widest."""
    inputs, widths = networks[0][0]["kernel"].shape[0], [layer["bias"].size for layer in networks[0]]
    first_apart = not fuses_first_layer(inputs, widths[:-1] if linear else widths)
    first = jax.tree.map(lambda *xs: jnp.stack(xs), *(layers[0] for layers in networks)) if first_apart else None
    rest = [layers[first_apart:] for layers in networks]
    sizes = (rest[0][0]["kernel"].shape[0], *(max(x["bias"].size for x in alike) for alike in zip(*rest, strict=True)))
    return FusedLayers(first, jnp.stack([_pack(layers, sizes, linear) for layers in rest]), sizes, linear)


def _pack(layers: list[Layer], sizes: tuple[int, ...], linear: bool) -> jax.Array:
    """Return the weight matrices and biases of one network, below one another: `[height, width]`."""
    *hidden, last = layers
    last = {name: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, sizes[-1] - x.shape[-1])]) for name, x in last.items()}
    if _by_column(sizes, linear):
        last["kernel"] = last["kernel"].T
    parts = [x for layer in (*hidden, last) for x in (layer["kernel"], layer["bias"][None])]
    width = max(x.shape[1] for x in parts)
    return jnp.concatenate([jnp.pad(x, ((0, 0), (0, width - x.shape[1]))) for x in parts])


def apply_fused_layers(layers: FusedLayers, x: jax.Array, activation: Callable, interpret: bool = False) -> jax.Array:
    """Compute the outputs of all networks with one GPU kernel: `[N, ...] -> [n, N, last width]`.

    interpret: True to interpret the kernels, in tests on a CPU.

    Raises:
        ConfigError: a second derivative is computed.
    """
    from purerl.networks.fused_kernels import Chain, run_chain

    x, sizes = x.reshape(x.shape[0], -1), layers.sizes
    by_column, sums_tiles = _by_column(sizes, layers.linear), max(sizes) <= NARROW
    chain = Chain(sizes, activation, layers.first is not None, layers.linear, by_column, sums_tiles, interpret)
    return run_chain(chain, x[None] if layers.first is None else jax.vmap(_dense, (0, None))(layers.first, x), layers.weights)


def _by_column(sizes: tuple[int, ...], linear: bool) -> bool:
    """Return True if the last layer is a head of so few outputs that it is computed without a matrix product."""
    return linear and sizes[-1] <= FEW


def layers_of(torso: Any) -> list[Layer]:
    """Return the layers in the parameters of an `MLP`, in their order."""
    return [torso[f"Dense_{i}"] for i in range(len(torso))]


def apply_dense_layers(layers: list[Layer], x: jax.Array, activation: Callable) -> jax.Array:
    """Compute dense layers with XLA, in the dtype of the input: `[N, inputs] -> [N, last width]`."""
    return functools.reduce(lambda x, layer: activation(_dense(layer, x)), layers, x)


def _dense(layer: Layer, x: jax.Array) -> jax.Array:
    return x @ layer["kernel"].astype(x.dtype) + layer["bias"].astype(x.dtype)[None]
