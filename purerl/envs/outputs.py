"""Conversion and checks of the outputs of `reset` and `step`."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import TimeStep
from purerl.core.errors import Problem, config_error, raise_if_any, warn
from purerl.core.platform import to_strong_dtypes
from purerl.core.types import PyTree


def unpack_result(values: Any, count: int, method: str, protocol: str) -> tuple:
    """Return a method's result as a tuple. Raise a ConfigError unless the result has `count` values."""
    if not isinstance(values, tuple | list):
        raise config_error(f"env.{method}", ..., f"returns a {type(values).__name__}, but {protocol} needs {count} values")
    if len(values) != count:
        hint = f"returns {len(values)} values, but {protocol} needs {count}"
        if count == 6 and len(values) == 5 and protocol == "gymnax 1.0":
            hint += "; gymnax 0.0 does not separate termination from truncation; use an environment for gymnax >= 1.0.1"
        raise config_error(f"env.{method}", ..., hint)
    return tuple(values)


def plain_dicts(obs: Any) -> Any:
    """Return an observation whose dicts of other kinds, such as `OrderedDict`, are plain dicts, at all levels."""
    if isinstance(obs, Mapping):
        return {name: plain_dicts(x) for name, x in obs.items()}
    return tuple(map(plain_dicts, obs)) if type(obs) is tuple else obs


def make_time_step(obs: Any, env_state: Any, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]) -> TimeStep:
    """Return a strongly typed `TimeStep`. Convert real rewards and numbers of `info` to float32; drop other entries of `info`."""
    if reward is None:
        raise config_error("env.step", ..., "the reward must be a real scalar, not None")
    if not isinstance(info, dict):
        raise config_error("env.step", ..., f"info must be a dict, such as {{}}, not a {type(info).__name__}")
    env_state, obs, reward, terminated, truncated = to_strong_dtypes((env_state, plain_dicts(obs), reward, terminated, truncated))
    reward = reward.astype(jnp.float32) if jnp.isrealobj(reward) else reward
    info = {name: jnp.asarray(x, jnp.float32) for name, x in info.items() if _is_numeric(x)}
    return TimeStep(env_state, obs, obs, reward, terminated, truncated, info)


def _is_numeric(x: Any) -> bool:
    """Return True if an `info` entry is a number or an array of numbers, and not a typed key."""
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype.kind in "biuf"
    return isinstance(x, int | float) or (isinstance(x, jax.Array) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


@contextlib.contextmanager
def warn_of_counters(env: Any) -> Iterator[None]:
    """Warn if the block, a trace of the environment's `step`, changes a number in an attribute of the environment."""
    numbers = lambda: {name: x for name, x in getattr(env, "__dict__", {}).items() if type(x) in (int, float)}
    before = numbers()
    yield
    now = numbers()
    if changed := [name for name, x in before.items() if name in now and now[name] != x]:
        hint = f"step changes its {', '.join(changed)} once, while it is traced, and never again; keep what changes in the state"
        warn(str(Problem("env", type(env), hint)))


def check_names(names: tuple[str, ...], info: Iterable[str]) -> None:
    """Raise a ConfigError unless an environment's `info` has entries of these names."""
    hint = f"the environment's info has no such entry; available entries: {', '.join(map(repr, info)) or 'none'}"
    raise_if_any([Problem("info", name, hint) for name in names if name not in info])


def step_problems(env_state: PyTree, obs: PyTree, after: TimeStep, count: tuple[int, ...] = ()) -> list[Problem]:
    """Report differences between a step and a reset, empty observations, and rewards or flags of a wrong shape or dtype.

    Args:
        env_state, obs: the shapes and dtypes that a reset returns.
        after: the shapes and dtypes that a step returns.
        count: `(num_envs,)` for a batch of environments; () for one environment.
    """
    found = differences(env_state, after.env_state, "state")
    if not all(x.size for x in jax.tree.leaves(obs)) or not jax.tree.leaves(obs):
        found.append(Problem("env", obs, "observations are empty, or have an empty entry"))
    is_real = lambda dtype: any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))
    for dtype in {x.dtype for x in jax.tree.leaves(obs) if not is_real(x.dtype)}:
        found.append(Problem("env", str(dtype), "observations must be bools, integers or floats"))
    for name in ("obs", "next_obs"):
        found += [problem for problem in differences(obs, getattr(after, name), "observation") if problem not in found]
    for name, kind in {"reward": np.dtype(np.float32), "terminated": np.dtype(bool), "truncated": np.dtype(bool)}.items():
        x = getattr(after, name)
        if (x.shape, x.dtype) != (count, kind):
            hint = f"must be {kind}{list(count)}" if count else f"must be a {kind} scalar"
            found.append(Problem(f"env: {name}", f"{x.dtype}{list(x.shape)}", hint))
    return found


def differences(before: Any, after: Any, what: str) -> list[Problem]:
    """Report differences in structure, shapes and dtypes between the outputs of a reset and of a step."""
    if jax.tree.structure(before) != jax.tree.structure(after):
        hint = f"the {what} after a step must have the structure of the {what} after a reset, {jax.tree.structure(before)}"
        return [Problem("env", jax.tree.structure(after), hint)]
    pairs = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    text = lambda x: f"{x.dtype}{list(x.shape)}"
    return [
        Problem("env", text(new), f"the {what}{jax.tree_util.keystr(path)} after a step must be {text(old)}, as after a reset")
        for (path, old), new in pairs
        if (old.shape, old.dtype) != (new.shape, new.dtype)
    ]
