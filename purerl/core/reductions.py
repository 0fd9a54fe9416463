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

from purerl.core.keys import Clock, named_key
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
    """Return a function that is traced as one device's share of an axis; with None the function itself."""
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
    """Return the shapes of a function's results on one device of an axis."""
    if axis is None:
        return jax.eval_shape(function, *args)
    on_all = jax.vmap(on_axis(function, axis), in_axes=None, axis_name=axis.name, axis_size=axis.size)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), jax.eval_shape(on_all, *args))


# --- this device ------------------------------------------------------------------------------------------------------


def num_devices() -> int:
    """Return the number of devices of an agent."""
    axis = _AXIS.get()
    return 1 if axis is None else axis.size


def local_batch(count: int) -> int:
    """Return this device's share of `count` environments."""
    return count // num_devices()


def fold_in_device(key: jax.Array) -> jax.Array:
    """Return this device's own key, from a key that all devices hold."""
    axis = _AXIS.get()
    return key if axis is None else jax.random.fold_in(key, jax.lax.axis_index(axis.name))


def local_key(key: jax.Array, name: str, *counters: Clock | int | jax.Array) -> jax.Array:
    """Return this device's own key for a named use of randomness; see `named_key`."""
    return fold_in_device(named_key(key, name, *counters))


# --- all devices ------------------------------------------------------------------------------------------------------


def mean(x: jax.Array) -> jax.Array:
    """Return the mean over all of `x`, on all devices. Every device holds equally many."""
    return pmean(x.mean())


def total(x: jax.Array) -> jax.Array:
    """Return the sum over all of `x`, on all devices."""
    return _over(jax.lax.psum, x.sum())


def pmax(x: jax.Array) -> jax.Array:
    """Return the maximum over all of `x`, on all devices."""
    return _over(jax.lax.pmax, x.max())


def pall(flag: jax.Array) -> jax.Array:
    """Return True if a flag is set on all devices. Bool scalar."""
    return _over(jax.lax.pmin, flag.astype(jnp.int32)) == 1 if num_devices() > 1 else flag


def pmean(tree: Any) -> Any:
    """Return the mean over devices of what each holds, such as its gradients. One exchange for all arrays of one dtype."""
    axis, (leaves, structure) = _AXIS.get(), jax.tree.flatten(tree)
    if axis is None or not leaves:
        return tree
    if len({x.dtype for x in leaves}) > 1:
        return jax.lax.pmean(tree, axis.name)
    sizes = np.cumsum([x.size for x in leaves])[:-1]
    parts = jnp.split(jax.lax.pmean(jnp.concatenate([x.reshape(-1) for x in leaves]), axis.name), sizes)
    return structure.unflatten([part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)])


def reduce_before(metrics: Any, key: jax.Array, batch: Any) -> tuple[Any, jax.Array, Any]:
    """Place an optimisation barrier: devices reduce metrics before the epochs, so that the metrics' inputs can be freed.

    A TPU would lay out the batch while it still holds those inputs, so there the batch waits, too. A GPU would need a copy for
    that.
    """
    if _AXIS.get() is None:
        return metrics, key, batch
    before_key = lambda *args: (*jax.lax.optimization_barrier(args[:2]), args[2])
    before_batch = lambda *args: jax.lax.optimization_barrier(args)
    return by_platform(metrics, key, batch, cpu=before_key, accelerator=before_key, tpu=before_batch)


def gathered(tree: Any) -> Any:
    """Gather the arrays of all devices, one after the other along the first axis."""
    return _over(lambda x, name: jax.lax.all_gather(x, name, tiled=True), tree)


def quantile(x: jax.Array, q: float) -> jax.Array:
    """Return the q-quantile of all of `x`, on all devices, to 2**-24 of the range of `x`.

    By bisection, since sorting takes longer than all else that is done with a large batch (see `purerl.learning.shuffle`).
    """

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        enough = mean((x <= middle).astype(jnp.float32)) >= q
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    return jax.lax.fori_loop(0, 24, halve, (-pmax(-x), pmax(x)))[1]


def _over(collective: Callable, x: Any) -> Any:
    axis = _AXIS.get()
    return x if axis is None else collective(x, axis.name)
