"""Reductions over the environments and devices of an agent: the only module with collective operations.

The environments of one agent can be spread over the devices of a mesh axis. Each device then computes the same functions on its
share of the environments, with its own rollouts and random numbers. The functions here reduce means, moments and gradients over
all devices, so that parameters and statistics stay equal on all devices, bit for bit.

The axis is part of the context in which a function is traced (`on_axis`), like JAX's matmul precision. A custom estimator or
algorithm that reduces over environments with the functions here is therefore correct on several devices. Without an axis, these
functions are plain reductions.

Example:
    >>> def centred(steps, cfg):
    ...     found = purerl.advantages.gae(steps, cfg.gamma, cfg.gae_lambda)
    ...     return found.replace(advantage=found.advantage - purerl.reductions.mean(found.advantage))
    >>> train = purerl.make_train(purerl.PPOConfig(), advantage=centred)
"""

import contextvars
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.keys import Clock, fold_in_name
from purerl.core.platform import by_platform


class Axis(NamedTuple):
    """A mesh axis that the environments of one agent are spread over.

    Attributes:
        name: the axis name that `jax.shard_map`, or `jax.vmap` with an `axis_name`, binds.
        size: number of devices.
    """

    name: str
    size: int


_AXIS: contextvars.ContextVar[Axis | None] = contextvars.ContextVar("axis", default=None)


def on_axis(function: Callable, axis: Axis | None) -> Callable:
    """Return `function`, traced for one device of a mesh axis. If `axis` is None, return `function` unchanged."""
    if axis is None:
        return function

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        token = _AXIS.set(axis)
        try:
            return function(*args, **kwargs)
        finally:
            _AXIS.reset(token)

    return run


def shapes_on(axis: Axis | None, function: Callable, *args: Any) -> Any:
    """Return the shapes of a function's results on one device of an axis."""
    if axis is None:
        return jax.eval_shape(function, *args)
    on_all = jax.vmap(on_axis(function, axis), in_axes=None, axis_name=axis.name, axis_size=axis.size)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), jax.eval_shape(on_all, *args))


# --- this device ------------------------------------------------------------------------------------------------------


def num_devices() -> int:
    """Return the number of devices per agent."""
    axis = _AXIS.get()
    return 1 if axis is None else axis.size


def local_batch(count: int) -> int:
    """Return this device's share of `count` environments."""
    return count // num_devices()


def fold_in_device(key: jax.Array) -> jax.Array:
    """Return a key for this device alone, from a key that is the same on all devices."""
    axis = _AXIS.get()
    return key if axis is None else jax.random.fold_in(key, jax.lax.axis_index(axis.name))


def local_key(key: jax.Array, name: str, *counters: Clock | int | jax.Array) -> jax.Array:
    """Return a key for a named use of randomness on this device alone. The arguments are those of `fold_in_name`."""
    return fold_in_device(fold_in_name(key, name, *counters))


# --- all devices ------------------------------------------------------------------------------------------------------


def mean(x: jax.Array) -> jax.Array:
    """Return the mean of all entries of `x` over all devices. Every device must hold the same number of entries."""
    return pmean(x.mean())


def total(x: jax.Array) -> jax.Array:
    """Return the sum of all entries of `x` over all devices."""
    return _over(jax.lax.psum, x.sum())


def pmax(x: jax.Array) -> jax.Array:
    """Return the maximum of all entries of `x` over all devices."""
    return _over(jax.lax.pmax, x.max())


def pall(flag: jax.Array) -> jax.Array:
    """Return True if a flag is set on all devices. Bool scalar."""
    return _over(jax.lax.pmin, flag.astype(jnp.int32)) == 1 if num_devices() > 1 else flag


def pmean(tree: Any) -> Any:
    """Return the mean over devices of each array of a tree, such as gradients: one exchange if all arrays have one dtype."""
    axis, (leaves, structure) = _AXIS.get(), jax.tree.flatten(tree)
    if axis is None or not leaves:
        return tree
    if len({x.dtype for x in leaves}) > 1:
        return jax.lax.pmean(tree, axis.name)
    sizes = np.cumsum([x.size for x in leaves])[:-1]
    parts = jnp.split(jax.lax.pmean(jnp.concatenate([x.reshape(-1) for x in leaves]), axis.name), sizes)
    return structure.unflatten([part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)])


def reduce_before(metrics: Any, key: jax.Array, batch: Any) -> tuple[Any, jax.Array, Any]:
    """Return the arguments behind an optimisation barrier, so that metrics are reduced before the first epoch begins.

    The inputs of the metrics can then be freed before the epochs. The barrier makes the key available only after the metrics, and
    on a TPU the batch, too, since a TPU would otherwise lay out the batch while these inputs are still in memory. On other
    platforms the batch is not part of the barrier, since a GPU would have to copy it.
    """
    if _AXIS.get() is None:
        return metrics, key, batch
    before_key = lambda *args: (*jax.lax.optimization_barrier(args[:2]), args[2])
    before_batch = lambda *args: jax.lax.optimization_barrier(args)
    return by_platform(metrics, key, batch, cpu=before_key, accelerator=before_key, tpu=before_batch)


def gather(tree: Any) -> Any:
    """Gather the arrays of all devices, concatenated along the first axis."""
    return _over(lambda x, name: jax.lax.all_gather(x, name, tiled=True), tree)


def quantile(x: jax.Array, q: float) -> jax.Array:
    """Return the q-quantile of all entries of `x` over all devices, accurate to 2**-24 of the range of `x`.

    The quantile is found by bisection, since sorting a large batch takes as long as computing the gradient of its loss
    (`purerl.learning.shuffle`).
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
