"""The clock of an agent, and its random keys, by name and clock.

The clock counts finished updates. Each use of randomness has its own key, so that adding one does not change the others.
"""

import math
import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.core.errors import ConfigError, Problem

WORD = 2**32


class Clock(struct.PyTreeNode):
    """Finished updates, `high * 2**32 + low`: two uint32 words, exact to 2**64 without 64-bit JAX.

    `clock + n`, `clock - n`, which stays at 0 until n updates are finished, `clock < n` and `clock % k` are for Python ints.
    """

    high: jax.Array
    low: jax.Array

    def __add__(self, n: int) -> "Clock":
        """Return the clock n < 2**32 updates later."""
        low = self.low + np.uint32(n)
        return Clock(high=self.high + (low < np.uint32(n)).astype(jnp.uint32), low=low)

    def __sub__(self, n: int) -> "Clock":
        """Return the clock as if it had begun after n updates; it stands at 0 until then."""
        high, low = (np.uint32(word) for word in divmod(n, WORD))
        early, borrow = self < n, (self.low < low).astype(jnp.uint32)
        zero = jnp.uint32(0)
        return Clock(high=jnp.where(early, zero, self.high - high - borrow), low=jnp.where(early, zero, self.low - low))

    def __lt__(self, n: int) -> jax.Array:
        """Return True if fewer than n updates are finished. Bool scalar."""
        high, low = (np.uint32(word) for word in divmod(n, WORD))
        return (self.high < high) | ((self.high == high) & (self.low < low))

    def __mod__(self, k: int) -> jax.Array:
        """Return the remainder by k, at most 2**16 so that the words' remainders multiply within 32 bits. uint32 scalar."""
        size, word = np.uint32(k), np.uint32(WORD % k)
        return ((self.high % size) * word + self.low % size) % size

    def __int__(self) -> int:
        """Return the number of finished updates, exactly. Needs a concrete clock."""
        return int(self.high) * WORD + int(self.low)

    def as_float(self) -> jax.Array:
        """Return the number of finished updates, rounded to float32."""
        return self.high.astype(jnp.float32) * np.float32(WORD) + self.low.astype(jnp.float32)

    def progress(self, num_updates: int) -> jax.Array:
        """Return the finished share of a run of `num_updates`: float32 from 0 to 1."""
        return jnp.minimum(self.as_float() / np.float32(num_updates), np.float32(1))

    def is_due(self, every: int) -> jax.Array:
        """Return True if the next update is the last of each `every`: the k-th, the 2k-th, ... Bool scalar."""
        return self % every == np.uint32(every - 1)


def clock_at(updates: int) -> Clock:
    """Return the clock after so many updates."""
    high, low = divmod(updates, WORD)
    return Clock(high=jnp.uint32(high), low=jnp.uint32(low))


def gradient_steps(clock: Clock, per_update: int, step: jax.Array) -> jax.Array:
    """Return the gradient steps before the one of this index in its update: int32, which stays at its largest value."""
    largest = 2**31 - 1
    counted = clock.low * np.uint32(per_update) + step
    return jnp.where(clock < largest // per_update, counted.astype(jnp.int32), jnp.int32(largest))


# --- keys -------------------------------------------------------------------------------------------------------------


def named_key(key: jax.Array, name: str, *counters: Clock | int | jax.Array) -> jax.Array:
    """Return the key for the use `name` of randomness at these counters, folded from the root `key`.

    Unlike splitting, this does not depend on which other names exist or on the order of the calls. The root key is not consumed,
    but each pair of a name and counters must be used only once.
    """
    key = jax.random.fold_in(key, np.uint32(zlib.crc32(name.encode())))
    for counter in counters:
        words = (counter.high, counter.low) if isinstance(counter, Clock) else (counter,)
        for word in words:
            key = jax.random.fold_in(key, word)
    return key


def flat_draw(draw: Callable, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return `draw(key, shape)` by way of one flat axis: the same numbers for half the compile time. Consumes the key."""
    return draw(key, (math.prod(shape),), jnp.float32).reshape(shape)


def split_keys(key: jax.Array, *shape: int) -> jax.Array:
    """Return `jax.random.split(key, shape)` by way of one flat axis: the same keys for half the compile time."""
    return jax.random.split(key, math.prod(shape)).reshape(shape)


def typed_key(key: jax.Array) -> jax.Array:
    """Return a single key, typed (`jax.random.key`) or raw (`jax.random.PRNGKey`), as a typed one.

    Raises:
        ConfigError: not a key, or more than one.
    """
    wrong = lambda value, hint: ConfigError([Problem("key", value, hint)])
    if not isinstance(key, jax.Array | np.ndarray):
        raise wrong(key, "expected a key such as jax.random.key(0)")
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.dtype != np.uint32 or key.ndim == 0:
            raise wrong(f"{key.dtype}{list(key.shape)}", "expected a key such as jax.random.key(0)")
        key = jax.random.wrap_key_data(key)
    if key.ndim:
        raise wrong(f"keys {list(key.shape)}", "expected one key; jax.vmap over them to train many agents")
    return key
