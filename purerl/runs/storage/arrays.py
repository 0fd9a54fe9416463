"""Trees of arrays as dicts from paths to arrays on the host, and descriptions of their shapes and dtypes."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.types import PyTree

KEY_KINDS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}  # names of JAX's PRNGs, by dtype of a key


def to_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Return a dict from the path of each leaf to a copy on the host; for a random key, to a copy of the key's data."""
    # On a CPU, `np.asarray` can return a view of memory that the next chunk of training overwrites.
    copy = lambda x: np.array(jax.random.key_data(x) if _is_key(x) else x)
    return {jax.tree_util.keystr(path): copy(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def to_tree(arrays: dict[str, np.ndarray], template: PyTree) -> PyTree:
    """Return the tree whose leaves are arrays from `to_arrays`. `template` has the structure, shapes and dtypes of the tree."""

    def leaf(path, like):
        x = jax.device_put(arrays[jax.tree_util.keystr(path)], may_alias=False)  # `jnp.asarray` compiles a program per shape
        return jax.random.wrap_key_data(x, impl=KEY_KINDS[str(like.dtype)]) if _is_key(like) else x

    return jax.tree_util.tree_map_with_path(leaf, template)


def describe(tree: PyTree) -> dict[str, str]:
    """Return a dict from the path of each leaf to its dtype and shape, such as `float32[64, 4]`."""
    return {jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def leaf_differences(saved: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Describe how a saved tree differs from the wanted tree; both arguments are results of `describe`."""
    missing = [f"{path}: {wanted[path]} is not in the checkpoint" for path in wanted if path not in saved]
    surplus = [f"{path}: {saved[path]} is only in the checkpoint" for path in saved if path not in wanted]
    both = [path for path in wanted if path in saved and saved[path] != wanted[path]]
    return [f"{path}: {saved[path]} in the checkpoint, {wanted[path]} here" for path in both] + missing + surplus


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def shape_of(described: str) -> tuple[int, ...]:
    """Return the shape in a description from `describe`."""
    return tuple(json.loads(described[described.index("[") :]))


def dtype_of(described: str) -> np.dtype:
    """Return the dtype in a description from `describe`; of a random key, that of the key's data."""
    name = described[: described.index("[")]
    return jnp.dtype(np.uint32 if name.startswith("key<") else name)
