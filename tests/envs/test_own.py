"""Batched environments of purerl's protocol: the agents of one game."""

import jax
import pytest

import purerl
from purerl import PPOConfig
from tests.ideas.games import games


def test_agents_of_a_game_train_as_parallel_environments():
    cfg = PPOConfig(num_envs=12, num_steps=8, num_minibatches=2, total_timesteps=192, hidden=(8,), info=("shared",))
    train = purerl.make_train(cfg, env=games)
    state = jax.eval_shape(train, jax.random.key(0)).state
    assert state.actor.obs.shape == (12, 2)
    evaluate = lambda count: jax.eval_shape(lambda key: train.evaluate(train.init(key), key, count), jax.random.key(0))
    assert evaluate(9).returns.shape == (9,)
    with pytest.raises(purerl.ConfigError, match=r"env: reset\(keys \[8\]\) raised TypeError"):
        evaluate(8)
    with pytest.raises(purerl.ConfigError, match=r"env: reset\(keys \[4\]\) raised TypeError"):
        purerl.make_train(cfg.replace(num_envs=4), env=games)


@pytest.mark.slow
def test_check_env_and_export_support_agents_of_a_game():
    report = purerl.check_env(games, num_envs=12, num_steps=20)
    assert ["Only agents of the same game may" in problem for problem in report.problems] == [True], report.problems
    assert any("share parts of the state" in note for note in report.notes)
    train = purerl.make_train(PPOConfig(num_envs=6, num_steps=8, num_minibatches=2, hidden=(8,)), env=games)
    purerl.export(train, jax.jit(train.init)(jax.random.key(0)))
