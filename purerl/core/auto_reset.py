"""Auto-reset: environments whose episode ended begin a new one, by a reset in each step or from a pool of first states."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from purerl.core.environment import TimeStep
from purerl.core.platform import by_platform, where_any
from purerl.core.types import PyTree

LANES = 8  # minimum number of slow resets that an accelerator computes at once, outside of rollouts


@dataclasses.dataclass(frozen=True)
class AutoReset:
    """A step of `B` environments, with a reset where an episode ended: `(keys [2, B], env_state, action) -> TimeStep`.

    If `Environment.step` is an `AutoReset`, a rollout on an accelerator computes slow resets in one batch, before the time loop.

    Attributes:
        advance: `(keys [B], env_state, action) -> TimeStep`, the step without resets; the result's `obs` equals its `next_obs`.
        reset: `(keys [B]) -> (env_state, obs)`; the reset of one environment does not depend on the others.
        slow_reset: True if a reset takes as long as dozens of steps.
    """

    advance: Callable
    reset: Callable
    slow_reset: bool

    def __call__(self, keys: jax.Array, env_state: PyTree, action: jax.Array) -> TimeStep:
        after = self.advance(keys[0], env_state, action)
        ended = after.terminated | after.truncated
        env_state, obs = restart(self.reset, keys[1], ended, (after.env_state, after.obs), self.slow_reset)
        return after.replace(env_state=env_state, obs=obs)


def has_slow_resets(step: Callable) -> bool:
    """Return True if a step is an `AutoReset` with slow resets."""
    return isinstance(step, AutoReset) and step.slow_reset


def change_step(step: Callable, reset: Callable, change: Callable[[Callable], Callable]) -> Callable:
    """Return a step with `change` applied to its outputs. If `step` is an `AutoReset`, the new step has the given `reset`.

    Args:
        step: `(keys [2, B], env_state, action) -> TimeStep`.
        reset: `(keys [B]) -> (env_state, obs)` of the changed environments; used only if `step` is an `AutoReset`.
        change: maps a function `(keys, env_state, action) -> TimeStep` to a function of the same form, which may pass `keys` on
          but must not read them.
    """
    if isinstance(step, AutoReset):
        return AutoReset(change(step.advance), reset, step.slow_reset)
    return change(step)


def after_step(change: Callable, inner: Callable = lambda env_state: env_state) -> Callable[[Callable], Callable]:
    """Return a `change` of `change_step` that changes the output of a step.

    Args:
        change: `(env_state, action, output of the step) -> TimeStep`, where `env_state` is the changed environments' state.
        inner: returns the state of the environments behind from the state of the changed environments.
    """
    return lambda step: lambda keys, env_state, action: change(env_state, action, step(keys, inner(env_state), action))


def restart(reset: Callable, keys: PyTree, ended: jax.Array, running: PyTree, slow_reset: bool) -> PyTree:
    """Reset the environments whose episode ended; return the states and observations of all environments.

    If resets are fast, a CPU computes the resets of all environments, but only in steps in which an episode ended: up to 1.5
    times as many steps per second as with resets in every step. Under `vmap` over seeds, and on an accelerator, every step
    computes all resets.

    Slow resets are computed only for environments whose episode ended, even under `vmap`: on a CPU for one environment at a time,
    on an accelerator for a sixteenth of all environments, but at least 8, at a time. Both platforms reset the same environments
    with the same keys. For slow resets, rollouts call `restart_from_pool` instead of this function.

    Args:
        reset: `(keys [n]) -> (env_state, obs)`.
        keys: `[B]`; or a PyTree of keys and other inputs of `reset`.
        ended: `[B]` bool.
        running: `(env_state, obs)`, `[B, ...]`, before the reset.
        slow_reset: True if a reset takes as long as dozens of steps.
    """
    if not slow_reset:
        return where_any(ended, lambda: _where(ended, reset(keys), running), running)
    lanes = min(max(LANES, ended.size // 16), ended.size)
    some = lambda lanes: lambda: _reset_in_lanes(reset, keys, ended, running, lanes)
    return by_platform(cpu=some(1), accelerator=some(lanes))


def first_state_keys(key: jax.Array, places: jax.Array) -> jax.Array:
    """Return the keys of the first states at the given places of a rollout's pool."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, places)


def draw_pool(reset: Callable, key: jax.Array, size: int) -> PyTree:
    """Return the first states of a rollout's pool, `(env_state, obs)`, leaves `[size, ...]`."""
    return reset(first_state_keys(key, jnp.arange(size, dtype=jnp.int32)))


def restart_from_pool(
    reset: Callable, key: jax.Array, size: int, pool: PyTree | None, after: TimeStep, count: jax.Array
) -> tuple[TimeStep, jax.Array]:
    """Begin new episodes with first states of a pool; return the step after the resets, and the number of resets so far.

    Reset number n of a rollout uses state `n % size` of the pool. Resets are counted from 0, step by step, and by environment
    within a step.

    Args:
        reset: `(keys [n]) -> (env_state, obs)`.
        key: the rollout's key for resets.
        size: number of first states in the pool.
        pool: the first states from `draw_pool`. If None, each state is computed when a reset needs it, with the key that
          the state has in the pool.
        after: the output of the step, before the resets.
        count: int32, number of resets in this rollout before this step.
    """
    ended, running = after.terminated | after.truncated, (after.env_state, after.obs)
    places = (count + jnp.cumsum(ended, dtype=jnp.int32) - ended) % size
    if pool is None:
        env_state, obs = _reset_in_lanes(reset, first_state_keys(key, places), ended, running, lanes=1)
    else:
        env_state, obs = _where(ended, jax.tree.map(lambda x: x[places], pool), running)
    return after.replace(env_state=env_state, obs=obs), count + ended.sum(dtype=jnp.int32)


def _where(flags: jax.Array, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: jax.vmap(jnp.where)(flags, x, y), new, old)


def _reset_in_lanes(reset: Callable, keys: PyTree, ended: jax.Array, running: PyTree, lanes: int) -> PyTree:
    """Reset the environments whose episode ended, `lanes` at a time."""
    count, ended_first, number = ended.size, jnp.argsort(~ended), ended.sum(dtype=jnp.int32)
    rows_of = lambda rows: jax.tree.map(lambda x: x[rows], keys)

    def trip(carry):
        begin, current = carry
        place = begin + jnp.arange(lanes, dtype=jnp.int32)
        rows = ended_first[jnp.minimum(place, count - 1)]
        to = jnp.where(place < number, rows, count)  # drop resets of environments whose episode goes on
        return begin + lanes, jax.tree.map(lambda x, new: x.at[to].set(new, mode="drop"), current, reset(rows_of(rows)))

    return jax.lax.while_loop(lambda carry: carry[0] < number, trip, (jnp.int32(0), running))[1]
