"""Batched environments of purerl's protocol: the agents of one game."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from purerl.core.auto_reset import AutoReset
from purerl.core.environment import TimeStep
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
    assert ["This is right only among agents of one game" in problem for problem in report.problems] == [True], report.problems
    assert any("share parts of the state" in note for note in report.notes)
    train = purerl.make_train(PPOConfig(num_envs=6, num_steps=8, num_minibatches=2, hidden=(8,)), env=games)
    purerl.export(train, jax.jit(train.init)(jax.random.key(0)))


def test_steps_with_separate_resets_have_strong_dtypes_and_name_their_errors():
    reset = lambda keys: (jnp.zeros(len(keys)), jnp.zeros((len(keys), 1)))

    def advance(keys, state, action):
        never = jnp.zeros(len(keys), bool)
        return TimeStep(state, state[:, None], state[:, None], jnp.where(action == 0, 0.0, 1.0), never, never, {})

    space = jax.ShapeDtypeStruct((1,), np.dtype(np.float32))
    env = purerl.Environment(reset, AutoReset(advance, reset, True), space, purerl.Discrete(2), None)
    made = purerl.make_train(PPOConfig(num_envs=4, num_steps=8, num_minibatches=2, hidden=(8,)), env=env).env
    keys = jax.random.split(jax.random.key(0), (2, 4))
    assert isinstance(made.step, AutoReset)
    assert not made.step(keys, reset(keys[0])[0], jnp.zeros(4, jnp.int32)).reward.weak_type
    failing = env._replace(step=AutoReset(lambda keys, state, action: state.missing, reset, True))
    with pytest.raises(purerl.ConfigError, match=r"env: step\(keys \[128\], env_state, action \[128\]\) raised AttributeError"):
        purerl.make_train(PPOConfig(num_envs=128), env=failing)


@pytest.mark.parametrize(
    ("space", "hint"),
    [
        (purerl.Indices((3, 4), (2, 5)), "give one size, or one for each channel"),
        (purerl.Indices([3, 4], (2, 2)), "give one size, or one for each channel"),
        (purerl.MultiBinary(5), "must be a jax.ShapeDtypeStruct, Discrete or Indices"),
    ],
)
def test_observation_spaces_that_would_hide_observations_are_refused(space, hint):
    shape = getattr(space, "shape", (5,))
    reset = lambda keys: (jnp.zeros(len(keys)), jnp.zeros((len(keys), *shape), jnp.int32))

    def step(keys, state, action):
        obs, never = jnp.zeros((len(action), *shape), jnp.int32), jnp.zeros(len(action), bool)
        return TimeStep(state, obs, obs, jnp.zeros(len(action)), never, never, {})

    with pytest.raises(purerl.ConfigError, match=hint):
        purerl.make_train(PPOConfig(), env=purerl.Environment(reset, step, space, purerl.Discrete(2), None))
