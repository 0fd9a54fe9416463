"""Reductions over environments: the only module that has them.

Means, moments and gradients over the batch go through here. Each function takes the name of a mesh axis over which the
environments are spread (`jax.shard_map`, or `jax.vmap` with an `axis_name`); with None it reduces over one device.
"""

from typing import Any

import jax
import jax.numpy as jnp


def mean(x: jax.Array, axis_name: str | None = None) -> jax.Array:
    """The mean over all of `x`, on all devices. Every device holds equally many."""
    return pooled(x.mean(), axis_name)


def total(x: jax.Array, axis_name: str | None = None) -> jax.Array:
    """The sum over all of `x`, on all devices."""
    return x.sum() if axis_name is None else jax.lax.psum(x.sum(), axis_name)


def largest(x: jax.Array, axis_name: str | None = None) -> jax.Array:
    """The maximum over all of `x`, on all devices."""
    return x.max() if axis_name is None else jax.lax.pmax(x.max(), axis_name)


def moments(x: jax.Array, axis_name: str | None = None) -> tuple[jax.Array, jax.Array]:
    """Mean and population variance over all of `x`, on all devices. Two passes: exact also far from 0."""
    center = mean(x, axis_name)
    return center, mean(jnp.square(x - center), axis_name)


def pooled(tree: Any, axis_name: str | None = None) -> Any:
    """The mean over devices of what each holds, such as its gradients."""
    return tree if axis_name is None else jax.lax.pmean(tree, axis_name)


def quantile(x: jax.Array, q: float, axis_name: str | None = None) -> jax.Array:
    """The value that a share `q` of all of `x`, on all devices, does not exceed; to 2**-24 of the range of `x`.

    By bisection, since sorting takes longer than all else that is done with a large batch (see `purerl.learning.shuffle`).
    """

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        enough = mean((x <= middle).astype(jnp.float32), axis_name) >= q
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    return jax.lax.fori_loop(0, 24, halve, (-largest(-x, axis_name), largest(x, axis_name)))[1]
