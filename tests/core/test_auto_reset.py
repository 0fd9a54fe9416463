"""Resets that are computed only for the environments that need one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purerl.core.auto_reset import AutoReset
from purerl.core.environment import TimeStep
from tests.helpers.programs import on_accelerator

KEY = jax.random.key(0)


def ends_at_random(key, state, action):
    """Step one environment whose episode ends with a probability of a quarter; its state has the episode's origin."""
    origin, steps = state
    done = jax.random.bernoulli(key, 0.25)
    obs = origin + steps
    return TimeStep((origin, steps + 1), obs, obs, jnp.float32(1), done & (action == 0), done & (action == 1))


def begins(key):
    origin = jax.random.randint(key, (), 0, 2**30)
    return (origin, jnp.int32(0)), origin


def rollout_of(slow_reset, key, num_envs, num_steps=40):
    step = AutoReset(jax.vmap(ends_at_random), jax.vmap(begins), slow_reset)
    state = jax.vmap(begins)(jax.random.split(key, num_envs))[0]

    def one(state, key):
        after = step(jax.random.split(key, (2, num_envs)), state, jnp.arange(num_envs) % 2)
        return after.env_state, after

    return jax.lax.scan(one, state, jax.random.split(key, num_steps))[1]


@pytest.mark.each_landing("7")
@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 7, 64])
def test_slow_resets_give_the_same_episodes(num_envs, monkeypatch):
    """Slow resets reset the same environments at the same steps with the same keys: alone, under `vmap` and on an accelerator."""
    seeds = jax.random.split(KEY, 3)
    want = jax.jit(jax.vmap(lambda key: rollout_of(False, key, num_envs)))(seeds)
    assert want.terminated.sum() + want.truncated.sum() > 10
    run = lambda key: rollout_of(True, key, num_envs)
    alone = jax.jit(run)(seeds[0])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[0]), alone, want)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(jax.vmap(run))(seeds), want)
    monkeypatch.setattr(jax.lax, "platform_dependent", on_accelerator)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(jax.vmap(lambda key: run(key)))(seeds), want)


def test_slow_reset_runs_only_for_ended_episodes():
    made = []

    def slow(key):
        jax.debug.callback(lambda: made.append(1))
        return begins(key)

    step = AutoReset(jax.vmap(ends_at_random), jax.vmap(slow), slow_reset=True)
    state = jax.vmap(begins)(jax.random.split(KEY, 64))[0]
    after = jax.jit(step)(jax.random.split(KEY, (2, 64)), state, jnp.zeros(64, jnp.int32))
    jax.effects_barrier()
    assert len(made) == after.terminated.sum() > 0
