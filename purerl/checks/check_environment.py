"""Checks of fields against the observations, the actions, the device memory and the number of devices."""

import math
import os
from collections.abc import Callable
from typing import Any

import jax

from purerl.checks.check_network import sequence_problems
from purerl.config.algorithms import PPGConfig
from purerl.config.base import OnPolicyConfig
from purerl.core.environment import Environment
from purerl.core.errors import Problem, config_error, divisors, neighbours, raise_if_any, would_work
from purerl.core.masks import choices_of
from purerl.core.plan import num_bytes
from purerl.core.reductions import Axis, shapes_on
from purerl.core.spaces import Space, entries_of, is_index
from purerl.core.types import Network, TrainState
from purerl.networks.actor_critic import NEEDS_BOUNDS, is_bounded


def check_spaces(cfg: OnPolicyConfig, env: Environment, network: Any, distils: bool, devices: int) -> None:
    """Raise if fields do not suit the spaces, observations exceed the device memory, or `network` is not a `Network`.

    Args:
        cfg: the config.
        env: environments.
        network: the custom network, or None.
        distils: True if the config's random network distillation is used.
        devices: number of devices over which the environments are sharded.
    """
    known = network is None or isinstance(network, Network)
    hint = "must be a purerl.Network(init, apply, initial_carry); convert a module with purerl.from_linen or purerl.from_nnx"
    raise_if_any([] if known else [Problem("network", type(network), hint)])
    raise_if_any(_observation_problems(cfg, env, distils) + _info_problems(cfg, env) + _size_problems(cfg, env, devices))


def _observation_problems(cfg: OnPolicyConfig, env: Environment, distils: bool) -> list[Problem]:
    """Report observation entries that the environment does not have or cannot use, and random actions in an unbounded space."""
    found, space = [], env.observation_space
    if cfg.normalize_obs and all(map(is_index, entries_of(space).values())):
        found.append(Problem("normalize_obs", True, "observations are categorical and cannot be normalised; use False"))
    there = space if isinstance(space, dict) else {}
    asked = [("action_mask", cfg.action_mask, "''"), ("critic_obs", cfg.critic_obs, "''")]
    for field, name, nothing in [*asked, *(("normalize_entries", name, "()") for name in cfg.normalize_entries)]:
        if name and name not in there:
            hint = f"has no such entry; choose from {', '.join(map(repr, there))}" if there else f"is not a dict; use {nothing}"
            found.append(Problem(field, name, f"the environment's observation {hint}"))
    if not found and cfg.action_mask and (hint := mask_problem(there[cfg.action_mask].shape, env.action_space)):
        found.append(Problem("action_mask", cfg.action_mask, hint))
    if not found and cfg.critic_obs and cfg.critic_obs == cfg.action_mask:
        found.append(Problem("critic_obs", cfg.critic_obs, "is the action mask, which no network reads"))
    for name in cfg.normalize_entries if cfg.normalize_obs and not found else ():
        if name == cfg.action_mask or all(map(is_index, entries_of(there[name]).values())):
            kind = "is the action mask" if name == cfg.action_mask else "is categorical"
            found.append(Problem("normalize_entries", name, f"{kind}, which is never normalised; leave it out"))
    random_steps = {} if cfg.rnd is None or not distils else {"rnd.init_steps": cfg.rnd.init_steps}
    for field, steps in {"warmup_steps": cfg.warmup_steps, **random_steps}.items():
        if steps and not is_bounded(env.action_space):
            found.append(Problem(field, steps, f"{NEEDS_BOUNDS} 0"))
    return found


def _info_problems(cfg: OnPolicyConfig, env: Environment) -> list[Problem]:
    """Report entries of `info` that are not numbers, and entries of `episode_info` that are neither numbers nor vectors."""
    if not env.info:
        return []
    shapes = {name: x.shape[1:] for name, x in env.step_shapes(cfg.num_envs).info.items()}
    found = [Problem("info", name, f"must be a number, but has shape {list(shapes[name])}") for name in cfg.info if shapes[name]]
    vectors = [name for name in cfg.episode_info if len(shapes[name]) > 1]
    return found + [Problem("episode_info", name, f"must be a number or a vector, not {list(shapes[name])}") for name in vectors]


def mask_problem(shape: tuple[int, ...], actions: Space) -> str:
    """Return why an observation entry of this shape cannot mask these actions, or "" if it can mask them."""
    if not (sizes := choices_of(actions)):
        return f"only discrete actions can be masked; the action space is {type(actions).__name__}"
    return "" if shape == (sum(sizes),) else f"must have shape {[sum(sizes)]}, one flag per action, not {list(shape)}"


def check_state_size(cfg: OnPolicyConfig, init: Callable[[jax.Array], TrainState], axis: Axis | None) -> None:
    """Raise if an algorithm's buffers on one device exceed the device memory. The error names the field of the largest buffer."""
    if not cfg.keeps:
        return
    kept = shapes_on(axis, init, jax.random.key(0)).extra
    sizes = {field: num_bytes(kept[name]) for field, name in cfg.keeps.items()}
    needed, there, field = sum(sizes.values()), _memory(), max(sizes, key=sizes.__getitem__)
    if needed > there:
        hint = f"buffers need {needed / 1e9:,.1f} GB, but the device has {there / 1e9:,.0f} GB; use a smaller value"
        raise config_error(field, getattr(cfg, field), hint)


def _size_problems(cfg: OnPolicyConfig, env: Environment, devices: int) -> list[Problem]:
    """Report a rollout whose observations alone, spread over `devices` devices, exceed their memory. Nothing is allocated."""
    each = sum(math.prod(space.shape) * space.dtype.itemsize for space in entries_of(env.observation_space).values())
    needed, there = each * cfg.batch_size // devices, _memory()  # at least: some rollouts also store observations before resets
    if needed <= there:
        return []
    hint = f"{cfg.num_steps} steps of observations need {needed / 1e9:,.0f} GB, but a device has {there / 1e9:,.0f} GB; use fewer"
    return [Problem("num_envs", cfg.num_envs, hint)]


def _memory() -> float:
    """Return the memory of the training device in bytes, infinite if unknown."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit", math.inf)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf


def check_devices(cfg: OnPolicyConfig, env: Environment, network: Network, count: int) -> None:
    """Raise unless the environments, and every minibatch, can be divided equally among `count` devices."""
    if env.host:
        raise config_error("env", env.name, f"an external (Python) environment cannot be spread over {count} devices")
    if cfg.num_envs % count:
        near = sorted({max(cfg.num_envs // count, 1) * count, -(-cfg.num_envs // count) * count})
        raise config_error("num_envs", cfg.num_envs, f"must be divisible by the number of devices, {count}{would_work(near)}")
    found, here = [], cfg.replace(num_envs=cfg.num_envs // count, advantage_norm="batch")
    if isinstance(cfg, PPGConfig):
        if (columns := cfg.aux_columns) % count:
            each = divisors(cfg.n_pi * here.num_envs // cfg.aux_accumulation)
            hint = f"must be divisible by the number of devices, {count}"
            found.append(Problem("aux_columns", columns, hint + would_work(neighbours(columns, [count * x for x in each]))))
        else:
            here = here.replace(aux_columns=columns // count)
    of_minibatches = ("num_minibatches", "minibatches", "aux_columns")
    wrong = here.cross_field_errors() + (sequence_problems(here) if network.is_recurrent else [])
    each = f" ({here.num_envs} environments on each of {count} devices)"
    raise_if_any(found + [problem._replace(hint=problem.hint + each) for problem in wrong if problem.field in of_minibatches])
