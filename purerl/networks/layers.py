"""Parts of the built-in networks, as flax linen modules: torsos, heads, and a trunk that combines them."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from purerl.core.platform import FEW, by_platform
from purerl.core.types import PyTree
from purerl.networks.distributions import Beta, Joint
from purerl.networks.fused import apply_dense_layers, apply_fused_layers, fuses_first_layer, layers_of, pack_layers


class MLP(nn.Module):
    """Dense layers on a flattened observation: `[N, ...] -> [N, hidden[-1]]`, computed in the dtype of the input."""

    hidden: tuple[int, ...]
    activation: Callable
    kernels: str = "xla"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        fuses = self.kernels == "fused" and not self.is_initializing()
        if fuses and (len(self.hidden) > 1 or fuses_first_layer(x.shape[1], self.hidden)):  # else XLA computes the only layer
            dense = lambda group, x: apply_dense_layers(layers_of(group), x, self.activation)
            fused = lambda group, x: apply_fused_layers(pack_layers([group]), x, self.activation)[0]
            return by_platform({"torso": self.variables["params"]}, x, cpu=dense, accelerator=fused, tpu=dense)
        for width in self.hidden:
            x = self.activation(nn.Dense(width, dtype=x.dtype, kernel_init=nn.initializers.zeros)(x))
        return x


class Conv(nn.Module):
    """A convolution without padding, `[N, H, W, C] -> [N, H', W', filters]`.

    On a CPU, the convolution is computed as one matrix product of all image patches. Inside a loop on a CPU, XLA's own
    convolution with its gradient takes 45 times as long (256 images of 10 x 10 x 4).
    """

    filters: int
    size: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.zeros, (self.size, self.size, x.shape[-1], self.filters), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.filters,), jnp.float32)
        product = by_platform(x, kernel.astype(x.dtype), cpu=self.of_patches, accelerator=self.of_library)
        return product + bias.astype(x.dtype)[None, None, None]

    def of_patches(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """Convolve by one matrix product of all image patches."""
        N, H, W, C = x.shape
        rows, columns = ((n - self.size) // self.stride + 1 for n in (H, W))
        reach = lambda start, count: slice(start, start + (count - 1) * self.stride + 1, self.stride)
        offsets = [(reach(i, rows), reach(j, columns)) for i in range(self.size) for j in range(self.size)]
        patches = jnp.concatenate([x[:, i, j].reshape(-1, C) for i, j in offsets], axis=-1)
        return (patches @ kernel.reshape(-1, self.filters)).reshape(N, rows, columns, self.filters)

    def of_library(self, x: jax.Array, kernel: jax.Array) -> jax.Array:
        """Convolve by XLA's own convolution, which uses cuDNN on a GPU."""
        strides, layout = (self.stride, self.stride), ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, strides, "VALID", dimension_numbers=layout)


CONVOLUTIONS = {  # filters, size and stride of each layer, and the minimum height and width of an image
    "cnn": (((16, 3, 1),), 3),  # for 10 x 10 images (Young & Tian 2019, arXiv:1903.03176)
    "nature_cnn": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 36),  # for 84 x 84 images (Mnih et al. 2015)
}


class CNN(nn.Module):
    """Convolutions followed by an `MLP`: `[N, H, W, C] -> [N, hidden[-1]]`."""

    convolutions: tuple[tuple[int, int, int], ...]
    hidden: tuple[int, ...]
    activation: Callable
    kernels: str = "xla"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for filters, size, stride in self.convolutions:
            x = self.activation(Conv(filters, size, stride)(x))
        return MLP(self.hidden, self.activation, self.kernels)(x)


class Encoders(nn.Module):
    """An encoder for each entry of an observation, and an `MLP` on the concatenated features.

    `{entry: [N, ...]} -> [N, hidden[-1]]`
    """

    encoders: dict[str, nn.Module]
    hidden: tuple[int, ...]
    activation: Callable
    kernels: str = "xla"

    @nn.compact
    def __call__(self, x: dict[str, jax.Array]) -> jax.Array:
        features = [self.encoders[name](entry) for name, entry in x.items()]
        return MLP(self.hidden, self.activation, self.kernels)(jnp.concatenate(features, axis=-1))


def by_column(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Return `x @ kernel + bias`, `[N, size]`, computed one column after the other."""
    return jnp.stack([x @ column for column in kernel.T], axis=-1) + bias[None]


@jax.custom_vjp
def by_column_on_accelerator(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Return `by_column(x, kernel, bias)`, with a gradient of `kernel` that is one matrix product.

    The product saves 3 of 33 GPU kernels in a minibatch of workload B (`tests/benchmarks/programs.md`). The barriers keep XLA
    from fusing reductions into other GPU kernels, each thread of which would compute the whole reduction again.
    """
    columns = jax.lax.optimization_barrier([x @ column for column in kernel.T])
    return jnp.stack(columns, axis=-1) + bias[None]


def _backward(saved: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, kernel = saved
    columns = [gradient[:, i, None] * column[None] for i, column in enumerate(kernel.T)]
    of_bias = jax.lax.optimization_barrier(gradient.sum(0))
    return functools.reduce(jnp.add, columns), x.T @ gradient, of_bias


by_column_on_accelerator.defvjp(lambda x, kernel, bias: (by_column_on_accelerator(x, kernel, bias), (x, kernel)), _backward)


class Linear(nn.Module):
    """The last layer of a head: a dense layer, `[N, features] -> [N, size]`.

    Up to 8 outputs are computed one column after the other, since XLA has special code for matrix-vector products. For 2 outputs
    of 2048 batch rows, XLA for a CPU takes 220 us with one matrix product and 40 us column by column, including the gradient.
    """

    size: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.zeros, (x.shape[-1], self.size), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.size,), jnp.float32)
        if self.size > FEW:
            return x @ kernel + bias[None]
        return by_platform(x, kernel, bias, cpu=by_column, accelerator=by_column_on_accelerator)


class Head(nn.Module):
    """Base class of heads: a dense layer, followed by a function `read` of the layer's outputs.

    With `linear=False`, the input of a call is already the output of the dense layer.

    Attributes:
        size: the number of logits, of dimensions of an action, or of values.
    """

    size: int

    @property
    def outputs(self) -> int:
        """Return the number of outputs of the dense layer."""
        return self.size

    @nn.compact
    def __call__(self, x: jax.Array, linear: bool = True) -> Any:
        return self.read(Linear(self.outputs)(x) if linear else x[:, : self.outputs])

    def read(self, x: jax.Array) -> Any:
        """Return the head's result for outputs of the dense layer, `[N, outputs]`."""
        raise NotImplementedError


class LogitsHead(Head):
    """A distribution over discrete actions from `size` logits."""

    distribution: Callable

    def read(self, x: jax.Array) -> Any:
        return self.distribution(x)


class GaussianHead(Head):
    """A Gaussian whose mean is a dense layer's output.

    `std` selects the logarithm of the standard deviation: a parameter for each dimension, initially `log_std_init` (`parameter`),
    `log_std_init` plus further outputs of the dense layer (`state`), or `log_std_init` (`fixed`). `limits`, if given, clip it.
    """

    distribution: Callable
    log_std_init: Any
    std: str = "parameter"
    limits: tuple[Any, Any] | None = None

    @property
    def outputs(self) -> int:
        return 2 * self.size if self.std == "state" else self.size

    def read(self, x: jax.Array) -> Any:
        mean, further = x[:, : self.size], x[:, self.size :]
        log_std = jnp.full(self.size, self.log_std_init, jnp.float32)
        if self.std == "parameter":
            log_std = self.param("log_std", lambda key: log_std)
        if self.std == "state":
            log_std = log_std[None] + further
        log_std = log_std if self.limits is None else jnp.clip(log_std, *self.limits)
        return self.distribution(mean, jnp.broadcast_to(log_std, mean.shape))


class BetaHead(Head):
    """A Beta distribution whose two parameters are `1 + softplus` of a dense layer's outputs, so that it has one mode."""

    @property
    def outputs(self) -> int:
        return 2 * self.size

    def read(self, x: jax.Array) -> Any:
        return Beta(*jnp.split(1 + jax.nn.softplus(x), 2, axis=-1))


class JointHead(Head):
    """Independent distributions over the parts of a mixed action, from one dense layer.

    Attributes:
        heads: the head of each part; `size` is the sum of their sizes.
    """

    heads: tuple[Head, ...]

    @property
    def outputs(self) -> int:
        return sum(head.outputs for head in self.heads)

    def read(self, x: jax.Array) -> Any:
        ends = list(itertools.accumulate(head.outputs for head in self.heads))
        parts = zip(self.heads, jnp.split(x, ends[:-1], axis=-1), strict=True)
        return Joint(tuple(head(part, linear=False) for head, part in parts))


class ValueHead(Head):
    """A value for each step and each of `size` reward streams: `[N, features] -> [N]`, or `[N, size]` for several streams."""

    def read(self, x: jax.Array) -> jax.Array:
        return x.squeeze(-1) if self.size == 1 else x


class OfAction(struct.PyTreeNode):
    """A linear function of the taken action for each step: `constant + weight . action`.

    Attributes:
        constant: `[*batch]`.
        weight: `[*batch, d]`.
    """

    constant: jax.Array
    weight: jax.Array

    def __call__(self, action: jax.Array) -> jax.Array:
        """Evaluate the function at `action [*batch, d]`, encoded by the action's distribution. Return `[*batch]`."""
        return self.constant + (self.weight * action).sum(-1)


class ActionHead(nn.Module):
    """A dense layer from features and an encoded action of `size` numbers to one output, returned as a function of the action."""

    size: int

    @nn.compact
    def __call__(self, x: jax.Array) -> OfAction:
        weight = self.param("kernel", nn.initializers.zeros, (x.shape[-1] + self.size, 1), jnp.float32).squeeze(-1)
        bias = self.param("bias", nn.initializers.zeros, (1,), jnp.float32)
        features, action = jnp.split(weight, [x.shape[-1]])
        return OfAction(x @ features + bias, jnp.broadcast_to(action, (x.shape[0], self.size)))


class Trunk(nn.Module):
    """A torso and optional recurrent layers.

    `x [L * N, ...]` is the input of the torso, with the L steps of N sequences as one axis. With two axes, XLA would transpose
    arrays for the gradient of each weight, and take 1.5 times as long. `past [L, N, ...]` is a further input of the recurrent
    layers. A call returns the features, in float32 for the heads, and the carry.
    """

    torso: nn.Module
    memory: nn.Module | None

    def __call__(self, x: jax.Array, past: jax.Array | None, carry: PyTree, first: jax.Array) -> tuple[jax.Array, PyTree]:
        features = self.torso(x)
        if self.memory is not None:
            inputs = features.reshape(*first.shape, -1)
            inputs = inputs if past is None else jnp.concatenate([inputs, past], axis=-1)
            features, carry = self.memory(carry, inputs, first)
            features = features.reshape(-1, features.shape[-1])
        return features.astype(jnp.float32), carry
