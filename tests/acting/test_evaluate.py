"""Evaluation: whole episodes with a given step limit, key and environment parameters."""

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from tests.helpers import probes
from tests.helpers.tiny import CFG, tiny

KEY = jax.random.key(0)


def test_evaluation_scores_the_first_whole_episode_of_each_environment():
    train = purerl.make_train(PPOConfig(), env=probes.Episodes37())
    state = train.init(KEY)
    episodes = jax.jit(lambda s, k: train.evaluate(s, k, num_episodes=5, max_steps=100))(state, KEY)
    np.testing.assert_array_equal(episodes.returns, np.full(5, 37))
    np.testing.assert_array_equal(episodes.lengths, np.full(5, 37))
    assert episodes.finished.all()
    short = train.evaluate(state, KEY, num_episodes=5, max_steps=30)
    np.testing.assert_array_equal(short.returns, np.full(5, 30))
    assert not short.finished.any()


def test_evaluation_accepts_other_environment_parameters():
    train = purerl.make_train(PPOConfig(), env=probes.TimeLimit())
    state = train.init(KEY)
    lengths = train.evaluate(state, KEY, 3, env_params={"max_steps_in_episode": 5}).lengths
    np.testing.assert_array_equal(lengths, [5, 5, 5])
    np.testing.assert_array_equal(train.evaluate(state, KEY, 3).lengths, [8, 8, 8])


@pytest.mark.slow
def test_evaluation_works_under_vmap_over_seeds():
    train = tiny()
    result = jax.jit(jax.vmap(train))(jax.random.split(KEY, 3))
    score = jax.vmap(lambda s, k: train.evaluate(s, k, 16, max_steps=2).returns)(result.state, jax.random.split(KEY, 3))
    assert score.shape == (3, 16)


def test_evaluation_without_a_time_limit_needs_max_steps():
    class Limitless(probes.Constant):
        default_params = None

        def is_truncated(self, state, params):
            return jnp.array(False)

    train = purerl.make_train(CFG, env=Limitless())
    with pytest.raises(ConfigError, match="max_steps"):
        train.evaluate(train.init(KEY), KEY)
    assert train.evaluate(train.init(KEY), KEY, 4, max_steps=3).finished.all()


def test_evaluation_in_another_environment_ignores_constructor_arguments():
    cfg = PPOConfig(env="DeepSea-bsuite", env_kwargs=(("size", 8),), total_timesteps=512)
    train = purerl.make_train(cfg)
    evaluate = lambda state: train.evaluate(
        state, jax.random.key(0), 4, max_steps=2, env=gymnax.make("DeepSea-bsuite", size=8)[0]
    )
    assert jax.eval_shape(evaluate, jax.eval_shape(train.init, jax.random.key(0))).returns.shape == (4,)
