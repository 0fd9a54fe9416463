"""The observations before those resets that a time limit causes, kept for their values.

The successor of a step is the next row's observation, except at the end of an episode. Where a time limit ended it, the
observation before the reset is wanted. An environment that tells how long its truncated episodes are at least has few of them in
a rollout, in most cases one. They are kept as C rows, `[C, B, ...]`, and not as a second array of the size of all observations.
"""

from typing import Any

import jax
import jax.numpy as jnp

from purerl.core.types import Environment

PyTree = Any


def most_truncations(env: Environment, num_steps: int) -> int:
    """C: how many episodes of one environment can be truncated in so many steps."""
    return 1 + (num_steps - 1) // (env.truncates_after or 1)


def no_final_obs(obs: PyTree, count: int) -> PyTree:
    """`[C, B, ...]` for observations `[B, ...]`, of which none was kept so far."""
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), obs)


def with_final_obs(kept: PyTree, so_far: jax.Array, obs: PyTree, truncated: jax.Array) -> PyTree:
    """What was kept, with the observations `[B, ...]` of the environments that are truncated now; `so_far [B]` counts before."""
    count = jax.tree.leaves(kept)[0].shape[0]
    here = truncated[None] & (so_far[None] == jnp.arange(count)[:, None])
    write = lambda old, new: jnp.where(here.reshape(here.shape + (1,) * (new.ndim - 1)), new[None], old)
    return jax.tree.map(write, kept, obs)


def final_obs_of(next_obs: PyTree, truncated: jax.Array, count: int) -> PyTree:
    """The rows `[C, B, ...]` of the truncations among all `[T, B, ...]`."""
    if count == truncated.shape[0]:
        return next_obs
    nth = jnp.cumsum(truncated, axis=0, dtype=jnp.int32) - 1
    here = truncated[None] & (nth[None] == jnp.arange(count)[:, None, None])
    step = jnp.argmax(here, axis=1)  # [C, B]
    return jax.tree.map(lambda x: x[step, jnp.arange(x.shape[1])[None]], next_obs)


def at_truncations(x: jax.Array, truncated: jax.Array) -> jax.Array:
    """What belongs to the truncations, `[C, B, ...]`, at their steps, `[T, B, ...]`; anything elsewhere."""
    if x.shape[0] == truncated.shape[0]:
        return x
    if x.shape[0] == 1:
        return jnp.broadcast_to(x, (*truncated.shape, *x.shape[2:]))
    return x[rows_of_truncations(truncated, x.shape[0]), jnp.arange(x.shape[1])[None]]


def rows_of_truncations(truncated: jax.Array, count: int) -> jax.Array:
    """For each truncation its row among the C that are kept, `[T, B]` int32; any row elsewhere."""
    if count == truncated.shape[0]:
        return jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32)[:, None], truncated.shape)
    return jnp.maximum(jnp.cumsum(truncated, axis=0, dtype=jnp.int32) - 1, 0)
