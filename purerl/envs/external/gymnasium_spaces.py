"""Conversion of gymnasium's spaces, observations and actions to those of purerl, and back."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from gymnasium import spaces

from purerl.core.errors import config_error
from purerl.core.spaces import Discrete, Indices, MultiBinary, MultiDiscrete, Space
from purerl.core.types import PyTree
from purerl.envs.converted_spaces import action_space_of


def map_space(convert: Callable, space: spaces.Space, *trees: Any) -> Any:
    """Apply `convert` to each part of nested `Dict` and `Tuple` spaces, and to the values at the same place in `trees`."""
    if isinstance(space, spaces.Dict):
        return {name: map_space(convert, x, *(tree[name] for tree in trees)) for name, x in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map_space(convert, x, *(tree[i] for tree in trees)) for i, x in enumerate(space.spaces))
    return convert(space, *trees)


def observation_space(space: spaces.Space) -> PyTree:
    """Convert the gymnasium space of one observation to a space of purerl."""
    return map_space(_observation_part, space)


def _observation_part(space: spaces.Space) -> Any:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete) and (space.nvec.ndim == 1 or (space.nvec == space.nvec.flat[0]).all()):
        sizes = tuple(map(int, space.nvec)) if space.nvec.ndim == 1 else int(space.nvec.flat[0])
        return Indices(sizes, space.shape)
    if isinstance(space, spaces.MultiBinary):
        return jax.ShapeDtypeStruct(space.shape, np.float32)
    if isinstance(space, spaces.Box):
        dtype = jax.dtypes.canonicalize_dtype(space.dtype)
        if np.issubdtype(dtype, np.integer) and not (
            space.low.min() >= np.iinfo(dtype).min and space.high.max() <= np.iinfo(dtype).max
        ):
            dtype = np.dtype(np.float32)  # integers beyond the range of the dtype would wrap around
        if dtype == np.uint8 and len(space.shape) == 3 and not ((space.low == 0) & (space.high == 255)).all():
            dtype = np.dtype(np.float32)  # keeps planes of 0 and 1; as uint8, they would be divided by 255
        return jax.ShapeDtypeStruct(space.shape, dtype)
    hint = "observations must be Box, Discrete, MultiBinary, 1-D or uniform MultiDiscrete, or a Dict or Tuple of these"
    raise config_error("env", space, hint)


def convert_observations(space: spaces.Space, converted: PyTree, obs: Any) -> PyTree:
    """Return a copy of observations of a gymnasium `space`, single or batched, in the format of the purerl space `converted`."""
    start = lambda space: getattr(space, "start", 0)
    one = lambda space, to, x: np.array(x - start(space) if np.any(start(space)) else x, to.dtype)
    return map_space(one, space, converted, obs)


def action_space(space: spaces.Space) -> Space:
    """Convert the gymnasium space of one action to a space of purerl."""
    return action_space_of(map_space(_action_part, space))


def _action_part(space: spaces.Space) -> Any:
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(space.nvec.flat))
    if isinstance(space, spaces.MultiBinary):
        return MultiBinary(int(np.prod(space.shape)))
    return Discrete(int(space.n)) if isinstance(space, spaces.Discrete) else space


def convert_actions(space: spaces.Space, actions: Any) -> Any:
    """Convert the actions `[B, ...]` of B environments, for a space without parts, to the shape, dtype and range of the space."""
    actions = actions.reshape(len(actions), *(space.shape or ())).astype(space.dtype)
    if isinstance(space, spaces.Box):  # a bound of 0.1 is a larger number in float32 than in float64
        return np.clip(actions, space.low, space.high)
    return actions + getattr(space, "start", 0)
