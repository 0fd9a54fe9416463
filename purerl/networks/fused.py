"""Dense layers as one GPU kernel forward and one GPU kernel backward, for configs with `kernels="fused"`.

XLA computes two hidden layers and their gradient with some twenty GPU kernels, each of which reads and writes activations
`[N, width]`. The kernels of `fused_kernels.py` read inputs and write outputs, and compute activations again for the gradient. In
an update of 65,536 CartPoles x 32 steps, compiled for an H100, a minibatch has 14 kernels instead of 36, which move 0.4 kB for
each batch row instead of 12 kB (`tests/benchmarks/programs.md`). The time on a GPU has not been measured yet.

This module checks which layers can be fused, and packs their parameters. It imports Pallas only to compute fused layers.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from purerl.config.base import OnPolicyConfig
from purerl.core.errors import Problem
from purerl.core.platform import FEW
from purerl.core.types import PyTree

# Limits within which no kernel spills registers, as ptxas reports for an H100 (`programs_fused.py --registers`).
NARROW, WIDE = 64, 128  # maximum widths of narrow and of wide hidden layers
LAYERS = {NARROW: 3, WIDE: 2}  # maximum number of hidden layers
INPUTS = {NARROW: 64, WIDE: 16}  # maximum input size of a first layer that can be fused
OUTPUTS = 32  # maximum number of outputs of a head
FIRST = "Dense_0"  # flax's name of the first layer


def kernel_problems(cfg: OnPolicyConfig) -> list[Problem]:
    """Report the config's layers that cannot be fused, since they would not fit into registers."""
    if cfg.kernels != "fused":
        return []
    found = []
    for name, widths in (("hidden", cfg.hidden), ("critic_hidden", cfg.critic_hidden)):
        most = LAYERS[_width_class(widths)] if widths else 0
        if max(widths, default=1) > WIDE or len(widths) > most or (name == "hidden" and not widths):
            hint = f"cannot be fused; use 1 to 3 layers of width up to {NARROW}, 1 or 2 of width up to {WIDE}, or kernels='xla'"
            found.append(Problem(name, widths, hint))
    if cfg.matmul_precision != "default" and max((*cfg.hidden, *cfg.critic_hidden), default=0) > NARROW:
        hint = f"needs layers of width up to {NARROW} if they are fused; use 'default', or kernels='xla'"
        found.append(Problem("matmul_precision", cfg.matmul_precision, hint))
    return found


def _width_class(widths: Sequence[int]) -> int:
    return NARROW if max(widths) <= NARROW else WIDE


def fuses_first_layer(inputs: int, hidden: Sequence[int]) -> bool:
    """Return True if the first layer is fused. XLA computes a first layer with a large input, and the first of three layers."""
    return len(hidden) < 3 and inputs <= INPUTS[_width_class(hidden)]


class Place(NamedTuple):
    """The positions of a layer's weight matrix and bias in the vector of all parameters, and the width of the layer."""

    kernel: int
    bias: int
    width: int


class FusedLayers(struct.PyTreeNode):
    """Layers of `n` networks with equal hidden widths, packed for the GPU kernels.

    Attributes:
        first: the first layers, stacked, if XLA computes them; None if they are fused.
        params: the parameters of all networks, without those in `first`, in one vector, `[1, size]`, in the order of
          `jax.tree.leaves`. Optimizers keep parameters in vectors of this order, so that without `first`, XLA copies neither the
          parameters nor their gradient.
        sizes: the input size of the fused layers, then the width of each fused layer; of the last layers, the largest width.
        places: the places of the fused layers of each network.
        linear: True if the last layer is a head, without an activation.
    """

    first: dict[str, jax.Array] | None
    params: jax.Array
    sizes: tuple[int, ...] = struct.field(pytree_node=False)
    places: tuple[tuple[Place, ...], ...] = struct.field(pytree_node=False)
    linear: bool = struct.field(pytree_node=False)


def pack_layers(groups: Sequence[PyTree]) -> FusedLayers:
    """Pack the layers of parameter groups (see `layers_of`) with equal hidden widths."""
    hidden, first, linear = layers_of({"torso": groups[0]["torso"]}), None, "head" in groups[0]
    if apart := not fuses_first_layer(hidden[0]["kernel"].shape[0], [layer["bias"].size for layer in hidden]):
        first = jax.tree.map(lambda *xs: jnp.stack(xs), *(group["torso"][FIRST] for group in groups))
        groups = [{**group, "torso": {k: layer for k, layer in group["torso"].items() if k != FIRST}} for group in groups]
    leaves, structure = jax.tree.flatten(list(groups))
    starts = list(itertools.accumulate((x.size for x in leaves), initial=0))[:-1]
    positions = structure.unflatten(starts)
    pairs = [zip(layers_of(x), layers_of(at), strict=True) for x, at in zip(groups, positions, strict=True)]
    places = tuple(tuple(Place(at["kernel"], at["bias"], layer["bias"].size) for layer, at in layers) for layers in pairs)
    read = {position for network in places for place in network for position in (place.kernel, place.bias)}
    # The kernels compute no gradients of other parameters, such as the standard deviation.
    parts = [(x if start in read else jax.lax.stop_gradient(x)).ravel() for start, x in zip(starts, leaves, strict=True)]
    inputs = layers_of(groups[0])[0]["kernel"].shape[0]
    sizes = inputs, *(max(place.width for place in alike) for alike in zip(*places, strict=True))
    # The barrier also holds for the gradient. Without it, XLA moves the new axis into the gradients of layers, and copies these.
    # If XLA computes the first layers, the gradient is copied anyway, and the barrier would cost two GPU kernels.
    params = jnp.concatenate(parts) if apart else jax.lax.optimization_barrier(jnp.concatenate(parts))
    return FusedLayers(first, params[None], sizes, places, linear)


def apply_fused_layers(layers: FusedLayers, x: jax.Array, activation: Callable, interpret: bool = False) -> jax.Array:
    """Compute the outputs of all networks with one GPU kernel: `[N, ...] -> [n, N, last width]`.

    interpret: True to interpret the kernels, in tests on a CPU.

    Raises:
        ConfigError: a second derivative is computed.
    """
    from purerl.networks.fused_kernels import Chain, run_chain

    x, sizes, linear = x.reshape(x.shape[0], -1), layers.sizes, layers.linear
    columns, sums_tiles = linear and sizes[-1] <= FEW, max(sizes) <= NARROW
    chain = Chain(sizes, layers.places, activation, layers.first is not None, linear, columns, sums_tiles, interpret)
    return run_chain(chain, x[None] if layers.first is None else jax.vmap(_dense, (0, None))(layers.first, x), layers.params)


def layers_of(group: PyTree) -> list[Any]:
    """Return the layers of a group in their order: those of its `torso`, an `MLP`, then that of its `head`, if it has one."""
    hidden = [group["torso"][name] for name in sorted(group["torso"])]
    return [*hidden, group["head"]["Linear_0"]] if "head" in group else hidden


def apply_dense_layers(layers: list[dict[str, jax.Array]], x: jax.Array, activation: Callable) -> jax.Array:
    """Compute dense layers with XLA, in the dtype of the input: `[N, inputs] -> [N, last width]`."""
    return functools.reduce(lambda x, layer: activation(_dense(layer, x)), layers, x)


def _dense(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return x @ layer["kernel"].astype(x.dtype) + layer["bias"].astype(x.dtype)[None]
