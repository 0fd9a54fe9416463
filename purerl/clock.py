"""The counter of finished updates, and what is derived from it. Exact past 2**32 without 64-bit JAX."""

import jax
import jax.numpy as jnp
import numpy as np

from purerl.types import Clock

WORD = 2**32


def clock_at(updates: int) -> Clock:
    """The clock after so many updates."""
    high, low = divmod(updates, WORD)
    return Clock(high=jnp.uint32(high), low=jnp.uint32(low))


def updates_at(clock: Clock) -> int:
    """The number of finished updates, as an exact Python int. Needs a concrete clock."""
    return int(clock.high) * WORD + int(clock.low)


def advance(clock: Clock, by: int) -> Clock:
    """The clock `by < 2**32` counts later."""
    low = clock.low + np.uint32(by)
    return Clock(high=clock.high + (low < np.uint32(by)).astype(jnp.uint32), low=low)


def tick(clock: Clock) -> Clock:
    """The clock one update later."""
    return advance(clock, 1)


def progress(clock: Clock, num_updates: int) -> jax.Array:
    """Finished share of a run of `num_updates`: float32 from 0 to 1."""
    done = clock.high.astype(jnp.float32) * np.float32(WORD) + clock.low.astype(jnp.float32)
    return jnp.minimum(done / np.float32(num_updates), np.float32(1))


def due(clock: Clock, every: int) -> jax.Array:
    """Whether the update that the clock stands before is one of each k-th: the k-th, the 2k-th, ... Bool scalar.

    `every` is at most 2**16, so that the remainders of both words multiply within 32 bits.
    """
    k = np.uint32(every)
    remainder = (clock.high % k) * np.uint32(WORD % every) + clock.low % k
    return remainder % k == k - np.uint32(1)
