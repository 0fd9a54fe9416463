import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purerl.core.spaces import Box, Discrete, Mixed, flat_bounds
from purerl.networks.distributions import Bernoulli, Categorical, DiagGaussian, Joint, MultiCategorical


def test_categorical_matches_the_reference_vector(vectors):
    given, expected = vectors["distributions"]
    old, new = Categorical(jnp.float32(given["logits_old"])), Categorical(jnp.float32(given["logits_new"]))
    want = expected["categorical"]
    np.testing.assert_allclose(old.kl(new), want["kl_old_new"], rtol=1e-5)
    np.testing.assert_allclose(new.kl(old), want["kl_new_old"], rtol=1e-5)
    np.testing.assert_allclose(new.entropy(), want["entropy"], rtol=1e-5)
    np.testing.assert_allclose(new.log_prob(jnp.int32(given["actions"])), want["log_prob"], rtol=1e-5)


def test_entropies_equal_known_values():
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


def test_kl_of_equal_distributions_is_zero():
    gaussian = DiagGaussian(jnp.array([0.3, 1.0]), jnp.array([-0.7, 0.1]))
    assert gaussian.kl(gaussian) == 0
    assert Categorical(jnp.array([1.0, 3.0])).kl(Categorical(jnp.array([2.0, 4.0]))) == pytest.approx(0, abs=1e-6)


def test_log_probability_gradient_equals_its_closed_form():
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


@pytest.mark.slow
@pytest.mark.parametrize("i", range(3))
def test_discrete_distributions_match_enumeration(i):
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
def test_masked_actions_are_never_sampled(policy):
    legal = jnp.array([True, False, True, False, True])[: policy.logits.size]
    masked = policy.mask(legal)
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
    gradient = jax.grad(lambda x: policy.replace(logits=x).mask(legal).entropy())(policy.logits)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~legal], 0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 8, 9, 50])
def test_categorical_is_exact_for_few_and_many_actions(size):
    logits, other = (3 * jax.random.normal(jax.random.key(i), (40, size)) for i in range(2))
    policy, actions = Categorical(logits), jnp.arange(40, dtype=jnp.int32) % size
    log_p = jax.nn.log_softmax(logits)
    np.testing.assert_allclose(policy.log_prob(actions), log_p[jnp.arange(40), actions], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(policy.entropy(), -(jnp.exp(log_p) * log_p).sum(-1), rtol=1e-5, atol=1e-6)
    want = (jnp.exp(log_p) * (log_p - jax.nn.log_softmax(other))).sum(-1)
    np.testing.assert_allclose(policy.kl(Categorical(other)), want, rtol=1e-4, atol=1e-6)
    tied = jnp.round(logits)  # the first of several largest numbers counts
    np.testing.assert_array_equal(Categorical(tied).mode(), jnp.argmax(tied, axis=-1))


# --- mixed actions ----------------------------------------------------------------------------------------------------

MIXED = Mixed({"gear": Discrete(3), "push": Box(np.full((2, 1), 100.0, np.float32), np.full((2, 1), 200.0, np.float32))})


def joint(batch=(4, 5)):
    """Return a policy over `MIXED`, and one like it."""
    gaussian = lambda shift: DiagGaussian(jnp.full((*batch, 2), 0.3 + shift), jnp.full((*batch, 2), -0.5), unit="bounds")
    categorical = lambda shift: Categorical(jnp.broadcast_to(jnp.array([0.0, 1.0, -1.0 + shift]), (*batch, 3)))
    return [Joint((categorical(shift), gaussian(shift))) for shift in (0.0, 0.5)]


def test_joint_adds_up_its_parts():
    policy, other = joint()
    actions = policy.sample(policy.noise(jax.random.key(0)))
    assert actions.shape == (4, 5, *MIXED.shape)
    gear, push = actions[..., 0].astype(jnp.int32), actions[..., 1:]
    expected = policy.parts[0].log_prob(gear) + policy.parts[1].log_prob(push)
    np.testing.assert_allclose(policy.log_prob(actions), expected, rtol=1e-6)
    np.testing.assert_allclose(policy.entropy(), sum(part.entropy() for part in policy.parts), rtol=1e-6)
    divergences = [part.kl(like) for part, like in zip(policy.parts, other.parts, strict=True)]
    np.testing.assert_allclose(policy.kl(other), sum(divergences), rtol=1e-6)
    assert policy.encode(actions).shape == (4, 5, 3 + 2)
    assert policy.metrics().keys() == {"policy_std"}
    np.testing.assert_array_equal(policy.mode()[..., 0], 1)


def test_joint_gives_each_part_in_the_unit_of_the_environment():
    policy, _ = joint(())
    parts = policy.env_action(policy.mode(), MIXED)
    assert parts["gear"] == 1
    np.testing.assert_allclose(parts["push"], [[165.0], [165.0]])


def test_masked_joint_never_takes_an_invalid_part():
    policy = joint()[0].mask(jnp.broadcast_to(jnp.array([True, False, True]), (4, 5, 3)))
    drawn = jax.vmap(policy.sample)(policy.noise(jax.random.key(0), 500))[..., 0]
    assert set(np.unique(drawn)) == {0.0, 2.0}


def test_uniform_joint_covers_the_bounds_of_every_part():
    policy, _ = joint(())
    low, high = flat_bounds(MIXED)
    drawn = jax.vmap(lambda noise: policy.uniform_sample(noise, low, high))(policy.noise(jax.random.key(0), 20_000))
    np.testing.assert_allclose(np.bincount(drawn[:, 0].astype(int)) / 20_000, 1 / 3, atol=0.02)
    np.testing.assert_allclose(np.quantile(drawn[:, 1:], [0.1, 0.5, 0.9], axis=0)[:, 0], [-0.8, 0, 0.8], atol=0.03)
    np.testing.assert_allclose(policy.uniform_log_prob(drawn, low, high), -np.log(3) - 2 * np.log(2), rtol=1e-5)
    discrete = Joint((policy.parts[0], policy.parts[0]))
    drawn = discrete.uniform_sample(discrete.noise(jax.random.key(0)), *flat_bounds(Mixed((Discrete(3), Discrete(3)))))
    np.testing.assert_allclose(discrete.uniform_log_prob(drawn), -2 * np.log(3), rtol=1e-5)
