"""The Beta distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import purerl
from purerl.networks.distributions import Beta
from tests.helpers.tiny import CFG
from tests.ideas.simulator import simulator

KEY = jax.random.key(0)
PAIRS = [(1.0, 1.0), (2.0, 5.0), (1.0, 1.3), (40.0, 2.0), (500.0, 900.0)]


def of_pair(alpha, beta):
    return Beta(jnp.array([alpha]), jnp.array([beta])), scipy.stats.beta(alpha, beta)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "beta"), PAIRS)
def test_samples_and_numbers_equal_those_of_scipy(alpha, beta):
    policy, reference = of_pair(alpha, beta)
    drawn = jax.vmap(policy.sample)(policy.noise(KEY, 100_000))
    assert scipy.stats.kstest(np.asarray(drawn[:, 0]), reference.cdf).statistic < 1.95 / np.sqrt(100_000)  # 0.1 % in chance
    np.testing.assert_allclose(policy.entropy(), reference.entropy(), atol=1e-3)
    x = reference.ppf([0.01, 0.3, 0.99])
    np.testing.assert_allclose(jax.vmap(policy.log_prob)(jnp.float32(x)[:, None]), reference.logpdf(x), rtol=1e-3, atol=1e-3)
    (deviation,) = (metric.total / metric.count for metric in policy.metrics().values())
    np.testing.assert_allclose(deviation, 2 * reference.std(), rtol=1e-4)


@pytest.mark.slow
def test_divergence_equals_a_sample_estimate():
    policy, other = of_pair(2.0, 5.0)[0], of_pair(3.0, 2.0)[0]
    x = jax.vmap(policy.sample)(policy.noise(KEY, 200_000))
    estimate = (jax.vmap(policy.log_prob)(x) - jax.vmap(other.log_prob)(x)).mean()
    np.testing.assert_allclose(policy.kl(other), estimate, rtol=1e-2)
    assert policy.kl(policy) == 0


def test_proposals_that_are_all_rejected_give_a_finite_sample():
    policy, noise = of_pair(1.0, 1.0)[0], jnp.full((1, 2, 6, 2), -9.0)
    assert 0 < policy.sample(noise)[0] < 1


def test_mode_is_most_likely_and_maps_to_the_bounds():
    policy, reference = of_pair(2.0, 5.0)
    grid = np.linspace(0.001, 0.999, 999)
    np.testing.assert_allclose(policy.mode(), grid[reference.pdf(grid).argmax()], atol=1e-3)
    space = purerl.Box(np.array([100.0], np.float32), np.array([200.0], np.float32))
    np.testing.assert_allclose(policy.env_action(policy.mode(), space), 120, atol=0.1)
    np.testing.assert_allclose(of_pair(1.0, 1.0)[0].mode(), 0.5)


@pytest.mark.slow
def test_training_with_beta_actions_moves_the_policy():
    cfg = CFG.replace(env="Pendulum-v1", action_distribution="beta", warmup_steps=64)
    train = purerl.make_train(cfg)
    state = jax.jit(train)(KEY).state
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))
    episodes = train.evaluate(state, KEY, num_episodes=2, max_steps=8, deterministic=True)
    assert np.isfinite(episodes.returns).all()


def test_beta_needs_finite_bounds():
    space = purerl.Box(np.full(2, -np.inf, np.float32), np.full(2, np.inf, np.float32))
    with pytest.raises(purerl.ConfigError, match="action_distribution = 'beta': needs finite action bounds"):
        purerl.make_train(CFG.replace(action_distribution="beta"), env=simulator._replace(action_space=space))
