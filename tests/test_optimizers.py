import jax.numpy as jnp
import numpy as np

from purerl.clock import clock_at
from purerl.optimizers import clip_scale, learning_rate


def test_clipping_matches_the_reference_vector(vectors):
    given, expected = vectors["gradient_clipping"]
    norm = jnp.sqrt(sum(jnp.sum(jnp.float32(g) ** 2) for g in given["grads"]))
    np.testing.assert_allclose(norm, expected["global_norm"], rtol=1e-6)
    for gradient, want in zip(given["grads"], expected["optax"], strict=True):
        np.testing.assert_allclose(gradient * clip_scale(norm, given["max_norm"]), want, rtol=1e-5)


def test_clipping_edges():
    assert clip_scale(jnp.float32(0), jnp.float32(0.5)) == 1
    assert clip_scale(jnp.float32(1e9), jnp.float32(jnp.inf)) == 1
    assert clip_scale(jnp.float32(0.4), jnp.float32(0.5)) == 1


def test_linear_schedule_matches_the_reference_vector(vectors):
    given, expected = vectors["lr_schedules"][0]["linear"], vectors["lr_schedules"][1]["linear"]
    rate = lambda i: learning_rate(clock_at(int(i) - 1), int(given["n"]), jnp.float32(given["lr"]), jnp.float32(0), "linear")
    np.testing.assert_allclose([rate(i) for i in given["iterations"]], expected, rtol=1e-5)


def test_rates_of_eight_updates():
    rate = lambda i: learning_rate(clock_at(i), 8, jnp.float32(2.5e-4), jnp.float32(0), "linear")
    np.testing.assert_allclose([rate(i) for i in range(8)], 2.5e-4 - 3.125e-5 * np.arange(8), rtol=1e-5)
    assert learning_rate(clock_at(7), 8, jnp.float32(2.5e-4), jnp.float32(0), "constant") == np.float32(2.5e-4)
    halfway = learning_rate(clock_at(4), 8, jnp.float32(1e-3), jnp.float32(5e-4), "linear")
    np.testing.assert_allclose(halfway, 7.5e-4, rtol=1e-6)
