"""Random keys by name. Each use of randomness has its own key, so that adding one does not change the others."""

import math
import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.clock import Clock
from purerl.core.errors import ConfigError, Problem
from purerl.core.reductions import fold_in_device


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


def local_key(key: jax.Array, name: str, *counters: Clock | int | jax.Array) -> jax.Array:
    """Return this device's own key for a named use of randomness; see `named_key`."""
    return fold_in_device(named_key(key, name, *counters))


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
