"""Distributions over actions.

Each is a PyTree of its parameters, of any batch shape, with the same methods:

    noise(key, *leading)    standard noise for `leading` times a sample, so that it can be drawn for a whole rollout at
                            once: `[*leading, *batch, ...]`; the key is consumed
    sample(noise)           `[*batch, ...]` an action, a deterministic function of the noise of one sample
    mode()                  the most likely action; of `TanhGaussian` the squashed mean
    log_prob(action)        `[*batch]` log-probability (density)
    entropy()               `[*batch]` in nats, summed over the dimensions of an action
    kl(other)               `[*batch]` KL(self || other) in nats
    env_action(action, space)  what the environment receives for `action`
    encoded(action)         `[*batch, d]` float32, an action as numbers that a network can read
    metrics()               scalars worth logging, by name

and, for a run that asks for random actions first,

    uniform_sample(noise, *bounds)       an action drawn from all of the space alike, whatever the parameters
    uniform_log_prob(action, *bounds)    `[*batch]` its log-probability (density)

where `bounds` are the lowest and the highest action of a Box in the environment's unit, `[*batch, d]`, and nothing otherwise.

Those of choices also have `masked(legal)`: the same distribution where `legal` is set, and never anything else.

Example:
    >>> policy = purerl.distributions.Categorical(jnp.zeros((4, 2)))
    >>> actions = policy.sample(policy.noise(jax.random.key(0)))
    >>> actions.shape, policy.log_prob(actions).shape
    ((4,), (4,))
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer

from purerl.core.errors import ConfigError, Problem
from purerl.core.keys import flat_draw
from purerl.core.metrics import Mean, mean_of
from purerl.core.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, bounds_map

LOG_STD_MIN, LOG_STD_MAX = -20.0, 20.0  # beyond any box, and all that is computed from it stays finite
ILLEGAL = -1e9  # a logit: its probability is exactly 0, and 0 times its logarithm is no NaN
_HALF_LOG_2PI = np.float32(0.5 * np.log(2 * np.pi))


# --- choices ----------------------------------------------------------------------------------------------------------


class Categorical(struct.PyTreeNode):
    """One of `n` choices, with probabilities `softmax(logits)`.

    logits: `[*batch, n]` float32, unnormalised.
    """

    logits: jax.Array

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return flat_draw(jax.random.gumbel, key, (*leading, *self.logits.shape))

    def sample(self, noise: jax.Array) -> jax.Array:
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        # A masked sum: the gradient of a gather is a scatter, which XLA runs one element at a time on a CPU.
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=bool)
        log_p = jax.nn.log_softmax(self.logits)
        return jnp.where(chosen, log_p, jnp.zeros_like(log_p)).sum(-1)

    def entropy(self) -> jax.Array:
        log_p = jax.nn.log_softmax(self.logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    def kl(self, other: "Categorical") -> jax.Array:
        log_p, log_q = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)

    def env_action(self, action: jax.Array, space: Discrete) -> jax.Array:
        return action

    def encoded(self, action: jax.Array) -> jax.Array:
        return jax.nn.one_hot(action, self.logits.shape[-1], dtype=jnp.float32)

    def metrics(self) -> dict[str, Mean]:
        return {}

    def masked(self, legal: jax.Array) -> "Categorical":
        """Mask actions that are not `legal [*batch, n]`, of which one at least must be set."""
        return Categorical(jnp.where(legal.astype(bool), self.logits, jnp.float32(ILLEGAL)))

    def uniform_sample(self, noise: jax.Array) -> jax.Array:
        return self._flat().sample(noise)

    def uniform_log_prob(self, action: jax.Array) -> jax.Array:
        return self._flat().log_prob(action)

    def _flat(self) -> "Categorical":
        return Categorical(jnp.zeros_like(self.logits)).masked(self.logits > 0.5 * ILLEGAL)


class MultiCategorical(struct.PyTreeNode):
    """Several independent choices; probabilities multiply, entropies and divergences add up ("37 details", number 37).

    logits: `[*batch, sum(sizes)]` float32, those of one choice after those of another.
    sizes: how many there are of each.
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

    def env_action(self, action: jax.Array, space: MultiDiscrete) -> jax.Array:
        return action

    def encoded(self, action: jax.Array) -> jax.Array:
        return jnp.concatenate([choice.encoded(action[..., i]) for i, choice in enumerate(self.choices)], axis=-1)

    def metrics(self) -> dict[str, Mean]:
        return {}

    def masked(self, legal: jax.Array) -> "MultiCategorical":
        """Mask actions that are not `legal [*batch, sum(sizes)]`, of which one at least must be set in each choice."""
        return self.replace(logits=Categorical(self.logits).masked(legal).logits)

    def uniform_sample(self, noise: jax.Array) -> jax.Array:
        return self._flat().sample(noise)

    def uniform_log_prob(self, action: jax.Array) -> jax.Array:
        return self._flat().log_prob(action)

    def _flat(self) -> "MultiCategorical":
        return self.replace(logits=Categorical(self.logits)._flat().logits)

    def _split(self, x: jax.Array) -> list[jax.Array]:
        return jnp.split(x, np.cumsum(self.sizes)[:-1], axis=-1)


class Bernoulli(struct.PyTreeNode):
    """Independent switches, each on with probability `sigmoid(logit)`.

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

    def env_action(self, action: jax.Array, space: MultiBinary) -> jax.Array:
        return action

    def encoded(self, action: jax.Array) -> jax.Array:
        return action.astype(jnp.float32)

    def metrics(self) -> dict[str, Mean]:
        return {}

    def uniform_sample(self, noise: jax.Array) -> jax.Array:
        return Bernoulli(jnp.zeros_like(self.logits)).sample(noise)

    def uniform_log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.full(self.logits.shape[:-1], -self.logits.shape[-1] * math.log(2), jnp.float32)

    def _expected(self, logits: jax.Array) -> jax.Array:
        """Return the cross entropy with switches of other logits."""
        p = jax.nn.sigmoid(self.logits)
        return -(p * jax.nn.log_sigmoid(logits) + (1 - p) * jax.nn.log_sigmoid(-logits)).sum(-1)


# --- real numbers -----------------------------------------------------------------------------------------------------


class DiagGaussian(struct.PyTreeNode):
    """Independent normals, one for each dimension of a Box action.

    The environment receives the sample in its own unit, clipped to its bounds. Rollouts, losses and entropies use the sample
    itself and its density, so that the ratio of densities is exact.

    mean, log_std: `[*batch, d]` float32. `log_std` is used clipped to [-20, 20]; outside it has no gradient.
    unit: the unit of both. `environment`: the environment's. `bounds`: -1 and 1 are the bounds of an action, and a dimension
      without two finite bounds keeps the environment's unit (`core.spaces.bounds_map`). The built-in networks use `bounds`.

    Raises:
        ConfigError: there is no such unit.

    Example:
        >>> policy = purerl.distributions.DiagGaussian(jnp.array([0.5]), jnp.zeros(1), unit="bounds")
        >>> policy.env_action(policy.mode(), purerl.Box(np.array([100.0]), np.array([200.0]))).tolist()
        [175.0]
    """

    mean: jax.Array
    log_std: jax.Array
    unit: str = struct.field(pytree_node=False, default="environment")

    def __post_init__(self) -> None:
        if self.unit not in ("environment", "bounds"):
            raise ConfigError([Problem("unit", self.unit, "the unit of a DiagGaussian must be 'environment' or 'bounds'")])

    @property
    def clipped_log_std(self) -> jax.Array:
        return jnp.clip(self.log_std, LOG_STD_MIN, LOG_STD_MAX)

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return flat_draw(jax.random.normal, key, (*leading, *self.mean.shape))

    def sample(self, noise: jax.Array) -> jax.Array:
        return self.mean + jnp.exp(self.clipped_log_std) * noise

    def mode(self) -> jax.Array:
        return self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        z = (action - self.mean) * jnp.exp(-self.clipped_log_std)
        return (-0.5 * jnp.square(z) - self.clipped_log_std - _HALF_LOG_2PI).sum(-1)

    def entropy(self) -> jax.Array:
        return (self.clipped_log_std + (0.5 + _HALF_LOG_2PI)).sum(-1)

    def kl(self, other: "DiagGaussian") -> jax.Array:
        ratio = self.clipped_log_std - other.clipped_log_std
        distance = jnp.square((self.mean - other.mean) * jnp.exp(-other.clipped_log_std))
        return (0.5 * (jnp.exp(2 * ratio) + distance - 1) - ratio).sum(-1)

    def env_action(self, action: jax.Array, space: Box) -> jax.Array:
        action = action.reshape(action.shape[:-1] + space.shape)
        low, high = (jnp.broadcast_to(bound, action.shape) for bound in (space.low, space.high))
        if self.unit == "bounds":
            centre, half_width = bounds_map(low, high)
            action = centre + half_width * action
        return jnp.clip(action, low, high)

    def encoded(self, action: jax.Array) -> jax.Array:
        return action

    def metrics(self) -> dict[str, Mean]:
        return {"policy_std": mean_of(jnp.exp(self.clipped_log_std).mean(-1))}

    def uniform_sample(self, noise: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        low, high = self._in_own_unit(low, high)
        return low + (high - low) * jax.scipy.stats.norm.cdf(noise)

    def uniform_log_prob(self, action: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        low, high = self._in_own_unit(low, high)
        return -jnp.log(high - low).sum(-1)

    def _in_own_unit(self, low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the bounds of an action in the unit of the samples."""
        if self.unit == "environment":
            return low, high
        centre, half_width = bounds_map(low, high)
        return (low - centre) / half_width, (high - centre) / half_width


class TanhGaussian(struct.PyTreeNode):
    """Independent normals squashed between the bounds of a Box action by `tanh`.

    An action is the normal's sample u itself, from before the tanh, which is never inverted: so `log_prob` is finite for every
    action. It is the density of `tanh(u)`, in (-1, 1); that of the environment's action differs by a constant, in no ratio.

    mean, log_std: `[*batch, d]` float32, of u; as in `DiagGaussian`.
    """

    mean: jax.Array
    log_std: jax.Array

    @property
    def gaussian(self) -> DiagGaussian:
        return DiagGaussian(self.mean, self.log_std)

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return self.gaussian.noise(key, *leading)

    def sample(self, noise: jax.Array) -> jax.Array:
        return self.gaussian.sample(noise)

    def mode(self) -> jax.Array:
        """Return the mode of the normal: the median of the action."""
        return self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        return self.gaussian.log_prob(action) - _log_slope(action).sum(-1)

    def entropy(self) -> jax.Array:
        """Return the normal's entropy and the expected log-slope of the tanh, by Gauss-Hermite quadrature of 64 points."""
        points, weights = (x.astype(np.float32) for x in np.polynomial.hermite_e.hermegauss(64))
        points = points.reshape((1,) * self.mean.ndim + (-1,))
        u = self.mean[..., None] + jnp.exp(self.gaussian.clipped_log_std)[..., None] * points
        return self.gaussian.entropy() + (_log_slope(u) @ (weights / weights.sum())).sum(-1)

    def kl(self, other: "TanhGaussian") -> jax.Array:
        """Return the divergence of the normals, since one invertible function presses both."""
        return self.gaussian.kl(other.gaussian)

    def env_action(self, action: jax.Array, space: Box) -> jax.Array:
        action = action.reshape(action.shape[:-1] + space.shape)
        low, high = (jnp.broadcast_to(bound, action.shape) for bound in (space.low, space.high))
        return jnp.clip(low + (high - low) * (0.5 + 0.5 * jnp.tanh(action)), low, high)  # rounding

    def encoded(self, action: jax.Array) -> jax.Array:
        return action

    def metrics(self) -> dict[str, Mean]:
        return self.gaussian.metrics()

    def uniform_sample(self, noise: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        # With s = cdf(noise), a uniform number: u = artanh(2 s - 1) = (log s - log(1 - s)) / 2.
        log_cdf = jax.scipy.stats.norm.logcdf
        return 0.5 * (log_cdf(noise) - log_cdf(-noise))

    def uniform_log_prob(self, action: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        return jnp.full(action.shape[:-1], -action.shape[-1] * math.log(2), jnp.float32)


def action_unit(policy: Any, space: Space) -> str:
    """Return the unit of a policy's samples: `environment`, `bounds`, or `either` if the two are the same."""
    if not (isinstance(policy, DiagGaussian) and isinstance(space, Box)):
        return "either"
    if isinstance(space.low, Tracer) or isinstance(space.high, Tracer):
        return policy.unit
    centre, half_width = bounds_map(space.low, space.high)
    return policy.unit if bool((centre != 0).any() | (half_width != 1).any()) else "either"


def _log_slope(u: jax.Array) -> jax.Array:
    """Return `log(1 - tanh(u)^2)`, exact also where the tanh rounds to 1."""
    return 2 * (np.float32(np.log(2)) - u - jax.nn.softplus(-2 * u))
