"""Shuffling without sorting: a random bijection of an index range.

Sorting random bits costs as much as the gradients of a large batch: 14 ms for 65 536 indices on two CPU cores, where this shuffle
takes 0.3 ms. The method is from Mitchell et al. 2021, "Bandwidth-Optimal Random Shuffling for GPUs" (arXiv:2106.06161).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.platform import scan

ROUNDS = 12  # with 6 rounds, chi-square tests over many keys still reject uniformity for n = 5; larger ranges need fewer


def permutation(key: jax.Array, n: int) -> jax.Array:
    """Return a random permutation of `0 .. n - 1`, for any n below 2**31. `[n]` int32.

    The permutation is a Feistel network. An index is written as `left * b + right` with left < a, right < b, and a * b equal to n
    or slightly larger. Each round adds a keyed hash of `right` to `left`, modulo a, and then a keyed hash of `left` to `right`,
    modulo b; both steps are invertible. An index that lands outside the range is encrypted again until it lands inside ("cycle
    walking"), which keeps the map a bijection. Fewer than 2 sqrt(n) indices lie outside. Pointer doubling finds where these
    indices lead, without a loop whose length depends on the key.

    Args:
        key: consumed.
        n: length of the range.
    """
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    round_keys = jax.random.bits(key, (ROUNDS * 2,), jnp.uint32).reshape(ROUNDS, 2)

    def encrypt(index):
        def one_round(halves, keys):
            left, right = halves
            left = _add(left, _hash(right, keys[0], a), a)
            right = _add(right, _hash(left, keys[1], b), b)
            return (left, right), None

        left = index // np.uint32(b)
        (left, right), _ = scan(one_round, (left, index - left * np.uint32(b)), round_keys, unroll=ROUNDS)
        return left * np.uint32(b) + right

    index = encrypt(jnp.arange(a * b, dtype=jnp.uint32))
    inside, leads_to = index[:n], index[n:]

    def follow(index, leads_to):
        outside = index >= np.uint32(n)
        return jnp.where(outside, leads_to[jnp.where(outside, index - np.uint32(n), np.uint32(0))], index)

    if a * b == n:
        return inside.astype(jnp.int32)
    leads_to = jax.lax.fori_loop(0, (a * b - n).bit_length(), lambda _, leads_to: follow(leads_to, leads_to), leads_to)
    return follow(inside, leads_to).astype(jnp.int32)


def _add(x: jax.Array, y: jax.Array, modulus: int) -> jax.Array:
    """Compute `(x + y) % modulus` for uint32 x and y below the modulus.

    If `x + y - modulus` is negative, it wraps around to a large number, and the minimum is `x + y`.
    """
    return jnp.minimum(x + y, x + y - np.uint32(modulus))


def _hash(x: jax.Array, key: jax.Array, size: int) -> jax.Array:
    """Hash uint32 to `0 .. size - 1`, for a size of at most 2**16: multiply, shift, multiply, shift, scale."""
    x = (x ^ key) * np.uint32(0x9E3779B1)
    x = (x ^ (x >> 15)) * np.uint32(0x85EBCA77)
    x = x ^ (x >> 13)
    return ((x >> 16) * np.uint32(size)) >> 16
