"""Learning rates: schedules in updates or in gradient steps, and rates that adapt to the KL divergence."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.config.base import OnPolicyConfig
from purerl.core.keys import Clock, gradient_steps
from purerl.core.types import Scalar

# (finished updates, gradient steps in this update so far, gradient steps per update) -> learning rate
Rate = Callable[[Clock, jax.Array, int], Scalar]


def learning_rates(cfg: OnPolicyConfig, schedule: Callable | None) -> Rate:
    """Return the learning rate as a function of update and gradient step, from a custom schedule or from the config.

    Args:
        cfg: `lr_schedule` and related fields are read. If the rate is KL-adaptive, the returned function must not be called.
        schedule: `(gradient steps so far, int32) -> learning rate`; None to use the config's schedule.
    """
    learning = lambda clock: clock - cfg.skipped_updates if cfg.skipped_updates else clock
    if schedule is not None:
        return lambda clock, step, steps: jnp.float32(schedule(gradient_steps(learning(clock), max(1, steps), step)))
    if cfg.lr_schedule != "polynomial":
        return lambda clock, step, steps: learning_rate(clock, cfg.num_updates, cfg.lr, cfg.lr_final, cfg.lr_schedule)

    def rate(clock: Clock, step: jax.Array, steps: int) -> jax.Array:
        decay_steps = cfg.decay_steps or max(1, (cfg.num_updates - cfg.skipped_updates) * steps)
        so_far = learning(clock).as_float() * np.float32(steps) + step.astype(jnp.float32)
        share = so_far / np.float32(decay_steps)
        return (cfg.lr - cfg.lr_final) * (1 - jnp.minimum(share, 1)) ** cfg.lr_power + cfg.lr_final

    return rate


def learning_rate(clock: Clock, num_updates: int, lr: Scalar, lr_final: Scalar, schedule: str) -> Scalar:
    """Return the learning rate of the next update, constant within the update. Float32 scalar.

    constant  lr
    linear    lr + (lr_final - lr) * i / n    at update i = 0 .. n - 1 of n = num_updates
    """
    return {"constant": lr, "linear": lr + (lr_final - lr) * clock.progress(num_updates)}[schedule]


def kl_adapted_lrs(
    cfg: OnPolicyConfig, lr: jax.Array, kl_sum: Any, step: jax.Array, kl: jax.Array, minibatches: int
) -> tuple[jax.Array, jax.Array, Any]:
    """Return the learning rate of a gradient step, the next learning rate, and the sum of this epoch's KL divergences.

    The divergence of an update's first minibatch is measured before the first gradient step. If the data are on-policy, this
    divergence is only rounding error. A rate that adapts per minibatch therefore ignores it.
    """
    if cfg.lr_kl_every == "minibatch":
        adapted = kl_adapted_lr(cfg, lr, kl)
        if cfg.learns_from_others is not True:
            adapted = jnp.where((step == 0) & jnp.logical_not(cfg.learns_from_others), lr, adapted)
        return adapted, adapted, ()
    ends, kl_sum = (step + 1) % np.uint32(minibatches) == 0, kl_sum + kl
    after = jnp.where(ends, kl_adapted_lr(cfg, lr, kl_sum / np.float32(minibatches)), lr)
    return lr, after, jnp.where(ends, jnp.zeros_like(kl_sum), kl_sum)


def kl_adapted_lr(cfg: OnPolicyConfig, lr: jax.Array, kl: jax.Array) -> jax.Array:
    """Return the learning rate after a divergence `kl`: lowered if `kl` is too large, raised if too small, within bounds.

    This is the rule of rsl_rl and UniLab, which adapt per minibatch and do not raise the rate if `kl <= 0`, and of skrl, which
    adapts per epoch.
    """
    lower, higher = jnp.maximum(lr / cfg.lr_kl_factor, cfg.lr_min), jnp.minimum(lr * cfg.lr_kl_factor, cfg.lr_max)
    too_far, too_near = kl > cfg.desired_kl * cfg.lr_kl_tolerance, kl < cfg.desired_kl / cfg.lr_kl_tolerance
    if cfg.lr_kl_every == "minibatch":
        too_near = too_near & (kl > 0)
    return jnp.where(too_far, lower, jnp.where(too_near, higher, lr))
