"""Linear recurrences equal their definition, on every platform's path, with the gradients of the definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purerl.networks.recurrences import BLOCK, in_blocks, linear_recurrence, step_by_step

PATHS = {"by platform": linear_recurrence, "step by step": step_by_step, "in blocks": in_blocks}


def definition(keep, added, h):
    outputs = []
    for k, a in zip(keep, added, strict=True):
        h = jnp.where(k == 0, jnp.zeros_like(h), k * h) + a
        outputs.append(h)
    return jnp.stack(outputs)


def drawn(length, dtype):
    """Return random factors, of which a tenth is zero, random summands, and a random beginning."""
    keys = jax.random.split(jax.random.key(length), 4)
    keep = jax.random.uniform(keys[0], (length, 2, 3)).astype(dtype)
    keep = keep * jnp.exp(1j * jax.random.normal(keys[3], keep.shape)) if dtype == jnp.complex64 else keep
    added = jax.random.normal(keys[1], keep.shape, dtype)
    return jnp.where(jnp.abs(keep) < 0.1, 0, keep), added, jax.random.normal(keys[2], keep.shape[1:], dtype)


@pytest.mark.each_landing("2-complex64-in blocks", "16-float32-in blocks", "80-float32-by platform", "80-complex64-in blocks")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
@pytest.mark.parametrize("length", [1, BLOCK + 1, *(pytest.param(x, marks=pytest.mark.slow) for x in (2, BLOCK, 5 * BLOCK))])
def test_recurrence_and_its_gradient_equal_the_definition(path, dtype, length):
    args = drawn(length, dtype)
    weight = jax.random.normal(jax.random.key(0), args[0].shape, dtype)

    def with_gradient(f):
        loss = lambda *args: (f(*args) * weight).sum().real
        return jax.jit(lambda *args: (f(*args), jax.grad(loss, argnums=(0, 1, 2))(*args)))(*args)

    (got, got_gradient), (want, want_gradient) = (with_gradient(f) for f in (PATHS[path], definition))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), got_gradient, want_gradient)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [1, 3, 2 * BLOCK + 1])
def test_a_factor_of_zero_ignores_what_is_not_finite(path, length):
    keep, added, before = drawn(length, jnp.float32)
    at = length // 2  # an episode begins
    spoilt = jnp.full_like(before, jnp.nan)
    keep, bad = keep.at[at].set(0), (keep.at[:at].set(jnp.nan).at[at].set(0), added.at[:at].set(jnp.nan), spoilt)
    last = lambda f: lambda *args: f(*args)[at:].sum()
    np.testing.assert_array_equal(PATHS[path](*bad)[at:], PATHS[path](keep, added, before)[at:])
    for_good, for_bad = (jax.grad(last(linear_recurrence), argnums=(0, 1))(*args) for args in ((keep, added, before), bad))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[at:], b[at:], rtol=1e-6), for_good, for_bad)


def test_recurrences_of_several_seeds_equal_those_of_one():
    args = drawn(40, jnp.float32)
    many = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), args)
    got = jax.vmap(linear_recurrence)(*many)
    np.testing.assert_allclose(got[0], definition(*args), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[1], definition(*jax.tree.map(lambda x: 0.5 * x, args)), rtol=1e-4, atol=1e-5)


def test_a_thousand_steps_keep_what_a_slow_unit_stored():
    keep = jnp.full((1000, 1), 0.999)
    added = jnp.zeros((1000, 1)).at[0].set(1.0)
    for path in PATHS.values():
        np.testing.assert_allclose(path(keep, added, jnp.zeros(1))[-1], 0.999**999, rtol=1e-4)
