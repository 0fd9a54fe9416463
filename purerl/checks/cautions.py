"""Warnings about fields with valid but probably mistaken values, and about fields without effect."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from purerl.checks.check_environment import mask_problem
from purerl.config.algorithms import APPOConfig
from purerl.config.base import MEMORY, OnPolicyConfig
from purerl.config.documentation import default_of
from purerl.config.fields import Config, is_float_leaf
from purerl.config.rules import surely_holds
from purerl.core.auto_reset import has_slow_resets
from purerl.core.environment import Environment
from purerl.core.errors import Problem, warn
from purerl.core.masks import INVERTED, LIKELY
from purerl.core.spaces import Box, Space, bounds_map, entries_of, have_scale, is_index, parts_of
from purerl.learning.phases import Phase
from purerl.networks.torsos import drop_entries


def warn_about(asked: OnPolicyConfig, cfg: OnPolicyConfig, env: Environment, given: dict[str, Any]) -> None:
    """Warn about probably mistaken values, and about fields without effect.

    Args:
        asked: the config as the user wrote it, whose fields may be `auto`.
        cfg: the resolved config.
        env: environments.
        given: a dict from the name of an argument of `make_train` to the custom object passed for it.
    """
    unmasked = _unused_masks(cfg, env) if asked.action_mask == "auto" else []
    for problem in _likely_mistakes(cfg, given) + _environment_warnings(cfg, env, given) + unmasked:
        warn(str(problem))
    _warn_of_fields(without_effect(cfg, env, given))


def warn_of_batch(configs: Sequence[OnPolicyConfig], env: Environment, given: dict[str, Any]) -> None:
    """Warn about swept fields without effect in a batch of configs, apart from those about which `make_train` warns.

    `make_train` sees the first config, in which a swept field may have its default value.
    """
    name_of, leaves_of = functools.partial(jax.tree_util.keystr, simple=True, separator="."), jax.tree_util.tree_leaves_with_path
    values = lambda cfg: {name_of(path): x for path, x in leaves_of(cfg)}
    first, found = values(configs[0]), []
    seen = {problem.field for problem in without_effect(configs[0], env, given)}
    for cfg in configs[1:]:
        if changed := {name for name, x in values(cfg).items() if x != first[name]} - seen:
            found += [problem for problem in without_effect(cfg, env, given) if problem.field in changed]
            seen |= changed
    _warn_of_fields(found)


def _warn_of_fields(found: list[Problem]) -> None:
    if found:
        warn("\n  ".join(["fields without effect:", *map(str, found)]))


def warn_of_unreached_phases(cfg: OnPolicyConfig, phases: tuple[Phase, ...]) -> None:
    """Warn about phases whose first update would be after the last update."""
    for phase in phases:
        if cfg.num_updates // phase.every * phase.every <= phase.start:
            first = (phase.start // phase.every + 1) * phase.every
            hint = f"is {cfg.num_updates} updates, but the phase {phase.name!r} begins in update {first}, so it never runs"
            warn(str(Problem("total_timesteps", cfg.total_timesteps, hint)))


def warn_of_unsuited_unit(unit: str, space: Box) -> None:
    """Warn if a custom policy acts in the environment's unit, and the bounds are far from -1 and 1."""
    if unit != "environment" or isinstance(space.low, Tracer) or isinstance(space.high, Tracer):
        return
    centre, half_width = (np.asarray(x) for x in bounds_map(space.low, space.high))
    if (np.abs(centre) > 1 + half_width).any() or (half_width < 0.1).any() or (half_width > 10).any():
        hint = "the policy's means are in the environment's unit, but the action bounds are far from -1 and 1; return purerl."
        hint += "distributions.DiagGaussian(mean, log_std, unit='bounds') to map -1 and 1 to the bounds, or scale the means"
        warn(str(Problem("network", ..., hint)))


def _unused_masks(cfg: OnPolicyConfig, env: Environment) -> list[Problem]:
    """Report likely action masks of the environment that the config does not use."""
    if cfg.action_mask:
        return []
    found = [Problem("action_mask", "auto", hint) for hint in env.masks]
    space = env.observation_space
    for key, x in space.items() if isinstance(space, dict) else ():
        name = str(key)
        wrong = mask_problem(x.shape, env.action_space) if hasattr(x, "shape") else "must be an array"
        if INVERTED.match(name) and not wrong:
            use = "to use it as a mask, return its negation, True for valid actions"
        elif LIKELY.match(name) or ("mask" in name and not wrong):
            use = f"an action mask {wrong}" if wrong.startswith("must") else wrong or f"set action_mask={name!r} to use the mask"
        else:
            continue
        hint = f"the policy reads {name!r} as an observation; {use}; set action_mask='' if this entry is not a mask"
        found.append(Problem("action_mask", "auto", hint))
    nested = [name for name in entries_of(space) if "/" in name or not isinstance(space, dict)]
    hint = "the policy reads {!r} as an observation; to use it as an action mask, return it at the top level of a dict"
    return found + [Problem("action_mask", "auto", hint.format(name)) for name in nested if LIKELY.match(name)]


def _likely_mistakes(cfg: OnPolicyConfig, given: dict[str, Any]) -> list[Problem]:
    """Report valid values that are probably mistakes."""
    found = []
    is_adam = cfg.optimizer in ("adam", "adamw") and not given.keys() & {"optimizer", "lr_schedule"}
    if is_adam and surely_holds(cfg.lr, lambda x: x > 0.1):
        hint = "Adam moves every parameter by about this much in each step; usual values are 1e-5 to 1e-2"
        found.append(Problem("lr", cfg.lr, hint))
    if surely_holds(cfg.clip_eps, lambda x: (x >= 1) & (x < math.inf)):
        hint = "a value of at least 1 never clips a decrease of a probability; usual values are 0.1 to 0.3"
        found.append(Problem("clip_eps", cfg.clip_eps, hint))
    adapts = cfg.lr_schedule == "kl_adaptive" and cfg.learns_from_others is False
    if adapts and cfg.policy_epochs * cfg.num_minibatches == 1:
        then = "never changes" if cfg.lr_kl_every == "minibatch" else "only rises"
        hint = f"an update has one minibatch, and its KL is measured before the policy changes, so the rate {then}"
        found.append(Problem("lr_schedule", cfg.lr_schedule, hint))
    if is_adam and surely_holds(cfg.adam_eps, lambda x: x < 1e-37):
        found.append(Problem("adam_eps", cfg.adam_eps, "makes parameters NaN whose gradient is 0; the default is 1e-5"))
    if cfg.num_levels and cfg.randomize:
        hint = f"a level has its own randomized parameters, so training has only {cfg.num_levels} values of each"
        found.append(Problem("num_levels", cfg.num_levels, hint))
    if cfg.learning_starts < cfg.warmup_steps and surely_holds(cfg.target_kl, np.isfinite):
        hint = "warm-up actions are off-policy and trigger target_kl; set learning_starts >= warmup_steps"
        found.append(Problem("target_kl", cfg.target_kl, hint))
    for name in ("lag", "target_update_freq") if isinstance(cfg, APPOConfig) else ():
        if getattr(cfg, name) > max(cfg.num_updates, getattr(APPOConfig(), name)):
            found.append(Problem(name, getattr(cfg, name), f"counts updates, of which training has only {cfg.num_updates}"))
    if cfg.warmup_steps >= cfg.total_timesteps:
        hint = f"actions are random until the end, total_timesteps = {cfg.total_timesteps}"
        found.append(Problem("warmup_steps", cfg.warmup_steps, hint))
    return found


def _environment_warnings(cfg: OnPolicyConfig, env: Environment, given: dict[str, Any]) -> list[Problem]:
    found = list(env.host.warnings) if env.host else []
    spaces = entries_of(drop_entries(env.observation_space, (cfg.action_mask,)))
    hints = {"float64": "are cast to float32", "uint8": "are cast to float32 without scaling, since they are not images"}
    order = "are read as [height, width, channels]; transpose images whose channels come first"
    for space in spaces.values() if "network" not in given else []:
        is_image = space.dtype == np.uint8 and len(space.shape) == 3
        if np.dtype(space.dtype).name in hints and not is_image and not is_index(space):
            found.append(Problem("env", ..., f"observations of {space.dtype.name} {hints[space.dtype.name]}"))
        height, width, channels = space.shape if len(space.shape) == 3 else (0, 0, 0)
        if "torso" not in given and _has_channels_first(height, width, channels // cfg.frame_stack):
            found.append(Problem("env", ..., f"observations {list(space.shape)} {order}"))
    is_gaussian = "network" not in given and cfg.action_distribution not in ("tanh", "beta")
    return found + [problem for part in parts_of(env.action_space) if is_gaussian for problem in _actions_out_of_reach(part)]


def _actions_out_of_reach(space: Space) -> list[Problem]:
    """Report an action dimension without a scale in which a Gaussian policy, which begins near 0, reaches few actions."""
    if not isinstance(space, Box) or isinstance(space.low, Tracer) or isinstance(space.high, Tracer):
        return []
    low, high = (np.asarray(bound).reshape(-1) for bound in (space.low, space.high))
    is_aside = (low > 1) | (high < -1)
    is_wide = np.isfinite(low) & np.isfinite(high) & ((low > -1) | (high < 1))  # -1e6 and 1e6 stand for missing bounds
    lost = ~have_scale(low, high) & (is_aside | is_wide)
    if not lost.any():
        return []
    bounds = f"a dimension of the actions lies between {low[lost][0]:g} and {high[lost][0]:g}"
    begins = "but the policy begins with a mean of about 0 and a standard deviation of exp(log_std_init)"
    return [Problem("env", ..., f"{bounds}, {begins}; scale and shift actions in the environment's step")]


def _has_channels_first(first: int, second: int, third: int) -> bool:
    """Return True if the first axis of an image is likely that of the channels: the others are equal, or much longer."""
    return (second == third != first and second >= 8) or (first <= 4 and min(second, third) >= 16)


# For each argument of `make_train`: the config fields that nothing reads if the argument is given.
REPLACED = {
    "env": ("env",),
    "network": (
        *("torso", "hidden", "critic_hidden", "critic_obs", "activation", "init", "compute_dtype", "kernels", "arch"),
        *("action_distribution", "std", "log_std_init", "log_std_min", "log_std_max", "memory", "memory_size", "memory_layers"),
    ),
    "torso": ("torso", "hidden", "critic_hidden", "activation", "kernels"),
    "memory": ("memory", "memory_size", "memory_layers"),
    "optimizer": ("optimizer", "adam_eps", "weight_decay"),
    "lr_schedule": ("lr_schedule", "lr", "lr_final", "lr_power", "decay_steps"),
    "intrinsic": tuple(f"rnd.{x}" for x in ("predictor_fraction", "lr_scale", "obs_clip", "init_steps", "features", "hidden")),
}


def without_effect(cfg: OnPolicyConfig, env: Environment, given: dict[str, Any]) -> list[Problem]:
    """Report non-default fields that nothing reads, each with the condition that it needs or the argument that replaces it."""
    found, parts = {}, {"": cfg} | ({} if cfg.rnd is None else {"rnd.": cfg.rnd})
    for prefix, part in parts.items():
        for field in dataclasses.fields(part):
            name, value, needs = f"{prefix}{field.name}", getattr(part, field.name), field.metadata.get("needs")
            if _is_default(part, field, env):
                continue
            provided = needs is MEMORY and not given.keys().isdisjoint(("memory", "network"))
            if needs is not None and not provided and not needs.holds(cfg, env.action_space):
                found[name] = Problem(name, value, f"has no effect without {needs.text}")
            for argument, x in given.items():
                partly = argument == "torso" and isinstance(x, dict)
                partly |= argument == "lr_schedule" and name != "lr" and hasattr(cfg, "aux_lr")  # PPG's auxiliary phase reads it
                partly |= argument == "env" and ":" in cfg.env  # the command line imported `env` from the path in `cfg.env`
                if name in REPLACED.get(argument, ()) and not partly:
                    found[name] = Problem(name, value, f"has no effect, since {argument}= replaces this field")
    if cfg.reset_pool and not has_slow_resets(env.step):
        found["reset_pool"] = Problem("reset_pool", cfg.reset_pool, "has no effect in an environment without slow resets")
    return list(found.values())


def _is_default(cfg: Config, field: dataclasses.Field, env: Environment) -> bool:
    """Return True if a field of a resolved config has its default value, is disabled by inf, or is a tracer."""
    value, default = getattr(cfg, field.name), default_of(field)
    if isinstance(value, Tracer):
        return True
    if is_float_leaf(field):
        value = np.asarray(value, np.float32)
        same = lambda default: bool(((value == np.float32(default)) | np.isposinf(value)).all())
    else:
        same = lambda default: value == default
    return same(default) or same(getattr(cfg.replace(**{field.name: default}).resolve(env), field.name))
