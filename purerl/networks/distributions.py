"""Distributions over actions.

Each distribution is a PyTree of its parameters, of any batch shape, with the same methods:

    noise(key, *leading)    standard noise `[*leading, *batch, ...]`, for a whole rollout at once; the key is consumed
    sample(noise)           `[*batch, ...]` an action, a deterministic function of the noise of one sample
    mode()                  the most likely action; for `TanhGaussian`, the mean before the tanh
    log_prob(action)        `[*batch]` log-probability (density)
    entropy()               `[*batch]` in nats, summed over the dimensions of an action
    kl(other)               `[*batch]` KL(self || other) in nats
    env_action(action, space)  the action that the environment receives
    encode(action)          `[*batch, d]` float32, the action as the input of a network
    metrics()               a dict from name to scalar metric, for logging

Runs that start with random actions also use

    uniform_sample(noise, *bounds)       an action sampled uniformly from all valid actions, whatever the parameters
    uniform_log_prob(action, *bounds)    `[*batch]` log-probability (density) of a uniformly sampled action

For continuous (or partly continuous) actions, `bounds` are the lowest and the highest action in the environment's unit, each
`[*batch, d]`. For other actions, there are no `bounds`.

`Categorical`, `MultiCategorical` and `Joint` also have `mask(legal)`, which excludes actions where `legal` is not set.

Example:
    >>> policy = purerl.distributions.Categorical(jnp.zeros((4, 2)))
    >>> actions = policy.sample(policy.noise(jax.random.key(0)))
    >>> actions.shape, policy.log_prob(actions).shape
    ((4,), (4,))
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.core.keys import flat_draw
from purerl.core.metrics import Mean
from purerl.core.platform import FEW
from purerl.core.spaces import Mixed, Space, parts_of
from purerl.core.types import PyTree
from purerl.networks.beta import Beta
from purerl.networks.gaussians import DiagGaussian, TanhGaussian

__all__ = ["Bernoulli", "Beta", "Categorical", "DiagGaussian", "Joint", "MultiCategorical", "TanhGaussian"]

ILLEGAL = -1e9  # logit of an invalid action: p is exactly 0, and `p log p` is 0, not NaN


def columns(x: jax.Array) -> list[jax.Array]:
    """Return a list of the columns `[..., 1]` of an array `[..., n]`, or of the array alone if n is over `FEW`.

    XLA fuses arithmetic on single columns, but not reductions over an axis of a few numbers. On a GPU, the loss and its gradient
    need a third fewer kernels with columns than with reductions.
    """
    return jnp.split(x, x.shape[-1], axis=-1) if x.shape[-1] <= FEW else [x]


def total(terms: list[jax.Array]) -> jax.Array:
    """Return the sum over the last axis, `[...]`, of terms computed from `columns`."""
    return functools.reduce(jnp.add, [x.sum(-1) for x in terms])


def first_largest(x: jax.Array) -> jax.Array:
    """Return the index of the largest number on the last axis, `[..., n] -> [...]` int32; of equal numbers, the first."""
    if x.shape[-1] > FEW:
        return jnp.argmax(x, axis=-1).astype(jnp.int32)
    best, *others = [column.squeeze(-1) for column in columns(x)]
    index = jnp.zeros_like(best, jnp.int32)
    for i, column in enumerate(others, 1):
        index, best = jnp.where(column > best, jnp.int32(i), index), jnp.maximum(best, column)
    return index


class Choice(struct.PyTreeNode):
    """Base class of distributions over discrete actions. The environment receives the samples unchanged."""

    logits: jax.Array
    draw = staticmethod(jax.random.gumbel)

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return flat_draw(self.draw, key, (*leading, *self.logits.shape))

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

    def encode(self, action: jax.Array) -> jax.Array:
        return jax.nn.one_hot(action, self.logits.shape[-1], dtype=jnp.float32)

    def mask(self, legal: jax.Array) -> "Categorical":
        """Exclude the actions where `legal [*batch, n]` is not set. At least one action must be valid."""
        return Categorical(jnp.where(legal.astype(bool), self.logits, jnp.float32(ILLEGAL)))

    def _log_p(self) -> list[jax.Array]:
        """Return the log-probabilities of all actions, as `columns`."""
        logits = columns(self.logits)
        top = jax.lax.stop_gradient(functools.reduce(jnp.maximum, [x.max(-1, keepdims=True) for x in logits]))
        normalizer = jnp.log(total([jnp.exp(x - top) for x in logits]))[..., None]
        return [x - top - normalizer for x in logits]

    def _flat(self) -> "Categorical":
        return Categorical(jnp.zeros_like(self.logits)).mask(self.logits > 0.5 * ILLEGAL)


class MultiCategorical(Choice):
    """Independent categorical actions. Log-probabilities, entropies and divergences add up ("37 details" of PPO, number 37).

    Attributes:
        logits: `[*batch, sum(sizes)]` float32, concatenated over the actions.
        sizes: number of values of each action.
    """

    sizes: tuple[int, ...] = struct.field(pytree_node=False)

    @property
    def choices(self) -> list[Categorical]:
        return [Categorical(logits) for logits in self._split(self.logits)]

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

    def encode(self, action: jax.Array) -> jax.Array:
        return jnp.concatenate([choice.encode(action[..., i]) for i, choice in enumerate(self.choices)], axis=-1)

    def mask(self, legal: jax.Array) -> "MultiCategorical":
        """Exclude the values where `legal [*batch, sum(sizes)]` is not set. Each action must have at least one valid value."""
        return self.replace(logits=Categorical(self.logits).mask(legal).logits)

    def _flat(self) -> "MultiCategorical":
        return self.replace(logits=Categorical(self.logits)._flat().logits)

    def _split(self, x: jax.Array) -> list[jax.Array]:
        return jnp.split(x, np.cumsum(self.sizes)[:-1], axis=-1)


class Bernoulli(Choice):
    """Independent binary actions, each 1 with probability `sigmoid(logit)`.

    Attributes:
        logits: `[*batch, n]` float32.
    """

    draw = staticmethod(jax.random.logistic)

    def sample(self, noise: jax.Array) -> jax.Array:
        return (self.logits + noise > 0).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return (self.logits > 0).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jax.nn.log_sigmoid(jnp.where(action > 0, self.logits, -self.logits)).sum(-1)

    def entropy(self) -> jax.Array:
        return self._cross_entropy(self.logits)

    def kl(self, other: "Bernoulli") -> jax.Array:
        return self._cross_entropy(other.logits) - self.entropy()

    def encode(self, action: jax.Array) -> jax.Array:
        return action.astype(jnp.float32)

    def _flat(self) -> "Bernoulli":
        return Bernoulli(jnp.zeros_like(self.logits))

    def _cross_entropy(self, logits: jax.Array) -> jax.Array:
        """Return the cross entropy with a Bernoulli distribution of the given logits."""
        p = jax.nn.sigmoid(self.logits)
        return -(p * jax.nn.log_sigmoid(logits) + (1 - p) * jax.nn.log_sigmoid(-logits)).sum(-1)


class Joint(struct.PyTreeNode):
    """Independent distributions over the parts of a `purerl.Mixed` action.

    An action is one float32 array of all parts. Log-probabilities, entropies and divergences of the parts add up.

    Attributes:
        parts: the distribution of each part, in the order of their declaration.

    Example:
        >>> tool = purerl.distributions.Categorical(jnp.array([0.0, 3.0]))
        >>> force = purerl.distributions.DiagGaussian(jnp.array([0.5]), jnp.zeros(1))
        >>> purerl.distributions.Joint((force, tool)).mode().tolist()
        [0.5, 1.0]
    """

    parts: tuple[Any, ...]

    def noise(self, key: jax.Array, *leading: int) -> tuple[Any, ...]:
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.noise(keys[i], *leading) for i, part in enumerate(self.parts))

    def sample(self, noise: tuple[Any, ...]) -> jax.Array:
        return self._join([part.sample(x) for part, x in zip(self.parts, noise, strict=True)])

    def mode(self) -> jax.Array:
        return self._join([part.mode() for part in self.parts])

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.asarray(sum(part.log_prob(x) for part, x in zip(self.parts, self._separate(action), strict=True)))

    def entropy(self) -> jax.Array:
        return jnp.asarray(sum(part.entropy() for part in self.parts))

    def kl(self, other: "Joint") -> jax.Array:
        return jnp.asarray(sum(x.kl(y) for x, y in zip(self.parts, other.parts, strict=True)))

    def env_action(self, action: jax.Array, space: Mixed) -> PyTree:
        """Return the parts of the action in the structure of the space."""
        trios = zip(self.parts, self._separate(action), parts_of(space), strict=True)
        return space.build(part.env_action(x, of) for part, x, of in trios)

    def encode(self, action: jax.Array) -> jax.Array:
        pairs = zip(self.parts, self._separate(action), strict=True)
        return jnp.concatenate([part.encode(x) for part, x in pairs], axis=-1)

    def metrics(self) -> dict[str, Mean]:
        found: dict[str, Mean] = {}
        for name, x in [entry for part in self.parts for entry in part.metrics().items()]:
            found[name] = jax.tree.map(jnp.add, found[name], x) if name in found else x
        return found

    def mask(self, legal: jax.Array) -> "Joint":
        """Exclude the values of categorical parts where `legal [*batch, n]` is not set; n counts the values of these parts."""
        counts = [part.logits.shape[-1] if hasattr(part, "mask") else 0 for part in self.parts]
        ends = np.cumsum(counts)
        flags = [legal[..., end - n : end] for n, end in zip(counts, ends, strict=True)]
        return Joint(tuple(part.mask(x) if n else part for part, x, n in zip(self.parts, flags, counts, strict=True)))

    def uniform_sample(self, noise: tuple[Any, ...], *ends: jax.Array) -> jax.Array:
        trios = zip(self.parts, noise, self._bounds(*ends), strict=True)
        return self._join([part.uniform_sample(x, *bounds) for part, x, bounds in trios])

    def uniform_log_prob(self, action: jax.Array, *ends: jax.Array) -> jax.Array:
        trios = zip(self.parts, self._separate(action), self._bounds(*ends), strict=True)
        return jnp.asarray(sum(part.uniform_log_prob(x, *bounds) for part, x, bounds in trios))

    def _shapes(self) -> tuple[list[Any], int]:
        """Return the shapes of the parts' modes, and the number of their batch axes."""
        modes, entropy = jax.eval_shape(lambda: ([part.mode() for part in self.parts], self.parts[0].entropy()))
        return modes, entropy.ndim

    def _join(self, actions: list[jax.Array]) -> jax.Array:
        """Return the parts of actions as one array `[*batch, d]`."""
        _, axes = self._shapes()
        return jnp.concatenate([x.astype(jnp.float32).reshape(*x.shape[:axes], -1) for x in actions], axis=-1)

    def _separate(self, action: jax.Array) -> list[jax.Array]:
        """Return the parts of actions `[*batch, d]`, in the shapes and dtypes of their distributions' samples."""
        modes, axes = self._shapes()
        events = [mode.shape[axes:] for mode in modes]
        parts = jnp.split(action, np.cumsum([math.prod(event) for event in events])[:-1], axis=-1)
        found = zip(parts, events, modes, strict=True)
        return [x.reshape(*action.shape[:-1], *event).astype(mode.dtype) for x, event, mode in found]

    def _bounds(self, *ends: jax.Array) -> list[tuple[jax.Array, ...]]:
        """Split the bounds `ends` of an action by part: () for a discrete part. Without `ends`, all parts must be discrete."""
        of_parts = list(zip(*map(self._separate, ends), strict=True)) or [()] * len(self.parts)
        return [() if isinstance(part, Choice) else bounds for part, bounds in zip(self.parts, of_parts, strict=True)]
