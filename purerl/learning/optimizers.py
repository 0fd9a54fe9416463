"""Optimizers: from gradients to steps, the learning rate of each step, and early stopping.

A `PhaseOptimizer` gives the step of one minibatch. The learning rate is not part of the optax transformation. It follows from the
clock, or from how far the policy moved, and is applied here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from purerl.config.rules import may_hold
from purerl.core.clock import gradient_steps, progress, updates_in_float32, updates_since
from purerl.core.errors import Problem
from purerl.core.types import Clock, PhaseOptimizer, TrainState

PyTree = Any


def scheduled_config(cfg: Any, state: TrainState) -> Any:
    """The config with those of its coefficients that follow a schedule, or the policy, at their values for the coming update."""
    at = lambda start, end: start + (end - start) * progress(state.clock, cfg.num_updates)
    changes = {"clip_eps": at(cfg.clip_eps, cfg.clip_eps_final)} if cfg.clip_schedule == "linear" else {}
    changes |= {"ent_coef": at(cfg.ent_coef, cfg.ent_coef_final)} if cfg.ent_schedule == "linear" else {}
    changes |= {"kl_coef": state.extra["kl_coef"]} if cfg.kl_penalty == "adaptive" else {}
    return cfg.replace(**changes)


class BaseOptimizer(NamedTuple):
    """An optimizer without its learning rate.

    transformation: an optax transformation of gradients.
    elementwise: it treats every number alike, whatever array the number is in.
    """

    transformation: optax.GradientTransformation
    elementwise: bool


def base_optimizer(cfg: Any, optimizer: optax.GradientTransformation | None = None) -> BaseOptimizer:
    """The optimizer that a config names, or the user's in its place."""
    if optimizer is not None:
        return BaseOptimizer(optimizer, elementwise=False)
    adam = optax.scale_by_adam(eps=cfg.adam_eps)  # Kingma & Ba 2015, arXiv:1412.6980
    if cfg.optimizer == "adamw":  # Loshchilov & Hutter 2019, arXiv:1711.05101
        return BaseOptimizer(optax.chain(adam, optax.add_decayed_weights(cfg.weight_decay, _weights)), elementwise=False)
    named = {"adam": adam, "rmsprop": optax.scale_by_rms(decay=0.99, eps=cfg.adam_eps), "sgd": optax.identity()}
    return BaseOptimizer(named[cfg.optimizer], elementwise=True)


def _weights(params: PyTree) -> PyTree:
    """Which arrays decay: matrices, and neither biases nor standard deviations."""
    named = lambda path: jax.tree_util.keystr(path[-1:], simple=True)
    return jax.tree_util.tree_map_with_path(lambda path, x: x.ndim > 1 and not named(path).endswith("bias"), params)


def optimizer_problems(optimizer: Any, params: PyTree) -> list[Problem]:
    """What is wrong with a transformation for parameters of these shapes. Nothing is compiled.

    It must not have its own learning rate, and so a sign: it would climb. A step on one number shows that.
    """
    if optimizer is None:
        return []
    if not isinstance(optimizer, optax.GradientTransformation):
        return [Problem("optimizer", optimizer, "must be an optax transformation, such as optax.scale_by_adam()")]
    step = lambda params: optimizer.update(params, optimizer.init(params), params)[0]
    with jax.numpy_dtype_promotion("standard"):
        taken, refusal = _tried(lambda: jax.eval_shape(step, params))
        if not refusal and jax.tree.map(np.shape, taken) != jax.tree.map(np.shape, params):
            refusal = "its steps have other shapes than they have"
        if refusal:
            return [Problem("optimizer", optimizer, f"cannot move these parameters: {refusal}")]
        with jax.ensure_compile_time_eval(), jax.disable_jit():
            # Without a result it wants other groups than this one, or is made of tracers.
            taken, _ = _tried(lambda: float(step({"policy": np.ones(1, np.float32)})["policy"][0]))
    hint = "gives steps against the gradient, so it has its own learning rate; take optax.scale_by_adam(), not optax.adam()"
    return [Problem("optimizer", optimizer, hint)] if taken is not None and taken < 0 else []


def _tried(function: Callable) -> tuple[Any, str]:
    """What a function gives, or the first line of whatever code of the user's raises in it."""
    try:
        return function(), ""
    except Exception as error:
        return None, str(error).strip().split("\n")[0] or type(error).__name__


def phase_optimizer(
    cfg: Any, base_optimizer: BaseOptimizer, schedule: Callable | None, clock: Clock | None, epochs: int
) -> PhaseOptimizer:
    """The optimizer of a phase in the update after `clock`: the learning rate and the early stopping of a config.

    Args:
        cfg: its `lr_schedule`, `critic_lr_scale`, `target_kl` and what belongs to them.
        base_optimizer: without the learning rate.
        schedule: `(gradient steps so far, int32) -> learning rate`, in place of the config's; or None.
        clock: finished updates; None where only its `init` is wanted.
        epochs: passes over the training set in each update.
    """
    learning = updates_since(clock, cfg.skipped_updates) if clock and cfg.skipped_updates else clock
    multipliers = lr_multipliers(cfg)
    steps = epochs * cfg.num_minibatches
    if schedule is not None:
        optimizer = scheduled_lr(
            base_optimizer, lambda step: jnp.float32(schedule(gradient_steps(learning, steps, step))), multipliers
        )
    elif cfg.lr_schedule == "polynomial":
        decay_steps = cfg.decay_steps or max(1, cfg.num_updates - cfg.skipped_updates) * steps
        so_far = lambda step: updates_in_float32(learning) * np.float32(steps) + step.astype(jnp.float32)
        rate = lambda step: polynomial_lr(so_far(step) / np.float32(decay_steps), cfg.lr, cfg.lr_final, cfg.lr_power)
        optimizer = scheduled_lr(base_optimizer, rate, multipliers)
    elif cfg.lr_schedule == "kl_adaptive":
        optimizer = kl_adaptive_lr(cfg, base_optimizer, multipliers)
    else:
        lr = learning_rate(clock, cfg.num_updates, cfg.lr, cfg.lr_final, cfg.lr_schedule) if clock else cfg.lr
        optimizer = constant_lr(base_optimizer, lr, multipliers)
    if not may_hold(cfg.target_kl, lambda x: x != np.inf):
        return optimizer
    return with_target_kl(optimizer, cfg.target_kl, steps if cfg.kl_stop == "update" else cfg.num_minibatches)


def lr_multipliers(cfg: Any) -> dict[str, jax.Array]:
    """The groups whose learning rate is a multiple of the others'."""
    scales = {"value": cfg.critic_lr_scale} | ({} if cfg.rnd is None else {"predictor": cfg.rnd.lr_scale})
    return {group: scale for group, scale in scales.items() if may_hold(scale, lambda x: x != 1)}


def without_kl_control(cfg: Any) -> Any:
    """The config for a phase that does not see how far the policy moved: its rate does not follow that, and nothing stops it."""
    return cfg.replace(
        lr_schedule="constant" if cfg.lr_schedule == "kl_adaptive" else cfg.lr_schedule, target_kl=np.float32(np.inf)
    )


# --- learning rates ---------------------------------------------------------------------------------------------------


def learning_rate(clock: Clock, num_updates: int, lr: jax.Array, lr_final: jax.Array, schedule: str) -> jax.Array:
    """The learning rate of the update that the clock stands before; constant within an update. Float32 scalar.

    constant  lr
    linear    lr + (lr_final - lr) * i / n    at update i = 0 .. n - 1
    """
    return {"constant": lr, "linear": lr + (lr_final - lr) * progress(clock, num_updates)}[schedule]


def polynomial_lr(share: jax.Array, lr: jax.Array, lr_final: jax.Array, power: jax.Array) -> jax.Array:
    """`(lr - lr_final) * (1 - share)**power + lr_final`, and `lr_final` from a share of 1 on."""
    return (lr - lr_final) * (1 - jnp.minimum(share, 1)) ** power + lr_final


def kl_adapted_lr(cfg: Any, lr: jax.Array, kl: jax.Array) -> jax.Array:
    """The learning rate after a KL divergence was seen: lowered if it was too large, raised if too small, within bounds.

    The rule of rsl_rl, UniLab and skrl; in the first two, where single minibatches decide, one that is not positive is ignored.
    """
    lower, higher = jnp.maximum(lr / cfg.lr_kl_factor, cfg.lr_min), jnp.minimum(lr * cfg.lr_kl_factor, cfg.lr_max)
    too_far, too_near = kl > cfg.desired_kl * cfg.lr_kl_tolerance, kl < cfg.desired_kl / cfg.lr_kl_tolerance
    if cfg.lr_kl_every == "minibatch":
        too_near = too_near & (kl > 0)
    return jnp.where(too_far, lower, jnp.where(too_near, higher, lr))


def clip_scale(norm: jax.Array, max_norm: jax.Array) -> jax.Array:
    """The factor that brings a gradient of this norm to `max_norm` at most: `min(1, max_norm / norm)`.

    Infinity disables it. Unlike optax's clipping it makes no NaN of a gradient of 0, so that `jax.debug_nans` stays usable.
    """
    return jnp.minimum(1, max_norm / jnp.maximum(norm, 1e-12))


# --- optimizers of a phase --------------------------------------------------------------------------------------------


def constant_lr(base_optimizer: BaseOptimizer, lr: jax.Array, multipliers: dict[str, jax.Array]) -> PhaseOptimizer:
    """Steps of one learning rate; groups named in `multipliers` take it times their own factor."""
    transformation = base_optimizer.transformation

    def step(gradient, state, params, metrics, stopped=None):
        with jax.numpy_dtype_promotion("standard"):  # optax relies on it
            direction, after = transformation.update(gradient, state, params)
        rate = lambda group: lr * multipliers[group] if group in multipliers else lr
        taken = {group: jax.tree.map(lambda d: rate(group) * d, tree) for group, tree in direction.items()}  # noqa: B023
        if stopped is None:
            return taken, after
        taken = jax.tree.map(lambda x: jnp.where(stopped, jnp.zeros_like(x), x), taken)
        return taken, jax.tree.map(lambda old, new: jnp.where(stopped, old, new), state, after)

    elementwise = base_optimizer.elementwise
    return PhaseOptimizer(
        transformation.init, step, lr=lambda state: lr, elementwise=elementwise, uniform=elementwise and not multipliers
    )


def scheduled_lr(base_optimizer: BaseOptimizer, rate: Callable, multipliers: dict[str, jax.Array]) -> PhaseOptimizer:
    """Steps whose learning rate is `rate(i)` at the i-th gradient step of an update."""

    def step(gradient, opt_carry, params, metrics, stopped=None):
        state, i = opt_carry
        taken, state = constant_lr(base_optimizer, rate(i), multipliers).step(gradient, state, params, metrics, stopped)
        return taken, (state, i + 1)

    first = jnp.uint32(0)
    return PhaseOptimizer(
        base_optimizer.transformation.init,
        step,
        lr=lambda state: rate(first),
        begin=lambda state: (state, first),
        end=lambda opt_carry: opt_carry[0],
        elementwise=base_optimizer.elementwise,
        uniform=base_optimizer.elementwise and not multipliers,
    )


@struct.dataclass
class KLAdaptiveState:
    """The state of an optimizer, and its learning rate, float32."""

    inner: PyTree
    lr: jax.Array


def kl_adaptive_lr(cfg: Any, base_optimizer: BaseOptimizer, multipliers: dict[str, jax.Array]) -> PhaseOptimizer:
    """Steps whose learning rate follows the KL divergence, `metrics["kl"]`: see `kl_adapted_lr`.

    The first minibatch of an update comes before its first step. Where the data are of the policy that it starts from, that
    minibatch's divergence is rounding, and decides nothing.
    """
    by_minibatch, minibatches = cfg.lr_kl_every == "minibatch", np.float32(cfg.num_minibatches)

    def step(gradient, opt_carry, params, metrics, stopped=None):
        state, kl, count, is_first = opt_carry  # of this epoch: the sum of KL divergences, and over how many minibatches
        kl, count = kl + metrics["kl"], count + 1
        ends = count == minibatches
        lr = kl_adapted_lr(cfg, state.lr, metrics["kl"]) if by_minibatch else state.lr
        if cfg.learns_from_others is not True:
            lr = jnp.where(is_first & jnp.logical_not(cfg.learns_from_others), state.lr, lr)
        taken, inner = constant_lr(base_optimizer, lr, multipliers).step(gradient, state.inner, params, metrics, stopped)
        after = lr if by_minibatch else jnp.where(ends, kl_adapted_lr(cfg, lr, kl / minibatches), lr)
        epoch = (jnp.where(ends, jnp.zeros_like(x), x) for x in (kl, count))
        return taken, (KLAdaptiveState(inner, after), *epoch, jnp.bool_(False))

    return PhaseOptimizer(
        init=lambda params: KLAdaptiveState(base_optimizer.transformation.init(params), jnp.float32(cfg.lr)),
        step=step,
        lr=lambda state: state.lr,
        begin=lambda state: (state, jnp.float32(0), jnp.float32(0), jnp.bool_(True)),
        end=lambda opt_carry: opt_carry[0],
        elementwise=base_optimizer.elementwise,
        uniform=base_optimizer.elementwise and not multipliers,
    )


def with_target_kl(optimizer: PhaseOptimizer, target_kl: jax.Array, period: int) -> PhaseOptimizer:
    """Steps of 0 from the first minibatch on whose `metrics["approx_kl"]` is above `target_kl`, until `period` steps are over.

    The gradients are computed nevertheless: a mask keeps the program one program, also over seeds. A learning rate that is
    scheduled, or follows the KL divergence, still changes.
    """

    def step(gradient, opt_carry, params, metrics):
        inner, stopped, i = opt_carry
        stopped = (stopped & (i % np.uint32(period) > 0)) | (metrics["approx_kl"] > target_kl)
        taken, inner = optimizer.step(gradient, inner, params, metrics, stopped)
        return taken, (inner, stopped, i + 1)

    return optimizer._replace(
        step=step,
        begin=lambda state: (optimizer.begin(state), jnp.bool_(False), jnp.uint32(0)),
        end=lambda opt_carry: optimizer.end(opt_carry[0]),
        report=lambda opt_carry: {"stopped": opt_carry[1].astype(jnp.float32)},
    )
