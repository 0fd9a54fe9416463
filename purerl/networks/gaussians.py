"""Distributions over continuous actions; `purerl.distributions` lists their methods."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer

from purerl.core.errors import config_error
from purerl.core.keys import flat_draw
from purerl.core.metrics import Mean, mean_of
from purerl.core.spaces import Box, Mixed, Space, bounds_map, parts_of

LOG_STD_MIN, LOG_STD_MAX = -20.0, 20.0  # exp(20) is wider than any bounded Box, and derived numbers stay finite
_HALF_LOG_2PI = np.float32(0.5 * np.log(2 * np.pi))


class UnboundedGaussian(struct.PyTreeNode):
    """Independent normal distributions, one for each dimension of a Box action.

    Attributes:
        mean, log_std: `[*batch, d]` float32. `log_std` is clipped to [-20, 20] before use, and has no gradient outside of this
          range.
    """

    mean: jax.Array
    log_std: jax.Array

    @property
    def clipped_log_std(self) -> jax.Array:
        shape = jnp.broadcast_shapes(self.log_std.shape, self.mean.shape)
        return jnp.broadcast_to(jnp.clip(self.log_std, LOG_STD_MIN, LOG_STD_MAX), shape)

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

    def kl(self, other: "UnboundedGaussian") -> jax.Array:
        ratio = self.clipped_log_std - other.clipped_log_std
        distance = jnp.square((self.mean - other.mean) * jnp.exp(-other.clipped_log_std))
        return (0.5 * (jnp.expm1(2 * ratio) + distance) - ratio).sum(-1)

    def encode(self, action: jax.Array) -> jax.Array:
        return action

    def metrics(self) -> dict[str, Mean]:
        return {"policy_std": mean_of(jnp.exp(self.clipped_log_std).mean(-1))}


class DiagGaussian(UnboundedGaussian):
    """Independent normal distributions, one for each dimension of a Box action.

    The environment receives the sample, converted to the environment's unit and clipped to the bounds. Rollouts, losses and
    entropies use the unclipped sample and its density, so that the ratio of densities is exact.

    Attributes:
        mean, log_std: `[*batch, d]` float32. `log_std` is clipped to [-20, 20] before use, and has no gradient outside of this
          range.
        unit: the unit of the samples. With `environment`, it is the environment's unit. With `bounds`, -1 and 1 are the bounds of
          an action; a dimension without two finite bounds keeps the environment's unit (`core.spaces.bounds_map`). The built-in
          networks use `bounds`.

    Raises:
        ConfigError: `unit` is unknown.

    Example:
        >>> policy = purerl.distributions.DiagGaussian(jnp.array([0.5]), jnp.zeros(1), unit="bounds")
        >>> policy.env_action(policy.mode(), purerl.Box(np.array([100.0]), np.array([200.0]))).tolist()
        [175.0]
    """

    unit: str = struct.field(pytree_node=False, default="environment")

    def __post_init__(self) -> None:
        if self.unit not in ("environment", "bounds"):
            raise config_error("unit", self.unit, "must be 'environment' or 'bounds'")

    def env_action(self, action: jax.Array, space: Box) -> jax.Array:
        action, low, high = with_bounds(action, space)
        if self.unit == "bounds":
            centre, half_width = bounds_map(low, high)
            action = centre + half_width * action
        return jnp.clip(action, low, high)

    def uniform_sample(self, noise: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        low, high = self._in_unit(low, high)
        return low + (high - low) * jax.scipy.stats.norm.cdf(noise)

    def uniform_log_prob(self, action: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        low, high = self._in_unit(low, high)
        return -jnp.log(high - low).sum(-1)

    def _in_unit(self, low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the bounds of an action in the unit of the samples."""
        if self.unit == "environment":
            return low, high
        centre, half_width = bounds_map(low, high)
        return (low - centre) / half_width, (high - centre) / half_width


class TanhGaussian(UnboundedGaussian):
    """Independent normal distributions, squashed by `tanh` between the bounds of a Box action.

    An action is the normal sample u before the tanh. The tanh is never inverted, so `log_prob` is finite for every action.
    `log_prob` is the log-density of `tanh(u)` in (-1, 1). The log-density of the environment's action differs from it by a
    constant, which cancels in ratios. The divergence is that of the normal distributions, which does not change if both are
    squashed by the same tanh. The mode is the mean of u, and `tanh(mode)` is the median of the squashed action.

    Attributes:
        mean, log_std: `[*batch, d]` float32, the parameters of u. `log_std` is clipped to [-20, 20] before use.
    """

    def log_prob(self, action: jax.Array) -> jax.Array:
        return super().log_prob(action) - _log_slope(action).sum(-1)

    def entropy(self) -> jax.Array:
        """Return the normal's entropy plus the expected log-slope of the tanh, by 64-point Gauss-Hermite quadrature."""
        points, weights = (x.astype(np.float32) for x in np.polynomial.hermite_e.hermegauss(64))
        points = points.reshape((1,) * self.mean.ndim + (-1,))
        u = self.mean[..., None] + jnp.exp(self.clipped_log_std)[..., None] * points
        return super().entropy() + (_log_slope(u) @ (weights / weights.sum())).sum(-1)

    def env_action(self, action: jax.Array, space: Box) -> jax.Array:
        return between_bounds(0.5 + 0.5 * jnp.tanh(action), space)

    def uniform_sample(self, noise: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        # The number s = cdf(noise) is uniform on (0, 1), so u = artanh(2 s - 1) = (log s - log(1 - s)) / 2.
        log_cdf = jax.scipy.stats.norm.logcdf
        return 0.5 * (log_cdf(noise) - log_cdf(-noise))

    def uniform_log_prob(self, action: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        return jnp.full(action.shape[:-1], -action.shape[-1] * math.log(2), jnp.float32)


def with_bounds(action: jax.Array, space: Box) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return actions in the shape of the space, `[*batch, *space.shape]`, and their bounds in the same shape."""
    action = action.reshape(action.shape[:-1] + space.shape)
    return action, jnp.broadcast_to(space.low, action.shape), jnp.broadcast_to(space.high, action.shape)


def between_bounds(x: jax.Array, space: Box) -> jax.Array:
    """Return the actions at `x` between the bounds: 0 is the lower bound, 1 the upper bound."""
    x, low, high = with_bounds(x, space)
    return jnp.clip(low + (high - low) * x, low, high)  # the clip corrects rounding


def action_unit(policy: Any, space: Space) -> str:
    """Return the unit of a policy's samples: `environment`, `bounds`, or `either` if both units are the same.

    For a mixed action, return `environment` if the units of the parts differ.
    """
    if isinstance(space, Mixed):
        parts = getattr(policy, "parts", ())
        units = {action_unit(*pair) for pair in zip(parts, parts_of(space), strict=bool(parts))} - {"either"}
        return "environment" if len(units) > 1 else next(iter(units), "either")
    if not (isinstance(policy, DiagGaussian) and isinstance(space, Box)):
        return "either"
    if isinstance(space.low, Tracer) or isinstance(space.high, Tracer):
        return policy.unit
    centre, half_width = bounds_map(space.low, space.high)
    return policy.unit if bool((centre != 0).any() | (half_width != 1).any()) else "either"


def _log_slope(u: jax.Array) -> jax.Array:
    """Return `log(1 - tanh(u)^2)`, which stays accurate where the tanh rounds to 1."""
    return 2 * (np.float32(np.log(2)) - u - jax.nn.softplus(-2 * u))
