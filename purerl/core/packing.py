"""Many small arrays as one: each array that a loop reads or writes costs an operation in every iteration."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.core.types import PyTree

LARGEST = 64  # numbers in a row; larger rows are worth an operation of their own


class Packed(struct.PyTreeNode):
    """A tree of arrays `[*lead, ...]` whose rows are packed bit for bit.

    arrays: the words of all small rows side by side, `[*lead, words]`, float32 if all are, else int32; then the other leaves.
    structure: the tree.
    rows: the shape and dtype of a row of each leaf that is packed, None of the others.
    """

    arrays: list[jax.Array]
    structure: Any = struct.field(pytree_node=False)
    rows: tuple[jax.ShapeDtypeStruct | None, ...] = struct.field(pytree_node=False)


def pack(tree: PyTree, lead: tuple[int, ...] | None) -> Packed:
    """Pack the small arrays of a tree that have these leading axes; with None, pack nothing."""
    leaves, structure = jax.tree.flatten(tree)
    rows = tuple(_row(x, lead) for x in leaves)
    dtypes = {row.dtype for row in rows if row is not None}
    # Signed: of unsigned words XLA makes kernels for a GPU that Triton refuses (jaxlib 0.10.2).
    dtype = jnp.float32 if dtypes == {np.dtype(np.float32)} else jnp.int32
    words = [_words(x, dtype).reshape(*(lead or ()), -1) for x, row in zip(leaves, rows, strict=True) if row is not None]
    others = [x for x, row in zip(leaves, rows, strict=True) if row is None]
    return Packed(([jnp.concatenate(words, axis=-1)] if words else []) + others, structure, rows)


def unpack(packed: Packed) -> PyTree:
    """Return the tree that was packed, with the leading axes that it has now."""
    sizes = [math.prod(row.shape) for row in packed.rows if row is not None]
    words = iter(jnp.split(packed.arrays[0], np.cumsum(sizes)[:-1], axis=-1) if sizes else [])
    others = iter(packed.arrays[1:] if sizes else packed.arrays)
    leaves = [next(others) if row is None else _numbers(next(words), row) for row in packed.rows]
    return packed.structure.unflatten(leaves)


def _row(x: jax.Array, lead: tuple[int, ...] | None) -> jax.ShapeDtypeStruct | None:
    """Return the shape and dtype of a row that is packed, else None."""
    if lead is None:
        return None
    is_word = x.dtype == bool or (jnp.issubdtype(x.dtype, jnp.number) and x.dtype.itemsize == 4)
    shape = x.shape[len(lead) :]
    packs = is_word and x.shape[: len(lead)] == lead and math.prod(shape) <= LARGEST
    return jax.ShapeDtypeStruct(shape, x.dtype) if packs else None


def _words(x: jax.Array, dtype: Any) -> jax.Array:
    return x.astype(dtype) if x.dtype == bool else jax.lax.bitcast_convert_type(x, dtype)


def _numbers(words: jax.Array, row: jax.ShapeDtypeStruct) -> jax.Array:
    words = words.reshape(*words.shape[:-1], *row.shape)
    return words != 0 if row.dtype == bool else jax.lax.bitcast_convert_type(words, row.dtype)
