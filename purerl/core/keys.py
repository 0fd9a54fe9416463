"""The update counter of an agent, and random keys derived from names and counters.

Each use of randomness has its own name and key. Adding a use does not change the keys of other uses.
"""

import math
import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.core.errors import config_error

WORD = 2**32


class Clock(struct.PyTreeNode):
    """Counter of finished updates, `high * 2**32 + low`: two uint32 words, exact up to 2**64 without 64-bit JAX.

    `clock + n`, `clock - n`, `clock < n` and `clock % k` take Python ints. `clock - n` is 0 until n updates are finished.
    """

    high: jax.Array
    low: jax.Array

    def __add__(self, n: int) -> "Clock":
        """Return the counter n updates later, for n < 2**32."""
        low = self.low + np.uint32(n)
        return Clock(high=self.high + (low < np.uint32(n)).astype(jnp.uint32), low=low)

    def __sub__(self, n: int) -> "Clock":
        """Return the counter of finished updates beyond the first n. Until n updates are finished, the result is 0."""
        high, low = (np.uint32(word) for word in divmod(n, WORD))
        early, borrow = self < n, (self.low < low).astype(jnp.uint32)
        zero = jnp.uint32(0)
        return Clock(high=jnp.where(early, zero, self.high - high - borrow), low=jnp.where(early, zero, self.low - low))

    def __lt__(self, n: int) -> jax.Array:
        """Return True if fewer than n updates are finished. Bool scalar."""
        high, low = (np.uint32(word) for word in divmod(n, WORD))
        return (self.high < high) | ((self.high == high) & (self.low < low))

    def __mod__(self, k: int) -> jax.Array:
        """Return the remainder modulo k, uint32 scalar. k is at most 2**16, so that products of remainders fit in 32 bits."""
        size, word = np.uint32(k), np.uint32(WORD % k)
        return ((self.high % size) * word + self.low % size) % size

    def __int__(self) -> int:
        """Return the exact number of finished updates. The counter must be concrete, not traced."""
        return int(self.high) * WORD + int(self.low)

    def as_float(self) -> jax.Array:
        """Return the number of finished updates, rounded to float32."""
        return self.high.astype(jnp.float32) * np.float32(WORD) + self.low.astype(jnp.float32)

    def progress(self, num_updates: int) -> jax.Array:
        """Return the finished fraction of a run of `num_updates` updates: float32 from 0 to 1."""
        return jnp.minimum(self.as_float() / np.float32(num_updates), np.float32(1))

    def is_due(self, every: int) -> jax.Array:
        """Return True if the number of the next update, counted from 1, is a multiple of `every`. Bool scalar."""
        return self % every == np.uint32(every - 1)


def clock_at(updates: int) -> Clock:
    """Return the counter after `updates` finished updates."""
    high, low = divmod(updates, WORD)
    return Clock(high=jnp.uint32(high), low=jnp.uint32(low))


def gradient_steps(clock: Clock, per_update: int, step: jax.Array) -> jax.Array:
    """Return the number of gradient steps before gradient step `step` of the next update: int32, at most 2**31 - 1."""
    largest = 2**31 - 1
    counted = clock.low * np.uint32(per_update) + step
    return jnp.where(clock < largest // per_update, counted.astype(jnp.int32), jnp.int32(largest))


# --- keys -------------------------------------------------------------------------------------------------------------


def fold_in_name(key: jax.Array, name: str, *counters: Clock | int | jax.Array) -> jax.Array:
    """Return the key for the named use of randomness at these counters, derived from the root `key`.

    Unlike a split key, the result does not depend on other names or on the order of calls. The root key is not consumed. Each
    combination of name and counters must be used only once.
    """
    key = jax.random.fold_in(key, np.uint32(zlib.crc32(name.encode())))
    for counter in counters:
        words = (counter.high, counter.low) if isinstance(counter, Clock) else (counter,)
        for word in words:
            key = jax.random.fold_in(key, word)
    return key


def flat_draw(draw: Callable, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the numbers of `draw(key, shape)`, sampled along one flat axis in half the compile time. The key is consumed."""
    return draw(key, (math.prod(shape),), jnp.float32).reshape(shape)


def split_keys(key: jax.Array, *shape: int) -> jax.Array:
    """Return the keys of `jax.random.split(key, shape)`, split along one flat axis in half the compile time."""
    return jax.random.split(key, math.prod(shape)).reshape(shape)


def typed_key(key: jax.Array) -> jax.Array:
    """Return a single key, typed (`jax.random.key`) or raw (`jax.random.PRNGKey`), as a typed key.

    Raises:
        ConfigError: `key` is not a random key, or is an array of several keys.
    """
    wrong = lambda value, hint: config_error("key", value, hint)
    if not isinstance(key, jax.Array | np.ndarray):
        raise wrong(key, "must be a key, such as jax.random.key(0)")
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.dtype != np.uint32 or key.ndim == 0:
            raise wrong(f"{key.dtype}{list(key.shape)}", "must be a key, such as jax.random.key(0)")
        key = jax.random.wrap_key_data(key)
    if key.ndim:
        raise wrong(f"keys {list(key.shape)}", "must be a single key; to train many agents, use jax.vmap over the keys")
    return key
