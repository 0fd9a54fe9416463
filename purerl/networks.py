"""The built-in networks: a torso and a head each for the policy and for the value, as flax linen modules behind `Network`."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from purerl.distributions import Categorical, DiagGaussian
from purerl.errors import ConfigError, Problem
from purerl.initializers import orthogonal
from purerl.types import Discrete, Network, Outputs, Space

HEAD_GAINS = {"policy": 0.01, "value": 1.0}  # a policy that starts near uniform ("37 details", number 2)
ACTIVATIONS = {"tanh": nn.tanh, "relu": nn.relu, "swish": nn.swish, "gelu": nn.gelu, "elu": nn.elu}


def encode(obs: jax.Array, space: jax.ShapeDtypeStruct | Discrete) -> jax.Array:
    """Observations as float32: an index one-hot, everything else cast. `[L, N, ...]` in and out."""
    if isinstance(space, Discrete):
        return jax.nn.one_hot(obs, space.n, dtype=jnp.float32)
    return obs.astype(jnp.float32)


class MLP(nn.Module):
    """Flattens an observation and applies dense layers. `[N, ...] -> [N, hidden[-1]]`."""

    hidden: tuple[int, ...]
    activation: Callable

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = self.activation(nn.Dense(width, kernel_init=nn.initializers.zeros)(x))
        return x


class Conv(nn.Module):
    """A convolution without padding, as one matrix product of all image patches. `[N, H, W, C] -> [N, H', W', filters]`.

    XLA's own convolution, with its gradient, takes 45 times as long inside a loop on a CPU (256 images of 10 x 10 x 4).
    """

    filters: int
    size: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        N, H, W, C = x.shape
        rows, columns = H - self.size + 1, W - self.size + 1
        kernel = self.param("kernel", nn.initializers.zeros, (self.size, self.size, C, self.filters), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.filters,), jnp.float32)
        offsets = [(i, j) for i in range(self.size) for j in range(self.size)]
        patches = jnp.concatenate([x[:, i : i + rows, j : j + columns].reshape(-1, C) for i, j in offsets], axis=-1)
        return (patches @ kernel.reshape(-1, self.filters) + bias[None]).reshape(N, rows, columns, self.filters)


class CNN(nn.Module):
    """One 3 x 3 convolution of 16 filters for 10 x 10 images (Young & Tian 2019, arXiv:1903.03176), then an `MLP`."""

    hidden: tuple[int, ...]
    activation: Callable

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return MLP(self.hidden, self.activation)(self.activation(Conv(filters=16, size=3)(x)))


class Linear(nn.Module):
    """The last layer of a head: `size` numbers from each row of features, `[N, features] -> [N, size]`.

    A few outputs are computed one by one. As one matrix product, with its gradient, 2 outputs of 2048 rows take XLA 220 us
    on a CPU; one by one they take 40, because a product of a matrix and a vector has code of its own.
    """

    size: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.zeros, (x.shape[-1], self.size), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.size,), jnp.float32)
        product = jnp.stack([x @ column for column in kernel.T], axis=-1) if self.size <= 8 else x @ kernel
        return product + bias[None]


class CategoricalHead(nn.Module):
    """Logits of `n` choices."""

    n: int

    @nn.compact
    def __call__(self, x: jax.Array) -> Categorical:
        return Categorical(Linear(self.n)(x))


class GaussianHead(nn.Module):
    """Means, and a standard deviation that is a parameter and not a function of the observation."""

    size: int
    log_std_init: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> DiagGaussian:
        mean = Linear(self.size)(x)
        log_std = self.param("log_std", lambda key: jnp.full(self.size, self.log_std_init, jnp.float32))
        return DiagGaussian(mean, jnp.broadcast_to(log_std, mean.shape))


class ValueHead(nn.Module):
    """One number for each step. `[N, features] -> [N]`."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return Linear(1)(x).squeeze(-1)


class Branch(nn.Module):
    """A torso and what it ends in."""

    torso: nn.Module
    head: nn.Module

    def __call__(self, x: jax.Array) -> Any:
        return self.head(self.torso(x))


def actor_critic(cfg: Any, observation_space: jax.ShapeDtypeStruct | Discrete, action_space: Space) -> Network:
    """The network a config describes: separate torsos for the policy and the value ("37 details", number 13).

    Raises:
        ConfigError: the torso does not fit the observations.
    """
    shape = (observation_space.n,) if isinstance(observation_space, Discrete) else observation_space.shape
    kind = cfg.torso if cfg.torso != "auto" else "cnn" if len(shape) == 3 else "mlp"
    if kind == "cnn" and (len(shape) != 3 or min(shape[:2]) < 3):
        hint = f"needs observations [height, width, channels] of at least 3 x 3, not {list(shape)}; use 'mlp'"
        raise ConfigError([Problem("torso", cfg.torso, hint)])
    torso = {"mlp": MLP, "cnn": CNN}[kind](cfg.hidden, ACTIVATIONS[cfg.activation])
    if isinstance(action_space, Discrete):
        policy_head = CategoricalHead(action_space.n)
    else:
        policy_head = GaussianHead(math.prod(action_space.shape), cfg.log_std_init)
    branches = {"policy": Branch(torso, policy_head), "value": Branch(torso, ValueHead())}

    def init(key, obs):
        x = encode(obs, observation_space)[0]
        params = {group: branch.init(key, x)["params"] for group, branch in branches.items()}
        return orthogonal(key, params, lambda path: HEAD_GAINS[path.split("/")[0]] if "/head/" in path else math.sqrt(2))

    def apply(params, carry, obs, first):
        # Steps and sequences as one axis: with two, XLA transposes for each weight's gradient, and takes half as long again.
        x = encode(obs, observation_space)
        x = x.reshape(-1, *x.shape[2:])
        outputs = Outputs(**{group: branch.apply({"params": params[group]}, x) for group, branch in branches.items()})
        return jax.tree.map(lambda y: y.reshape(*first.shape, *y.shape[1:]), outputs), carry

    return Network(init, apply)
