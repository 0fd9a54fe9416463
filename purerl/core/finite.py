"""Checks for finite numbers. A number counts as finite only up to 1e18, so that its square is finite in float32."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.types import PyTree

LARGEST = np.float32(1e18)  # the square of 1.8e19 is infinite in float32


def is_finite(x: Any) -> Any:
    """Return, for each number of a JAX or NumPy array, True if its magnitude is at most 1e18."""
    return abs(x.astype(np.float32)) <= LARGEST


def nonfinite_rows(tree: PyTree, name: str) -> dict[str, Any]:
    """Return a dict from the name of each float array `[B, ...]` in a tree to `[B]` flags, True where a number is not finite.

    Args:
        tree: JAX or NumPy arrays.
        name: the name of the tree. If the tree is a single array, the array has this name; otherwise, entry `x` has the name
          `name/x`.
    """
    return {at: ~is_finite(x).reshape(x.shape[0], -1).all(1) for at, x in float_entries(tree, name).items()}


def float_entries(tree: PyTree, name: str) -> dict[str, Any]:
    """Return a dict from name to float array of a tree, with the names described in `nonfinite_rows`."""
    path_of = lambda path: "/".join([name, *([jax.tree_util.keystr(path, simple=True, separator="/")] if path else [])])
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_of(path): x for path, x in leaves if jnp.issubdtype(x.dtype, jnp.floating)}


def finite_or_zero(tree: PyTree) -> PyTree:
    """Return the tree with every nonfinite float replaced by 0."""

    def of(x):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        xp = np if isinstance(x, np.ndarray) else jnp
        return xp.where(is_finite(x), x, xp.zeros_like(x))

    return jax.tree.map(of, tree)


def any_of(flags: dict[str, Any]) -> Any:
    """Return the elementwise OR of all flags."""
    return functools.reduce(lambda one, other: one | other, flags.values())
