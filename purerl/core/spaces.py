"""Observations and actions by their shapes."""

from typing import Any

import jax

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


def step_shapes(env: Environment, count: int) -> TimeStep:
    """What a step of so many environments gives, by shapes alone."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (2, count)))
    env_state, _ = jax.eval_shape(env.reset, jax.ShapeDtypeStruct((count,), keys.dtype))
    action = jax.ShapeDtypeStruct((count, *env.action_space.shape), env.action_space.dtype)
    return jax.eval_shape(env.step, keys, env_state, action)
