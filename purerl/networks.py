"""The built-in networks: a torso and a head each for the policy and for the value, as flax linen modules behind `Network`."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from purerl.config import ConfigError, Problem
from purerl.distributions import Categorical, DiagGaussian
from purerl.types import Discrete, Network, Outputs, Space

ACTIVATIONS = {"tanh": nn.tanh, "relu": nn.relu, "swish": nn.swish, "gelu": nn.gelu, "elu": nn.elu}


def orthogonal(scale: float) -> Callable:
    """An initialiser of orthogonal matrices (Saxe et al. 2014, arXiv:1312.6120), drawn one at a time also under `vmap`.

    A batched draw is a batched LAPACK QR factorisation; several of those at once on a machine of few cores wait for each
    other's threads for ever (jaxlib 0.10.2).
    """
    draw = nn.initializers.orthogonal(scale)

    def init(key, shape, dtype=jnp.float32):
        return jax.custom_batching.sequential_vmap(lambda key: draw(key, shape, dtype))(key)

    return init


def encode(obs: jax.Array, space: jax.ShapeDtypeStruct | Discrete) -> jax.Array:
    """Observations as float32: an index one-hot, everything else cast. `[L, N, ...]` in and out."""
    if isinstance(space, Discrete):
        return jax.nn.one_hot(obs, space.n, dtype=jnp.float32)
    return obs.astype(jnp.float32)


class MLP(nn.Module):
    """Flattens an observation and applies dense layers. `[L, N, ...] -> [L, N, hidden[-1]]`."""

    hidden: tuple[int, ...]
    activation: Callable

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.reshape(*x.shape[:2], -1)
        for width in self.hidden:
            x = self.activation(nn.Dense(width, kernel_init=orthogonal(math.sqrt(2)))(x))
        return x


class CNN(nn.Module):
    """One 3 x 3 convolution of 16 filters for 10 x 10 images (Young & Tian 2019, arXiv:1903.03176), then an `MLP`."""

    hidden: tuple[int, ...]
    activation: Callable

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(16, (3, 3), padding="VALID", kernel_init=orthogonal(math.sqrt(2)))(x)
        return MLP(self.hidden, self.activation)(self.activation(x))


class CategoricalHead(nn.Module):
    """Logits of `n` choices; small weights, so that the policy starts near uniform. `[..., features] -> Categorical`."""

    n: int

    @nn.compact
    def __call__(self, x: jax.Array) -> Categorical:
        return Categorical(nn.Dense(self.n, kernel_init=orthogonal(0.01))(x))


class GaussianHead(nn.Module):
    """Means near 0 and a standard deviation that is a parameter, not a function of the observation."""

    size: int
    log_std_init: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> DiagGaussian:
        mean = nn.Dense(self.size, kernel_init=orthogonal(0.01))(x)
        log_std = self.param("log_std", lambda key: jnp.full(self.size, self.log_std_init, jnp.float32))
        return DiagGaussian(mean, jnp.broadcast_to(log_std, mean.shape))


class ValueHead(nn.Module):
    """One number for each step. `[L, N, features] -> [L, N]`."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(1, kernel_init=orthogonal(1.0))(x).squeeze(-1)


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
    policy, value = Branch(torso, policy_head), Branch(torso, ValueHead())

    def init(key, obs):
        key_policy, key_value = jax.random.split(key)
        x = encode(obs, observation_space)
        return {"policy": policy.init(key_policy, x)["params"], "value": value.init(key_value, x)["params"]}

    def apply(params, carry, obs, first):
        x = encode(obs, observation_space)
        return Outputs(policy.apply({"params": params["policy"]}, x), value.apply({"params": params["value"]}, x)), carry

    return Network(init, apply)
