import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from purerl.learning.shuffle import permutation


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 16, 100, 512, 1000, 4097, 70_000])
def test_permutation_contains_every_index_once(n):
    order = jax.jit(jax.vmap(lambda key: permutation(key, n)))(jax.random.split(jax.random.key(0), 3))
    assert order.dtype == jnp.int32
    for row in np.asarray(order):
        np.testing.assert_array_equal(np.sort(row), np.arange(n))


def affine(key, n):
    """Return a shuffle that looks random and is not: `(a * i + b) % n`."""
    key_a, key_b = jax.random.split(key)
    coprime = jnp.array([a for a in range(1, n) if np.gcd(a, n) == 1], jnp.uint32)
    a = jax.random.choice(key_a, coprime)
    return ((a * jnp.arange(n, dtype=jnp.uint32) + jax.random.randint(key_b, (), 0, n).astype(jnp.uint32)) % n).astype(jnp.int32)


def p_values(shuffle, n, draws):
    """Return the p-values of chi-square tests over many keys: of positions, and of two consecutive gaps between neighbours."""
    orders = np.asarray(jax.jit(jax.vmap(lambda key: shuffle(key, n)))(jax.random.split(jax.random.key(7), draws)))

    def pool(x, size):  # neighbouring values share a bin, so that each bin is full enough
        return x * min(size, 20) // size

    share = np.bincount(pool(np.arange(n), n)) / n
    landed = np.zeros((len(share), len(share)))
    np.add.at(landed, (np.broadcast_to(pool(np.arange(n), n), orders.shape), pool(orders, n)), 1)
    position = p_value(landed, orders.size * np.outer(share, share), (len(share) - 1) ** 2)

    gaps = np.diff(orders[:, : n // 3 * 3].reshape(draws, -1, 3), axis=-1).reshape(-1, 2) % n
    possible = np.stack(np.meshgrid(np.arange(1, n), np.arange(1, n)), -1).reshape(-1, 2)
    possible = possible[possible.sum(-1) != n]  # a sum of n would come back to the same index
    counts = lambda pairs: np.bincount(pool(pairs - 1, n - 1) @ [20, 1], minlength=400)
    expected = counts(possible) / len(possible) * len(gaps)
    neighbour = p_value(counts(gaps)[expected > 0], expected[expected > 0], (expected > 0).sum() - 1)
    return position, neighbour


def p_value(seen, expected, freedom):
    return chi2.sf(((seen - expected) ** 2 / expected).sum(), freedom)


SIZES = [(5, 100_000), (512, 4_000), (1000, 2_000)]


@pytest.mark.parametrize(("n", "draws"), SIZES)
def test_positions_and_neighbours_are_random(n, draws):
    position, neighbour = p_values(permutation, n, draws)
    assert min(position, neighbour) > 1e-3


@pytest.mark.parametrize(("n", "draws"), SIZES)
def test_randomness_test_rejects_an_affine_map(n, draws):
    assert min(p_values(affine, n, draws)) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("n", [128, 512])
def test_neighbours_stay_adjacent_only_by_chance(n):
    orders = np.asarray(jax.jit(jax.vmap(lambda key: permutation(key, n)))(jax.random.split(jax.random.key(5), 20_000)))
    kept = (np.abs(np.diff(orders, axis=1)) == 1).sum(axis=1)
    assert abs(kept.mean() - 2 * (n - 1) / n) < 4 * kept.std() / np.sqrt(len(kept))


def test_all_orders_of_five_are_equally_likely():
    orders = np.asarray(jax.jit(jax.vmap(lambda key: permutation(key, 5)))(jax.random.split(jax.random.key(3), 240_000)))
    counts = np.unique(orders @ 5 ** np.arange(5), return_counts=True)[1]
    assert len(counts) == 120
    assert p_value(counts, 2000, 119) > 1e-3
