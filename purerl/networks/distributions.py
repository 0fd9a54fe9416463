"""Distributions over actions.

Each distribution is a PyTree of its parameters, of any batch shape, with the same methods:

    noise(key, *leading)    standard noise `[*leading, *batch, ...]`, for a whole rollout at once; the key is consumed
    sample(noise)           `[*batch, ...]` an action, a deterministic function of the noise of one sample
    mode()                  the most likely action; for `TanhGaussian`, the mean before the tanh
    log_prob(action)        `[*batch]` log-probability (density)
    entropy()               `[*batch]` in nats, summed over the dimensions of an action
    kl(other)               `[*batch]` KL(self || other) in nats
    env_action(action, space)  the action that the environment receives
    encoded(action)         `[*batch, d]` float32, the action as the input of a network
    metrics()               a dict from name to scalar metric, for logging

Runs that start with random actions also use

    uniform_sample(noise, *bounds)       an action drawn uniformly from all valid actions, whatever the parameters
    uniform_log_prob(action, *bounds)    `[*batch]` log-probability (density) of a uniformly drawn action

For a Box, `bounds` are the lowest and the highest action in the environment's unit, each `[*batch, d]`. Other spaces have none.

Categorical distributions also have `masked(legal)`: the same distribution restricted to actions where `legal` is set.

Example:
    >>> policy = purerl.distributions.Categorical(jnp.zeros((4, 2)))
    >>> actions = policy.sample(policy.noise(jax.random.key(0)))
    >>> actions.shape, policy.log_prob(actions).shape
    ((4,), (4,))
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.core.keys import flat_draw
from purerl.core.metrics import Mean
from purerl.core.platform import FEW
from purerl.core.spaces import Space
from purerl.networks.beta import Beta
from purerl.networks.gaussians import DiagGaussian, TanhGaussian

__all__ = ["Bernoulli", "Beta", "Categorical", "DiagGaussian", "MultiCategorical", "TanhGaussian"]

ILLEGAL = -1e9  # a logit with probability exactly 0, for which `p log p` is 0 and not NaN


def columns(x: jax.Array) -> list[jax.Array]:
    """Return the columns `[..., 1]` of an array `[..., n]`; the array itself if it has more than `FEW`.

    XLA fuses arithmetic on single columns, but not reductions over an axis of a few numbers: on a GPU, the loss and its gradient
    need a third fewer kernels.
    """
    return jnp.split(x, x.shape[-1], axis=-1) if x.shape[-1] <= FEW else [x]


def total(terms: list[jax.Array]) -> jax.Array:
    """Return the sum over the last axis, `[...]`, of terms computed from `columns`."""
    return functools.reduce(jnp.add, [x.sum(-1) for x in terms])


def first_largest(x: jax.Array) -> jax.Array:
    """Return the index of the largest of `[..., n]`, the first of several, `[...]` int32."""
    if x.shape[-1] > FEW:
        return jnp.argmax(x, axis=-1).astype(jnp.int32)
    best, *others = [column.squeeze(-1) for column in columns(x)]
    index = jnp.zeros_like(best, jnp.int32)
    for i, column in enumerate(others, 1):
        index, best = jnp.where(column > best, jnp.int32(i), index), jnp.maximum(best, column)
    return index


class Choice(struct.PyTreeNode):
    """Base class of distributions over discrete actions, which the environment receives as they are."""

    def env_action(self, action: jax.Array, space: Space) -> jax.Array:
        return action

    def metrics(self) -> dict[str, Mean]:
        return {}

    def uniform_sample(self, noise: jax.Array) -> jax.Array:
        return self._flat().sample(noise)

    def uniform_log_prob(self, action: jax.Array) -> jax.Array:
        return self._flat().log_prob(action)

    def _flat(self) -> Any:
        """Return the distribution in which all valid actions are equally likely."""
        raise NotImplementedError


class Categorical(Choice):
    """A categorical distribution over `n` actions, with probabilities `softmax(logits)`.

    Attributes:
        logits: `[*batch, n]` float32, unnormalised.
    """

    logits: jax.Array

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return flat_draw(jax.random.gumbel, key, (*leading, *self.logits.shape))

    def sample(self, noise: jax.Array) -> jax.Array:
        return first_largest(self.logits + noise)

    def mode(self) -> jax.Array:
        return first_largest(self.logits)

    def log_prob(self, action: jax.Array) -> jax.Array:
        # A masked sum replaces a gather, whose gradient is a scatter, which XLA runs one element at a time on a CPU.
        chosen = columns(jax.nn.one_hot(action, self.logits.shape[-1], dtype=bool))
        return total([jnp.where(c, x, jnp.zeros_like(x)) for c, x in zip(chosen, self._log_p(), strict=True)])

    def entropy(self) -> jax.Array:
        return -total([jnp.exp(x) * x for x in self._log_p()])

    def kl(self, other: "Categorical") -> jax.Array:
        return total([jnp.exp(x) * (x - y) for x, y in zip(self._log_p(), other._log_p(), strict=True)])

    def encoded(self, action: jax.Array) -> jax.Array:
        return jax.nn.one_hot(action, self.logits.shape[-1], dtype=jnp.float32)

    def masked(self, legal: jax.Array) -> "Categorical":
        """Exclude the actions where `legal [*batch, n]` is not set. At least one action must be valid."""
        return Categorical(jnp.where(legal.astype(bool), self.logits, jnp.float32(ILLEGAL)))

    def _log_p(self) -> list[jax.Array]:
        """Return the log-probabilities of all actions, as `columns`."""
        logits = columns(self.logits)
        top = jax.lax.stop_gradient(functools.reduce(jnp.maximum, [x.max(-1, keepdims=True) for x in logits]))
        normalizer = jnp.log(total([jnp.exp(x - top) for x in logits]))[..., None]
        return [x - top - normalizer for x in logits]

    def _flat(self) -> "Categorical":
        return Categorical(jnp.zeros_like(self.logits)).masked(self.logits > 0.5 * ILLEGAL)


class MultiCategorical(Choice):
    """Independent categorical actions, whose log-probabilities, entropies and divergences add up ("37 details", number 37).

    Attributes:
        logits: `[*batch, sum(sizes)]` float32, concatenated over the actions.
        sizes: number of values of each action.
    """

    logits: jax.Array
    sizes: tuple[int, ...] = struct.field(pytree_node=False)

    @property
    def choices(self) -> list[Categorical]:
        return [Categorical(logits) for logits in self._split(self.logits)]

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return flat_draw(jax.random.gumbel, key, (*leading, *self.logits.shape))

    def sample(self, noise: jax.Array) -> jax.Array:
        pairs = zip(self.choices, self._split(noise), strict=True)
        return jnp.stack([choice.sample(choice_noise) for choice, choice_noise in pairs], axis=-1)

    def mode(self) -> jax.Array:
        return jnp.stack([choice.mode() for choice in self.choices], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.asarray(sum(choice.log_prob(action[..., i]) for i, choice in enumerate(self.choices)))

    def entropy(self) -> jax.Array:
        return jnp.asarray(sum(choice.entropy() for choice in self.choices))

    def kl(self, other: "MultiCategorical") -> jax.Array:
        return jnp.asarray(sum(x.kl(y) for x, y in zip(self.choices, other.choices, strict=True)))

    def encoded(self, action: jax.Array) -> jax.Array:
        return jnp.concatenate([choice.encoded(action[..., i]) for i, choice in enumerate(self.choices)], axis=-1)

    def masked(self, legal: jax.Array) -> "MultiCategorical":
        """Exclude the values where `legal [*batch, sum(sizes)]` is not set. Each action must have at least one valid value."""
        return self.replace(logits=Categorical(self.logits).masked(legal).logits)

    def _flat(self) -> "MultiCategorical":
        return self.replace(logits=Categorical(self.logits)._flat().logits)

    def _split(self, x: jax.Array) -> list[jax.Array]:
        return jnp.split(x, np.cumsum(self.sizes)[:-1], axis=-1)


class Bernoulli(Choice):
    """Independent binary actions, each 1 with probability `sigmoid(logit)`.

    Attributes:
        logits: `[*batch, n]` float32.
    """

    logits: jax.Array

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return flat_draw(jax.random.logistic, key, (*leading, *self.logits.shape))

    def sample(self, noise: jax.Array) -> jax.Array:
        return (self.logits + noise > 0).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return (self.logits > 0).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jax.nn.log_sigmoid(jnp.where(action > 0, self.logits, -self.logits)).sum(-1)

    def entropy(self) -> jax.Array:
        return self._expected(self.logits)

    def kl(self, other: "Bernoulli") -> jax.Array:
        return self._expected(other.logits) - self.entropy()

    def encoded(self, action: jax.Array) -> jax.Array:
        return action.astype(jnp.float32)

    def _flat(self) -> "Bernoulli":
        return Bernoulli(jnp.zeros_like(self.logits))

    def _expected(self, logits: jax.Array) -> jax.Array:
        """Return the cross entropy with a Bernoulli distribution of the given logits."""
        p = jax.nn.sigmoid(self.logits)
        return -(p * jax.nn.log_sigmoid(logits) + (1 - p) * jax.nn.log_sigmoid(-logits)).sum(-1)
