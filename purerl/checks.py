"""Checks of a config against its environment and network, before anything is compiled.

Each `check_...` raises a ConfigError with every problem it finds.
"""

import dataclasses
import math
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from purerl.config.algorithms import PPGConfig, algorithm_of
from purerl.config.base import MEMORY, OnPolicyConfig
from purerl.config.documentation import default_of
from purerl.config.fields import Config, is_float_leaf, not_scalar, problems, undecorated
from purerl.config.rules import surely_holds
from purerl.core.errors import ConfigError, Problem, code_of, raise_if_any, would_work
from purerl.core.masks import choices_of
from purerl.core.numbers import divisors, neighbours
from purerl.core.reductions import Axis, shapes_on
from purerl.core.spaces import Box, Discrete, MultiBinary, Space, bounds_map, entries_of, is_index
from purerl.core.types import Environment, Network, Outputs, PyTree, TrainState
from purerl.envs.outputs import strong
from purerl.learning.batch import loss_reads_policy
from purerl.learning.learner import Components, Learner
from purerl.learning.optimizers import optimizer_problems
from purerl.learning.phases import Phase, moving_groups
from purerl.learning.update import Algorithm
from purerl.networks.actor_critic import bounded
from purerl.networks.distributions import Bernoulli
from purerl.networks.encoding import without

MASK = re.compile(r"action_?mask|(legal|valid|avail\w*)_?action")  # the name of an entry that is probably an action mask


def check_type(cfg: Any) -> None:
    """Raise unless `cfg` is a config."""
    hint = "must be the config of an algorithm: purerl.PPOConfig(lr=1e-3)"
    raise_if_any([] if isinstance(cfg, OnPolicyConfig) else [Problem("cfg", cfg, hint)])
    raise_if_any(undecorated(cfg))


def check_parts(given: dict[str, Any]) -> None:
    """Raise unless the functions given to `make_train` take and give what is documented.

    Those whose arguments are arrays of any shape are traced here; the others where an update is.
    """
    found = []
    for name in ("algorithm", "advantage", "policy_loss", "extra_loss", "lr_schedule", "reward_shaper", "measure"):
        if name in given and not callable(given[name]):
            found.append(Problem(name, given[name], "must be a function"))
    for name in ("torso", "memory"):
        if name in given and "network" in given:
            found.append(Problem(name, given[name], "is a part of the built-in networks, and network= takes their place"))
    pair = given.get("intrinsic", (len, len))
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(map(callable, pair))):
        found.append(Problem("intrinsic", pair, "must be two functions: init(key, obs) and reward(state, steps)"))
    raise_if_any(found)
    array = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)
    calls = {
        "lr_schedule": ((jax.ShapeDtypeStruct((), np.int32),), ()),
        "reward_shaper": ((array(3, 2), array(3, 1)), (3, 2)),
    }
    for name, (args, expected) in calls.items():
        if name in given:
            with code_of(name, f"{name}({', '.join(str(list(x.shape)) for x in args)})"):
                result = jax.eval_shape(given[name], *args)
            if getattr(result, "shape", None) != expected:
                shape = list(result.shape) if hasattr(result, "shape") else type(result).__name__
                found.append(Problem(name, shape, f"must give an array {list(expected)} for arguments of that shape"))
    raise_if_any(found)


def check_policy_loss(learner: Learner[OnPolicyConfig], env: Environment) -> None:
    """Raise unless a custom policy loss can be computed for two steps. Nothing is compiled."""
    cfg, network, _ = learner
    num_envs, first = 2, jax.ShapeDtypeStruct((1, 2), bool)
    params, obs = _shapes_of(cfg, network, env, num_envs)
    carry = jax.eval_shape(lambda: strong(network.initial_carry(num_envs)))

    def act(*args):
        policy = network.apply(*args)[0].policy
        return policy.sample(policy.noise(jax.random.key(0))), policy

    loss_reads_policy(learner, params, carry, obs, first, *jax.eval_shape(act, params, carry, obs, first))


def algorithm_made(maker: Callable, cfg: OnPolicyConfig, env: Environment, network: Network, parts: Components) -> Algorithm:
    """Return the algorithm that a maker gives for these parts, if it is one."""
    with code_of("algorithm", "algorithm(cfg, env, network, parts)"):
        made = maker(cfg, env, network, parts)
    if not isinstance(made, Algorithm):
        raise ConfigError([Problem("algorithm", made, "must return a purerl.Algorithm(init, update, phases), as purerl's do")])
    return made


def check_config(
    cfg: OnPolicyConfig, make_environment: Callable[[dict[str, Any]], Environment], recurrent: bool = False
) -> Environment:
    """Return the environment of a config whose fields are valid.

    Args:
        cfg: the config.
        make_environment: from overrides of the environment's parameters to the environment.
        recurrent: an object of the user's gives the network a memory, which proposals must suit.
    """
    found = problems(cfg.replace(memory="gru") if recurrent and cfg.memory == "none" else cfg) + not_scalar(cfg)
    if any(problem.field.startswith(("env", "info", "episode_info", "memory", "num_envs")) for problem in found):
        raise ConfigError(found)
    try:
        environment = make_environment(cfg.env_params)
    except ConfigError as error:
        raise ConfigError(found + error.problems) from None
    raise_if_any(found)
    return environment


def has_own_carry(network: Any) -> bool:
    """Return True if a user's network may have a memory, before it is known to work."""
    return getattr(network, "initial_carry", None) not in (None, Network._field_defaults["initial_carry"])


def warn_about(asked: OnPolicyConfig, cfg: OnPolicyConfig, env: Environment, given: dict[str, Any]) -> None:
    """Warns of settings that are valid but probably a mistake. The warnings point to the caller of `make_train`.

    Args:
        asked: the config as the user wrote it, with `auto`.
        cfg: the config, resolved.
        env: environments.
        given: the objects that `make_train` was given, by argument.
    """
    unmasked = _unused_masks(cfg, env) if asked.action_mask == "auto" else []
    for problem in cfg.warnings_of() + _environment_warnings(cfg, env, given) + unmasked:
        warnings.warn(str(problem), stacklevel=3)
    if found := without_effect(cfg, env, given):
        warnings.warn("\n  ".join(["settings without effect:", *map(str, found)]), stacklevel=3)


def warn_of_idle_groups(cfg: OnPolicyConfig, network: Network, env: Environment, phases: tuple[Phase, ...]) -> None:
    """Warns of groups of a user's network that no phase trains. The warning points to the caller of `make_train`."""
    params = _shapes_of(cfg, network, env)[0]
    if idle := sorted(params.keys() - {group for phase in phases for group in moving_groups(phase, params)}):
        hint = f"no phase trains them; those of this algorithm train {', '.join(_trained(phases)) or 'all'}"
        warnings.warn(str(Problem("network", f"groups {', '.join(idle)}", hint)), stacklevel=3)


def warn_of_unsuited_unit(unit: str, space: Box) -> None:
    """Warn of a user's policy in the environment's unit if a deviation of about 1 around about 0 covers no range of actions."""
    if unit != "environment" or isinstance(space.low, Tracer) or isinstance(space.high, Tracer):
        return
    centre, half_width = (np.asarray(x) for x in bounds_map(space.low, space.high))
    if (np.abs(centre) > 1 + half_width).any() or (half_width < 0.1).any() or (half_width > 10).any():
        hint = "its means are in the environment's unit, whose bounds are far from -1 and 1: return purerl.distributions."
        hint += "DiagGaussian(mean, log_std, unit='bounds') for units of the bounds, or scale the means yourself"
        warnings.warn(str(Problem("network", type(space).__name__, hint)), stacklevel=3)


def _trained(phases: tuple[Phase, ...]) -> list[str]:
    """Return the groups that phases name."""
    return sorted({group for phase in phases for group in phase.groups or ()})


def check_spaces(cfg: OnPolicyConfig, env: Environment, network: Any, distils: bool) -> None:
    """Raise if fields do not suit the observations or actions, or `network` is no network.

    Args:
        cfg: the config.
        env: environments.
        network: the user's, or None.
        distils: the config's random network distillation is used.
    """
    known = network is None or isinstance(network, Network)
    hint = "must be a purerl.Network(init, apply, initial_carry); purerl.from_linen and purerl.from_nnx make one of a module"
    raise_if_any([] if known else [Problem("network", type(network).__name__, hint)])
    raise_if_any(_observation_problems(cfg, env, distils) + _info_problems(cfg, env))


def check_network(cfg: OnPolicyConfig, env: Environment, network: Network, optimizer: Any, devices: int) -> None:
    """Raise unless a network, and a custom optimizer or None, suit config and environment."""
    raise_if_any(_size_problems(cfg, env, devices) + _network_problems(network, env, cfg))
    raise_if_any(optimizer_problems(optimizer, _shapes_of(cfg, network, env)[0]))


def check_state_size(cfg: OnPolicyConfig, init: Callable[[jax.Array], TrainState], axis: Axis | None) -> None:
    """Raise if an algorithm's buffers, of several devices one's share, exceed the memory of the device."""
    raise_if_any(_kept_problems(cfg, init, axis))


def check_devices(cfg: OnPolicyConfig, env: Environment, network: Network, count: int) -> None:
    """Raise unless so many devices can have equal shares of the environments, and of every minibatch."""
    if env.host:
        raise ConfigError([Problem("env", env.name, f"lives on the host, and cannot be spread over {count} devices")])
    if cfg.num_envs % count:
        near = sorted({max(cfg.num_envs // count, 1) * count, -(-cfg.num_envs // count) * count})
        hint = f"must be divisible by the number of devices, {count}{would_work(near)}"
        raise ConfigError([Problem("num_envs", cfg.num_envs, hint)])
    found, here = [], cfg.replace(num_envs=cfg.num_envs // count, advantage_norm="batch")
    if isinstance(cfg, PPGConfig):
        if (columns := cfg.aux_columns) % count:
            each = divisors(cfg.n_pi * here.num_envs // cfg.aux_accumulation)
            hint = f"must be divisible by the number of devices, {count}"
            found.append(Problem("aux_columns", columns, hint + would_work(neighbours(columns, [count * x for x in each]))))
        else:
            here = here.replace(aux_columns=columns // count)
    of_minibatches = ("num_minibatches", "minibatches", "aux_columns")
    wrong = here.cross_field_errors() + (_sequence_problems(here) if network.is_recurrent else [])
    each = f", for the {here.num_envs} environments of each of {count} devices"
    raise_if_any(found + [problem._replace(hint=problem.hint + each) for problem in wrong if problem.field in of_minibatches])


# --- settings without effect ------------------------------------------------------------------------------------------

# What is not read where an argument of `make_train` takes its place.
REPLACED = {
    "env": ("env",),
    "network": (
        *("torso", "hidden", "activation", "init", "compute_dtype", "arch", "log_std_init", "action_distribution"),
        *("memory", "memory_size", "memory_layers"),
    ),
    "torso": ("torso", "hidden", "activation"),
    "memory": ("memory", "memory_size", "memory_layers"),
    "optimizer": ("optimizer", "adam_eps", "weight_decay"),
    "lr_schedule": ("lr_schedule", "lr", "lr_final", "lr_power", "decay_steps"),
    "intrinsic": tuple(
        f"rnd.{name}" for name in ("predictor_fraction", "lr_scale", "obs_clip", "init_steps", "features", "hidden")
    ),
}


def without_effect(cfg: OnPolicyConfig, env: Environment, given: dict[str, Any]) -> list[Problem]:
    """Return the fields that do not have their default and that nothing reads, each with what would read it."""
    found, parts = {}, {"": cfg} | ({} if cfg.rnd is None else {"rnd.": cfg.rnd})
    for prefix, part in parts.items():
        for field in dataclasses.fields(part):
            name, value, needs = f"{prefix}{field.name}", getattr(part, field.name), field.metadata.get("needs")
            if _is_default(part, field, env):
                continue
            provided = needs is MEMORY and not given.keys().isdisjoint(("memory", "network"))
            if needs is not None and not provided and not needs.holds(cfg, env.action_space):
                found[name] = Problem(name, value, f"is not read; it needs {needs.text}")
            for argument, x in given.items():
                partly = (argument == "torso" and isinstance(x, dict)) or (argument == "lr_schedule" and _has_own_rate(cfg, name))
                partly |= argument == "env" and ":" in cfg.env  # the command line made it of this import path
                if name in REPLACED.get(argument, ()) and not partly:
                    found[name] = Problem(name, value, f"is not read; {argument}= takes its place")
    return list(found.values())


def _has_own_rate(cfg: OnPolicyConfig, name: str) -> bool:
    """Return True if PPG's auxiliary phase reads this field of the schedule, whatever the policy's phase is given."""
    return "aux_lr" in {field.name for field in dataclasses.fields(cfg)} and name != "lr"


def _is_default(cfg: Config, field: dataclasses.Field, env: Environment) -> bool:
    """Return True if a field of a resolved config may have its default, or is off. A tracer may."""
    value, default = getattr(cfg, field.name), default_of(field)
    if isinstance(value, Tracer):
        return True
    if is_float_leaf(field):
        value = np.asarray(value, np.float32)
        same = lambda default: bool(((value == np.float32(default)) | np.isposinf(value)).all())
    else:
        same = lambda default: value == default
    return same(default) or same(getattr(cfg.replace(**{field.name: default}).resolved(env), field.name))


# --- problems ---------------------------------------------------------------------------------------------------------


def num_bytes(tree: PyTree) -> int:
    """Return the size of all arrays of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _size_problems(cfg: OnPolicyConfig, env: Environment, devices: int) -> list[Problem]:
    """Report a rollout whose observations alone exceed the memory of so many devices. Nothing is allocated."""
    each = sum(math.prod(space.shape) * space.dtype.itemsize for space in entries_of(env.observation_space).values())
    needed, there = 2 * each * cfg.batch_size // devices, _memory()  # those acted on, and those before a reset
    if there is None or needed <= there:
        return []
    hint = f"times {cfg.num_steps} steps: the observations of one rollout need {needed / 1e9:,.0f} GB of {there / 1e9:,.0f}"
    return [Problem("num_envs", cfg.num_envs, hint)]


def _kept_problems(cfg: OnPolicyConfig, init: Callable, axis: Axis | None) -> list[Problem]:
    """Report buffers that exceed the memory, by the field with the largest share."""
    there = _memory()
    if not cfg.keeps or there is None:
        return []
    kept = shapes_on(axis, init, jax.random.key(0)).extra
    sizes = {field: num_bytes(kept[name]) for field, name in cfg.keeps.items()}
    if sum(sizes.values()) <= there:
        return []
    field = max(sizes, key=sizes.__getitem__)
    hint = f"{sizes[field] / 1e9:,.1f} GB are kept for it, of {there / 1e9:,.0f} GB of memory"
    return [Problem(field, getattr(cfg, field), hint)]


def _observation_problems(cfg: OnPolicyConfig, env: Environment, distils: bool) -> list[Problem]:
    """Observation entries that the environment does not have, and random actions in an unbounded space."""
    found, space = [], env.observation_space
    if cfg.normalize_obs and all(map(is_index, entries_of(space).values())):
        found.append(Problem("normalize_obs", True, "the environment's observation is an index, which is no quantity"))
    there = space if isinstance(space, dict) else {}
    for field in ("action_mask", "critic_obs"):
        name = getattr(cfg, field)
        if name and name not in there:
            has = f"has {', '.join(map(repr, there))}" if there else "is no dict"
            found.append(Problem(field, name, f"no entry of the environment's observation, which {has}"))
    if not found and cfg.action_mask and (hint := _mask_problem(there[cfg.action_mask].shape, env.action_space)):
        found.append(Problem("action_mask", cfg.action_mask, hint))
    random_steps = {} if cfg.rnd is None or not distils else {"rnd.init_steps": cfg.rnd.init_steps}
    asked = {"warmup_steps": cfg.warmup_steps} | random_steps
    for field, steps in asked.items():
        if steps and not bounded(env.action_space):
            found.append(Problem(field, steps, "actions without bounds cannot all be drawn alike; use 0"))
    return found


def _info_problems(cfg: OnPolicyConfig, env: Environment) -> list[Problem]:
    """Entries of the environment's info that are no number for each environment, or no vector."""
    if not env.info:
        return []
    shapes = {name: x.shape[1:] for name, x in env.step_shapes(cfg.num_envs).info.items()}
    found = [Problem("info", name, f"must be a number, not {list(shapes[name])}") for name in cfg.info if shapes[name]]
    vectors = [name for name in cfg.episode_info if len(shapes[name]) > 1]
    return found + [Problem("episode_info", name, f"must be a number or a vector, not {list(shapes[name])}") for name in vectors]


def _mask_problem(shape: tuple[int, ...], actions: Space) -> str:
    """Say why an entry of this shape cannot be the mask of these actions; "" if it can."""
    if not (sizes := choices_of(actions)):
        return f"only choices can be masked, and the action space is {type(actions).__name__}"
    return "" if shape == (sum(sizes),) else f"must be one flag for each of {sum(sizes)} actions, not {list(shape)}"


def _unused_masks(cfg: OnPolicyConfig, env: Environment) -> list[Problem]:
    """Report what looks like an action mask of the environment and is not used as one."""
    if cfg.action_mask:
        return []
    found = [Problem("action_mask", "auto", hint) for hint in env.host.masks] if env.host else []
    space = env.observation_space
    for name, x in space.items() if isinstance(space, dict) else ():
        wrong = _mask_problem(x.shape, env.action_space) if hasattr(x, "shape") else "must be an array"
        if MASK.search(name) or ("mask" in name and not wrong):
            use = f"as a mask it {wrong}" if wrong.startswith("must") else wrong or f"action_mask={name!r} uses it"
            hint = f"the policy reads {name!r} as an observation; {use}; action_mask='' says that it is no action mask"
            found.append(Problem("action_mask", "auto", hint))
    return found


def _memory() -> int | None:
    """Bytes of memory of the device that trains; None if it is not known."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return (device.memory_stats() or {}).get("bytes_limit")


def _environment_warnings(cfg: OnPolicyConfig, env: Environment, given: dict[str, Any]) -> list[Problem]:
    found = list(env.host.warnings) if env.host else []
    spaces = entries_of(without(env.observation_space, (cfg.action_mask,)))
    hints = {"float64": "cast to float32", "uint8": "cast to float32, not scaled, since they are no image"}
    order = "read as [height, width, channels]; an image whose channels come first must be transposed"
    for space in spaces.values() if "network" not in given else []:
        is_image = space.dtype == np.uint8 and len(space.shape) == 3
        if space.dtype.name in hints and not is_image and not is_index(space):
            found.append(Problem("env", f"observations of {space.dtype.name}", hints[space.dtype.name]))
        if "torso" not in given and _looks_channel_first(space.shape):
            found.append(Problem("env", f"observations {list(space.shape)}", order))
    return found


def _looks_channel_first(shape: tuple[int, ...]) -> bool:
    """Return True if this is rather an image [channels, height, width] than [height, width, channels]."""
    return len(shape) == 3 and shape[0] <= 4 and min(shape[1:]) >= 16


def _network_problems(network: Network, env: Environment, cfg: OnPolicyConfig) -> list[Problem]:
    """Report where a network does not fit the environment or the config. Nothing is compiled."""
    key, num_envs = jax.random.key(0), 2
    params, obs = _shapes_of(cfg, network, env, num_envs)
    first = jax.ShapeDtypeStruct((1, num_envs), bool)
    with code_of("network", f"initial_carry({num_envs})"):
        carry = jax.eval_shape(lambda: strong(network.initial_carry(num_envs)))
    shapes = jax.tree.map(lambda x: list(x.shape), obs)
    with code_of("network", f"apply(params, carry, obs {shapes}, first {list(first.shape)})"):
        result = jax.eval_shape(network.apply, params, carry, obs, first)
    if found := _output_problems(result):
        return found
    outputs, carry_after = result
    _warn_of_rounding(outputs)
    space = env.action_space

    def act(policy):
        action = policy.sample(policy.noise(key))
        return policy.env_action(action, space), policy.log_prob(action)

    found = []
    if not isinstance(params, dict):
        found.append(Problem("network", type(params).__name__, "init must return a dict from a group's name to its parameters"))
    elif "value" not in params and surely_holds(cfg.critic_lr_scale, lambda x: x != 1):
        hint = f"no group of the network's parameters is called 'value', so nothing would learn at it; there are {sorted(params)}"
        found.append(Problem("critic_lr_scale", cfg.critic_lr_scale, hint))
    for name in cfg.heads:
        if name not in outputs.heads:
            hint = f"{algorithm_of(cfg)} needs the outputs' heads to have the entry {name!r}"
            found.append(Problem("network", sorted(outputs.heads), hint))
        elif getattr(outputs.heads[name], "shape", outputs.value.shape) != outputs.value.shape:
            hint = f"the head {name!r} must have the shape of the value, {list(outputs.value.shape)}"
            found.append(Problem("network", list(outputs.heads[name].shape), hint))
    if carry_after != carry:
        found.append(Problem("network", carry_after, f"apply must return a carry like the one it was given: {carry}"))
    streams = (cfg.streams,) if cfg.streams > 1 else ()
    if outputs.value.shape != (1, num_envs, *streams):
        axis = f"with an axis for {cfg.streams} streams of rewards" if streams else "without an axis for the output"
        hint = f"the value of {num_envs} observations must be {[1, num_envs, *streams]}, {axis}"
        found.append(Problem("network", list(outputs.value.shape), hint))
    with code_of("network", "the policy's sample(noise), env_action and log_prob"):
        action, log_prob = jax.eval_shape(act, outputs.policy)
    expected = (1, num_envs, *space.shape)
    if action.shape != expected or log_prob.shape != (1, num_envs):
        hint = f"actions must be {list(expected)}, and have one log-probability each"
        hint += "; for a Box use DiagGaussian, of a module (mean, log_std)" if isinstance(space, Box) else ""
        found.append(Problem("network", list(action.shape), hint))
    elif np.issubdtype(action.dtype, np.floating) != isinstance(space, Box):
        found.append(Problem("network", action.dtype.name, f"actions must be of dtype {space.dtype.name}"))
    choices = (2,) * space.n if isinstance(space, MultiBinary) else getattr(space, "sizes", None)
    switches = outputs.policy.logits.shape[-1] if isinstance(outputs.policy, Bernoulli) else 0
    offered = getattr(outputs.policy, "sizes", None) or (2,) * switches
    if choices and offered and tuple(offered) != tuple(choices):
        found.append(Problem("network", offered, f"the environment has {choices} actions; the policy must have as many"))
    logits = getattr(outputs.policy, "logits", None)
    if isinstance(space, Discrete) and logits is not None and logits.shape[-1] != space.n:
        found.append(Problem("network", logits.shape[-1], f"the environment has {space.n} actions; as many logits are needed"))
    if network.is_recurrent:
        found += _sequence_problems(cfg)
    elif cfg.sequence_length:
        found.append(Problem("sequence_length", cfg.sequence_length, "the network has no memory; see the config's `memory`"))
    return found


def _warn_of_rounding(outputs: Outputs) -> None:
    """Warn of outputs with fewer bits than float32. The warning points to the caller of `make_train`."""
    floats = {x.dtype for x in jax.tree.leaves(outputs) if jax.numpy.issubdtype(x.dtype, np.floating)}
    for kind in sorted(dtype.name for dtype in floats if dtype.itemsize < 4):
        step = float(jax.numpy.finfo(kind).eps) * 256
        hint = f"were rounded before they become float32, values near 300 to steps of {step:g}; end in layers of float32"
        warnings.warn(str(Problem("network", f"outputs of {kind}", f"{hint}: nn.Dense(1, dtype=jnp.float32)")), stacklevel=5)


def _output_problems(result: Any) -> list[Problem]:
    """Report what `apply` returned, unless it is a pair of `Outputs` and a carry."""
    if not (isinstance(result, tuple) and len(result) == 2):
        hint = "apply must return two things: purerl.Outputs(policy, value), and the carry"
        return [Problem("network", type(result).__name__, hint)]
    outputs, _ = result
    if not isinstance(outputs, Outputs):
        return [Problem("network", type(outputs).__name__, "apply must return purerl.Outputs(policy, value), and the carry")]
    if not all(hasattr(outputs.policy, method) for method in ("sample", "log_prob", "noise", "env_action", "entropy")):
        hint = "the policy must be a distribution: purerl.distributions.Categorical(logits) for choices, DiagGaussian for a Box"
        return [Problem("network", outputs.policy, hint)]
    if not hasattr(outputs.value, "shape"):
        return [Problem("network", outputs.value, "the value must be an array")]
    return []


def _shapes_of(cfg: OnPolicyConfig, network: Network, env: Environment, num_envs: int = 1) -> tuple[PyTree, PyTree]:
    """Return the shapes of a network's parameters, and of the observations `[1, num_envs, ...]` it is made for."""
    key = jax.random.key(0)
    _, obs = jax.eval_shape(lambda key: env.reset(jax.random.split(key, cfg.num_envs)), key)
    obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, num_envs, *x.shape[1:]), x.dtype), obs)
    with code_of("network", f"init(key, obs {jax.tree.map(lambda x: list(x.shape), obs)})"):
        return jax.eval_shape(network.init, key, obs), obs


def _sequence_problems(cfg: OnPolicyConfig) -> list[Problem]:
    """Minibatches that would split the sequences of a network with a memory."""
    if cfg.minibatches in ("flat", "time"):
        hint = "the network has a memory, so the steps of an environment must stay in order; use 'auto'"
        return [Problem("minibatches", cfg.minibatches, hint)]
    if cfg.minibatches == "env" and cfg.training_length != cfg.num_steps:
        return [Problem("minibatches", cfg.minibatches, f"cannot be cut into sequences of {cfg.sequence_length}; use 'auto'")]
    return cfg.minibatch_problems(recurrent=True)
