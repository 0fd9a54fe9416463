"""Reward streams: with intrinsic rewards, arrays of rewards, values and targets have a trailing axis of `K` streams.

A rollout has `T` steps of `B` environments, and a batch has `N` sequences of `L` steps.
"""

import jax

EPISODIC = (True, False)  # episodes end the extrinsic return, but not the intrinsic return


def extrinsic(x: jax.Array, like: jax.Array) -> jax.Array:
    """Return the extrinsic stream of `x [T, B(, K)]`: `[T, B]`, the shape of `like`."""
    return x if x.ndim == like.ndim else x[..., 0]


def sum_over_streams(x: jax.Array, like: jax.Array) -> jax.Array:
    """Sum `x [L, N(, K)]` over its streams: `[L, N]`, the shape of `like`."""
    return x if x.ndim == like.ndim else x.sum(-1)
