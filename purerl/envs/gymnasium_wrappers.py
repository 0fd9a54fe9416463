"""The wrappers around an environment of gymnasium: which cannot be trained with, and what to know of the others."""

import contextlib
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from purerl.core.errors import Problem, raise_if_any

INSIDE = ("env", "venv")  # where a wrapper keeps what it wraps
STATISTICS = {"obs_rms": "normalize_obs", "return_rms": "normalize_reward", "ret_rms": "normalize_reward"}
REWARDS = ("reward", "rewards")  # methods by which a wrapper changes rewards


def layers_of(env: Any) -> list[Any]:
    """List an environment and what it wraps, from the outside in; of a vector environment's environments the first."""
    layers = []
    while env is not None and not any(env is layer for layer in layers):
        layers.append(env)
        env = _inside(env)
    return layers


def _inside(env: Any) -> Any:
    if isinstance(env, SyncVectorEnv):
        return env.envs[0]
    if isinstance(env, AsyncVectorEnv):  # its environments are in other processes
        with contextlib.closing(env.env_fns[0]()) as one:
            return one
    return next((found for name in INSIDE if (found := getattr(env, name, None)) is not None), None)


def check_statistics(layers: list[Any]) -> None:
    """Refuse layers that normalise by running statistics.

    Raises:
        ConfigError: there are such layers.
    """
    hint = "has running statistics that evaluations do not share; leave the wrapper out and set {}=True in the config"
    found = {type(layer).__name__: fields for layer in layers if (fields := _normalizes(layer))}
    raise_if_any([Problem("make", name, hint.format("=True and ".join(fields))) for name, fields in found.items()])


def _normalizes(layer: Any) -> list[str]:
    """List the fields of a config that do what a layer does by running statistics of its own, of any library."""
    own = getattr(layer, "__dict__", {})
    named = {field for name, field in STATISTICS.items() if own.get(name) is not None}
    others = {name for name, x in own.items() if name not in STATISTICS and _is_statistics(x)}
    guessed = {"normalize_obs" if "obs" in name or "state" in name else "normalize_reward" for name in others}
    return sorted(named | guessed)


def _is_statistics(x: Any) -> bool:
    """Return True for what accumulates moments, which every library writes alike; a table of data has methods in their place."""
    moments = [getattr(x, name, None) for name in ("mean", "var", "count")]
    return callable(getattr(x, "update", None)) and not any(moment is None or callable(moment) for moment in moments)


def reward_warnings(layers: list[Any]) -> tuple[Problem, ...]:
    """Report the wrappers that change rewards."""
    hint = "changes rewards: returns and evaluations are in its units; reward_shaper= changes only what is learnt from"
    changes = lambda layer: any(callable(getattr(type(layer), name, None)) for name in REWARDS)
    return tuple(Problem("make", type(x).__name__, hint) for x in layers if _wraps(x) and changes(x))


def _wraps(layer: Any) -> bool:
    return isinstance(layer, gymnasium.Wrapper | gymnasium.vector.VectorWrapper) or any(hasattr(layer, name) for name in INSIDE)


def unread_masks(layers: list[Any], info: set[str]) -> tuple[str, ...]:
    """Say where an environment offers action masks outside of its observations, if it does, and what to do."""
    methods = [f"{type(x).__name__}.{name}" for x in layers for name in dir(type(x)) if "action_mask" in name and name[0] != "_"]
    found = methods[-1:] + [f"info[{name!r}]" for name in sorted(info) if "action_mask" in name and name[0] != "_"]
    hint = "is not read: put the mask into the observation, a dict with the entry 'action_mask', by a wrapper with from_gymnasium"
    return (f"{' or '.join(found)} {hint}; action_mask='' trains without",) if found else ()
