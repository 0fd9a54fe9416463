"""Reward streams: the trailing axis `K` that rewards, values and targets have where there are intrinsic rewards."""

import jax

EPISODIC = (True, False)  # the environment's stream ends with an episode, the intrinsic one does not


def extrinsic(x: jax.Array, like: jax.Array) -> jax.Array:
    """Return the environment's stream of `x [T, B(, K)]`: `[T, B]`, the shape of `like`."""
    return x if x.ndim == like.ndim else x[..., 0]


def sum_over_streams(x: jax.Array, like: jax.Array) -> jax.Array:
    """Sum `x [L, N(, K)]` over its streams: `[L, N]`, the shape of `like`."""
    return x if x.ndim == like.ndim else x.sum(-1)
