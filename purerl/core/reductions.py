"""Reductions over environments, and the devices that these are spread over: the only module that knows of several.

One agent can have its environments on several devices of a mesh axis. Each device then computes the same functions on its share,
and what it has of its own are environments, rollouts and random numbers. Means, moments and gradients are taken over all devices
by the functions here, so that parameters and statistics stay equal on all of them, bit for bit.

The axis is part of the context in which a function is traced (`on_axis`), as JAX's precision of products is. So an estimator or
an algorithm from outside is right on several devices if it reduces over environments with the functions here. Without an axis
they are plain reductions.
"""

import contextvars
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.platform import by_platform


class Axis(NamedTuple):
    """A mesh axis that the environments of one agent are spread over.

    name: as `jax.shard_map`, or `jax.vmap` with an `axis_name`, binds it.
    size: how many devices.
    """

    name: str
    size: int


_AXIS: contextvars.ContextVar[Axis | None] = contextvars.ContextVar("axis", default=None)


def on_axis(function: Callable, axis: Axis | None) -> Callable:
    """A function that is traced as one device's share of what is computed on this axis; with None as it is."""
    if axis is None:
        return function

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Any:
        token = _AXIS.set(axis)
        try:
            return function(*args, **kwargs)
        finally:
            _AXIS.reset(token)

    return traced


def shapes_on(axis: Axis | None, function: Callable, *args: Any) -> Any:
    """The shapes of what a function gives on one device of an axis."""
    if axis is None:
        return jax.eval_shape(function, *args)
    on_all = jax.vmap(on_axis(function, axis), in_axes=None, axis_name=axis.name, axis_size=axis.size)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), jax.eval_shape(on_all, *args))


# --- this device ------------------------------------------------------------------------------------------------------


def num_devices() -> int:
    """How many devices an agent has."""
    axis = _AXIS.get()
    return 1 if axis is None else axis.size


def share(count: int) -> int:
    """How many of so many environments, or columns of a training set, this device has."""
    return count // num_devices()


def key_here(key: jax.Array) -> jax.Array:
    """A key of this device's own, from one that all have."""
    axis = _AXIS.get()
    return key if axis is None else jax.random.fold_in(key, jax.lax.axis_index(axis.name))


# --- all devices ------------------------------------------------------------------------------------------------------


def mean(x: jax.Array) -> jax.Array:
    """The mean over all of `x`, on all devices. Every device holds equally many."""
    return pooled(x.mean())


def total(x: jax.Array) -> jax.Array:
    """The sum over all of `x`, on all devices."""
    return _over(jax.lax.psum, x.sum())


def largest(x: jax.Array) -> jax.Array:
    """The maximum over all of `x`, on all devices."""
    return _over(jax.lax.pmax, x.max())


def everywhere(flag: jax.Array) -> jax.Array:
    """Whether a flag is set on all devices. Bool scalar."""
    return _over(jax.lax.pmin, flag.astype(jnp.int32)) == 1 if num_devices() > 1 else flag


def moments(x: jax.Array, axis: tuple[int, ...] | None = None) -> tuple[jax.Array, jax.Array]:
    """Mean and population variance over these axes of `x`, or all, on all devices. Two passes: exact also far from 0."""
    center = pooled(x.mean(axis))
    spread = x - (center if axis is None else jnp.expand_dims(center, axis))
    return center, pooled(jnp.square(spread).mean(axis))


def pooled(tree: Any) -> Any:
    """The mean over devices of what each holds, such as its gradients. One exchange for all arrays of one dtype."""
    axis, (leaves, structure) = _AXIS.get(), jax.tree.flatten(tree)
    if axis is None or not leaves:
        return tree
    if len({x.dtype for x in leaves}) > 1:
        return jax.lax.pmean(tree, axis.name)
    sizes = np.cumsum([x.size for x in leaves])[:-1]
    parts = jnp.split(jax.lax.pmean(jnp.concatenate([x.reshape(-1) for x in leaves]), axis.name), sizes)
    return structure.unflatten([part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)])


def at_once(metrics: Any, key: jax.Array, data: Any) -> tuple[Any, jax.Array, Any]:
    """Metrics that several devices exchange before an epoch begins, its key, and its data.

    Put off to the end of an update, the exchange would keep in memory what the metrics are made of. A TPU would lay out the data
    for the epoch while it still has those, and so is made to wait with that too; a GPU would need a copy for it.
    """
    if _AXIS.get() is None:
        return metrics, key, data
    before_key = lambda *args: (*jax.lax.optimization_barrier(args[:2]), args[2])
    before_data = lambda *args: jax.lax.optimization_barrier(args)
    return by_platform(metrics, key, data, cpu=before_key, accelerator=before_key, tpu=before_data)


def gathered(tree: Any) -> Any:
    """What all devices hold, one after the other along the first axis."""
    return _over(lambda x, name: jax.lax.all_gather(x, name, tiled=True), tree)


def quantile(x: jax.Array, q: float) -> jax.Array:
    """The value that a share `q` of all of `x`, on all devices, does not exceed; to 2**-24 of the range of `x`.

    By bisection, since sorting takes longer than all else that is done with a large batch (see `purerl.learning.shuffle`).
    """

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        enough = mean((x <= middle).astype(jnp.float32)) >= q
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    return jax.lax.fori_loop(0, 24, halve, (-largest(-x), largest(x)))[1]


def _over(collective: Callable, x: Any) -> Any:
    axis = _AXIS.get()
    return x if axis is None else collective(x, axis.name)
