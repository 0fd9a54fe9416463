"""The previous action and reward as observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purerl.core.spaces import action_shapes
from purerl.envs import make_env
from purerl.envs.previous import with_previous
from tests.helpers.probes import Varied, acting

KEY = jax.random.key(0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["discrete", "box", "multi_discrete", "multi_binary", "mixed"])
def test_observation_includes_the_previous_action_and_reward(kind):
    env = with_previous(make_env("", (), {}, acting(Varied, kind)()), ("action", "reward"))
    env_state, obs = env.reset(jax.random.split(KEY, 3))
    space = env.action_space
    action = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), action_shapes(space, 3))
    assert not obs["previous_reward"].any()
    for _ in range(4):
        before = obs
        after = env.step(jax.random.split(KEY, (2, 3)), env_state, action)
        done = after.terminated | after.truncated
        env_state, obs = after.env_state, after.obs
        np.testing.assert_array_equal(after.next_obs["previous_reward"], after.reward)
        np.testing.assert_array_equal(obs["previous_reward"], jnp.where(done, 0, after.reward))
        for x in jax.tree.leaves(after.next_obs["previous_action"]):
            np.testing.assert_array_equal(x, jnp.ones_like(x))
        for x in jax.tree.leaves(obs["previous_action"]):
            began = -1 if jnp.issubdtype(x.dtype, jnp.integer) else 0
            np.testing.assert_array_equal(x, jnp.where(done.reshape(-1, *[1] * (x.ndim - 1)), began, jnp.ones_like(x)))
    assert jax.tree.map(jnp.shape, before) == jax.tree.map(jnp.shape, obs)
