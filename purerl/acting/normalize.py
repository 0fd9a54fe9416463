"""Running statistics for normalisation. Updating and applying them are separate functions, because they are state.

They are frozen while a rollout is collected and learnt from, and updated once per update from its raw data. Reward statistics do
not enter a probability ratio: they are updated first and then used. So the ratio of new to old probabilities is exactly 1 before
the first gradient step, and `policy` and `evaluate` never change them.
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

EPSILON = 1e-8  # added to a variance
LARGEST = 1e15  # of a number in a batch: the squares of 2**28 of them add up in float32


# --- moments ----------------------------------------------------------------------------------------------------------


class Moments(struct.PyTreeNode):
    """Running mean and variance.

    mean, variance: `[...]` float32; 0 and 1 before the first merge.
    count: what was merged, an exact integer in two words.
    """

    mean: jax.Array
    variance: jax.Array
    count: Clock


def initial_moments(shape: tuple[int, ...]) -> Moments:
    """Return moments before any data: mean 0, variance 1."""
    return Moments(jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32), clock_at(0))


def merge(moments: Moments, x: jax.Array, *, prior: float = 0.0, ddof: int = 0) -> Moments:
    """Merge `x [T, B, ...]` into moments, over its first two axes and all devices (Chan et al. 1979).

    With n0 seen, n new, d the difference of means, `mean + d n / (n0 + n)` and `(v0 n0 + v n + d^2 n0 n / (n0 + n)) / (n0 + n)`.
    Each batch's variance is of deviations from its own mean, so it is exact far from 0, where `E[x^2] - E[x]^2` is not.

    Args:
        moments: so far.
        x: any real dtype. Finite numbers beyond +- 1e15 count as that, so that none makes a variance infinite.
        prior: how many observations the initial mean 0 and variance 1 count for. 0 lets the first batch replace them; 1 (with
          `ddof=1`) is skrl's RunningStandardScaler, 1e-4 baselines' RunningMeanStd.
        ddof: 1 takes n - 1 for n in the variance of a batch.
    """
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = jnp.where(jnp.isfinite(x), jnp.clip(x, -LARGEST, LARGEST), x)
    x = x.astype(jnp.float32)
    n = x.shape[0] * x.shape[1] * reductions.num_devices()
    batch_mean = reductions.pmean(x.mean((0, 1)))
    batch_variance = reductions.pmean(jnp.square(x - batch_mean[None, None]).mean((0, 1))) * np.float32(n / (n - ddof))
    before = moments.count.as_float() + np.float32(prior)
    new = np.float32(n) / (before + np.float32(n))
    old, difference = 1 - new, batch_mean - moments.mean
    return Moments(
        mean=moments.mean + difference * new,
        variance=moments.variance * old + batch_variance * new + jnp.square(difference) * old * new,
        count=moments.count + n,
    )


def standardized(moments: Moments, x: jax.Array, clip: Scalar) -> jax.Array:
    """Compute `(x - mean) / sqrt(variance + 1e-8)`, clipped to `+- clip`. `[L, N, ...]` float32."""
    lead = (None,) * (x.ndim - moments.mean.ndim)
    z = (x.astype(jnp.float32) - moments.mean[lead]) * jax.lax.rsqrt(moments.variance + EPSILON)[lead]
    return jnp.clip(z, -clip, clip)


def restored(moments: Moments, z: jax.Array) -> jax.Array:
    """Invert `standardized` without its clip: `mean + z sqrt(variance + 1e-8)`."""
    lead = (None,) * (z.ndim - moments.mean.ndim)
    return moments.mean[lead] + z * jnp.sqrt(moments.variance + EPSILON)[lead]


# --- what PPO keeps ---------------------------------------------------------------------------------------------------


class RewardScale(struct.PyTreeNode):
    """The scale of rewards.

    discounted: `[B]` float32, the discounted sum of each environment's rewards since its episode began.
    moments: of all those sums; only the variance is used.
    """

    discounted: jax.Array
    moments: Moments


class Statistics(struct.PyTreeNode):
    """Running statistics of a run; each is the empty tuple where it is switched off, and then has no overhead.

    obs: `Moments` of each entry `[...]` of an observation, and the empty tuple for an entry that is no quantity.
    reward: `RewardScale`.
    value: `Moments`, of value targets `[]`.
    """

    obs: PyTree = ()
    reward: PyTree = ()
    value: PyTree = ()


def initial_statistics(cfg: OnPolicyConfig, space: PyTree) -> Statistics:
    """Return the initial statistics, in environments of this observation space."""
    sums = jnp.zeros(reductions.local_batch(cfg.num_envs), jnp.float32)
    return Statistics(
        obs=_quantities(cfg, space) if cfg.normalize_obs else (),
        reward=RewardScale(sums, initial_moments(())) if cfg.normalize_reward else (),
        value=initial_moments((cfg.streams,) if cfg.streams > 1 else ()) if cfg.normalize_value else (),
    )


def _quantities(cfg: OnPolicyConfig, space: PyTree) -> PyTree:
    """Return moments for every entry of an observation but indices and the action mask."""
    if isinstance(space, dict):
        return {name: () if name == cfg.action_mask else _quantities(cfg, inside) for name, inside in space.items()}
    return jax.tree.map(lambda x: () if is_index(x) else initial_moments(x.shape), space, is_leaf=is_index)


def _per_entry(function: Callable, moments: PyTree, obs: PyTree) -> PyTree:
    """Apply a function to the moments, or the empty tuple, and the value of each entry of an observation."""
    return jax.tree.map(function, moments, obs, is_leaf=lambda m: isinstance(m, Moments) or m == ())


def standardize_observations(cfg: OnPolicyConfig, statistics: Statistics, obs: PyTree) -> PyTree:
    """Return standardised observations, `[L, N, ...]`, the input of the network."""
    see = lambda moments, x: standardized(moments, x, cfg.obs_clip) if isinstance(moments, Moments) else x
    return _per_entry(see, statistics.obs, obs) if cfg.normalize_obs else obs


def merge_rewards(cfg: OnPolicyConfig, statistics: Statistics, steps: Transition) -> Statistics:
    """Merge the discounted sums `G_t = gamma G_{t-1} (1 - first_t) + r_t` of a rollout's raw rewards into statistics.

    They are updated before they are used. A terminal reward counts for its own episode. The sum restarts after the end of any
    episode, by a terminal state or a time limit.
    """
    if not cfg.normalize_reward:
        return statistics
    scale, _ = reward_sums(statistics.reward, steps.reward, steps.first, cfg.gamma)
    return statistics.replace(reward=scale)


def scaled_rewards(cfg: OnPolicyConfig, statistics: Statistics, reward: jax.Array) -> jax.Array:
    """Return rewards `[T, B(, K)]` divided by the running standard deviation of discounted returns; of several streams the first.

    `r / sqrt(var + 1e-8)`, clipped to `+- reward_clip` and never centred, which would change what is optimal.
    """
    if not cfg.normalize_reward:
        return reward
    scale = jax.lax.rsqrt(statistics.reward.moments.variance + EPSILON)
    scaled = lambda r: jnp.clip(r * scale, -cfg.reward_clip, cfg.reward_clip)
    return scaled(reward) if reward.ndim == 2 else reward.at[..., 0].set(scaled(reward[..., 0]))


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
    """Return values or value targets in the units of the network's values."""
    return standardized(statistics.value, x, jnp.float32(jnp.inf)) if isinstance(statistics.value, Moments) else x


def restore_values(statistics: Statistics, z: jax.Array) -> jax.Array:
    """Invert `standardize_values`: return values in the units of the rewards learnt from."""
    return restored(statistics.value, z) if isinstance(statistics.value, Moments) else z


def merge_statistics(cfg: OnPolicyConfig, statistics: Statistics, obs: PyTree, target: jax.Array) -> Statistics:
    """Merge an update's raw observations and value targets, `[T, B, ...]`, into statistics."""
    entry = lambda moments, x: merge(moments, x) if isinstance(moments, Moments) else ()
    return statistics.replace(
        obs=_per_entry(entry, statistics.obs, obs) if cfg.normalize_obs else (),
        value=merge(statistics.value, target) if cfg.normalize_value else (),
    )
