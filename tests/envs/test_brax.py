"""Environments of brax: repeated actions and flags."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.envs import make_env
from tests.helpers.suites import installed

pytestmark = pytest.mark.usefixtures("ranks")

KEY = jax.random.key(0)


@pytest.mark.slow
def test_repeated_actions_sum_their_rewards():
    """Repeated actions equal single steps of brax with summed rewards."""
    installed("brax/")
    repeated, single = (make_env("brax/fast", (("action_repeat", count),), {}) for count in (3, 1))
    keys, action = jax.random.split(KEY, (2, 2)), jnp.array([[1.0], [-1.0]])
    state, _ = single.reset(keys[0])
    rewards = []
    for _ in range(3):
        after = single.step(keys, state, action)
        state = after.env_state
        rewards.append(np.asarray(after.reward))
    once = repeated.step(keys, repeated.reset(keys[0])[0], action)
    np.testing.assert_allclose(once.reward, sum(rewards), rtol=1e-5)
    assert rewards[2][0] > rewards[0][0] > 0
    np.testing.assert_array_equal(once.next_obs, after.next_obs)


@pytest.mark.long
@pytest.mark.slow
def test_brax_parameters_that_nothing_reads_warn():
    installed("brax/")
    with pytest.warns(UserWarning, match="joint_scale_pos has no effect"):
        purerl.make_train(purerl.PPOConfig(env="brax/reacher", env_params={"joint_scale_pos": 0.1}))


@pytest.mark.slow
def test_masses_of_the_mjx_backend_are_scaled_in_a_trace():
    installed("brax/")
    randomize = {"body_mass": purerl.Scale(0.5, 2)}
    made = lambda: make_env("brax/inverted_pendulum", (("backend", "mjx"),), {}, info=("body_mass",), randomize=randomize)
    states, _ = jax.eval_shape(lambda: made().reset(jax.random.split(KEY, 4)))
    assert states.params["body_mass"].shape == (4,)


@pytest.mark.slow
def test_swimmer_has_a_backend_that_simulates_it():
    """brax 0.14.2 cannot step it: JAX has removed an argument that its simulation of fluids uses."""
    installed("brax/")
    from purerl.envs.suites.brax import make

    assert make("swimmer", ()).params.nu == 2


@pytest.mark.slow
def test_brax_falls_terminate_and_time_limits_truncate():
    installed("brax/")
    env = make_env("brax/inverted_pendulum", (("episode_length", 40),), {})

    def run(push):
        def step(state, key):
            after = env.step(jax.random.split(key, (2, 8)), state, jnp.full((8, 1), push))
            return after.env_state, (after.terminated, after.truncated)

        state, _ = env.reset(jax.random.split(KEY, 8))
        return jax.lax.scan(step, state, jax.random.split(KEY, 40))[1]

    terminated, truncated = jax.jit(run)(jnp.float32(1))
    assert terminated.any(0).all()
    assert not truncated.any()
    terminated, truncated = jax.jit(run)(jnp.float32(0))
    alone = ~terminated.any(0)  # poles that do not fall in 40 steps
    assert truncated[39][alone].all()
