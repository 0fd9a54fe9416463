"""Checks of the config and of the functions passed to `make_train`."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from purerl.config.base import OnPolicyConfig
from purerl.config.value_checks import not_scalar, problems
from purerl.core.environment import Environment
from purerl.core.errors import ConfigError, Problem, config_error, convert_errors, name_of, raise_if_any, warn
from purerl.core.reductions import Axis, shapes_on
from purerl.core.types import Network
from purerl.learning.learner import Components
from purerl.learning.phases import Phase
from purerl.learning.update import Algorithm, state_and_metrics
from purerl.networks.foreign import describe


def check_type(cfg: Any) -> None:
    """Raise unless `cfg` is a config."""
    hint = "must be the config of an algorithm, such as purerl.PPOConfig(lr=1e-3)"
    raise_if_any([] if isinstance(cfg, OnPolicyConfig) else [Problem("cfg", cfg, hint)])


def check_parts(given: dict[str, Any]) -> None:
    """Raise unless the functions passed to `make_train` have the documented arguments and results.

    Functions that take arrays of any shape are traced here. All other functions are traced as part of an update.
    """
    found = []
    for name in ("algorithm", "advantage", "policy_loss", "extra_loss", "lr_schedule", "reward_shaper", "measure"):
        if name in given and not callable(given[name]):
            found.append(Problem(name, given[name], "must be a function"))
    for name in ("torso", "memory"):
        if name in given and "network" in given:
            found.append(Problem(name, given[name], "cannot be combined with network=, which replaces the built-in networks"))
    pair = given.get("intrinsic", (len, len))
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(map(callable, pair))):
        found.append(Problem("intrinsic", pair, "must be a pair of functions: init(key, obs) and reward(state, steps)"))
    raise_if_any(found)
    array = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)
    step = jax.ShapeDtypeStruct((), np.int32)
    calls = {"lr_schedule": ((step,), ()), "reward_shaper": ((array(3, 2), array(3, 1)), (3, 2))}
    for name, (args, expected) in calls.items():
        if name in given:
            with convert_errors(name, f"{name_of(given[name])}({', '.join(str(list(x.shape)) for x in args)})"):
                result = jax.eval_shape(given[name], *args)
            if getattr(result, "shape", None) != expected:
                hint = f"must return an array of shape {list(expected)}, like its first argument"
                found.append(Problem(name, describe(result), hint))
    raise_if_any(found)


def check_schedule(schedule: Callable, cfg: OnPolicyConfig, phases: tuple[Phase, ...]) -> None:
    """Check a custom learning-rate schedule at 0, 25, 50, 75 and 100 % of training.

    Raise if a rate is negative; warn if rates are 0 from the middle on, since schedules are often written in updates.
    Phases that run in every update count; PPG's auxiliary phase has a schedule of its own.
    """
    most = max((phase.epochs * phase.minibatches for phase in phases if phase.every == 1), default=1)
    last, rates = min(2**31, cfg.num_updates * most) - 1, {}
    with contextlib.suppress(Exception), jax.ensure_compile_time_eval(), jax.disable_jit():  # the schedule may hold tracers
        rates = {step: float(schedule(jnp.int32(step))) for step in (0, 1, *(last * i // 4 for i in range(1, 5)))}
    rounding = 1e-6 * max(rates.values(), default=0.0)
    hint = "at gradient step {:,} of {:,}, must be at least 0, or the loss is maximised; schedules count gradient steps"
    problems = [Problem("lr_schedule", rate, hint.format(step, last + 1)) for step, rate in rates.items() if rate < -rounding]
    raise_if_any(problems[:1])
    late = [rates.get(last * i // 4) for i in (2, 3, 4)]
    if last >= 8 and late == [0, 0, 0] and max(rates.values()) > 0:
        hint = f"is 0 in the second half of the {last + 1:,} gradient steps; schedules count gradient steps, not updates"
        warn(str(Problem("lr_schedule", 0.0, hint)))


def check_update(algorithm: Algorithm, axis: Axis | None) -> None:
    """Raise unless an update with custom functions can be traced, and keeps the shapes of the state. Nothing is compiled.

    Raises:
        ConfigError: an update changes the structure, a shape or a dtype of the state, or returns other values than metrics.
    """

    def run(key: jax.Array) -> Any:
        state = algorithm.init(key)
        return state, *algorithm.update(state)

    before, after, _ = shapes_on(axis, run, jax.random.key(0))
    leaves = map(jax.tree_util.tree_leaves_with_path, (before, after))
    then, now = ({jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in each} for each in leaves)
    paths = [path for path in {**then, **now} if then.get(path) != now.get(path)]
    changed = [f"{path} is {then.get(path, 'missing')} before an update, {now.get(path, 'missing')} after" for path in paths]
    hint = "an update must keep the arrays of the training state: "
    raise_if_any([Problem("algorithm", ..., hint + "; ".join(changed[:3]))] if changed else [])


FIXED = ("optimizer", "adam_eps", "weight_decay", "normalize_reward", "reward_clip")  # with the groups below
FIXED_GROUPS = ("Environment", "Network", "Memory", "Curiosity", "Run")
OF_ALGORITHM = ("reset_pool", "sequence_length")  # fields of these groups that an algorithm reads


def check_changed_config(cfg: OnPolicyConfig, changed: OnPolicyConfig) -> None:
    """Raise if an algorithm changed its config to invalid values, or fields that were read before the algorithm was made."""
    is_fixed = lambda name: name in FIXED or (cfg.field_docs[name].group in FIXED_GROUPS and name not in OF_ALGORITHM)
    is_traced = lambda a, b: isinstance(a, Tracer) or isinstance(b, Tracer)
    is_same = lambda a, b: a is b or (not is_traced(a, b) and type(a) is type(b) and np.all(np.asarray(a == b)))
    names = [field.name for field in dataclasses.fields(cfg) if hasattr(changed, field.name)]
    other = [name for name in names if not is_same(getattr(cfg, name), getattr(changed, name))]
    fixed = [name for name in other if is_fixed(name)]
    if changed.measures_kl != cfg.measures_kl:
        fixed += [name for name in other if name in ("kl_penalty", "lr_schedule")]
    hint = "is read before the algorithm is made; set it in the config that make_train receives"
    raise_if_any([Problem(name, getattr(changed, name), hint) for name in fixed] + (problems(changed) if other else []))


def make_algorithm(maker: Callable, cfg: OnPolicyConfig, env: Environment, network: Network, parts: Components) -> Algorithm:
    """Return the algorithm that `maker` builds, whose update may return numbers as metrics.

    Raises:
        ConfigError: `maker` fails, or returns anything but an `Algorithm`.
    """
    with convert_errors("algorithm", "algorithm(cfg, env, network, parts)"):
        made = maker(cfg, env, network, parts)
    if not isinstance(made, Algorithm):
        raise config_error("algorithm", made, "must return a purerl.Algorithm(init, update, phases)")
    return made._replace(update=lambda state: state_and_metrics("algorithm", made.update(state)))


def check_config(cfg: OnPolicyConfig, make_environment: Callable[..., Environment], recurrent: bool = False) -> Environment:
    """Check the fields of a config, and return its environment.

    Args:
        cfg: the config.
        make_environment: `(overrides, distributions of environment parameters) -> Environment`.
        recurrent: True if a custom object makes the network recurrent; suggested values must then suit a recurrent network.
    """
    found = problems(cfg.replace(memory="gru") if recurrent and cfg.memory == "none" else cfg) + not_scalar(cfg)
    if any(problem.field.startswith(("env", "randomize", "info", "episode_info", "memory", "num_envs")) for problem in found):
        raise ConfigError(found)
    if both := cfg.randomize.keys() & cfg.env_params.keys():
        found.append(Problem("randomize", sorted(both), "are also in env_params, which fixes them; remove them from either"))
    if cfg.num_levels and cfg.randomize and cfg.randomize_each == "environment":
        found.append(Problem("randomize_each", "environment", "needs num_levels=0, since each level has its own parameters"))
    try:
        environment = make_environment(cfg.env_params, cfg.randomize)
    except ConfigError as error:
        raise ConfigError(found + error.problems) from None
    raise_if_any(found)
    return environment


def has_custom_carry(network: Any) -> bool:
    """Return True if a custom network declares a hidden state; the network may still be invalid."""
    return getattr(network, "initial_carry", None) not in (None, Network._field_defaults["initial_carry"])
