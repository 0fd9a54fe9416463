"""Rollouts that are kept and learnt from again: a ring of them, and what other parameters say of what it holds."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.clock import remainder
from purerl.phases import sequences
from purerl.rollout import final_values, next_values, one_step
from purerl.types import Actor, Clock, Network, Outputs, Rollout

PyTree = Any

EMPTY = 2**30  # uses of a place in the ring that no rollout was written to


@struct.dataclass
class Kept:
    """Rollouts side by side, as one of more columns.

    rollout: leaves `[T, B, ...]`.
    last_obs, last_first: `[B, ...]`, what would have been acted on next.
    """

    rollout: Rollout
    last_obs: PyTree
    last_first: jax.Array


@struct.dataclass
class Ring:
    """The last R rollouts, each in the place of the one R updates before it.

    kept: `R * B` columns.
    age: `[R]` int32, updates since a rollout was collected.
    uses: `[R]` int32, updates that learnt from it.
    lag: `[R]` int32, updates between the parameters that acted and the newest ones, when it was collected.
    """

    kept: Kept
    age: jax.Array
    uses: jax.Array
    lag: jax.Array


def kept(rollout: Rollout, after: Actor) -> Kept:
    """A rollout with what comes next."""
    return Kept(rollout, after.obs, after.first)


def empty_ring(one: Kept, size: int) -> Ring:
    """A ring for rollouts of these shapes."""
    wide = lambda axis: lambda x: jnp.zeros((*x.shape[:axis], size * x.shape[axis], *x.shape[axis + 1 :]), x.dtype)
    zeros = lambda: jnp.zeros(size, jnp.int32)
    return Ring(_by_columns(wide, one), age=zeros(), uses=jnp.full(size, EMPTY, jnp.int32), lag=zeros())


def pushed(ring: Ring, clock: Clock, one: Kept, lag: jax.Array) -> Ring:
    """The ring after one more update, with its rollout."""
    slot = remainder(clock, ring.age.size).astype(jnp.int32)
    column = slot * np.int32(one.last_first.size)
    write = lambda axis: lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, column, axis)
    return Ring(
        kept=_by_columns(write, ring.kept, one),
        age=(ring.age + 1).at[slot].set(0),
        uses=ring.uses.at[slot].set(0),
        lag=ring.lag.at[slot].set(lag),
    )


def choose(ring: Ring, max_uses: int, order: str, key: jax.Array, learns: jax.Array) -> tuple[Ring, jax.Array]:
    """The places `[R]` of the rollouts to learn from, the newest first, and the ring with that counted as a use if `learns`.

    Those used less than `max_uses` times can be: in the order of their age, again and again until there are R (`newest`), or each
    but the first drawn from all of them (`random`).
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


def without_newest(ring: Ring, clock: Clock, before: Ring) -> Ring:
    """The ring as it was before the rollout of the update of this clock, which is lost; the others are older by an update."""
    slot = remainder(clock, ring.age.size).astype(jnp.int32)
    return ring.replace(kept=before.kept, uses=ring.uses.at[slot].set(EMPTY))


def taken(ring: Ring, places: jax.Array) -> Kept:
    """The rollouts in these places, side by side."""
    if ring.age.size == 1:
        return ring.kept
    width = ring.kept.last_first.size // ring.age.size
    columns = (places[:, None] * width + jnp.arange(width, dtype=jnp.int32)[None]).reshape(-1)
    return _by_columns(lambda axis: lambda x: jnp.take(x, columns, axis), ring.kept)


def _by_columns(function: Any, one: Kept, *others: Kept) -> Kept:
    """`function(axis)` of every leaf, where `axis` is that of the columns."""
    alike = lambda pick, axis: jax.tree.map(function(axis), pick(one), *map(pick, others))
    return Kept(alike(lambda k: k.rollout, 1), alike(lambda k: k.last_obs, 0), alike(lambda k: k.last_first, 0))


def reread_policy(network: Network, params: PyTree, data: Kept, length: int) -> Any:
    """The policy of kept rollouts, `[T, B]`, as `reread` has it."""
    if not jax.tree.leaves(data.rollout.carry):
        return network.apply(params, (), data.rollout.steps.obs, data.rollout.steps.first)[0].policy
    cut = sequences(data.rollout.steps, data.rollout.carry, length)
    outputs, _ = network.apply(params, cut.carry, cut.steps.obs, cut.steps.first)
    return _joined(outputs.policy, data.rollout.steps.first.shape)


def _joined(tree: PyTree, shape: tuple[int, int]) -> PyTree:
    """The inverse of `sequences`: `[L, N, ...]` as `[T, B, ...]`."""
    T, B = shape
    return jax.tree.map(lambda x: x.reshape(x.shape[0], -1, B, *x.shape[2:]).swapaxes(0, 1).reshape(T, B, *x.shape[2:]), tree)


def reread(
    network: Network, params: PyTree, data: Kept, length: int, episodic: tuple[bool, ...] = ()
) -> tuple[Outputs, jax.Array]:
    """What a network says of kept rollouts: outputs `[T, B, ...]`, and the value of what followed each step, as `next_value`.

    A memory is that which was kept from before each sequence of `length` steps, unrolled from there with these parameters, as
    training does; the observation before a reset is valued with the memory of that moment. `episodic`: as for `next_values`.
    """
    steps, forward = data.rollout.steps, functools.partial(one_step, network)
    if not jax.tree.leaves(data.rollout.carry):
        outputs, _ = network.apply(params, (), steps.obs, steps.first)
        final_value = final_values(network, params, steps.truncated, steps.next_obs, outputs.value)
        last_value = forward(params, (), data.last_obs, data.last_first)[0].value
        return outputs, next_values(outputs.value, steps.truncated, final_value, last_value, episodic)

    def step(carry, row):
        outputs, carry = forward(params, carry, row.obs, row.first)
        bootstrap = lambda: forward(params, carry, row.next_obs, jnp.zeros_like(row.first))[0].value
        final_value = jax.lax.cond(row.truncated.any(), bootstrap, lambda: jnp.zeros_like(outputs.value))
        return carry, (outputs, final_value)

    cut = sequences(steps, data.rollout.carry, length)
    carry, said = jax.lax.scan(step, cut.carry, cut.steps)
    outputs, final_value = _joined(said, steps.first.shape)
    carry = jax.tree.map(lambda x: x[-data.last_first.size :], carry)
    last_value = forward(params, carry, data.last_obs, data.last_first)[0].value
    return outputs, next_values(outputs.value, steps.truncated, final_value, last_value, episodic)
