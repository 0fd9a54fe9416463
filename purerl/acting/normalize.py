"""Running statistics for normalisation. Separate functions update and apply statistics, because statistics are state.

Statistics of observations and values are constant while a rollout is collected and learnt from, and are updated at the end of the
update, from the rollout's raw data. On data of the newest policy, the ratio of new to old probabilities is therefore exactly 1
before the first gradient step. Reward statistics do not affect this ratio, and are updated before they are used. `Train.policy`
and `Train.evaluate` never change statistics.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.config.base import OnPolicyConfig
from purerl.core import reductions
from purerl.core.keys import Clock, clock_at
from purerl.core.spaces import is_index
from purerl.core.types import PyTree, Scalar, Transition

EPSILON = 1e-8  # added to variances
SMALLEST_SHARE = np.float32(2**-18)  # of a batch in the moments
LARGEST = 1e15  # bound of the numbers in a batch: the sum of 2**28 squares is finite in float32


# --- moments ----------------------------------------------------------------------------------------------------------


class Moments(struct.PyTreeNode):
    """Running mean and variance.

    Attributes:
        mean, variance: `[...]` float32; 0 and 1 before the first merge.
        count: number of merged observations, an exact integer in two uint32 words.
    """

    mean: jax.Array
    variance: jax.Array
    count: Clock


def initial_moments(shape: tuple[int, ...]) -> Moments:
    """Return moments before any data: mean 0, variance 1."""
    return Moments(jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32), clock_at(0))


def merge(moments: Moments, x: jax.Array, *, prior: float = 0.0, ddof: int = 0) -> Moments:
    """Merge `x [T, B, ...]` into moments, over its first two axes and all devices (Chan et al. 1979).

    If n0 old and n new observations have the variances v0 and v, and means that differ by d, the merged mean is
    `mean + d n / (n0 + n)`, and the merged variance is `(v0 n0 + v n + d^2 n0 n / (n0 + n)) / (n0 + n)`. The variance of a batch
    is computed from deviations from the batch mean. Far from 0 this is accurate, while `E[x^2] - E[x]^2` is not.

    A batch counts at least 2^-18 of all data, since smaller shares are lost in rounding. After 262,144 merges of equal size,
    the moments therefore forget older batches exponentially.

    Args:
        moments: the moments so far.
        x: observations of any real dtype. Finite numbers beyond +- 1e15 count as +- 1e15, so that no finite number makes a
          variance infinite.
        prior: number of observations that the initial mean 0 and variance 1 count for. With 0, the first batch replaces both.
          With 1 and `ddof=1`, the rule is that of skrl's RunningStandardScaler; with 1e-4, that of baselines' RunningMeanStd.
        ddof: with 1, the variance of a batch divides by n - 1 instead of n.
    """
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jnp.where(jnp.isfinite(x), jnp.clip(x, -LARGEST, LARGEST), x)
    x = x.astype(jnp.float32)
    n = x.shape[0] * x.shape[1] * reductions.num_devices()
    batch_mean = reductions.pmean(x.mean((0, 1)))
    batch_variance = reductions.pmean(jnp.square(x - batch_mean[None, None]).mean((0, 1))) * np.float32(n / (n - ddof))
    before = moments.count.as_float() + np.float32(prior)
    new = jnp.maximum(np.float32(n) / (before + np.float32(n)), SMALLEST_SHARE)
    old, difference = 1 - new, batch_mean - moments.mean
    return Moments(
        mean=moments.mean + difference * new,
        variance=_between(moments.variance, batch_variance + jnp.square(difference) * old, new),
        count=moments.count + n,
    )


def _between(a: jax.Array, b: jax.Array, share: jax.Array) -> jax.Array:
    """Return `(1 - share) a + share b`, with an error that is small beside the result: 1 - share itself is rounded."""
    return jnp.where(share > 0.5, b + (1 - share) * (a - b), a + share * (b - a))


def standardize_with(moments: Moments, x: jax.Array, clip: Scalar) -> jax.Array:
    """Compute `(x - mean) / sqrt(variance + 1e-8)`, clipped to `+- clip`. Return `[L, N, ...]` float32."""
    lead = (None,) * (x.ndim - moments.mean.ndim)
    z = (x.astype(jnp.float32) - moments.mean[lead]) * jax.lax.rsqrt(moments.variance + EPSILON)[lead]
    return jnp.clip(z, -clip, clip)


def restore_with(moments: Moments, z: jax.Array) -> jax.Array:
    """Invert `standardize_with` without the clip: `mean + z sqrt(variance + 1e-8)`."""
    lead = (None,) * (z.ndim - moments.mean.ndim)
    return moments.mean[lead] + z * jnp.sqrt(moments.variance + EPSILON)[lead]


# --- statistics of PPO -------------------------------------------------------------------------------------------------


class RewardScale(struct.PyTreeNode):
    """Statistics for the scale of rewards.

    Attributes:
        discounted: `[B]` float32, each environment's discounted sum of rewards since the episode start (RND: since the start of
          training).
        moments: moments of the discounted sums of all environments; only the variance is used.
    """

    discounted: jax.Array
    moments: Moments


class Statistics(struct.PyTreeNode):
    """Running statistics of a run. A disabled statistic is the empty tuple, which costs nothing.

    Attributes:
        obs: `Moments` for each standardised entry `[...]` of an observation; the empty tuple for each other entry, such as a
          categorical entry or the action mask.
        reward: `RewardScale`.
        value: `Moments` of value targets, `[]`, or `[K]` with K > 1 reward streams.
    """

    obs: PyTree = ()
    reward: PyTree = ()
    value: PyTree = ()


def initial_statistics(cfg: OnPolicyConfig, space: PyTree) -> Statistics:
    """Return the initial statistics for environments of this observation space."""
    sums = jnp.zeros(reductions.local_batch(cfg.num_envs), jnp.float32)
    return Statistics(
        obs=_quantities(cfg, space, cfg.normalize_entries) if cfg.normalize_obs else (),
        reward=RewardScale(sums, initial_moments(())) if cfg.normalize_reward else (),
        value=initial_moments((cfg.streams,) if cfg.streams > 1 else ()) if cfg.normalize_value else (),
    )


def _quantities(cfg: OnPolicyConfig, space: PyTree, names: tuple[str, ...] = ()) -> PyTree:
    """Return initial moments for the named entries of an observation, except categorical entries and the action mask.

    If there are no names, all other entries have moments.
    """
    if isinstance(space, dict):
        is_left_out = lambda name: name == cfg.action_mask or (names and name not in names)
        return {name: () if is_left_out(name) else _quantities(cfg, inside) for name, inside in space.items()}
    return jax.tree.map(lambda x: () if is_index(x) else initial_moments(x.shape), space, is_leaf=is_index)


def _per_entry(function: Callable, moments: PyTree, obs: PyTree) -> PyTree:
    """Apply a function to the moments (or the empty tuple) and the value of each entry of an observation."""
    return jax.tree.map(function, moments, obs, is_leaf=lambda m: isinstance(m, Moments) or m == ())


def standardize_observations(cfg: OnPolicyConfig, statistics: Statistics, obs: PyTree) -> PyTree:
    """Return the input of the network, `[L, N, ...]`: the observations, standardised if `normalize_obs` is set."""
    see = lambda moments, x: standardize_with(moments, x, cfg.obs_clip) if isinstance(moments, Moments) else x
    return _per_entry(see, statistics.obs, obs) if cfg.normalize_obs else obs


def merge_rewards(cfg: OnPolicyConfig, statistics: Statistics, steps: Transition) -> Statistics:
    """Merge the discounted sums `G_t = gamma G_{t-1} (1 - first_t) + r_t` of a rollout's raw rewards into statistics.

    Reward statistics are updated before they are used. The reward of an episode's last step counts for this episode. The sum
    restarts after an episode has ended in a terminal state or at a time limit.
    """
    if not cfg.normalize_reward:
        return statistics
    scale, _ = reward_sums(statistics.reward, steps.reward, steps.first, cfg.gamma)
    return statistics.replace(reward=scale)


def scale_rewards(cfg: OnPolicyConfig, statistics: Statistics, reward: jax.Array) -> jax.Array:
    """Divide rewards `[T, B(, K)]` by the running standard deviation of discounted sums of rewards, if `normalize_reward` is set.

    The result is `r / sqrt(var + 1e-8)`, clipped to `+- reward_clip`. Rewards are not centred, since centring would change the
    optimal policy. With several reward streams, only the first, extrinsic stream is divided.
    """
    if not cfg.normalize_reward:
        return reward
    scale = jax.lax.rsqrt(statistics.reward.moments.variance + EPSILON)
    scale_one = lambda r: jnp.clip(r * scale, -cfg.reward_clip, cfg.reward_clip)
    return scale_one(reward) if reward.ndim == 2 else reward.at[..., 0].set(scale_one(reward[..., 0]))


def reward_sums(
    scale: RewardScale, reward: jax.Array, first: jax.Array, gamma: Scalar, *, prior: float = 0.0
) -> tuple[RewardScale, jax.Array]:
    """Return the updated scale, and the discounted sums of a rollout's raw rewards, `[T, B]`."""

    def accumulate(discounted, step):
        reward, first = step
        discounted = gamma * jnp.where(first, jnp.float32(0), discounted) + reward
        return discounted, discounted

    last, sums = jax.lax.scan(accumulate, scale.discounted, (reward, first))
    return RewardScale(last, merge(scale.moments, sums, prior=prior)), sums


def standardize_values(statistics: Statistics, x: jax.Array) -> jax.Array:
    """Convert values or value targets from units of reward to the units of the network's values."""
    return standardize_with(statistics.value, x, jnp.float32(jnp.inf)) if isinstance(statistics.value, Moments) else x


def restore_values(statistics: Statistics, z: jax.Array) -> jax.Array:
    """Invert `standardize_values`: convert the network's values to units of the training rewards."""
    return restore_with(statistics.value, z) if isinstance(statistics.value, Moments) else z


def merge_statistics(cfg: OnPolicyConfig, statistics: Statistics, obs: PyTree, target: jax.Array) -> Statistics:
    """Merge an update's raw observations and value targets, `[T, B, ...]`, into statistics."""
    entry = lambda moments, x: merge(moments, x) if isinstance(moments, Moments) else ()
    return statistics.replace(
        obs=_per_entry(entry, statistics.obs, obs) if cfg.normalize_obs else (),
        value=merge(statistics.value, target) if cfg.normalize_value else (),
    )
