"""Wrappers and checks for custom estimators, losses, metrics and optimizers."""

import functools
import inspect
import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from purerl.config.base import OnPolicyConfig
from purerl.core.dependence import inputs_read
from purerl.core.errors import Problem, config_error, convert_errors, guard, name_of, raise_if_any, warn
from purerl.core.metrics import NUMBERS, Mean, mean_of, values
from purerl.core.platform import for_cpu_alone
from purerl.core.types import Advantages, Outputs, PyTree, Sample, Transition
from purerl.networks.foreign import describe

COLUMNS = ("update", "steps", "seconds", "steps_per_second")  # columns that loggers write beside the metrics


def extra_term(function: Callable) -> Callable:
    """Wrap a custom `extra_loss` as a term of the policy's loss, with the metrics `extra_loss` and `extra_loss/name`.

    The function warns if the loss depends neither on the parameters nor on the outputs of the trained policy.
    """
    call = guard("extra_loss", function)

    def term(params: Any, outputs: Any, batch: Any, cfg: OnPolicyConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
        found = call(params, outputs, batch, cfg)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
            hint = f"{name_of(function)} must return a pair: a scalar loss and a dict from names to scalars"
            raise config_error("extra_loss", describe(found), hint)
        loss, *rest = _scalars("extra_loss", {"the loss": found[0], **found[1]}).values()
        if isinstance(found[0], Tracer):  # a constant loss, such as 0.0, adds nothing but metrics
            _warn_unless_learnt("extra_loss", lambda *learnt: call(*learnt, batch, cfg)[0], params, outputs)
        return loss, {"extra_loss": loss, **{f"extra_loss/{name}": x for name, x in zip(found[1], rest, strict=True)}}

    return term


def measurement(function: Callable) -> Callable[[Any, Any, dict[str, Any]], dict[str, Mean]]:
    """Wrap a custom `measure` for `Components.measure`; the wrapper raises unless the metrics are scalars with new names."""
    call = guard("measure", function)

    def measure(state: Any, batch: Any, metrics: dict[str, Any]) -> dict[str, Mean]:
        found = call(state, **select_accepted(function, batch=batch, metrics=values(metrics)))
        if not isinstance(found, dict):
            raise config_error("measure", describe(found), f"{name_of(function)} must return a dict from names to scalars")
        hint = "is already the name of a metric, or of its statistics over seeds; choose another name"
        statistics = {f"{name}/{kind}" for name in (*metrics, *found) for kind in ("min", "max", "std")}
        taken = lambda name: name in metrics or name in (*COLUMNS, *statistics) or str(name).startswith("evaluation/")
        raise_if_any([Problem("measure", name, hint) for name in found if taken(name)])
        return {name: mean_of(x) for name, x in _scalars("measure", found).items()}

    return measure


def guard_loss_shape(function: Callable) -> Callable:
    """Wrap a custom `policy_loss`; the wrapper raises unless the loss has one number for each step, `[L, N]`.

    The function warns if the loss does not depend on the outputs of the trained policy, for example because it reads only `old`.
    """

    @functools.wraps(function)
    def loss(outputs: Outputs, old: Sample, advantage: jax.Array, cfg: OnPolicyConfig) -> jax.Array:
        with convert_errors("policy_loss", f"{name_of(function)}(outputs, old, advantage, cfg)"):
            found = function(outputs, old, advantage, cfg)
        if getattr(found, "shape", None) != advantage.shape:
            hint = f"{name_of(function)} must return losses of shape {list(advantage.shape)}, one per step"
            raise config_error("policy_loss", describe(found), hint)
        _warn_unless_learnt("policy_loss", lambda new: function(new, old, advantage, cfg), outputs)
        return found.astype(jnp.float32)

    return loss


def _warn_unless_learnt(field: str, loss: Callable, *learnt: PyTree) -> None:
    """Warn if a custom loss does not depend on any of its arguments `learnt`, for example because it reads only old data."""
    if not any(inputs_read(loss, *learnt)):
        hint = "does not depend on the parameters or on the `outputs` of the trained policy, so that nothing is learnt from it"
        warn(str(Problem(field, ..., hint)))


def warn_unless_trained(phase: str, groups: Collection[str], loss: Callable[[dict[str, PyTree]], jax.Array], params: Any) -> None:
    """Warn if a custom `extra_loss` reads parameters, but none of the groups that its phase trains.

    Args:
        phase: name of the phase.
        groups: names of the groups that the phase trains.
        loss: maps parameters to the extra loss.
        params: parameters, a dict from group to arrays.
    """
    with for_cpu_alone():  # a choice by platform seems to read all of its inputs
        read = inputs_read(loss, params)
    names = [path[0].key for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    found = {name for name, is_read in zip(names, read, strict=True) if is_read}
    if found and found.isdisjoint(groups):
        read_by, trained = (", ".join(sorted(names)) for names in (found, groups))
        hint = f"reads the groups {read_by}, but its phase {phase!r} trains only {trained}, so that nothing is learnt from it"
        warn(str(Problem("extra_loss", ..., hint)))


def guard_advantage_shape(function: Callable) -> Callable:
    """Wrap a custom `advantage`; the wrapper raises unless the result is `Advantages` with the shape of the values."""
    call = guard("advantage", function)

    @functools.wraps(function)
    def advantage(steps: Transition, *args: Any, **kwargs: Any) -> Advantages:
        found = call(steps, *args, **kwargs)
        if not isinstance(found, Advantages):
            hint = f"{name_of(function)} must return purerl.Advantages(advantage, target)"
            raise config_error("advantage", describe(found), hint)
        hint = f"the advantage and the target must have the shape of the values, {list(steps.value.shape)}"
        wrong = [np.shape(x) for x in (found.advantage, found.target) if np.shape(x) != steps.value.shape]
        raise_if_any([Problem("advantage", list(shape), hint) for shape in wrong[:1]])
        return jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.float32), found)

    return advantage


def _scalars(field: str, found: dict[str, Any]) -> dict[str, jax.Array]:
    """Convert values to float32 scalars. Raise a ConfigError for values that are not scalars."""
    wrong = [name for name, x in found.items() if not isinstance(x, NUMBERS) or np.shape(x)]
    raise_if_any([Problem(field, describe(found[name]), f"{name} must be a scalar") for name in wrong])
    return {name: jnp.asarray(x).astype(jnp.float32) for name, x in found.items()}


TRIAL_STEPS, MOVES = 128, 4  # maximum number of trial steps, and the number of updates other than 0 that decide


def optimizer_problems(optimizer: Any, params: PyTree) -> list[Problem]:
    """Report problems of a custom optimizer for parameters of these shapes. Nothing is compiled.

    An optax optimizer with its own learning rate negates its updates. A phase would negate them again, and maximise the loss.
    Trial steps detect the sign, also after a warm-up or with accumulated gradients of up to 128 steps. A warning says if the
    sign could not be detected. An optimizer with traced hyperparameters is not tried.
    """
    if optimizer is None:
        return []
    if not isinstance(optimizer, optax.GradientTransformation):
        return [Problem("optimizer", optimizer, "must be an optax transformation, such as optax.scale_by_adam()")]

    def step(params: PyTree) -> PyTree:
        return optimizer.update(params, optimizer.init(params), params)[0]

    with jax.numpy_dtype_promotion("standard"):
        with convert_errors("optimizer", "update(gradient, state, params)"):
            taken = jax.eval_shape(step, params)
        if jax.tree.map(np.shape, taken) != jax.tree.map(np.shape, params):
            return [Problem("optimizer", optimizer, "updates must have the shapes of the network's parameters")]
        small = jax.tree.map(lambda x: np.ones((1,) * len(x.shape), np.float32), params)
        moved = _first_update(optimizer, dict.fromkeys(params, np.ones(1, np.float32)))
        moved = _first_update(optimizer, small) if moved is None else moved
    if not moved:
        hint = "gave no update in a trial, so that its sign is unknown; with its own learning rate it would maximise the loss"
        warn(str(Problem("optimizer", ..., hint)))
    hint = "already applies a learning rate; use optax.scale_by_adam(), not optax.adam()"
    return [Problem("optimizer", optimizer, hint)] if moved is not None and moved < 0 else []


def _first_update(optimizer: optax.GradientTransformation, ones: PyTree) -> float | None:
    """Return the sum of an optimizer's first updates other than 0, for gradients of 1; 0 if there is none, NaN if traced.

    The result is None if the optimizer needs parameters of another structure.

    Of several parameters, the one with the lowest sum below 0 counts; if there is none, the one with the highest sum.
    """
    totals, moves = [0.0], 0
    try:
        with jax.ensure_compile_time_eval(), jax.disable_jit():
            state = optimizer.init(ones)
            for _ in range(TRIAL_STEPS):
                updates, state = optimizer.update(ones, state, ones)
                change = np.array([float(np.sum(x)) for x in jax.tree.leaves(updates)])
                totals, moves = totals + change, moves + change.any()
                if moves == MOVES:
                    break
    except jax.errors.JAXTypeError:
        return math.nan
    except Exception:  # a custom optimizer may raise anything
        return None
    return min(totals) if min(totals) < 0 else max(totals)


def select_accepted(function: Callable, **values: Any) -> dict[str, Any]:
    """Return the keyword arguments that `function` accepts. If its signature cannot be read, return an empty dict."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # C functions have no readable signature
        return {}
    return {name: x for name, x in values.items() if name in names}
