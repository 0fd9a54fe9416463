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
        (purerl.Indices((3, 0), (2, 2)), "give one size, or one for each channel"),
        (purerl.Indices(2.5, (2,)), "give one size, or one for each channel"),
        (purerl.Discrete(2.5), "must have a whole number of categories"),
        (purerl.MultiBinary(5), "must be a jax.ShapeDtypeStruct, Discrete or Indices"),
    ],
)
def test_observation_spaces_that_would_hide_observations_are_refused(space, hint):
    shape = (5,) if isinstance(space, purerl.MultiBinary) else space.shape
    reset = lambda keys: (jnp.zeros(len(keys)), jnp.zeros((len(keys), *shape), jnp.int32))

    def step(keys, state, action):
        obs, never = jnp.zeros((len(action), *shape), jnp.int32), jnp.zeros(len(action), bool)
        return TimeStep(state, obs, obs, jnp.zeros(len(action)), never, never, {})

    with pytest.raises(purerl.ConfigError, match=hint):
        purerl.make_train(PPOConfig(), env=purerl.Environment(reset, step, space, purerl.Discrete(2), None))


class Walk:
    """A walk whose observation is its random position; nothing but the time limit ends an episode."""

    action_space = purerl.Discrete(2)

    def reset(self, key):
        at = jax.random.uniform(key, (2,))
        return at, at

    def step(self, key, at, action):
        return at + 0.1, at + 0.1, jnp.float32(1), False, False, {}


WALK = purerl.wrap_env(Walk(), max_steps=200)


def test_step_that_replaces_another_may_truncate_earlier():
    """Each truncation within a rollout has the value of its own last observation."""

    def advance(keys, state, action):
        after = WALK.step.advance(keys, state, action)
        return after.replace(truncated=after.truncated | (after.next_obs[:, 0] > 1.5))

    with_resets = AutoReset(advance, WALK.reset, slow_reset=False)
    step = lambda keys, state, action: with_resets(keys, state, action)
    cfg = PPOConfig(num_envs=2, num_steps=40, num_minibatches=2, total_timesteps=80, hidden=(8,))
    at_ends = []
    replaced = [WALK._replace(step=step), WALK._replace(step=with_resets), WALK._replace(step=step, truncates_after=None)]
    for env in replaced:
        seen = []

        def advantage(steps, cfg, seen=seen):
            jax.debug.callback(lambda x: seen.append(x), jnp.where(steps.truncated, steps.next_value, 0))
            return purerl.advantages.gae(steps, cfg.gamma, cfg.gae_lambda)

        jax.block_until_ready(jax.jit(purerl.make_train(cfg, env=env, advantage=advantage))(jax.random.key(0)))
        jax.effects_barrier()
        at_ends.append(seen[-1])
    assert (np.count_nonzero(at_ends[0], axis=0) > 1).all()
    for found in at_ends[1:]:
        np.testing.assert_allclose(found, at_ends[0], rtol=1e-5)


def test_declared_dtype_of_observations_is_checked():
    with pytest.raises(purerl.ConfigError, match="must declare float32, the dtype of the observation"):
        purerl.make_train(PPOConfig(), env=WALK._replace(observation_space=jax.ShapeDtypeStruct((2,), np.uint8)))
    with pytest.warns(UserWarning, match="observations of float64 are cast to float32"):
        purerl.make_train(PPOConfig(), env=WALK._replace(observation_space=jax.ShapeDtypeStruct((2,), float)))
    purerl.make_train(PPOConfig(), env=WALK._replace(action_space=purerl.Box(-1.0, 1.0)))


def test_names_of_entries_need_not_be_text():
    class Named(Walk):
        def reset(self, key):
            at, obs = super().reset(key)
            return at, {0: obs, 1: obs}

        def step(self, key, at, action):
            at, obs, *rest = super().step(key, at, action)
            return at, {0: obs, 1: obs}, *rest

    purerl.make_train(PPOConfig(), env=purerl.wrap_env(Named(), max_steps=5))
