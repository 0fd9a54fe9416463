"""Trained policies: actions and values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.tiny import CFG, tiny

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def run():
    return jax.jit(tiny())


def test_policy_returns_actions_and_values(run):
    train, state = tiny(), run(KEY).state
    policy = train.policy(state)
    obs, first = jnp.eye(4)[:3], jnp.zeros(3, bool)
    carry = policy.initial_carry(3)
    action, carry = jax.jit(policy)(carry, obs, first, KEY)
    assert action.shape == (3,)
    assert action.dtype == jnp.int32
    greedy, _ = policy(carry, obs, first, KEY, deterministic=True)
    again, _ = policy(carry, obs, first, jax.random.key(9), deterministic=True)
    np.testing.assert_array_equal(greedy, again)
    assert policy.value(carry, obs).shape == (3,)
    np.testing.assert_array_equal(policy.value(carry, obs, first), policy.value(carry, obs))


def test_outputs_are_the_distribution_and_values_with_statistics_applied():
    train = tiny(CFG.replace(normalize_obs=True, normalize_value=True), box=True)
    state = jax.jit(train)(KEY).state
    policy, obs, first = train.policy(state), 3 * jnp.eye(4)[:3], jnp.zeros(3, bool)
    outputs, carry = policy.outputs(policy.initial_carry(3), obs, first)
    np.testing.assert_allclose(outputs.value, policy.value(carry, obs), rtol=1e-6)
    action, _ = policy(carry, obs, first, KEY, deterministic=True)
    np.testing.assert_allclose(outputs.policy.env_action(outputs.policy.mode(), train.env.action_space), action, rtol=1e-6)
    assert not np.allclose(outputs.policy.mean, train.network.apply(state.params, (), obs[None], first[None])[0].policy.mean[0])


def test_continuous_actions_stay_within_their_bounds():
    train = tiny(CFG.replace(log_std_init=3.0), box=True)
    action, _ = train.policy(train.init(KEY))((), jnp.eye(4)[:3], jnp.zeros(3, bool), KEY)
    assert action.shape == (3, 1)
    assert (jnp.abs(action) <= 1).all()
    assert (jnp.abs(action) == 1).any()
