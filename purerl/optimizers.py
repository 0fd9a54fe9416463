"""From gradients to steps: directions of descent, step sizes, and when to stop.

A `Descent` gives the step of one minibatch. The learning rate is not a part of the optax transformation: it follows from the
clock, or from how far the policy moved, and here is where it is applied.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from purerl.clock import gradient_steps, progress, since, updates_in_float32
from purerl.errors import Problem
from purerl.fields import is_off
from purerl.types import Clock, Descent, TrainState

PyTree = Any


def coefficients(cfg: Any, state: TrainState) -> Any:
    """The config with those of its coefficients that follow a schedule, or the policy, at their values for the coming update."""
    at = lambda start, end: start + (end - start) * progress(state.clock, cfg.num_updates)
    changes = {"clip_eps": at(cfg.clip_eps, cfg.clip_eps_final)} if cfg.clip_schedule == "linear" else {}
    changes |= {"ent_coef": at(cfg.ent_coef, cfg.ent_coef_final)} if cfg.ent_schedule == "linear" else {}
    changes |= {"kl_coef": state.extra["kl_coef"]} if cfg.kl_penalty == "adaptive" else {}
    return cfg.replace(**changes)


class Direction(NamedTuple):
    """A direction of descent, without a learning rate.

    transformation: of gradients.
    elementwise: it treats every number alike, whatever array it is in.
    """

    transformation: optax.GradientTransformation
    elementwise: bool


def direction(cfg: Any, optimizer: optax.GradientTransformation | None = None) -> Direction:
    """The direction that a config names, or that of an optimizer in its place."""
    if optimizer is not None:
        return Direction(optimizer, elementwise=False)
    adam = optax.scale_by_adam(eps=cfg.adam_eps)  # Kingma & Ba 2015, arXiv:1412.6980
    if cfg.optimizer == "adamw":  # Loshchilov & Hutter 2019, arXiv:1711.05101
        return Direction(optax.chain(adam, optax.add_decayed_weights(cfg.weight_decay, _weights)), elementwise=False)
    named = {"adam": adam, "rmsprop": optax.scale_by_rms(decay=0.99, eps=cfg.adam_eps), "sgd": optax.identity()}
    return Direction(named[cfg.optimizer], elementwise=True)


def _weights(params: PyTree) -> PyTree:
    """Which arrays decay: matrices, and neither biases nor standard deviations."""
    named = lambda path: jax.tree_util.keystr(path[-1:], simple=True)
    return jax.tree_util.tree_map_with_path(lambda path, x: x.ndim > 1 and not named(path).endswith("bias"), params)


def optimizer_problems(optimizer: Any, params: PyTree) -> list[Problem]:
    """What is wrong with a transformation for parameters of these shapes. Nothing is compiled.

    It must not have a learning rate of its own, and so a sign: it would climb. That is found by a step on one number.
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
    hint = "gives steps against the gradient, so it has a learning rate of its own; take optax.scale_by_adam(), not optax.adam()"
    return [Problem("optimizer", optimizer, hint)] if taken is not None and taken < 0 else []


def _tried(function: Callable) -> tuple[Any, str]:
    """What a function gives, or the first line of whatever code of the user's raises in it."""
    try:
        return function(), ""
    except Exception as error:
        return None, str(error).strip().split("\n")[0] or type(error).__name__


def descent(cfg: Any, direction: Direction, schedule: Callable | None, clock: Clock | None, epochs: int) -> Descent:
    """Steps in a direction, as long as a config says, in the update that the clock stands before.

    Args:
        cfg: its `lr_schedule`, `critic_lr_scale`, `target_kl` and what belongs to them.
        direction: of the steps.
        schedule: `(gradient steps so far, int32) -> learning rate`, in place of the config's; or None.
        clock: finished updates; None where only its `init` is wanted.
        epochs: passes over the training set in each update.
    """
    learning = since(clock, cfg.skipped_updates) if clock and cfg.skipped_updates else clock
    scales = group_scales(cfg)
    steps = epochs * cfg.num_minibatches
    if schedule is not None:
        moving = scheduled(direction, lambda step: jnp.float32(schedule(gradient_steps(learning, steps, step))), scales)
    elif cfg.lr_schedule == "polynomial":
        decay_steps = cfg.decay_steps or max(1, cfg.num_updates - cfg.skipped_updates) * steps
        so_far = lambda step: updates_in_float32(learning) * np.float32(steps) + step.astype(jnp.float32)
        rate = lambda step: polynomial(so_far(step) / np.float32(decay_steps), cfg.lr, cfg.lr_final, cfg.lr_power)
        moving = scheduled(direction, rate, scales)
    elif cfg.lr_schedule == "kl_adaptive":
        moving = adapting(cfg, direction, scales)
    else:
        lr = learning_rate(clock, cfg.num_updates, cfg.lr, cfg.lr_final, cfg.lr_schedule) if clock else cfg.lr
        moving = steady(direction, lr, scales)
    if is_off(cfg.target_kl, np.inf):
        return moving
    return stopping(moving, cfg.target_kl, steps if cfg.kl_stop == "update" else cfg.num_minibatches)


def group_scales(cfg: Any) -> dict[str, jax.Array]:
    """The groups whose learning rate is a multiple of the others'."""
    scales = {} if is_off(cfg.critic_lr_scale, 1) else {"value": cfg.critic_lr_scale}
    return scales if cfg.rnd is None or is_off(cfg.rnd.lr_scale, 1) else {**scales, "predictor": cfg.rnd.lr_scale}


def unsteered(cfg: Any) -> Any:
    """The config for a phase that does not see how far the policy moved: its rate does not follow that, and nothing stops it."""
    return cfg.replace(
        lr_schedule="constant" if cfg.lr_schedule == "kl_adaptive" else cfg.lr_schedule, target_kl=np.float32(np.inf)
    )


# --- step sizes -------------------------------------------------------------------------------------------------------


def learning_rate(clock: Clock, num_updates: int, lr: jax.Array, lr_final: jax.Array, schedule: str) -> jax.Array:
    """The learning rate of the update that the clock stands before; constant within an update. Float32 scalar.

    constant  lr
    linear    lr + (lr_final - lr) * i / n    at update i = 0 .. n - 1
    """
    return {"constant": lr, "linear": lr + (lr_final - lr) * progress(clock, num_updates)}[schedule]


def polynomial(share: jax.Array, lr: jax.Array, lr_final: jax.Array, power: jax.Array) -> jax.Array:
    """`(lr - lr_final) * (1 - share)**power + lr_final`, and `lr_final` from a share of 1 on."""
    return (lr - lr_final) * (1 - jnp.minimum(share, 1)) ** power + lr_final


def adapted_rate(cfg: Any, lr: jax.Array, kl: jax.Array) -> jax.Array:
    """The learning rate after a KL divergence was seen: lowered if it was too large, raised if too small, within bounds.

    The rule of rsl_rl, UniLab and skrl; in the first two, where single minibatches decide, one that is not positive says nothing.
    """
    lower, higher = jnp.maximum(lr / cfg.lr_kl_factor, cfg.lr_min), jnp.minimum(lr * cfg.lr_kl_factor, cfg.lr_max)
    too_far, too_near = kl > cfg.desired_kl * cfg.lr_kl_tolerance, kl < cfg.desired_kl / cfg.lr_kl_tolerance
    if cfg.lr_kl_every == "minibatch":
        too_near = too_near & (kl > 0)
    return jnp.where(too_far, lower, jnp.where(too_near, higher, lr))


def adapted_coefficient(cfg: Any, coef: jax.Array, kl: jax.Array) -> jax.Array:
    """The weight of the KL penalty after an update that moved the policy by `kl` (Schulman et al. 2017, section 4).

    It stays within 1e-10 and 1e10: a weight of 0, or infinity, would stay what it is for ever.
    """
    too_far, too_near = kl > cfg.desired_kl * cfg.kl_coef_tolerance, kl < cfg.desired_kl / cfg.kl_coef_tolerance
    factor = jnp.where(too_far, cfg.kl_coef_raise, jnp.where(too_near, cfg.kl_coef_lower, jnp.float32(1)))
    return jnp.clip(coef * factor, 1e-10, 1e10)


def clip_scale(norm: jax.Array, max_norm: jax.Array) -> jax.Array:
    """The factor that brings a gradient of this norm to `max_norm` at most: `min(1, max_norm / norm)`.

    Infinity disables it. Unlike optax's clipping it makes no NaN of a gradient of 0, so that `jax.debug_nans` stays usable.
    """
    return jnp.minimum(1, max_norm / jnp.maximum(norm, 1e-12))


# --- descents ---------------------------------------------------------------------------------------------------------


def steady(direction: Direction, lr: jax.Array, scales: dict[str, jax.Array]) -> Descent:
    """Steps of one learning rate; groups named in `scales` take it times their own factor."""
    optimizer = direction.transformation

    def step(gradient, state, params, metrics, stopped=None):
        with jax.numpy_dtype_promotion("standard"):  # optax relies on it
            downhill, after = optimizer.update(gradient, state, params)
        rate = lambda group: lr * scales[group] if group in scales else lr
        taken = {group: jax.tree.map(lambda d: rate(group) * d, tree) for group, tree in downhill.items()}  # noqa: B023
        if stopped is None:
            return taken, after
        taken = jax.tree.map(lambda x: jnp.where(stopped, jnp.zeros_like(x), x), taken)
        return taken, jax.tree.map(lambda old, new: jnp.where(stopped, old, new), state, after)

    return Descent(optimizer.init, step, lr=lambda state: lr, elementwise=direction.elementwise)


def scheduled(direction: Direction, rate: Callable, scales: dict[str, jax.Array]) -> Descent:
    """Steps whose learning rate is `rate(i)` at the i-th gradient step of an update."""

    def step(gradient, course, params, metrics, stopped=None):
        state, i = course
        taken, state = steady(direction, rate(i), scales).step(gradient, state, params, metrics, stopped)
        return taken, (state, i + 1)

    first = jnp.uint32(0)
    return Descent(
        direction.transformation.init,
        step,
        lr=lambda state: rate(first),
        begin=lambda state: (state, first),
        end=lambda course: course[0],
        elementwise=direction.elementwise,
    )


@struct.dataclass
class Adapting:
    """The state of an optimizer, and its learning rate, float32."""

    inner: PyTree
    lr: jax.Array


def adapting(cfg: Any, direction: Direction, scales: dict[str, jax.Array]) -> Descent:
    """Steps whose learning rate follows the KL divergence, `metrics["kl"]`: see `adapted_rate`.

    The first minibatch of an update comes before its first step. Where the data are of the policy that it starts from, that
    minibatch's divergence is rounding, and decides nothing.
    """
    by_minibatch, minibatches = cfg.lr_kl_every == "minibatch", np.float32(cfg.num_minibatches)

    def step(gradient, course, params, metrics, stopped=None):
        state, kl, count, is_first = course  # of this epoch: the sum of KL divergences, and over how many minibatches
        kl, count = kl + metrics["kl"], count + 1
        ends = count == minibatches
        lr = adapted_rate(cfg, state.lr, metrics["kl"]) if by_minibatch else state.lr
        lr = lr if cfg.learns_from_others else jnp.where(is_first, state.lr, lr)
        taken, inner = steady(direction, lr, scales).step(gradient, state.inner, params, metrics, stopped)
        after = lr if by_minibatch else jnp.where(ends, adapted_rate(cfg, lr, kl / minibatches), lr)
        epoch = (jnp.where(ends, jnp.zeros_like(x), x) for x in (kl, count))
        return taken, (Adapting(inner, after), *epoch, jnp.bool_(False))

    return Descent(
        init=lambda params: Adapting(direction.transformation.init(params), jnp.float32(cfg.lr)),
        step=step,
        lr=lambda state: state.lr,
        begin=lambda state: (state, jnp.float32(0), jnp.float32(0), jnp.bool_(True)),
        end=lambda course: course[0],
        elementwise=direction.elementwise,
    )


def stopping(moving: Descent, target_kl: jax.Array, period: int) -> Descent:
    """Steps of 0 from the first minibatch on whose `metrics["approx_kl"]` is above `target_kl`, until `period` steps are over.

    The gradients are computed nevertheless: a mask keeps the program one program, also over seeds. A rate that is scheduled, or
    that follows the KL divergence, goes on.
    """

    def step(gradient, course, params, metrics):
        inner, stopped, i = course
        stopped = (stopped & (i % np.uint32(period) > 0)) | (metrics["approx_kl"] > target_kl)
        taken, inner = moving.step(gradient, inner, params, metrics, stopped)
        return taken, (inner, stopped, i + 1)

    return moving._replace(
        step=step,
        begin=lambda state: (moving.begin(state), jnp.bool_(False), jnp.uint32(0)),
        end=lambda course: moving.end(course[0]),
        report=lambda course: {"stopped": course[1].astype(jnp.float32)},
    )
