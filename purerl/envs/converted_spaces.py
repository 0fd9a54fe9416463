"""Conversion of spaces of other libraries to spaces of purerl."""

from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from purerl.core.errors import Problem, config_error, is_count, warn
from purerl.core.spaces import Box, Discrete, Indices, Mixed, MultiBinary, MultiDiscrete, Space, is_index
from purerl.core.types import PyTree


def action_space_of(space: Any) -> Space:
    """Convert an action space to a space of purerl. `Discrete`, `Box`, `Dict` and `Tuple` may be of gymnax or gymnasium.

    Raises:
        ConfigError: the space is not supported, or contains no action.
    """
    inside = space.parts if isinstance(space, Mixed) else getattr(space, "spaces", space)
    if isinstance(inside, dict) or type(inside) in (tuple, list):
        return Mixed(_parts(inside))
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        sizes = (space.n,) if not isinstance(space, MultiDiscrete) else space.sizes
        if not isinstance(sizes, tuple) or not all(isinstance(size, int | np.integer) for size in sizes):
            raise config_error("env", space, "the sizes of the action space must be ints, or a tuple of ints")
    elif hasattr(space, "low") and hasattr(space, "high"):
        return _box(space)
    elif is_discrete(space):
        if getattr(space, "start", 0):
            raise config_error("env", space, "actions must start at 0; shift them in the environment's step")
        space, sizes = Discrete(int(space.n)), (space.n,)
    else:
        hint = "the action space must be Discrete, Box, purerl's MultiDiscrete or MultiBinary, or a dict or tuple of these"
        raise config_error("env", space, hint)
    if not sizes or min(sizes) < 1:
        raise config_error("env", space, "the action space must have at least one action")
    return space


def _parts(spaces: dict | tuple | list) -> PyTree:
    """Convert a dict or tuple of action spaces, which may be nested, to spaces of purerl."""
    if not spaces:
        raise config_error("env", spaces, "the action space must have at least one part")
    if isinstance(spaces, dict) and len({type(name) for name in spaces}) > 1:
        raise config_error("env", tuple(spaces), "the names of the parts of an action must be of one type")
    plain = lambda space: made.parts if isinstance(made := action_space_of(space), Mixed) else made
    return {name: plain(x) for name, x in spaces.items()} if isinstance(spaces, dict) else tuple(map(plain, spaces))


def is_discrete(space: Any) -> TypeGuard[Discrete]:
    """Return True if a space of any library is a scalar categorical space: the integers below `n`."""
    return hasattr(space, "n") and not isinstance(space, MultiBinary) and not getattr(space, "shape", ())


def observation_space_of(declared: Any, obs: Any, found: list[Problem] | None = None, name: str = "") -> PyTree:
    """Return the observation space: shapes and dtypes of `obs`, with categorical entries as declared.

    Args:
        declared: a space of any library, or a dict or tuple of spaces; None if undeclared.
        obs: shapes and dtypes of one observation.
        found: a list to which problems are added: unknown entries, and declared spaces that do not fit; None to ignore them.
        name: name of the observation in these problems.
    """
    found = [] if found is None else found
    inside = getattr(declared, "spaces", declared)  # a Dict or Tuple of gymnasium or gymnax
    if isinstance(inside, dict) and isinstance(obs, dict):
        hint = f"the observation has no such entry; choose from {', '.join(map(repr, obs))}"
        found += [Problem("observation_space", entry, hint) for entry in inside if entry not in obs]
        return {entry: observation_space_of(inside.get(entry), x, found, entry) for entry, x in obs.items()}
    if isinstance(inside, tuple | list) and type(obs) is tuple and len(inside) == len(obs):
        return tuple(observation_space_of(inside[i], x, found, str(i)) for i, x in enumerate(obs))
    hint, has_index = "", isinstance(inside, tuple | list) and any(is_discrete(x) or isinstance(x, Indices) for x in inside)
    if is_discrete(declared):
        is_scalar = getattr(obs, "shape", None) == () and jnp.issubdtype(getattr(obs, "dtype", object), jnp.integer)
        if is_scalar and is_count(declared.n) and not getattr(declared, "start", 0):
            return Discrete(int(declared.n))
        hint = f"a Discrete observation must be an integer scalar from 0 to n - 1; the observation {name or 'itself'} is {obs}"
    elif isinstance(declared, Indices) and fits(declared, obs):
        obs = declared
    elif has_index or isinstance(inside, Indices | MultiDiscrete | MultiBinary | dict):
        hint = f"does not match the observation {name or 'itself'}, {obs}; use Discrete for an integer, Indices for an array"
    found += [Problem("observation_space", inside, hint)] if hint else []
    is_image = getattr(obs, "dtype", None) == np.uint8 and len(getattr(obs, "shape", ())) == 3
    high = getattr(declared, "high", None)
    if is_image and not isinstance(high, Tracer | None) and np.max(high) < 255:
        hint = "return float32 to avoid this"
        warn(f"env: built-in networks divide images of uint8 by 255, but the declared bounds are {np.max(high)} or less; {hint}")
    return jax.tree.map(lambda x: x if is_index(x) else jax.ShapeDtypeStruct(x.shape, x.dtype), obs, is_leaf=is_index)


def fits(space: Indices, obs: Any) -> bool:
    """Return True if an observation has the shape and the integer dtype of a declared `Indices` space."""
    alike = tuple(space.shape) == getattr(obs, "shape", None) and np.dtype(space.dtype) == obs.dtype
    if not all(map(is_count, space.sizes if isinstance(space.sizes, tuple) else (space.sizes,))):
        return False
    last = (len(space.sizes),) if isinstance(space.sizes, tuple) else space.shape[-1:]
    return alike and jnp.issubdtype(obs.dtype, jnp.integer) and space.shape[-1:] == last


def _box(space: Any) -> Box:
    """Convert a bounded space to a Box. Bounds become NumPy arrays, also under a trace, unless they are tracers."""
    known = not any(isinstance(bound, Tracer) for bound in (space.low, space.high))
    numpy = np if known else jnp
    low, high = (numpy.asarray(bound) for bound in (space.low, space.high))
    if not jnp.issubdtype(getattr(space, "dtype", low.dtype), jnp.floating):
        raise config_error("env", space, "the action space is a Box of integers; use Discrete, or a Box of floats")
    shape = tuple(space.shape) if hasattr(space, "shape") and not isinstance(space, Box) else low.shape or high.shape
    if low.shape not in ((), shape) or high.shape not in ((), shape):
        raise config_error("env", space, f"the bounds must be numbers or arrays of the shape {list(shape)}")
    with np.errstate(over="ignore"):  # the largest doubles stand for missing bounds
        low, high = (numpy.broadcast_to(bound.astype(np.float32), shape) for bound in (low, high))
    if not low.size:
        raise config_error("env", space, "the action space must have at least one dimension")
    if known and not (low < high).all():
        raise config_error("env", space, "the action space needs low < high in every dimension")
    return Box(low, high)
