"""The Beta distribution over continuous actions; `purerl.distributions` lists its methods."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.special import betaln, digamma
from jax.scipy.stats import norm

from purerl.core.keys import flat_draw
from purerl.core.metrics import Mean, mean_of
from purerl.core.spaces import Box
from purerl.networks.gaussians import between_bounds

PROPOSALS = 6  # for each gamma variate; about once in 10^8 samples, all of them are rejected, and the last one is used
EDGE = 1e-6  # samples keep this distance from 0 and 1, where a density of 0 would have no logarithm


class Beta(struct.PyTreeNode):
    """Independent Beta distributions between the bounds of a Box action (Chou et al. 2017, PMLR 70:834-843).

    An action is the sample x in (0, 1), which the environment receives as `low + (high - low) x`. Unlike a clipped Gaussian, the
    distribution has no mass at or beyond the bounds. `log_prob` and `entropy` are those of x.

    Attributes:
        alpha, beta: `[*batch, d]` float32, at least 1. If both are above 1, the density has one mode.

    Example:
        >>> policy = purerl.distributions.Beta(jnp.array([2.0]), jnp.array([4.0]))
        >>> policy.env_action(policy.mode(), purerl.Box(np.array([-2.0]), np.array([2.0]))).tolist()
        [-1.0]
    """

    alpha: jax.Array
    beta: jax.Array

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return flat_draw(jax.random.normal, key, (*leading, *self.alpha.shape, 2, PROPOSALS, 2))

    def sample(self, noise: jax.Array) -> jax.Array:
        variates = _gamma(jnp.stack([self.alpha, self.beta], axis=-1), noise[..., 0], noise[..., 1])
        return jnp.clip(variates[..., 0] / variates.sum(-1), EDGE, 1 - EDGE)

    def mode(self) -> jax.Array:
        """Return the most likely action; 0.5 if the distribution is uniform."""
        left, right = self.alpha - 1 + EDGE, self.beta - 1 + EDGE
        return left / (left + right)

    def log_prob(self, action: jax.Array) -> jax.Array:
        terms = (self.alpha - 1) * jnp.log(action) + (self.beta - 1) * jnp.log1p(-action)
        return (terms - betaln(self.alpha, self.beta)).sum(-1)

    def entropy(self) -> jax.Array:
        slopes = (self.alpha - 1) * digamma(self.alpha) + (self.beta - 1) * digamma(self.beta)
        both = self.alpha + self.beta
        return (betaln(self.alpha, self.beta) - slopes + (both - 2) * digamma(both)).sum(-1)

    def kl(self, other: "Beta") -> jax.Array:
        first, second = self.alpha - other.alpha, self.beta - other.beta
        slopes = first * digamma(self.alpha) + second * digamma(self.beta)
        joint = (first + second) * digamma(self.alpha + self.beta)
        return (betaln(other.alpha, other.beta) - betaln(self.alpha, self.beta) + slopes - joint).sum(-1)

    def env_action(self, action: jax.Array, space: Box) -> jax.Array:
        return between_bounds(action, space)

    def encode(self, action: jax.Array) -> jax.Array:
        """Return the action, scaled to bounds of -1 and 1."""
        return 2 * action - 1

    def metrics(self) -> dict[str, Mean]:
        """Return the mean standard deviation of an action scaled to bounds of -1 and 1."""
        both = self.alpha + self.beta
        return {"policy_std": mean_of((2 * jnp.sqrt(self.alpha * self.beta / (both + 1)) / both).mean(-1))}

    def uniform_sample(self, noise: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        return jnp.clip(norm.cdf(noise[..., 0, 0, 0]), EDGE, 1 - EDGE)

    def uniform_log_prob(self, action: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        return jnp.zeros(action.shape[:-1], jnp.float32)


def _gamma(shape: jax.Array, proposal: jax.Array, judge: jax.Array) -> jax.Array:
    """Return gamma variates with shape parameters of at least 1, by rejection sampling from a fixed number of proposals.

    A proposal is `d (1 + z / sqrt(9 d))^3` with `d = shape - 1 / 3` and a standard normal z. It is accepted with the probability
    of Marsaglia & Tsang 2000 (doi:10.1145/358407.358414), which is at least 0.95. The first accepted proposal is used.

    Args:
        shape: shape parameters `[...]`.
        proposal, judge: standard normal numbers `[..., proposals]`; `judge` decides about acceptance.
    """
    d = (shape - np.float32(1 / 3))[..., None]
    root = 1 + proposal * jax.lax.rsqrt(9 * d)
    cube = jnp.where(root > 0, root, jnp.ones_like(root)) ** 3
    level = 0.5 * jnp.square(proposal) + d * (1 - cube + jnp.log(cube))
    accepted = (root > 0) & (norm.logcdf(judge) < level)
    chosen = jnp.argmax(accepted.at[..., -1].set(True), axis=-1, keepdims=True)
    return (d * jnp.take_along_axis(cube, chosen, axis=-1)).squeeze(-1)
