import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purerl.distributions import Categorical, DiagGaussian
from purerl.types import Box


def test_categorical_matches_the_reference_vector(vectors):
    given, expected = vectors["distributions"]
    old, new = Categorical(jnp.float32(given["logits_old"])), Categorical(jnp.float32(given["logits_new"]))
    want = expected["categorical"]
    np.testing.assert_allclose(old.kl(new), want["kl_old_new"], rtol=1e-5)
    np.testing.assert_allclose(new.kl(old), want["kl_new_old"], rtol=1e-5)
    np.testing.assert_allclose(new.entropy(), want["entropy"], rtol=1e-5)
    np.testing.assert_allclose(new.log_prob(jnp.int32(given["actions"])), want["log_prob"], rtol=1e-5)


def test_gaussian_matches_the_reference_vector(vectors):
    given, expected = vectors["distributions"]
    of = lambda which: DiagGaussian(jnp.float32(given[f"mean_{which}"]), jnp.log(jnp.float32(given[f"std_{which}"])))
    want = expected["gaussian"]
    np.testing.assert_allclose(of("old").kl(of("new")), want["kl_old_new"], rtol=1e-5)
    np.testing.assert_allclose(of("new").entropy(), want["entropy_sum"], rtol=1e-5)
    np.testing.assert_allclose(of("new").log_prob(jnp.float32(given["box_actions"])), want["log_prob"], rtol=1e-5)


def test_known_entropies():
    np.testing.assert_allclose(Categorical(jnp.zeros(4)).entropy(), 1.386294, rtol=1e-6)
    np.testing.assert_allclose(DiagGaussian(jnp.zeros(3), jnp.zeros(3)).entropy(), 3 * 1.418939, rtol=1e-6)


def test_samples_follow_the_probabilities():
    categorical = Categorical(jnp.log(jnp.array([0.5, 0.2, 0.3])))
    drawn = jax.vmap(categorical.sample)(categorical.noise(jax.random.key(0), 200_000))
    np.testing.assert_allclose(np.bincount(drawn) / 200_000, [0.5, 0.2, 0.3], atol=5e-3)
    gaussian = DiagGaussian(jnp.array([1.0, -2.0]), jnp.log(jnp.array([0.5, 2.0])))
    drawn = jax.vmap(gaussian.sample)(gaussian.noise(jax.random.key(0), 200_000))
    np.testing.assert_allclose(drawn.mean(0), [1, -2], atol=2e-2)
    np.testing.assert_allclose(drawn.std(0), [0.5, 2], rtol=1e-2)
    estimate = -jax.vmap(gaussian.log_prob)(drawn).mean()
    np.testing.assert_allclose(estimate, gaussian.entropy(), rtol=1e-2)


def test_densities_integrate_to_one():
    gaussian, grid = DiagGaussian(jnp.array([0.3]), jnp.array([-0.7])), jnp.linspace(-8, 8, 20_001)
    density = jnp.exp(jax.vmap(gaussian.log_prob)(grid[:, None]))
    assert abs(np.trapezoid(density, grid) - 1) < 1e-3
    categorical = Categorical(jnp.array([1.0, -2, 0.5]))
    np.testing.assert_allclose(jnp.exp(jax.vmap(categorical.log_prob)(jnp.arange(3))).sum(), 1, rtol=1e-6)


@pytest.mark.parametrize("log_std", [-50.0, -20.0, 2.0, 50.0])
def test_log_std_bounds_keep_everything_finite(log_std):
    of = lambda x: DiagGaussian(jnp.zeros(2), jnp.full(2, x))
    kept = np.clip(log_std, -20, 2)
    np.testing.assert_allclose(of(log_std).entropy(), 2 * (kept + 1.418939), rtol=1e-5)
    value, gradient = jax.value_and_grad(lambda x: of(x).log_prob(jnp.full(2, 1e-9)))(log_std)
    assert np.isfinite(value)
    assert np.isfinite(gradient)
    assert (gradient == 0) == (abs(log_std) == 50)


def test_kl_of_equal_distributions_is_zero():
    gaussian = DiagGaussian(jnp.array([0.3, 1.0]), jnp.array([-0.7, 0.1]))
    assert gaussian.kl(gaussian) == 0
    assert Categorical(jnp.array([1.0, 3.0])).kl(Categorical(jnp.array([2.0, 4.0]))) == pytest.approx(0, abs=1e-6)


def test_the_environment_gets_the_clipped_action_in_its_own_shape():
    space = Box(np.full((2, 2), -1, np.float32), np.full((2, 2), 1, np.float32))
    gaussian = DiagGaussian(jnp.zeros((3, 4)), jnp.zeros((3, 4)))
    action = jnp.arange(12.0).reshape(3, 4) - 6
    received = gaussian.env_action(action, space)
    assert received.shape == (3, 2, 2)
    np.testing.assert_array_equal(received, np.clip(action, -1, 1).reshape(3, 2, 2))


def test_gradient_of_the_log_probability():
    logits = jnp.array([0.2, -1.0, 0.7])
    got = jax.grad(lambda x: Categorical(x).log_prob(jnp.int32(1)))(logits)
    np.testing.assert_allclose(got, jnp.array([0.0, 1, 0]) - jax.nn.softmax(logits), rtol=1e-5)
