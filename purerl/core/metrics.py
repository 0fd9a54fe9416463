"""Metrics of an update. Means are stored as sums and counts, so that updates that counted nothing can be combined with others.

Metrics are a dict from name to `Sum`, `Mean` or `Max`. Each class defines `add`, which combines the arrays of two updates, and
`start`, the neutral element of `add`. `summarize` converts metrics to NumPy arrays on the host.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.core import reductions
from purerl.core.errors import config_error

NUMBERS = (jax.Array, np.ndarray, np.generic, int, float)  # the types of numbers that custom functions may return as metrics
LAST = 0.1  # final fraction of training over which final returns are averaged


class Sum(struct.PyTreeNode):
    """A quantity that is summed, such as steps or episodes."""

    total: jax.Array
    add = staticmethod(jnp.add)
    start = 0

    def read(self) -> np.ndarray:
        return np.asarray(self.total)


class Mean(struct.PyTreeNode):
    """A quantity that is averaged: `total / count`, or NaN if the count is 0."""

    total: jax.Array
    count: jax.Array
    add = staticmethod(jnp.add)
    start = 0

    def read(self) -> np.ndarray:
        total, count = np.asarray(self.total), np.asarray(self.count)
        return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


class Max(struct.PyTreeNode):
    """A quantity that is combined by its maximum, such as the largest reward. NaN does not count beside a number."""

    value: jax.Array
    add = staticmethod(jnp.fmax)
    start = np.nan

    def read(self) -> np.ndarray:
        return np.asarray(self.value)


def mean_of(x: jax.Array | float) -> Mean:
    """Return the mean of all entries of `x` over all devices."""
    x = jnp.asarray(x)
    return Mean(reductions.total(x.astype(jnp.float32)), jnp.int32(x.size * reductions.num_devices()))


def mean_where(x: jax.Array, where: jax.Array) -> Mean:
    """Return the mean over all devices of the entries of `x` where the mask `where` is set."""
    kept = jnp.where(where, x, jnp.zeros_like(x)).astype(jnp.float32)
    return Mean(reductions.total(kept), reductions.total(where.astype(jnp.int32)))


def values(metrics: dict[str, Any]) -> dict[str, jax.Array]:
    """Return the metrics of one update as scalars on the device. The mean of no entries is NaN."""
    read = lambda metric: metric.total / metric.count if isinstance(metric, Mean) else jax.tree.leaves(metric)[0]
    return {name: read(metric) for name, metric in metrics.items()}


def accumulate(update: Callable, state: Any, count: jax.Array) -> tuple[Any, dict[str, Any]]:
    """Apply `update: (state) -> (state, metrics)` `count` times; return the last state and the combined metrics."""
    kinds = jax.eval_shape(update, state)[1]
    start = lambda metric: lambda x: jnp.full(x.shape, metric.start, x.dtype)
    nothing = {name: jax.tree.map(start(metric), metric) for name, metric in kinds.items()}

    def body(_, carry):
        state, metrics = update(carry[0])
        return state, {name: jax.tree.map(metric.add, metric, metrics[name]) for name, metric in carry[1].items()}

    return jax.lax.fori_loop(0, count, body, (state, nothing))


def aggregate(metrics: dict[str, Any]) -> dict[str, Any]:
    """Combine metrics along the last axis on the host, `[..., rows] -> [...]`, in order, so that chunks round like one call."""
    ufunc = {jnp.add: np.add, jnp.fmax: np.fmax}
    add = lambda metric: lambda x: ufunc[metric.add].accumulate(x, axis=-1)[..., -1]
    return {name: jax.tree.map(add(metric), metric) for name, metric in metrics.items()}


def over_the_last(metrics: dict[str, Any], name: str, share: float) -> np.ndarray:
    """Average a metric over the last fraction `share` of the steps of each run; return `[runs]`.

    For a run in which nothing was counted in this fraction, double the fraction until something was. If nothing was counted in
    the whole run, the result is NaN.

    Args:
        metrics: metrics on the host, `[rows]` or `[runs, rows]`, with `steps`. The last row may have fewer steps than the others.
        name: name of the metric, a `Mean`.
        share: the fraction, rounded to whole rows.
    """
    totals, counts = (np.atleast_2d(x).astype(np.float64) for x in (metrics[name].total, metrics[name].count))
    steps = np.atleast_2d(metrics["steps"].total)[0].astype(np.float64)
    later, found = steps.sum() - steps.cumsum(), np.full(len(totals), np.nan)
    while steps.size and np.isnan(found).any() and share < 2:
        tail = later < max(1, round(min(share, 1) * steps.sum() / steps[0])) * steps[0]
        count = counts[:, tail].sum(1)
        found = np.divide(totals[:, tail].sum(1), count, out=found, where=np.isnan(found) & (count > 0))
        share *= 2
    return found


def summarize(metrics: dict[str, Any], fill: bool = False) -> dict[str, np.ndarray]:
    """Convert metrics to NumPy arrays of the same leading shape: `[num_updates]`, `[num_seeds, num_updates]` and so on.

    The mean of no entries is NaN, for example the mean return of an update in which no episode ended.

    Args:
        metrics: the metrics that `train` or `train.update` returns; a ConfigError is raised for other types.
        fill: where nothing was counted, repeat the last mean before, along the last axis, which must be that of updates. NaN
          before the first mean remains, and so does the NaN of a run that has diverged.

    Example:
        >>> train = purerl.make_train(purerl.PPOConfig(total_timesteps=1024))
        >>> metrics = jax.jit(train)(jax.random.key(0)).metrics
        >>> purerl.summarize(metrics)["steps"].tolist()
        [512, 512]
    """
    if not isinstance(metrics, dict):
        raise config_error("metrics", type(metrics).__name__, "must be a dict of metrics, such as result.metrics")
    metrics = jax.device_get(metrics)
    return {name: _carry_forward(x) if fill and isinstance(x, Mean) else x.read() for name, x in metrics.items()}


def _carry_forward(mean: Mean) -> np.ndarray:
    """Return the means along the last axis; where nothing was counted, the last mean before."""
    means, counted = mean.read(), np.asarray(mean.count) > 0
    if not means.ndim:
        return means
    newest = np.maximum.accumulate(np.where(counted, np.arange(means.shape[-1]), 0), axis=-1)
    return np.take_along_axis(means, newest, axis=-1)


def is_metric(x: Any) -> bool:
    """Return True for a metric, which can be aggregated over updates."""
    return isinstance(x, Sum | Mean | Max)
