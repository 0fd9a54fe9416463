"""Observations of the latest frames."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.core.spaces import Discrete, Indices
from purerl.envs.frames import with_frames
from tests.helpers.tiny import CFG

KEY = jax.random.key(0)


class Film:
    """Each frame shows the number of its step, in an episode of 5 steps."""

    action_space = Discrete(2)

    def __init__(self, shape, as_dict=False, dtype=np.float32):
        self.shape, self.as_dict, self.dtype = shape, as_dict, dtype

    def show(self, time):
        frame = jnp.full(self.shape, time).astype(self.dtype)
        return {"frame": frame, "time": frame.ravel()[:1], "legal": jnp.ones(2, bool)} if self.as_dict else frame

    def reset(self, key):
        return jnp.int32(0), self.show(jnp.int32(0))

    def step(self, key, time, action):
        return time + 1, self.show(time + 1), jnp.float32(0), time + 1 >= 5, False, {}


def frames_of(obs):
    """Return the numbers of the frames in the observation of one environment."""
    obs = obs["frame"] if isinstance(obs, dict) else obs
    return np.asarray(obs).reshape(-1, obs.shape[-1])[0]


def played(env, steps=7):
    """Return the frames to act on and those before resets, a row for each step."""
    env_state, obs = env.reset(jax.random.split(KEY, 1))
    seen, before = [frames_of(obs)], []
    for i in range(steps):
        after = env.step(jax.random.split(jax.random.fold_in(KEY, i), (2, 1)), env_state, jnp.zeros(1, jnp.int32))
        env_state = after.env_state
        seen.append(frames_of(after.obs))
        before.append(frames_of(after.next_obs))
    return np.stack(seen), np.stack(before)


@pytest.mark.parametrize("as_dict", [False, True])
def test_bytes_that_become_images_warn(as_dict):
    with pytest.warns(
        UserWarning, match=r"frame_stack = 2: makes images of the uint8 observations .*\[4, 4\], which .* divide by 255"
    ):
        with_frames(purerl.wrap_env(Film((4, 4), as_dict, np.uint8)), 2)
    with_frames(purerl.wrap_env(Film((4, 4, 1), as_dict, np.uint8)), 2)


@pytest.mark.slow
@pytest.mark.parametrize("slow_reset", [False, True])
@pytest.mark.parametrize("args", [((4, 4),), ((4, 4, 1),), ((1,),), ((4, 4), True)])
def test_latest_frames_are_stacked_and_an_episode_begins_with_copies(args, slow_reset):
    env = with_frames(purerl.wrap_env(Film(*args), slow_reset=slow_reset), 3)
    seen, before = played(env)
    wanted = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 0, 0], [0, 0, 1], [0, 1, 2]]
    np.testing.assert_array_equal(seen, wanted)
    np.testing.assert_array_equal(before, [*wanted[1:5], [3, 4, 5], *wanted[6:]])
    space = env.observation_space
    assert (space["frame"] if len(args) > 1 else space).shape[-1] == 3
    if len(args) > 1:
        assert space["time"].shape == (1,)


def test_tiles_of_a_map_keep_their_categories():
    space = Indices((13, 12), (7, 7, 2), np.dtype(np.uint8))
    env = purerl.wrap_env(Film((7, 7, 2), False, np.uint8))._replace(observation_space=space)
    stacked = with_frames(env, 2).observation_space
    assert stacked == Indices((13, 12, 13, 12), (7, 7, 4), np.dtype(np.uint8))
    assert stacked.encoded_shape == (7, 7, 50)


@pytest.mark.parametrize("space", [Discrete(5), Indices(5, (7, 7)), Indices((3, 4, 5), (7, 3))])
def test_observations_without_frames_are_refused(space):
    env = purerl.wrap_env(Film((1,)))._replace(observation_space=space)
    with pytest.raises(purerl.ConfigError, match="frame_stack = 2: no entry of the observation has frames"):
        with_frames(env, 2)


def test_nested_observations_are_refused():
    env = purerl.wrap_env(Film((1,)))
    for space in ((env.observation_space,), {"inside": {"frame": env.observation_space}}):
        with pytest.raises(purerl.ConfigError, match="no entry of the observation has frames"):
            with_frames(env._replace(observation_space=space), 2)


@pytest.mark.slow
def test_stacked_frames_train_evaluate_and_render(tmp_path):
    cfg = CFG.replace(env="Breakout-MinAtar", frame_stack=2)
    train = purerl.make_train(cfg)
    assert train.env.observation_space.shape == (10, 10, 8)
    state = jax.jit(train)(KEY).state
    assert train.evaluate(state, KEY, 2, max_steps=4).lengths.shape == (2,)
    purerl.render(train, state, tmp_path / "agent.gif", max_steps=2)


def test_one_frame_changes_nothing():
    env = purerl.wrap_env(Film((1,)))
    assert with_frames(env, 1) is env


def test_nested_images_that_are_not_stacked_warn():
    class Cameras(Film):
        def show(self, time):
            frame = jnp.full(self.shape, time).astype(self.dtype)
            return {"front": frame, "cameras": {"left": frame}}

    with pytest.warns(UserWarning, match="top level alone, and leaves cameras/left as they are"):
        with_frames(purerl.wrap_env(Cameras((8, 8)), max_steps=5), 2)
