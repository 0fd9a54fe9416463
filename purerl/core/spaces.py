"""Observations and actions by their shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.types import Discrete, Environment, Indices, PyTree, TimeStep


def is_index(space: Any) -> bool:
    """Whether it is the space of an index, or of an array of them, and not of quantities."""
    return isinstance(space, Discrete | Indices)


def encoded_shape(space: Any) -> tuple[int, ...]:
    """The shape that a network sees of an entry of an observation."""
    if isinstance(space, Discrete):
        return (space.n,)
    return space.encoded_shape if isinstance(space, Indices) else space.shape


def entries_of(space: PyTree) -> dict[str, Any]:
    """The spaces of the entries of an observation, by name; "" for one that is a single array."""
    leaves = jax.tree_util.tree_leaves_with_path(space, is_leaf=is_index)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}


WIDEST = 1e6  # half widths from here on are no scale of an action, but stand for a missing bound


def bounds_map(low: np.ndarray | jax.Array, high: np.ndarray | jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return centre and half width of each dimension of an action, `action = centre + half_width * x` for x from -1 to 1.

    A dimension with an infinite bound, or a half width of 1e6 and more, has centre 0 and half width 1: it keeps its unit.

    Args:
        low, high: the bounds, `[...]` float32.
    """
    is_scale = jnp.isfinite(low) & jnp.isfinite(high) & (0.5 * high - 0.5 * low < WIDEST)
    low, high = jnp.where(is_scale, low, -jnp.ones_like(low)), jnp.where(is_scale, high, jnp.ones_like(high))
    return 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low  # halved first: the sum of two bounds may overflow


def step_shapes(env: Environment, count: int) -> TimeStep:
    """What a step of so many environments gives, by shapes alone."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (2, count)))
    env_state, _ = jax.eval_shape(env.reset, jax.ShapeDtypeStruct((count,), keys.dtype))
    action = jax.ShapeDtypeStruct((count, *env.action_space.shape), env.action_space.dtype)
    return jax.eval_shape(env.step, keys, env_state, action)
