"""Advantage estimators: from a rollout to advantages and value targets.

All estimators take a `Transition` of T steps of B environments, leaves `[T, B]`, and return `Advantages`, `[T, B]`, without
gradients. Rewards and values may have a trailing axis of K reward streams, `[T, B, K]`. In this case `gamma` and `gae_lambda` may
be `[K]`, and the flags `[T, B]` or `[T, B, K]`. If rewards, values and flags do not match in shape, an AssertionError is raised.

The flags `terminated` and `truncated` act differently. Only `terminated` removes the bootstrap. A truncated episode is
bootstrapped with `next_value`, by default the value of the observation before the reset. Either flag cuts the trace to the next
step.

Example:
    >>> no = jnp.zeros((3, 1), bool)
    >>> values = {"value": jnp.zeros((3, 1)), "next_value": jnp.zeros((3, 1)), "reward": jnp.ones((3, 1))}
    >>> ends = {"first": no.at[0].set(True), "terminated": no.at[2].set(True), "truncated": no}
    >>> steps = purerl.Transition(obs=(), action=(), log_prob=(), **values, **ends)
    >>> purerl.advantages.n_step(steps, gamma=0.5, n=1).advantage[:, 0].tolist()
    [1.0, 1.0, 1.0]
    >>> purerl.advantages.td_lambda(steps, gamma=0.5, gae_lambda=1.0).target[:, 0].tolist()
    [1.75, 1.5, 1.0]
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from purerl.config.base import OnPolicyConfig
from purerl.core.metrics import Mean, mean_where
from purerl.core.platform import scan
from purerl.core.reductions import pmean
from purerl.core.streams import extrinsic
from purerl.core.types import Advantages, Scalar, Transition
from purerl.learning.custom import guard_advantage_shape
from purerl.learning.losses import MAX_LOG_RATIO

ROUNDING = 1e-12  # a variance of at most this share of the squared mean is taken for rounding


def gae(steps: Transition, gamma: Scalar, gae_lambda: Scalar) -> Advantages:
    """Compute generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, equations 11 and 16).

        delta_t = r_t + gamma * V'_t - V_t,    V'_t = 0 if terminated, else next_value_t
        A_t     = delta_t + gamma * lambda * A_{t+1},    A_{t+1} = 0 at the end of an episode and of the rollout
        target_t = A_t + V_t

    Args:
        steps: `[T, B(, K)]` the rollout.
        gamma: discount, in [0, 1].
        gae_lambda: trade-off, in [0, 1]: 0 gives one-step TD errors, 1 Monte Carlo returns.
    """
    continues, bootstrap = _continuation(steps)
    gamma, gae_lambda = _per_step(gamma, steps), _per_step(gae_lambda, steps)
    delta = steps.reward + gamma * bootstrap - steps.value
    advantage = _backward(delta, gamma * gae_lambda * continues, jnp.zeros_like(delta[-1]))
    return _gradient_free(advantage, advantage + steps.value)


def vtrace(
    steps: Transition,
    log_ratio: jax.Array,
    gamma: Scalar,
    gae_lambda: Scalar,
    rho_clip: Scalar,
    c_clip: Scalar,
    pg_clip: Scalar,
) -> Advantages:
    """Compute V-trace (Espeholt et al. 2018, arXiv:1802.01561, section 4.1): GAE for off-policy data.

        rho_t    = pi(a_t | s_t) / pi_b(a_t | s_t),    pi: the evaluated policy, pi_b: the behaviour policy
        delta_t  = min(rho_clip, rho_t) * (r_t + gamma * V'_t - V_t),    V'_t = 0 if terminated, else next_value_t
        e_t      = delta_t + gamma * lambda * min(c_clip, rho_t) * e_{t+1}
        target_t = V_t + e_t
        A_t      = min(pg_clip, rho_t) * (r_t + gamma * (V'_t + lambda * e_{t+1}) - V_t)

    At the end of an episode and of the rollout, `e_{t+1} = 0`. With rho = 1 and clips of at least 1, V-trace equals `gae`.

    Args:
        steps: `[T, B(, K)]` the rollout, with the values of the evaluated policy.
        log_ratio: `[T, B]` log rho; values above 20 count as 20.
        gamma: discount, in [0, 1].
        gae_lambda: factor of the trace, in [0, 1]: with 0, targets are one-step targets.
        rho_clip: upper bound of rho in the TD errors. With an infinite bound, the targets estimate the value of pi; with a small
          bound, the value of a policy near pi_b.
        c_clip: upper bound of rho in the trace; limits the variance.
        pg_clip: upper bound of rho in the advantages.
    """
    continues, bootstrap = _continuation(steps)
    gamma, trace = _per_step(gamma, steps), _per_step(gae_lambda, steps) * continues
    rho = jnp.exp(jnp.minimum(log_ratio, MAX_LOG_RATIO))
    rho = jnp.broadcast_to(rho.reshape(rho.shape + (1,) * (steps.value.ndim - rho.ndim)), steps.value.shape)
    delta = jnp.minimum(rho_clip, rho) * (steps.reward + gamma * bootstrap - steps.value)
    error = _backward(delta, gamma * trace * jnp.minimum(c_clip, rho), jnp.zeros_like(delta[-1]))
    following = jnp.concatenate([error[1:], jnp.zeros_like(error[:1])])
    ahead = steps.reward + gamma * (bootstrap + trace * following)
    return _gradient_free(jnp.minimum(pg_clip, rho) * (ahead - steps.value), steps.value + error)


def td_lambda(steps: Transition, gamma: Scalar, gae_lambda: Scalar) -> Advantages:
    """Compute TD(lambda) returns as targets (Sutton & Barto 2018, section 12.1), and `target - value` as advantages.

        target_t = r_t + gamma * ((1 - lambda) * V'_t + lambda * target_{t+1})

    with `V'_t = 0` if terminated, else `next_value_t`, and with `target_{t+1} = V'_t` at the end of an episode or the rollout.
    Up to rounding, the results equal those of `gae`.
    """
    continues, bootstrap = _continuation(steps)
    gamma, trace = _per_step(gamma, steps), _per_step(gae_lambda, steps) * continues
    ahead = steps.reward + gamma * (1 - trace) * bootstrap
    target = _backward(ahead, gamma * trace, bootstrap[-1])
    return _gradient_free(target - steps.value, target)


def n_step(steps: Transition, gamma: Scalar, n: int) -> Advantages:
    """Compute n-step returns as targets (Sutton & Barto 2018, section 7.1), and `target - value` as advantages.

        target_t = r_t + gamma * r_{t+1} + ... + gamma^{n-1} * r_{t+n-1} + gamma^n * V'_{t+n-1}

    with `V'_t = 0` if terminated, else `next_value_t`. Returns are shorter at the end of an episode or of the rollout.

    Args:
        steps: `[T, B(, K)]` the rollout.
        gamma: discount, in [0, 1].
        n: number of rewards in each return; 0 or n >= T for all rewards to the end of the episode or of the rollout.
    """
    if n == 0 or n >= steps.reward.shape[0]:
        return td_lambda(steps, gamma, jnp.float32(1))
    continues, bootstrap = _continuation(steps)
    gamma = _per_step(gamma, steps)

    def one_longer(_, target):
        following = jnp.concatenate([target[1:], bootstrap[-1:]])
        return steps.reward + gamma * jnp.where(continues > 0, following, bootstrap)

    target = jax.lax.fori_loop(1, n, one_longer, steps.reward + gamma * bootstrap)
    return _gradient_free(target - steps.value, target)


def estimate(steps: Transition, cfg: OnPolicyConfig) -> Advantages:
    """Estimate advantages with the config's `estimator`, `gamma`, `gae_lambda` and `return_steps`."""
    if cfg.estimator == "n_step":
        return n_step(steps, cfg.gamma, cfg.return_steps)
    return {"gae": gae, "td_lambda": td_lambda}[cfg.estimator](steps, cfg.gamma, cfg.gae_lambda)


Estimator = Callable[[Transition, OnPolicyConfig], Advantages]


def over_streams(estimate: Estimator) -> Estimator:
    """Turn an estimator for one reward stream into an estimator for two: the extrinsic and the intrinsic stream.

    The advantage for the policy is `ext_coef * A_ext + int_coef * A_int`; the targets stay separate. The intrinsic stream does
    not end with an episode, since its return also counts what is new in later episodes; an episodic return would make the agent
    averse to risk (Burda et al. 2019, arXiv:1810.12894, section 2.3). The next value of the intrinsic stream is therefore the
    value of the next observation to act on.
    """

    def estimate_both(steps, cfg):
        never = jnp.zeros_like(steps.terminated)
        flags = {name: jnp.stack([getattr(steps, name), never], axis=-1) for name in ("terminated", "truncated")}
        gammas = jnp.stack([jnp.float32(cfg.gamma), jnp.float32(cfg.intrinsic.gamma_int)])
        found = estimate(steps.replace(**flags), cfg.replace(gamma=gammas))
        ext, intrinsic = found.advantage[..., 0], found.advantage[..., 1]
        return found.replace(advantage=cfg.intrinsic.ext_coef * ext + cfg.intrinsic.int_coef * intrinsic)

    return estimate_both


def advantage_estimator(cfg: OnPolicyConfig, estimator: Estimator) -> Callable[[Transition], tuple[Advantages, dict[str, Mean]]]:
    """Wrap an estimator as `(steps) -> (advantages, metrics)`: combine streams; standardise if `advantage_norm` is "batch".

    The metric `explained_variance` is the fraction of the variance of the extrinsic targets that the rollout's values predict.
    """
    estimator = guard_advantage_shape(estimator) if estimator is not estimate else estimate
    estimator = estimator if cfg.streams == 1 else over_streams(estimator)

    def advantages(steps: Transition) -> tuple[Advantages, dict[str, Mean]]:
        found = estimator(steps, cfg)
        if cfg.advantage_norm == "batch":
            found = found.replace(advantage=standardize(found.advantage))
        value, target = (extrinsic(x, steps.first) for x in (steps.value, found.target))
        return found, {"explained_variance": explained_variance(value, target)}

    return advantages


def standardize(advantage: jax.Array, axis: tuple[int, ...] | None = None) -> jax.Array:
    """Return advantages with mean 0 and population standard deviation 1, over all devices: `(A - mean) / (std + 1e-8)`.

    Advantages that are all equal up to rounding become 0.

    Args:
        advantage: `[...]`.
        axis: the axes that share a mean and a standard deviation; None for all axes.
    """
    mean, variance = (x if axis is None else jnp.expand_dims(x, axis) for x in moments(advantage, axis))
    are_equal = variance <= ROUNDING * jnp.square(mean)  # False for NaN, which remains visible
    return (advantage - mean) / jnp.where(are_equal, jnp.float32(jnp.inf), jnp.sqrt(variance) + 1e-8)


def _continuation(steps: Transition) -> tuple[jax.Array, jax.Array]:
    """Return a mask (0 where an episode ends, else 1) and V' (0 if terminated, else `next_value`), `[T, B(, K)]`."""
    chex.assert_equal_shape((steps.reward, steps.value, steps.next_value))
    chex.assert_equal_shape_prefix((steps.terminated, steps.truncated, steps.value), 2)

    def flag(x):
        return jnp.broadcast_to(x.reshape(x.shape + (1,) * (steps.value.ndim - x.ndim)), steps.value.shape)

    terminated, truncated = flag(steps.terminated), flag(steps.truncated)
    continues = (~(terminated | truncated)).astype(steps.value.dtype)
    return continues, jnp.where(terminated, jnp.zeros_like(steps.next_value), steps.next_value)


def _per_step(hyperparameter: Scalar, steps: Transition) -> Scalar:
    """Broadcast a hyperparameter `[K]` to all steps, `[T, B, K]`; return a scalar unchanged."""
    scalar = jnp.ndim(hyperparameter) == 0
    return hyperparameter if scalar else jnp.broadcast_to(hyperparameter, steps.value.shape)


def _backward(a: jax.Array, b: jax.Array, last: jax.Array) -> jax.Array:
    """Solve `x_t = a_t + b_t * x_{t+1}` with `x_T = last`. `a, b: [T, ...]`, `last: [...]`."""

    def step(following, ab):
        x = ab[0] + ab[1] * following
        return x, x

    return scan(step, last, (a, b), unroll=16, reverse=True)[1]


def _gradient_free(advantage: jax.Array, target: jax.Array) -> Advantages:
    return jax.lax.stop_gradient(Advantages(advantage=advantage, target=target))


def explained_variance(value: jax.Array, target: jax.Array) -> Mean:
    """Return the fraction of the targets' variance that the values predict, `1 - var(target - value) / var(target)`.

    1 is perfect; 0 is no better than predicting the mean target. If all targets are equal up to rounding, the count is 0.
    """
    (center, variance), (_, left) = moments(target), moments(target - value)
    varies = variance > ROUNDING * jnp.square(center)
    share = 1 - left / jnp.where(varies, variance, jnp.ones_like(variance))
    return mean_where(share, varies)


def moments(x: jax.Array, axis: tuple[int, ...] | None = None) -> tuple[jax.Array, jax.Array]:
    """Return the mean and the population variance of `x` over `axis` (None: all axes) and all devices.

    Two passes keep the variance accurate if the mean is far from 0.
    """
    center = pmean(x.mean(axis))
    spread = x - (center if axis is None else jnp.expand_dims(center, axis))
    return center, pmean(jnp.square(spread).mean(axis))
