"""Metrics of an update, as sums and counts, so that rows can be added and the device never takes a mean over nothing.

Metrics are a dict from a name to one of three kinds. Each kind defines how two rows are added and what to start from.
`summarize` turns them into NumPy arrays on the host.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.core import reductions

LAST = 0.1  # of training, whose episodes are the final ones


class Sum(struct.PyTreeNode):
    """A quantity that adds up: steps, episodes."""

    total: jax.Array
    add = staticmethod(jnp.add)
    start = 0

    def read(self) -> np.ndarray:
        return np.asarray(self.total)


class Mean(struct.PyTreeNode):
    """A quantity to be averaged: `total / count`, and NaN where nothing was counted."""

    total: jax.Array
    count: jax.Array
    add = staticmethod(jnp.add)
    start = 0

    def read(self) -> np.ndarray:
        total, count = np.asarray(self.total), np.asarray(self.count)
        return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


class Max(struct.PyTreeNode):
    """A quantity whose largest value counts."""

    value: jax.Array
    add = staticmethod(jnp.maximum)
    start = -np.inf

    def read(self) -> np.ndarray:
        return np.asarray(self.value)


def mean_of(x: jax.Array) -> Mean:
    """Return the mean over all of `x`, on all devices."""
    return Mean(reductions.total(x.astype(jnp.float32)), jnp.int32(x.size * reductions.num_devices()))


def mean_where(x: jax.Array, where: jax.Array) -> Mean:
    """Return the mean of the entries of `x` where the mask is set, on all devices."""
    kept = jnp.where(where, x, jnp.zeros_like(x)).astype(jnp.float32)
    return Mean(reductions.total(kept), reductions.total(where.astype(jnp.int32)))


def values(metrics: dict[str, Any]) -> dict[str, jax.Array]:
    """Return the metrics of one update as scalars on the device; NaN for a mean over nothing."""
    read = lambda metric: metric.total / metric.count if isinstance(metric, Mean) else jax.tree.leaves(metric)[0]
    return {name: read(metric) for name, metric in metrics.items()}


def accumulate(update: Callable, state: Any, count: jax.Array) -> tuple[Any, dict[str, Any]]:
    """Apply `(state) -> (state, metrics)` `count` times; return the last state, and the metrics as one row."""
    kinds = jax.eval_shape(update, state)[1]
    start = lambda metric: lambda x: jnp.full(x.shape, metric.start, x.dtype)
    nothing = {name: jax.tree.map(start(metric), metric) for name, metric in kinds.items()}

    def body(_, carry):
        state, metrics = update(carry[0])
        return state, {name: jax.tree.map(metric.add, metric, metrics[name]) for name, metric in carry[1].items()}

    return jax.lax.fori_loop(0, count, body, (state, nothing))


def add_up(metrics: dict[str, Any]) -> dict[str, Any]:
    """Aggregate rows on the host, `[..., rows] -> [...]`: one after the other, so that pieces do not matter."""
    ufunc = {jnp.add: np.add, jnp.maximum: np.maximum}
    add = lambda metric: lambda x: ufunc[metric.add].accumulate(x, axis=-1)[..., -1]
    return {name: jax.tree.map(add(metric), metric) for name, metric in metrics.items()}


def over_the_last(mean: Mean, share: float) -> np.ndarray:
    """Average the last share of each run's rows, `[rows]` or `[runs, rows]` on the host; return `[runs]`.

    Where nothing was counted there, over all rows; NaN where nothing was counted at all.
    """
    totals, counts = (np.atleast_2d(x).astype(np.float64) for x in (mean.total, mean.count))
    tail = slice(-max(1, round(totals.shape[1] * share)), None)
    none = counts[:, tail].sum(1) == 0
    total, count = (np.where(none, x.sum(1), x[:, tail].sum(1)) for x in (totals, counts))
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def summarize(metrics: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return metrics as plain NumPy arrays of the same leading shape: `[num_updates]`, or `[num_seeds, num_updates]` and so on.

    A mean over nothing, such as the return in an update that ended no episode, is NaN.

    Example:
        >>> train = purerl.make_train(purerl.PPOConfig(total_timesteps=1024))
        >>> metrics = jax.jit(train)(jax.random.key(0)).metrics
        >>> purerl.summarize(metrics)["steps"].tolist()
        [512, 512]
    """
    return {name: metric.read() for name, metric in jax.device_get(metrics).items()}
