"""Distributions over continuous actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.core.spaces import Box
from purerl.networks.distributions import DiagGaussian, TanhGaussian
from tests.helpers.tiny import CFG, tiny


def test_gaussian_matches_the_reference_vector(vectors):
    given, expected = vectors["distributions"]
    of = lambda which: DiagGaussian(jnp.float32(given[f"mean_{which}"]), jnp.log(jnp.float32(given[f"std_{which}"])))
    want = expected["gaussian"]
    np.testing.assert_allclose(of("old").kl(of("new")), want["kl_old_new"], rtol=1e-5)
    np.testing.assert_allclose(of("new").entropy(), want["entropy_sum"], rtol=1e-5)
    np.testing.assert_allclose(of("new").log_prob(jnp.float32(given["box_actions"])), want["log_prob"], rtol=1e-5)


@pytest.mark.parametrize("log_std", [-50.0, -20.0, 20.0, 50.0])
def test_log_std_bounds_keep_everything_finite(log_std):
    of = lambda x: DiagGaussian(jnp.zeros(2), jnp.full(2, x))
    kept = np.clip(log_std, -20, 20)
    np.testing.assert_allclose(of(log_std).entropy(), 2 * (kept + 1.418939), rtol=1e-5)
    value, gradient = jax.value_and_grad(lambda x: of(x).log_prob(jnp.full(2, 1e-9)))(log_std)
    assert np.isfinite(value)
    assert np.isfinite(gradient)
    assert (gradient == 0) == (abs(log_std) == 50)


def test_environment_action_is_clipped_and_reshaped():
    space = Box(np.full((2, 2), -1, np.float32), np.full((2, 2), 1, np.float32))
    gaussian = DiagGaussian(jnp.zeros((3, 4)), jnp.zeros((3, 4)))
    action = jnp.arange(12.0).reshape(3, 4) - 6
    received = gaussian.env_action(action, space)
    assert received.shape == (3, 2, 2)
    np.testing.assert_array_equal(received, np.clip(action, -1, 1).reshape(3, 2, 2))


def test_tanh_log_probabilities_of_extreme_actions_are_finite():
    tanh = TanhGaussian(jnp.zeros(1), jnp.zeros(1))
    got = [tanh.log_prob(jnp.array([u])) for u in (0.0, 8.0, 20.0)]
    np.testing.assert_allclose(got, [-0.918939, -18.305233, -162.305233], rtol=1e-6)
    slopes = jax.vmap(jax.grad(lambda u: tanh.log_prob(u[None])))(jnp.array([0.0, 8.0, 20.0, 80.0]))
    assert np.isfinite(slopes).all()


def test_tanh_density_integrates_to_one():
    tanh, grid = TanhGaussian(jnp.array([0.4]), jnp.array([-0.3])), jnp.linspace(-1, 1, 40_001)[1:-1]
    density = jnp.exp(jax.vmap(tanh.log_prob)(jnp.arctanh(grid)[:, None]))
    assert abs(np.trapezoid(density, grid) - 1) < 1e-3


@pytest.mark.parametrize("mean", [0.0, 1.5])
@pytest.mark.parametrize("log_std", [-3.0, 0.0, 1.0, 2.0])
def test_tanh_entropy_equals_a_sample_estimate(mean, log_std):
    tanh = TanhGaussian(jnp.full(2, mean), jnp.full(2, log_std))
    drawn = jax.vmap(tanh.sample)(tanh.noise(jax.random.key(0), 100_000))
    np.testing.assert_allclose(tanh.entropy(), -jax.vmap(tanh.log_prob)(drawn).mean(), rtol=1e-2)


def test_tanh_actions_reach_their_bounds_and_never_leave_them():
    space = Box(jnp.array([-2.0, 0.0]), jnp.array([2.0, 10.0]))
    tanh = TanhGaussian(jnp.zeros((3, 2)), jnp.zeros((3, 2)))
    got = tanh.env_action(jnp.array([[0.0, 0.0], [50.0, 50.0], [-50.0, -50.0]]), space)
    np.testing.assert_allclose(got, [[0, 5], [2, 10], [-2, 0]], atol=1e-6)


@pytest.mark.parametrize("kind", [DiagGaussian, TanhGaussian])
def test_uniform_actions_are_uniform(kind):
    space = Box(jnp.array([-2.0]), jnp.array([4.0]))
    policy = kind(jnp.full((1,), 3.0), jnp.full((1,), -2.0))
    bounds = (space.low, space.high)
    drawn = jax.vmap(lambda noise: policy.uniform_sample(noise, *bounds))(policy.noise(jax.random.key(0), 100_000))
    sent = jax.vmap(lambda u: policy.env_action(u, space))(drawn)
    shares = np.histogram(sent, 6, (-2, 4))[0] / 100_000
    np.testing.assert_allclose(shares, 1 / 6, atol=5e-3)
    width = 6 if kind is DiagGaussian else 2  # the density is over the output of the tanh, which is 2 wide
    np.testing.assert_allclose(policy.uniform_log_prob(drawn[0], *bounds), -np.log(width), rtol=1e-5)


def test_tanh_actions_do_not_leave_their_bounds_by_rounding():
    low, high = (jnp.array([x], jnp.float32) for x in (-3.942506, 0.60584116))
    policy = TanhGaussian(jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    assert policy.env_action(jnp.array([[50.0]]), Box(low, high))[0] == high
    assert policy.env_action(jnp.array([[-50.0]]), Box(low, high))[0] == low


def test_large_standard_deviations_are_sampled_and_trainable():
    policy = lambda log_std: DiagGaussian(jnp.zeros(1), jnp.full(1, log_std))
    assert policy(3.4).sample(jnp.ones(1))[0] == pytest.approx(np.exp(3.4), rel=1e-5)
    assert jax.grad(lambda x: policy(x).log_prob(jnp.full(1, 5.0)))(3.4) == pytest.approx(-1, abs=0.1)
    for wrong in (21.0, -21.0):
        with pytest.raises(purerl.ConfigError, match=r"log_std_init.*between -20 and 20"):
            tiny(CFG.replace(log_std_init=wrong), box=True)


@pytest.mark.parametrize("shift", [1e-4, 1e-2])
def test_kl_divergence_of_near_gaussians_is_not_rounded_to_zero(shift):
    near, far = (DiagGaussian(jnp.full(1, x), jnp.zeros(1)) for x in (0.0, shift))
    np.testing.assert_allclose(near.kl(far), shift**2 / 2, rtol=1e-5)


def test_one_standard_deviation_of_all_dimensions_counts_for_each():
    one, each = (DiagGaussian(jnp.ones(3), jnp.full(n, 0.5)) for n in (1, 3))
    action = jnp.array([0.5, 1.0, 2.0])
    for of in (lambda x: x.entropy(), lambda x: x.log_prob(action), lambda x: x.kl(DiagGaussian(jnp.zeros(3), jnp.zeros(1)))):
        np.testing.assert_allclose(of(one), of(each), rtol=1e-6)
