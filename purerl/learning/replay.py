"""A ring buffer of rollouts, and network outputs recomputed on stored rollouts."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from purerl.acting.bootstrap import copy_to_truncations, edge_values, final_obs_of, next_values, one_step, rows_of_truncations
from purerl.core.keys import Clock
from purerl.core.platform import where_any
from purerl.core.types import Actor, Network, Outputs, PyTree, Rollout
from purerl.learning.update import sequences

EMPTY = 2**30  # `uses` of an empty slot


class RingBatch(struct.PyTreeNode):
    """One or more rollouts of T steps, concatenated along the environment axis, whose size is B.

    Attributes:
        rollout: leaves `[T, B, ...]`.
        final_obs: `[C, B, ...]`, the observations before the resets that time limits caused, at most C per environment.
        last_obs, last_first: `[B, ...]`, the observation after the last step, and its episode-start flag.
    """

    rollout: Rollout
    final_obs: PyTree
    last_obs: PyTree
    last_first: jax.Array


class Ring(struct.PyTreeNode):
    """The last R rollouts, one per slot. A new rollout overwrites the oldest.

    Attributes:
        batch: a `RingBatch` with a slot axis before the environment axis: `[T, R, B, ...]`, `[C, R, B, ...]` and `[R, B, ...]`.
        age: `[R]` int32, number of updates since the rollout was collected.
        uses: `[R]` int32, number of updates that have learnt from the rollout; `EMPTY` for an empty slot.
        lag: `[R]` int32, number of updates by which the acting parameters were behind the newest parameters at collection.
    """

    batch: RingBatch
    age: jax.Array
    uses: jax.Array
    lag: jax.Array


def ring_batch(rollout: Rollout, after: Actor, count: int, keep_next_obs: bool = False) -> RingBatch:
    """Convert a rollout to a `RingBatch` with C = `count`, without `info`; `next_obs` is kept only if `keep_next_obs` is set."""
    steps = rollout.steps
    final_obs = final_obs_of(steps.next_obs, steps.truncated, count)
    kept = steps.replace(info={}, next_obs=steps.next_obs if keep_next_obs else ())
    return RingBatch(rollout.replace(steps=kept), final_obs, after.obs, after.first)


def empty_ring(one: RingBatch, size: int) -> Ring:
    """Return an empty ring of `size` rollouts with the shapes of `one`."""
    wide = lambda axis: lambda x: jnp.zeros((*x.shape[:axis], size, *x.shape[axis:]), x.dtype)
    zeros = lambda: jnp.zeros(size, jnp.int32)
    return Ring(_by_place(wide, one), age=zeros(), uses=jnp.full(size, EMPTY, jnp.int32), lag=zeros())


def ring_push(ring: Ring, clock: Clock, one: RingBatch, lag: jax.Array) -> Ring:
    """Store the rollout of an update in the slot of the oldest rollout."""
    slot = (clock % ring.age.size).astype(jnp.int32)
    write = lambda axis: lambda old, new: jax.lax.dynamic_update_index_in_dim(old, new, slot, axis)
    return Ring(
        batch=_by_place(write, ring.batch, one),
        age=(ring.age + 1).at[slot].set(0),
        uses=ring.uses.at[slot].set(0),
        lag=ring.lag.at[slot].set(lag),
    )


def ring_select(ring: Ring, max_uses: int, order: str, key: jax.Array, learns: jax.Array) -> tuple[Ring, jax.Array]:
    """Select R rollouts to learn from; return the ring, and the slots of these rollouts, `[R]`. If `learns`, count their uses.

    Rollouts with fewer than `max_uses` uses are candidates. The newest candidate comes first. If `order` is "newest", the other
    candidates come next, from new to old, and the list is repeated until it has R rollouts. If `order` is "random", the other
    R - 1 rollouts are sampled from all candidates, with replacement.
    """
    size = ring.age.size
    usable = ring.uses < max_uses
    places = jnp.argsort(jnp.where(usable, ring.age, EMPTY)).astype(jnp.int32)
    count = usable.sum(dtype=jnp.int32)
    nth = jnp.arange(size, dtype=jnp.int32)
    if order == "random":
        nth = jnp.where(nth == 0, 0, jax.random.randint(key, (size,), 0, count, jnp.int32))
    chosen = places[nth % count]
    used = (chosen[:, None] == jnp.arange(size)[None]).any(0) & learns
    return ring.replace(uses=ring.uses + used.astype(jnp.int32)), chosen


def ring_drop_newest(ring: Ring, clock: Clock, before: Ring) -> Ring:
    """Empty the slot of this update's rollout, and restore the `uses` of the other rollouts; their ages still advance."""
    slot = (clock % ring.age.size).astype(jnp.int32)
    return ring.replace(batch=before.batch, uses=before.uses.at[slot].set(EMPTY))


def ring_take(ring: Ring, places: jax.Array) -> RingBatch:
    """Return the rollouts in these slots, concatenated along the environment axis."""
    take = lambda x, axis: x if ring.age.size == 1 else jnp.take(x, places, axis)
    join = lambda axis: lambda x: take(x, axis).reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return _by_place(join, ring.batch)


def _by_place(function: Any, batch: RingBatch, *others: RingBatch) -> RingBatch:
    """Apply `function(axis)` to every leaf of a `RingBatch`. `axis` is the position of the slot axis in a ring of rollouts."""
    alike = lambda name, axis: jax.tree.map(function(axis), *(getattr(x, name) for x in (batch, *others)))
    axes = {"rollout": 1, "final_obs": 1, "last_obs": 0, "last_first": 0}
    return RingBatch(**{name: alike(name, axis) for name, axis in axes.items()})


def recompute_policy(network: Network, params: PyTree, data: RingBatch, length: int) -> Any:
    """Recompute the policy on rollouts, `[T, B]`; sequences of `length` steps start from their stored hidden states."""
    if not jax.tree.leaves(data.rollout.carry):
        return network.apply(params, (), data.rollout.steps.obs, data.rollout.steps.first)[0].policy
    cut = sequences(data.rollout.steps, data.rollout.carry, length)
    outputs, _ = network.apply(params, cut.carry, cut.steps.obs, cut.steps.first)
    return _join_sequences(outputs.policy, data.rollout.steps.first.shape)


def _join_sequences(tree: PyTree, shape: tuple[int, ...]) -> PyTree:
    """Invert `sequences`: `[L, N, ...]` to `[T, B, ...]`."""
    T, B = shape
    return jax.tree.map(lambda x: x.reshape(x.shape[0], -1, B, *x.shape[2:]).swapaxes(0, 1).reshape(T, B, *x.shape[2:]), tree)


def recompute_outputs(network: Network, params: PyTree, data: RingBatch, length: int) -> tuple[Outputs, jax.Array]:
    """Recompute a network's outputs, and the next value of each step, on rollouts of the ring, `[T, B, ...]`.

    As in training, a recurrent network computes each sequence of `length` steps from the hidden state that is stored for its
    first step. The observation before a reset is evaluated with the hidden state after the truncated step.
    """
    steps, forward = data.rollout.steps, functools.partial(one_step, network)
    if not jax.tree.leaves(data.rollout.carry):
        outputs, _ = network.apply(params, (), steps.obs, steps.first)
        final_value, last_value = edge_values(network, params, data.final_obs, data.last_obs, data.last_first)
        final_value = copy_to_truncations(final_value, steps.truncated)
        return outputs, next_values(outputs.value, steps.truncated, final_value, last_value)

    def step(carry, row):
        row, kept, column = row
        outputs, carry = forward(params, carry, row.obs, row.first)
        final_obs = lambda: jax.tree.map(lambda x: x[kept, column], data.final_obs)
        bootstrap = lambda: forward(params, carry, final_obs(), jnp.zeros_like(row.first))[0].value
        final_value = where_any(row.truncated, bootstrap, jnp.zeros_like(outputs.value))
        return carry, (outputs, final_value)

    kept = rows_of_truncations(steps.truncated, jax.tree.leaves(data.final_obs)[0].shape[0])
    column = jnp.broadcast_to(jnp.arange(kept.shape[1], dtype=jnp.int32), kept.shape)
    cut = sequences((steps, kept, column), data.rollout.carry, length)
    carry, recomputed = jax.lax.scan(step, cut.carry, cut.steps)
    outputs, final_value = _join_sequences(recomputed, steps.first.shape)
    carry = jax.tree.map(lambda x: x[-data.last_first.size :], carry)
    last_value = forward(params, carry, data.last_obs, data.last_first)[0].value
    return outputs, next_values(outputs.value, steps.truncated, final_value, last_value)
