"""Spaces of other libraries as purerl's."""

from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from purerl.core.errors import ConfigError, Problem
from purerl.core.numbers import is_count
from purerl.core.spaces import Box, Discrete, Indices, MultiBinary, MultiDiscrete, Space


def action_space_of(space: Any) -> Space:
    """Return the space of actions that an environment declares: one of purerl's, or a `Discrete` or `Box` of gymnax or gymnasium.

    Raises:
        ConfigError: it is none, or has no action.
    """
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        sizes = (space.n,) if not isinstance(space, MultiDiscrete) else space.sizes
        if not isinstance(sizes, tuple) or not all(isinstance(size, int | np.integer) for size in sizes):
            hint = "the sizes of its action space must be whole numbers, several of them in a tuple"
            raise ConfigError([Problem("env", space, hint)])
    elif hasattr(space, "low") and hasattr(space, "high"):
        return _box(space)
    elif is_discrete(space):
        if getattr(space, "start", 0):
            raise ConfigError([Problem("env", space, "its actions must begin at 0; shift them in its step")])
        space, sizes = Discrete(int(space.n)), (space.n,)
    else:
        hint = "its action space must be Discrete, Box, or purerl's MultiDiscrete or MultiBinary"
        raise ConfigError([Problem("env", space, hint)])
    if not sizes or min(sizes) < 1:
        raise ConfigError([Problem("env", space, "its action space has no action")])
    return space


def is_discrete(space: Any) -> TypeGuard[Discrete]:
    """Return True if a space, of any library, is the integers below a number."""
    return hasattr(space, "n") and not isinstance(space, MultiBinary) and not getattr(space, "shape", ())


def observation_space_of(declared: Any, obs: Any) -> Any:
    """Return the space of observations: shapes and dtypes as they are, and which of them are an index, as it is declared.

    Args:
        declared: a space, of any library, or a dict of them; None if there is none.
        obs: the shapes and dtypes of one observation.
    """
    inside = getattr(declared, "spaces", declared)
    if isinstance(obs, dict):
        return {name: observation_space_of(inside.get(name) if isinstance(inside, dict) else None, x) for name, x in obs.items()}
    if type(obs) is tuple:
        inside = tuple(inside) if isinstance(inside, tuple | list) and len(inside) == len(obs) else (None,) * len(obs)
        return tuple(observation_space_of(space, x) for space, x in zip(inside, obs, strict=True))
    if is_discrete(declared) and getattr(obs, "shape", None) == ():
        return Discrete(int(declared.n))
    if isinstance(declared, Indices):
        return declared
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), obs)


def declared_problems(declared: Any, obs: Any, name: str = "") -> list[Problem]:
    """Report where a declared observation space does not fit the observations, so that an index would be read as a quantity."""
    declared = getattr(declared, "spaces", declared)  # of a Dict or Tuple of gymnasium's or gymnax's
    if isinstance(declared, dict) and isinstance(obs, dict):
        hint = f"no entry of the observation, which has {', '.join(map(repr, obs))}"
        found = [Problem("observation_space", entry, hint) for entry in declared if entry not in obs]
        both = [entry for entry in declared if entry in obs]
        return found + [x for entry in both for x in declared_problems(declared[entry], obs[entry], entry)]
    if isinstance(declared, tuple | list) and type(obs) is tuple and len(declared) == len(obs):
        return [x for i, pair in enumerate(zip(declared, obs, strict=True)) for x in declared_problems(*pair, str(i))]
    if is_discrete(declared):
        if not is_count(declared.n):
            return [Problem("observation_space", declared, "must have a whole number of values, at least 1")]
        if getattr(obs, "shape", None) != () or not jax.numpy.issubdtype(getattr(obs, "dtype", object), jax.numpy.integer):
            return [Problem("observation_space", declared, f"the observation {name} is no index, a whole number: {obs}")]
        if getattr(declared, "start", 0):
            return [Problem("observation_space", declared, f"the observation {name}, an index, must begin at 0; shift it")]
    unlike = isinstance(declared, Indices) and not _fits(declared, obs)
    unlike |= isinstance(declared, tuple | list) and any(is_discrete(x) or isinstance(x, Indices) for x in declared)
    if unlike or isinstance(declared, MultiDiscrete | MultiBinary | dict):
        hint = f"is not like the observation {name}: {obs}; declare an index as Discrete, an array of them as Indices"
        return [Problem("observation_space", declared, hint)]
    return []


def _fits(space: Indices, obs: Any) -> bool:
    """Return True if an observation of this shape and dtype can be such an array."""
    alike = tuple(space.shape) == getattr(obs, "shape", None) and np.dtype(space.dtype) == obs.dtype
    last = (len(space.sizes),) if isinstance(space.sizes, tuple) else space.shape[-1:]
    return alike and jnp.issubdtype(obs.dtype, jnp.integer) and space.shape[-1:] == last


def _box(space: Any) -> Box:
    """Return a space with bounds as a Box. Bounds are NumPy's, which a trace does not make unknown, unless they are tracers."""
    known = not any(isinstance(bound, Tracer) for bound in (space.low, space.high))
    numpy = np if known else jnp
    low, high = (numpy.asarray(bound) for bound in (space.low, space.high))
    if not jnp.issubdtype(getattr(space, "dtype", low.dtype), jnp.floating):
        raise ConfigError([Problem("env", space, "its action space is a Box of integers; use Discrete, or a Box of floats")])
    shape = getattr(space, "shape", low.shape)
    with np.errstate(over="ignore"):  # of the largest doubles, which are bounds where there are none
        low, high = (numpy.broadcast_to(bound.astype(np.float32), shape) for bound in (low, high))
    if not low.size:
        raise ConfigError([Problem("env", space, "its action space has no dimension")])
    if known and not (low < high).all():
        raise ConfigError([Problem("env", space, "its action space needs low < high in every dimension")])
    return Box(low, high)
