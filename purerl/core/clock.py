"""The counter of finished updates, and what follows from it. It is exact beyond 2**32 without 64-bit JAX."""

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.types import Clock

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


def increment(clock: Clock) -> Clock:
    """The clock one update later."""
    return advance(clock, 1)


def is_before(clock: Clock, updates: int) -> jax.Array:
    """Whether fewer than so many updates are finished. Bool scalar."""
    high, low = (np.uint32(word) for word in divmod(updates, WORD))
    return (clock.high < high) | ((clock.high == high) & (clock.low < low))


def updates_since(clock: Clock, updates: int) -> Clock:
    """The clock as if it had begun after so many updates; it stands at 0 until then."""
    high, low = (np.uint32(word) for word in divmod(updates, WORD))
    early, borrow = is_before(clock, updates), (clock.low < low).astype(jnp.uint32)
    zero = jnp.uint32(0)
    return Clock(high=jnp.where(early, zero, clock.high - high - borrow), low=jnp.where(early, zero, clock.low - low))


def updates_in_float32(clock: Clock) -> jax.Array:
    """The number of finished updates, rounded: float32."""
    return clock.high.astype(jnp.float32) * np.float32(WORD) + clock.low.astype(jnp.float32)


def progress(clock: Clock, num_updates: int) -> jax.Array:
    """Finished share of a run of `num_updates`: float32 from 0 to 1."""
    return jnp.minimum(updates_in_float32(clock) / np.float32(num_updates), np.float32(1))


def gradient_steps(clock: Clock, per_update: int, step: jax.Array) -> jax.Array:
    """Gradient steps before the one of this index in its update: int32, which stays at its largest value once it is reached."""
    largest = 2**31 - 1
    counted = clock.low * np.uint32(per_update) + step
    return jnp.where(is_before(clock, largest // per_update), counted.astype(jnp.int32), jnp.int32(largest))


def remainder(clock: Clock, k: int) -> jax.Array:
    """Finished updates modulo k, at most 2**16 so that the remainders of both words multiply within 32 bits. uint32 scalar."""
    modulus, word = np.uint32(k), np.uint32(WORD % k)
    return ((clock.high % modulus) * word + clock.low % modulus) % modulus


def is_due(clock: Clock, every: int) -> jax.Array:
    """Whether the update that the clock stands before is one of each k-th: the k-th, the 2k-th, ... Bool scalar."""
    return remainder(clock, every) == np.uint32(every - 1)
