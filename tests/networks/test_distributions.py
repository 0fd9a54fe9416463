import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.core.spaces import Box
from purerl.networks.distributions import ILLEGAL, Bernoulli, Categorical, DiagGaussian, MultiCategorical, TanhGaussian
from purerl.networks.modules import with_finite_logits


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


@pytest.mark.parametrize("log_std", [-50.0, -20.0, 20.0, 50.0])
def test_log_std_bounds_keep_everything_finite(log_std):
    of = lambda x: DiagGaussian(jnp.zeros(2), jnp.full(2, x))
    kept = np.clip(log_std, -20, 20)
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


# --- discrete actions -------------------------------------------------------------------------------------------------


def every_action(policy):
    """Return all actions of a discrete distribution, and their probabilities."""
    sizes = {Categorical: lambda: (policy.logits.size,), MultiCategorical: lambda: policy.sizes, Bernoulli: lambda: (2,) * 3}
    actions = np.stack(np.meshgrid(*map(np.arange, sizes[type(policy)]()), indexing="ij"), -1).reshape(
        -1, len(sizes[type(policy)]())
    )
    actions = jnp.int32(actions[:, 0] if isinstance(policy, Categorical) else actions)
    return actions, np.asarray(jnp.exp(jax.vmap(policy.log_prob)(actions)))


def choices(seed=0):
    draw = lambda n: jax.random.normal(jax.random.key(seed), (n,))
    return [Categorical(draw(4)), MultiCategorical(draw(5), (2, 3)), Bernoulli(draw(3))]


@pytest.mark.parametrize("i", range(3))
def test_choices_are_what_enumeration_says(i):
    policy, other = choices(0)[i], choices(1)[i]
    actions, p = every_action(policy)
    _, q = every_action(other)
    np.testing.assert_allclose(p.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(policy.entropy(), -(p * np.log(p)).sum(), rtol=1e-5)
    np.testing.assert_allclose(policy.kl(other), (p * np.log(p / q)).sum(), rtol=1e-4)
    np.testing.assert_array_equal(policy.mode(), actions[p.argmax()])
    drawn = jax.vmap(policy.sample)(policy.noise(jax.random.key(2), 100_000))
    shares = (drawn.reshape(100_000, 1, -1) == actions.reshape(1, len(p), -1)).all(-1).mean(0)
    np.testing.assert_allclose(shares, p, atol=6e-3)


@pytest.mark.parametrize("policy", choices()[:2], ids=["categorical", "multi"])
def test_masked_choices_never_happen(policy):
    legal = jnp.array([True, False, True, False, True])[: policy.logits.size]
    masked = policy.masked(legal)
    drawn = jax.vmap(masked.sample)(masked.noise(jax.random.key(0), 20_000))
    uniform = jax.vmap(masked.uniform_sample)(masked.noise(jax.random.key(0), 20_000))
    for taken in (drawn, uniform, masked.mode()[None]):
        taken = taken.reshape(len(taken), -1)
        offsets = np.array([0, 2])[None, : taken.shape[1]]
        assert np.asarray(legal)[np.asarray(taken) + offsets].all()
    _, p = every_action(masked)
    allowed = p > 0
    np.testing.assert_allclose(p.sum(), 1, rtol=1e-5)
    np.testing.assert_allclose(masked.entropy(), -(p[allowed] * np.log(p[allowed])).sum(), rtol=1e-5)
    np.testing.assert_array_equal(masked.kl(masked), 0)
    gradient = jax.grad(lambda x: policy.replace(logits=x).masked(legal).entropy())(policy.logits)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~legal], 0)


# --- the tanh ---------------------------------------------------------------------------------------------------------


def test_tanh_densities_far_out_are_finite():
    """Check reliability L1 11."""
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
def test_tanh_entropy_is_that_of_many_samples(mean, log_std):
    tanh = TanhGaussian(jnp.full(2, mean), jnp.full(2, log_std))
    drawn = jax.vmap(tanh.sample)(tanh.noise(jax.random.key(0), 100_000))
    np.testing.assert_allclose(tanh.entropy(), -jax.vmap(tanh.log_prob)(drawn).mean(), rtol=1e-2)


def test_tanh_reaches_its_bounds_and_never_leaves_them():
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
    width = 6 if kind is DiagGaussian else 2  # the density is that of the tanh, which is 2 wide
    np.testing.assert_allclose(policy.uniform_log_prob(drawn[0], *bounds), -np.log(width), rtol=1e-5)


def test_logits_of_minus_infinity_in_a_users_network():
    logits = jnp.array([[[0.3, -jnp.inf, 1.0]]])
    apply = lambda params, carry, obs, first: (purerl.Outputs(Categorical(logits), jnp.zeros((1, 1))), carry)
    outputs, _ = with_finite_logits(purerl.Network(lambda key, obs: {}, apply)).apply({}, (), None, None)
    p = np.exp([0.3, 1.0]) / np.exp([0.3, 1.0]).sum()
    np.testing.assert_allclose(outputs.policy.entropy(), -(p * np.log(p)).sum(), rtol=1e-6)
    assert (outputs.policy.kl(outputs.policy) == 0).all()
    gradient = jax.grad(lambda x: Categorical(jnp.maximum(x, ILLEGAL)).entropy().sum())(logits)
    assert np.isfinite(gradient).all()


def test_tanh_actions_do_not_leave_their_bounds_by_rounding():
    low, high = (jnp.array([x], jnp.float32) for x in (-3.942506, 0.60584116))
    policy = TanhGaussian(jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    assert policy.env_action(jnp.array([[50.0]]), Box(low, high))[0] == high
    assert policy.env_action(jnp.array([[-50.0]]), Box(low, high))[0] == low
