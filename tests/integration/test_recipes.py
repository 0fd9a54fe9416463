"""Ten ideas that people build on top of purerl, in `tests/ideas`: each works on a small task through public names alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from tests.helpers.tiny import digest
from tests.ideas import (
    distillation,
    level_replay,
    mixed_actions,
    populations,
    reference_policy,
    self_play,
    stopping_and_videos,
    transformer_memory,
)
from tests.ideas.dm_env_like import Bare

pytestmark = pytest.mark.slow
KEY = jax.random.key(0)
SIZES = {"num_envs": 8, "num_steps": 32, "hidden": (16,), "lr": 3e-3}


def trained(cfg, updates, **objects):
    """Return the training function, and the metrics and the state of a run."""
    train = purerl.make_train(cfg.replace(total_timesteps=updates * cfg.batch_size), **objects)
    result = jax.jit(train)(KEY)
    return train, purerl.summarize(result.metrics), result.state


@pytest.mark.long
def test_reference_policy_follows_the_policy_and_holds_it_back():
    moved = {}
    for weight in (0.0, 30.0):
        cfg = reference_policy.ReferenceConfig(**SIZES, reference_kl=weight, normalize_obs=True)
        _, metrics, state = trained(cfg, 10, algorithm=reference_policy.near_reference)
        moved[weight] = metrics["reference_kl"][-1]
        assert digest(state.params["reference"]) != digest(state.params["policy"])
    assert moved[30.0] < 0.5 * moved[0.0]


@pytest.mark.long
def test_window_resets_its_memory_and_solves_a_short_chain():
    options = {"env": "MemoryChain-bsuite", "env_params": {"memory_length": 4}, "gamma": 1.0, "gae_lambda": 1.0}
    cfg = purerl.PPOConfig(**SIZES | {"num_envs": 32, "num_steps": 20}, **options)
    _, metrics, _ = trained(cfg, 60, memory=transformer_memory.Window())
    assert metrics["episode_return"][-5:].mean() > 0.9


@pytest.mark.parametrize("steps", [8, pytest.param(32, marks=pytest.mark.long)])
def test_ratio_is_one_with_windows_longer_than_sequences_and_rollouts(steps):
    options = {"env": "MemoryChain-bsuite", "env_params": {"memory_length": 4}}
    cfg = purerl.PPOConfig(**SIZES | {"num_steps": 16, "sequence_length": 4, "lr": 0.0}, **options)
    _, metrics, _ = trained(cfg, 3, memory=transformer_memory.Window(steps=steps))
    assert metrics["episodes"].sum() > 8 * 3
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-6)


def test_mixed_actions_learn_the_tool_and_the_force():
    cfg = purerl.PPOConfig(**SIZES | {"num_envs": 32, "num_steps": 64})
    _, metrics, _ = trained(cfg, 60, env=purerl.wrap_env(mixed_actions.Workshop()))
    assert metrics["episode_return"][-3:].mean() > 6 > 2 > metrics["episode_return"][0]


def test_run_stops_when_good_enough_and_films_itself(tmp_path):
    cfg = purerl.PPOConfig(**SIZES, total_timesteps=256 * 20)
    result = stopping_and_videos.run(cfg, tmp_path)
    assert result.stopped_by == "stop_when"
    assert (tmp_path / "agent.gif").exists()
    assert len(list((tmp_path / "renders").iterdir())) == len(result.evaluations["update"])


def test_student_learns_the_policy_of_a_teacher_that_sees_more():
    cfg = purerl.PPOConfig(**SIZES, normalize_obs=False)
    env = purerl.wrap_env(Hinted())
    teacher, _, state = trained(cfg, 60, env=env)
    student = cfg.replace(critic_obs="secret")
    train, copied, learnt = trained(student, 40, env=env, algorithm=distillation.distilled(teacher, state))
    assert copied["policy_loss"][-1] < copied["policy_loss"][0]
    # The sign of the noisy number is right in three of four steps; its most likely action is worth 7.5.
    assert train.evaluate(learnt, KEY, 256, deterministic=True).returns.mean() > 7.2


class Hinted:
    """An environment that pays for the sign of a hidden number; the observation shows the number with noise."""

    action_space = purerl.Discrete(2)
    max_steps = 10

    def reset(self, key):
        hidden, noise = jax.random.normal(key, (2,))
        return (key, hidden), {"noisy": (hidden + noise)[None], "secret": hidden[None]}

    def step(self, key, state, action):
        reward = (action == (state[1] > 0)).astype(jnp.float32)
        state, obs = self.reset(jax.random.fold_in(state[0], 1))
        return state, obs, reward, False, False, {}


@pytest.mark.long
def test_population_raises_its_learning_rates():
    cfg = purerl.PPOConfig(**SIZES, env="CartPole-v1", lr_schedule="constant").replace(lr=1e-3)
    run = jax.jit(lambda key: populations.population(cfg, key, members=4, rounds=4, updates=10))
    lr, score = run(KEY)
    assert lr.shape == score.shape == (4,)
    assert score.max() > 30


@pytest.mark.long
def test_league_plays_against_its_past():
    pytest.importorskip("pgx")
    cfg = purerl.PPOConfig(**SIZES)
    train, states = self_play.league(cfg, KEY, rounds=3, updates=4)
    assert [int(state.clock) for state in states] == [4, 8, 12]
    assert len({digest(state.params) for state in states}) == 3
    env = purerl.versus(self_play.GAME, train.policy(states[0]))
    assert train.evaluate(states[-1], KEY, 64, max_steps=9, env=env).finished.all()


def test_level_replay_prefers_levels_with_large_advantages():
    env = level_replay.replayed(Bare(), levels=8)
    cfg = purerl.PPOConfig(**SIZES, info=("level",))
    _, metrics, state = trained(cfg, 10, env=env, algorithm=level_replay.level_replay)
    weights = state.actor.env_state["weights"]
    assert weights.shape == (8,)
    assert weights.std() > 0
    assert np.isfinite(metrics["loss"]).all()
