"""Levels, and categorical arrays in observations, on a small random map."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import ConfigError
from purerl.core.keys import fold_in_name
from purerl.envs import make_env
from purerl.envs.levels import with_levels
from purerl.networks.torsos import encode
from tests.helpers.tiny import CFG

KEY = jax.random.key(0)
SMALL = CFG.replace(num_envs=16, num_steps=8, total_timesteps=256, num_minibatches=2)


class Map:
    """A random map of tiles and colours; an episode has three steps, and its return identifies the map."""

    action_space = purerl.Discrete(2)
    observation_space = purerl.Indices((3, 2), shape=(4, 4, 2), dtype=np.dtype(np.uint8))
    max_steps = 3

    def reset(self, key):
        tiles = jax.random.randint(key, (4, 4, 2), 0, jnp.array([[[3, 2]]])).astype(jnp.uint8)
        return tiles, tiles

    def step(self, key, tiles, action):
        return tiles, tiles, (tiles[:2, :, 0] * 3 ** jnp.arange(8.0).reshape(2, 4)).sum(), False, False, {}


def levels(num_levels):
    """Return the set of returns of the first `num_levels` levels."""
    env = purerl.wrap_env(Map())
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(jnp.arange(num_levels))
    state, _ = env.reset(keys)
    after = env.step(jnp.stack([keys, keys]), state, jnp.zeros(num_levels, jnp.int32))
    return set((3 * after.reward).tolist())


@pytest.mark.slow
def test_training_uses_its_levels_and_evaluation_others():
    train = purerl.make_train(SMALL.replace(num_levels=3), env=purerl.wrap_env(Map()))
    result = jax.jit(train)(KEY)
    there = levels(3)
    ended = jax.tree.leaves(purerl.summarize(result.metrics)["episode_return"])[0]
    assert min(there) <= ended.min() <= ended.max() <= max(there)
    returns = lambda **kwargs: set(jax.jit(lambda s: train.evaluate(s, KEY, 64, **kwargs).returns)(result.state).tolist())
    assert returns(training_levels=True) == there
    assert not returns() & there
    assert len(returns()) > 60


@pytest.mark.slow
def test_runs_share_the_levels_but_not_their_order():
    env = purerl.wrap_env(Map())
    train = purerl.make_train(SMALL.replace(num_levels=3), env=env)
    states = jax.vmap(train.init)(jax.random.split(KEY, 2))
    maps = [np.unique(x.reshape(16, -1), axis=0) for x in np.asarray(states.actor.obs)]
    np.testing.assert_array_equal(*maps)
    assert (states.actor.obs[0] != states.actor.obs[1]).any()
    any_level = purerl.make_train(SMALL, env=env).init(KEY).actor.obs
    np.testing.assert_array_equal(any_level, env.reset(jax.random.split(fold_in_name(KEY, "start"), 16))[1])


def test_categorical_arrays_stay_bytes_until_encoded_one_hot():
    each = purerl.Indices((3, 2), shape=(2, 2), dtype=np.dtype(np.uint8))
    x = jnp.array([[2, 0], [1, 1]], jnp.uint8)[None, None]
    np.testing.assert_array_equal(encode(x, each)[0, 0], [[0, 0, 1, 1, 0], [0, 1, 0, 0, 1]])
    alike = purerl.Indices(3, shape=(2, 2))
    np.testing.assert_array_equal(encode(x.astype(jnp.int32), alike)[0, 0, 1], [[0, 1, 0], [0, 1, 0]])
    train = purerl.make_train(SMALL.replace(torso="auto"), env=purerl.wrap_env(Map()))
    state = jax.jit(train.init)(KEY)
    assert state.actor.obs.dtype == np.uint8
    kernels = {x.shape for x in jax.tree.leaves(state.params) if x.ndim == 4}
    assert kernels == {(3, 3, 5, 16)}  # convolutions over five channels


def test_categorical_byte_observations_do_not_warn():
    class Flat(Map):
        observation_space = purerl.Indices(3, shape=(4, 4), dtype=np.dtype(np.uint8))

        def reset(self, key):
            tiles, obs = super().reset(key)
            return tiles, obs[..., 0]

        def step(self, key, tiles, action):
            return tiles, tiles[..., 0], *super().step(key, tiles, action)[2:]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        purerl.make_train(SMALL, env=purerl.wrap_env(Flat()))


@pytest.mark.parametrize(
    "space",
    [
        purerl.Indices((3, 2), shape=(4, 4, 2)),  # int32, and the observation is uint8
        purerl.Indices((3,), shape=(4, 4, 2), dtype=np.dtype(np.uint8)),
        purerl.Indices((3, 2), shape=(4, 2), dtype=np.dtype(np.uint8)),
        purerl.MultiDiscrete((3, 2)),
    ],
)
def test_declared_categories_unlike_the_observation_are_refused(space):
    class Wrong(Map):
        observation_space = space

    with pytest.raises(ConfigError, match="Indices for an array"):
        purerl.wrap_env(Wrong())


@pytest.mark.long
@pytest.mark.slow
def test_check_env_reports_out_of_range_categories():
    class Wrong(Map):
        observation_space = purerl.Indices((2, 2), shape=(4, 4, 2), dtype=np.dtype(np.uint8))

    found = purerl.check_env(purerl.wrap_env(Wrong()), num_envs=2, num_steps=8).problems
    assert any("outside of the declared space" in problem for problem in found)


@pytest.mark.long
@pytest.mark.slow
def test_mask_declared_by_the_environment_is_used_by_default():
    class Masked:
        action_space = purerl.Discrete(3)

        def reset(self, key):
            return (), {"legal": jnp.array([True, False, True]), "seen": jnp.zeros(2)}

        def step(self, key, state, action):
            return *self.reset(key), action == 1, False, False, {}

    env = purerl.wrap_env(Masked(), max_steps=4)._replace(action_mask="legal")
    illegal = lambda cfg: jax.jit(purerl.make_train(cfg, env=env))(KEY).metrics["episode_return"].total.sum()
    assert illegal(SMALL) == 0
    assert illegal(SMALL.replace(action_mask="")) > 0


def test_levels_need_an_environment_that_purerl_resets():
    with pytest.raises(purerl.ConfigError, match="needs an environment that purerl resets"):
        purerl.make_train(purerl.PPOConfig(env="DeepSea-bsuite", num_levels=2))


@pytest.mark.parametrize("row", [0, 1])
def test_steps_that_begin_episodes_from_other_keys_are_refused(row):
    def reset(keys):
        at = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
        return at, at

    def step(keys, state, action):
        done, first = action == 1, reset(keys[row])[1]
        obs = jnp.where(done[:, None], first, state)
        return purerl.TimeStep(obs, obs, state, jnp.ones(len(action)), done, ~done & done)

    env = purerl.Environment(reset, step, jax.ShapeDtypeStruct((2,), jnp.float32), purerl.Discrete(2), None)
    make = lambda: purerl.make_train(SMALL.replace(num_levels=2), env=env)
    if row == 1:
        make()
    else:
        with pytest.raises(ConfigError, match=r"num_levels = 2: a step must draw .* from keys\[1\] alone"):
            make()


def test_levels_need_threefry_keys():
    env = with_levels(make_env("CartPole-v1", (), {}), 2)
    keys = lambda kind: jax.random.split(jax.random.key(0, impl=kind), 32)
    assert len(np.unique(env.reset(keys("threefry2x32"))[1], axis=0)) == 2
    with pytest.raises(ConfigError, match="needs threefry2x32 keys"):
        env.reset(keys("rbg"))


def test_levels_of_environments_that_ignore_the_reset_keys_are_refused():
    """The environment resets with keys of its own state."""

    def reset(keys):
        at = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
        return (at, keys), at

    def step(keys, state, action):
        new = jax.vmap(jax.random.split)(state[1])
        done = jnp.ones(len(action), bool)
        first = reset(new[:, 1])[1]
        return purerl.TimeStep((first, new[:, 0]), first, state[0], jnp.ones(len(action)), done, ~done)

    env = purerl.Environment(reset, step, jax.ShapeDtypeStruct((2,), jnp.float32), purerl.Discrete(2), None)
    with pytest.raises(ConfigError, match="num_levels = 2: needs an environment that purerl resets"):
        purerl.make_train(SMALL.replace(num_levels=2), env=env)
