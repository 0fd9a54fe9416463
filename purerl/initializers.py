"""How weights begin."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

PyTree = Any


def orthogonal(key: jax.Array, params: PyTree, gain: Callable[[str], float]) -> PyTree:
    """Parameters with every kernel drawn anew: random (semi-)orthogonal, times a gain (Saxe et al. 2014, arXiv:1312.6120).

    All numbers come from one draw, since every draw in a program takes XLA a tenth of a second to compile. They are drawn
    one seed at a time also under `vmap`: a batched draw is a batched LAPACK QR factorisation, and several of those at once
    on a machine of few cores wait for each other's threads for ever (jaxlib 0.10.2).

    Args:
        key: consumed.
        params: leaves named "kernel" are replaced, `[..., inputs, outputs]`; all others are kept.
        gain: from the path of a kernel, such as "torso/Dense_0/kernel", to the gain.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    shapes = {path: leaf.shape for path, (_, leaf) in zip(paths, leaves, strict=True) if path.endswith("kernel")}

    @jax.custom_batching.sequential_vmap
    def draw(key):
        numbers, kernels = jax.random.normal(key, (sum(map(math.prod, shapes.values())),), jnp.float32), {}
        for path, shape in shapes.items():
            mine, numbers = jnp.split(numbers, [math.prod(shape)])
            kernels[path] = gain(path) * _orthonormal(mine.reshape(-1, shape[-1])).reshape(shape)
        return kernels

    kernels = draw(key)
    return jax.tree.unflatten(structure, [kernels.get(path, leaf) for path, (_, leaf) in zip(paths, leaves, strict=True)])


def _orthonormal(normal: jax.Array) -> jax.Array:
    """A matrix with orthonormal columns, or rows if those are fewer, uniformly distributed if the entries given are normal."""
    rows, columns = normal.shape
    q, r = jnp.linalg.qr(normal if rows >= columns else normal.T)
    q = q * jnp.sign(jnp.diagonal(r))[None]
    return q if rows >= columns else q.T
