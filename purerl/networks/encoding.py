"""Encoding of observations as arrays that a network can read."""

import jax
import jax.numpy as jnp

from purerl.core.spaces import Discrete, Indices, entries_of
from purerl.core.types import PyTree


def encode(obs: PyTree, space: PyTree) -> jax.Array:
    """Encode observations `[L, N, ...]` as one float32 array `[L, N, ...]`.

    A categorical value becomes a one-hot vector, and an array of categorical values is one-hot encoded as described in `Indices`.
    An image of bytes (three dimensions, uint8) is divided by 255. Anything else is cast. If an observation has several entries,
    the entries are flattened and concatenated in the order of `jax.tree.leaves`.
    """
    entries = list(encode_entries(obs, space).values())
    return entries[0] if len(entries) == 1 else jnp.concatenate([x.reshape(*x.shape[:2], -1) for x in entries], axis=-1)


def encode_entries(obs: PyTree, space: PyTree) -> dict[str, jax.Array]:
    """Return the entries of an observation by name, each encoded as in `encode`."""
    return {name: _encode_entry(x, kind) for (name, kind), x in zip(entries_of(space).items(), jax.tree.leaves(obs), strict=True)}


def _encode_entry(x: jax.Array, space: jax.ShapeDtypeStruct | Discrete | Indices) -> jax.Array:
    one_hot = lambda x, size: jax.nn.one_hot(x, size, dtype=jnp.float32)
    if isinstance(space, Discrete):
        return one_hot(x, space.n)
    if isinstance(space, Indices):
        if not isinstance(space.sizes, tuple):
            return one_hot(x, space.sizes)
        return jnp.concatenate([one_hot(x[..., i], size) for i, size in enumerate(space.sizes)], axis=-1)
    is_image = x.dtype == jnp.uint8 and len(space.shape) == 3
    return x.astype(jnp.float32) / 255 if is_image else x.astype(jnp.float32)


def without(obs: PyTree, names: tuple[str, ...]) -> PyTree:
    """Remove the named entries from a dict of observations. Return any other observation unchanged."""
    return {name: x for name, x in obs.items() if name not in names} if isinstance(obs, dict) else obs
