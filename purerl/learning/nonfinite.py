"""Updates that produce NaN or infinity: skipped on the device, or detected by the host."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.metrics import Mean, Sum
from purerl.core.reductions import pall
from purerl.core.types import PyTree, TrainState

LEARNT = ("params", "opt_state", "statistics")  # the parts of a state that learning changes


def freeze(update: Callable, skipped: Callable) -> Callable:
    """Wrap an algorithm's `update` so that an update is skipped if a learnt array or the auxiliary state would not be finite.

    A skipped update leaves parameters, optimizer states and statistics unchanged; the environments continue. The auxiliary state
    `extra` becomes the result of the algorithm's `skipped(before, after)`, with the states before and after the update. Under
    `vmap`, updates are skipped for each seed separately. The metric `nonfinite` counts skipped updates. In all updates, a `Mean`
    whose total is not finite is replaced by a `Mean` with a count of 0.
    """

    def update_or_freeze(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        after, metrics = update(state)
        learnt, before = ({name: getattr(s, name) for name in (*LEARNT, "extra")} for s in (after, state))
        finite = pall(jnp.stack(finite_leaves(learnt)).all())
        before["extra"] = skipped(state, after)
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), learnt, before)
        counted = {name: _drop_nonfinite(metric) for name, metric in metrics.items()}
        return after.replace(**kept), {**counted, "nonfinite": Sum((~finite).astype(jnp.int32))}

    return update_or_freeze


def finite_leaves(tree: PyTree) -> list[jax.Array]:
    """Return a bool scalar for each float leaf, True if all entries of the leaf are finite."""
    return [jnp.isfinite(x).all() for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def first_bad_leaf(tree: PyTree) -> str | None:
    """Return the path of the first non-finite leaf of a tree of NumPy arrays; None if all leaves are finite."""
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
            return jax.tree_util.keystr(path)
    return None


def _drop_nonfinite(metric: Any) -> Any:
    if not isinstance(metric, Mean):
        return metric
    finite = jnp.isfinite(metric.total)
    zero = lambda x: jnp.where(finite, x, jnp.zeros_like(x))
    return Mean(zero(metric.total), zero(metric.count))
