"""Conversion and checks of what the reset and the step of a single environment return."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.errors import ConfigError, Problem, raise_if_any
from purerl.core.platform import strong
from purerl.core.spaces import Space, action_shapes


def unpacked(values: Any, count: int, method: str, protocol: str) -> tuple:
    """Return a method's result as a tuple. Raise a ConfigError unless the result has `count` values."""
    if not isinstance(values, tuple | list):
        raise ConfigError([Problem("env", method, f"returns a {type(values).__name__}, but {protocol} needs {count} values")])
    if len(values) != count:
        hint = f"returns {len(values)} values, but {protocol} needs {count}"
        if count == 6 and len(values) == 5 and protocol == "gymnax 1.0":
            hint += "; gymnax 0.0 does not separate termination from truncation; use an environment for gymnax >= 1.0.1"
        raise ConfigError([Problem("env", method, hint)])
    return tuple(values)


def typed(obs: Any, env_state: Any, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]) -> tuple:
    """Return the outputs of a step as strongly typed arrays, with a float32 reward, and the numbers of `info` as float32."""
    if reward is None:
        raise ConfigError([Problem("env", "step", "the reward must be a real scalar, not None")])
    obs, env_state, reward, terminated, truncated = strong((obs, env_state, reward, terminated, truncated))
    reward = reward.astype(jnp.float32) if jnp.isrealobj(reward) else reward
    info = {name: jnp.asarray(x, jnp.float32) for name, x in info.items() if _is_numeric(x)}
    return obs, env_state, reward, terminated, truncated, info


def _is_numeric(x: Any) -> bool:
    """Return True if an `info` entry is a number or an array of numbers, and not a typed key."""
    is_key = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return isinstance(x, jax.Array | np.ndarray | np.generic | int | float) and not is_key


def check_names(names: tuple[str, ...], info: Iterable[str]) -> None:
    """Raise a ConfigError unless an environment's `info` has entries of these names."""
    hint = f"the environment's info has no such entry; available entries: {', '.join(map(repr, info)) or 'none'}"
    raise_if_any([Problem("info", name, hint) for name in names if name not in info])


def check_step(step: Callable, action_space: Space, obs: Any, env_state: Any) -> dict[str, Any]:
    """Raise a ConfigError if step and reset disagree, or a signal has the wrong shape. Nothing is compiled.

    Args:
        step: `(key, env_state, action) -> (*observations, env_state, reward, terminated, truncated, info)` of one environment.
        action_space: the space of `action`.
        obs, env_state: the shapes and dtypes that a reset returns.

    Returns:
        The shapes and dtypes of `info`.
    """
    action = action_shapes(action_space)
    after = jax.eval_shape(step, jax.random.key(0), env_state, action)
    *observations, state_after, reward, terminated, truncated, info = after
    found = []
    if not all(x.size for x in jax.tree.leaves(obs)) or not jax.tree.leaves(obs):
        found.append(Problem("env", obs, "observations are empty, or have an empty entry"))
    for before, after, what in [(env_state, state_after, "state"), *((obs, o, "observation") for o in observations)]:
        found += differences(before, after, what)
    if reward.shape != () or jnp.issubdtype(reward.dtype, jnp.complexfloating):
        found.append(Problem("env", reward, "the reward must be a real scalar; use reward[0] or reward.sum() in step"))
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if flag.shape != () or flag.dtype != bool:
            found.append(Problem("env", flag, f"`{name}` must be a bool scalar"))
    raise_if_any(found)
    return info


def differences(before: Any, after: Any, what: str) -> list[Problem]:
    """Report leaves that have different shapes or dtypes after a step and after a reset."""
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
