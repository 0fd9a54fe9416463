"""Reductions over a device axis."""

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.reductions import Axis, mean, on_axis, pmax, quantile, total
from purerl.learning.advantages import moments


def test_reductions_over_a_device_axis_equal_those_of_the_whole_batch():
    x = jnp.float32(np.random.default_rng(0).normal(size=(4, 8)) + np.arange(4)[:, None] * 10)  # unequal shards
    reduced = lambda x: (mean(x), *moments(x), total(x), pmax(x), quantile(x, 0.7))
    pooled, whole = jax.vmap(on_axis(reduced, Axis("d", 4)), axis_name="d")(x), reduced(x)
    for got, want in zip(pooled, whole, strict=True):
        np.testing.assert_allclose(got, np.full(4, want), rtol=1e-6)
