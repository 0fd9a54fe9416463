"""Loss terms per step. Arrays have one entry per step, such as `[L, N]` for N sequences of L steps; the caller takes the mean.

Example:
    >>> log_prob, old_log_prob, advantage = jnp.log(jnp.array([0.9, 0.5])), jnp.log(jnp.array([0.5, 0.5])), jnp.ones(2)
    >>> purerl.losses.clipped_surrogate(log_prob, old_log_prob, advantage, clip_eps=0.25).tolist()
    [-1.25, -1.0]
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.platform import means
from purerl.core.types import Scalar

MAX_LOG_RATIO = np.float32(20)  # a ratio of 5e8: far beyond any clip, while squares and products stay finite


class Term(NamedTuple):
    """A term of a loss, `weight * mean(loss)`. The array `loss` has one number per step; `mean(loss)` is the metric `name`."""

    name: str
    weight: Scalar
    loss: jax.Array


def combine(terms: Sequence[Term], **measured: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the weighted sum of the terms' means, and a dict with the mean of each term and of each `measured` array."""
    found = means({term.name: term.loss for term in terms} | measured)
    return jnp.asarray(sum(term.weight * found[term.name] for term in terms)), found


def probability_ratio(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """Compute `exp(log_prob - old_log_prob)`, `[...]`, at most `exp(20)`. The gradient does not vanish at this bound."""
    d = log_prob - old_log_prob
    return jnp.exp(jnp.where(d > MAX_LOG_RATIO, MAX_LOG_RATIO + (d - jax.lax.stop_gradient(d)), d))


def clipped_surrogate(log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, clip_eps: Scalar) -> jax.Array:
    """Compute PPO's policy loss (Schulman et al. 2017, arXiv:1707.06347, equation 7), to be minimised.

        loss = -min(r * A, clip(r, 1 - eps, 1 + eps) * A),    r = exp(log_prob - old_log_prob), at most exp(20)

    Args:
        log_prob: `[...]` log-probability of the action under the policy being trained.
        old_log_prob: `[...]` log-probability of the action under the policy that acted.
        advantage: `[...]`.
        clip_eps: scalar, above 0.
    """
    ratio = probability_ratio(log_prob, old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps) * advantage)


def half_squared_error(prediction: jax.Array, target: jax.Array) -> jax.Array:
    """Compute `(prediction - target)^2 / 2`, both `[...]`."""
    return 0.5 * jnp.square(prediction - target)


def value_loss(value: jax.Array, old_value: jax.Array, target: jax.Array, mode: str, clip_eps: Scalar) -> jax.Array:
    """Compute half the squared error of a value, optionally with the change from the old value clipped.

        none     (V - target)^2 / 2
        max      max((V - target)^2, (V_old + clip(V - V_old, -eps, eps) - target)^2) / 2
        replace  (V_old + clip(V - V_old, -eps, eps) - target)^2 / 2

    `max` is the clipping of OpenAI's baselines (Huang et al. 2022, "The 37 Implementation Details of PPO", number 9). `replace`
    is the clipping of skrl: the gradient is zero wherever V has moved by more than eps from V_old, even away from the target.

    Args:
        value: `[...(, K)]` value from the network being trained; K is the number of reward streams, if there are several.
        old_value: `[...(, K)]` value at the time of the rollout.
        target: `[...(, K)]`.
        mode: "none", "max" or "replace".
        clip_eps: scalar, in the units of `value`.
    """
    error = jnp.square(value - target)
    clipped = jnp.square(old_value + jnp.clip(value - old_value, -clip_eps, clip_eps) - target)
    return 0.5 * {"none": error, "max": jnp.maximum(error, clipped), "replace": clipped}[mode]


def approximate_kl(log_prob: jax.Array, old_log_prob: jax.Array) -> jax.Array:
    """Estimate KL(old || new) from actions of the old policy, unbiased and never negative: `exp(d) - 1 - d`.

    Here `d = log_prob - old_log_prob`. This is the estimator k3 of Schulman, "Approximating KL Divergence" (2020).
    """
    d = log_prob - old_log_prob
    return jnp.expm1(jnp.minimum(d, MAX_LOG_RATIO)) - d  # for a small d, `exp(d) - 1` would be rounding error alone


def clip_fraction(log_prob: jax.Array, old_log_prob: jax.Array, clip_eps: Scalar) -> jax.Array:
    """Return 1 where the probability ratio lies outside `1 +- clip_eps`, else 0: `[...]` float32."""
    return (jnp.abs(probability_ratio(log_prob, old_log_prob) - 1) > clip_eps).astype(jnp.float32)
