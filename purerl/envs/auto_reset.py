"""Auto-reset for a batch of single environments."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from purerl.core.platform import by_platform, where_any
from purerl.core.types import PyTree, TimeStep

LANES = 8  # minimum number of slow resets that an accelerator computes at once


@dataclasses.dataclass(frozen=True)
class AutoReset:
    """A batched step that starts a new episode wherever one ended: `(keys [2, B], env_state, action) -> TimeStep`.

    advance: `(keys [B], env_state, action) -> TimeStep`, without a reset.
    reset: `(keys [B]) -> (env_state, obs)`.
    slow_reset: True if a reset takes as long as dozens of steps.
    """

    advance: Callable
    reset: Callable
    slow_reset: bool

    def __call__(self, keys: jax.Array, env_state: PyTree, action: jax.Array) -> TimeStep:
        after = self.advance(keys[0], env_state, action)
        running, ended = (after.env_state, after.obs), after.terminated | after.truncated
        env_state, obs = restart(self.reset, keys[1], ended, running, self.slow_reset)
        return after.replace(env_state=env_state, obs=obs)


def auto_reset(reset: Callable, step: Callable, slow_reset: bool = False) -> AutoReset:
    """Return a batched step that starts a new episode wherever one ended.

    Args:
        reset: `(key) -> (obs, env_state)` of one environment.
        step: `(key, env_state, action) -> (obs, env_state, reward, terminated, truncated, info)` of one environment.
        slow_reset: True if a reset takes as long as dozens of steps.
    """

    def advance(keys, env_state, action):
        obs, env_state, *signals = jax.vmap(step)(keys, env_state, action)
        return TimeStep(env_state, obs, obs, *signals)

    return AutoReset(advance, lambda keys: jax.vmap(reset)(keys)[::-1], slow_reset)


def restart(reset: Callable, keys: jax.Array, ended: jax.Array, running: PyTree, slow_reset: bool) -> PyTree:
    """Reset the environments whose episode ended; return the states and observations of all.

    On a CPU, the reset is computed only in steps in which an episode ended, which gives up to 1.5 times as many steps a second.
    Under `vmap` over seeds, and on an accelerator, the reset is computed in every step.

    A slow reset is computed only for the environments that need it, even under `vmap`. A CPU resets one environment at a time. An
    accelerator resets a sixteenth of all environments, but at least 8, at a time. Both reset the same environments, with the same
    keys.

    Args:
        reset: `(keys [n]) -> (env_state, obs)`.
        keys: `[B]`.
        ended: `[B]` bool.
        running: `(env_state, obs)`, `[B, ...]`, before the reset.
        slow_reset: True if a reset takes as long as dozens of steps.
    """
    if slow_reset:
        return _reset_in_lanes(reset, keys, ended, running)
    choose = lambda new, old: jax.vmap(jnp.where)(ended, new, old)
    return where_any(ended, lambda: jax.tree.map(choose, reset(keys), running), running)


def _reset_in_lanes(reset: Callable, keys: jax.Array, done: jax.Array, running: PyTree) -> PyTree:
    """Reset the environments whose episode ended, a few at a time: `restart` for slow resets."""
    count = done.size
    ended_first, ended = jnp.argsort(~done), done.sum(dtype=jnp.int32)

    def in_lanes(lanes: int) -> PyTree:
        def trip(carry):
            begin, current = carry
            place = begin + jnp.arange(lanes, dtype=jnp.int32)
            rows = ended_first[jnp.minimum(place, count - 1)]
            fresh = reset(keys[rows])
            to = jnp.where(place < ended, rows, count)  # drop resets of environments whose episode goes on
            return begin + lanes, jax.tree.map(lambda x, new: x.at[to].set(new, mode="drop"), current, fresh)

        return jax.lax.while_loop(lambda carry: carry[0] < ended, trip, (jnp.int32(0), running))[1]

    return by_platform(cpu=lambda: in_lanes(1), accelerator=lambda: in_lanes(min(max(LANES, count // 16), count)))
