"""Conversion of gymnasium's spaces."""

import functools

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

import purerl
from purerl.envs.converted_spaces import action_space_of, observation_space_of
from purerl.envs.external.gymnasium_spaces import observation_space

CFG = purerl.PPOConfig(total_timesteps=64 * 4, num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden=(8,))


class Spaces(gymnasium.Env):
    """An environment that refuses an action outside its space; observations are of many kinds."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
            "place": spaces.Discrete(3, start=5),
            "tiles": spaces.MultiDiscrete([[4, 4], [4, 4]]),
            "parts": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-1, 1, (), np.float32), spaces.MultiDiscrete([2, 3]))),
        }
    )

    def __init__(self, action_space):
        self.action_space, self.time = action_space, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), (action, self.action_space)
        self.time += 1
        return self.observation_space.sample(), 1.0, False, self.time == 5, {}


@pytest.mark.slow
@pytest.mark.each_landing("space3")
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=1),
        spaces.MultiDiscrete([2, 3], start=[1, 0]),
        spaces.MultiBinary(3),
        spaces.Dict({"b": spaces.Discrete(3, start=1), "a": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(5, 35, (2, 1))))}),
        pytest.param(spaces.Box(np.float32([-1, 0]), np.float32([1, 5])), marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*begin at another number than 0:UserWarning")
def test_gymnasium_spaces_are_converted(space):
    env = purerl.from_gymnasium(functools.partial(Spaces, space))
    parts = (jax.ShapeDtypeStruct((2,), np.float32), jax.ShapeDtypeStruct((), np.float32), purerl.Indices((2, 3), (2,)))
    image = jax.ShapeDtypeStruct((4, 4, 3), np.uint8)
    tiles = purerl.Indices(4, (2, 2))
    assert env.observation_space == {"image": image, "parts": parts, "place": purerl.Discrete(3), "tiles": tiles}
    train = purerl.make_train(CFG, env=env)
    state, _ = jax.jit(train.update)(jax.jit(train.init)(jax.random.key(0)))
    obs = jax.device_get(state.actor.obs)
    assert ((obs["place"] >= 0) & (obs["place"] < 3)).all()
    assert obs["image"].dtype == np.uint8


def test_planes_of_bytes_are_numbers_and_not_images():
    for high, dtype in ((255, np.uint8), (1, np.float32)):
        assert observation_space(spaces.Box(0, high, (10, 10, 4), np.uint8)).dtype == dtype


def test_declared_planes_of_bytes_warn():
    planes = jax.ShapeDtypeStruct((10, 10, 4), np.uint8)
    with pytest.warns(UserWarning, match="divide images of uint8 by 255, but the declared bounds are 1 or less"):
        observation_space_of(spaces.Box(0, 1, (10, 10, 4), np.uint8), planes)
    assert observation_space_of(spaces.Box(0, 255, (10, 10, 4), np.uint8), planes) == planes


def test_float_declared_as_discrete_is_a_number():
    number = jax.ShapeDtypeStruct((), np.float32)
    assert observation_space_of(spaces.Discrete(5), number) == number


def test_bounds_of_another_shape_are_refused():
    with pytest.raises(purerl.ConfigError, match="the bounds must be numbers or arrays of the shape"):
        action_space_of(purerl.Box(np.zeros(2), np.ones(3)))
    assert action_space_of(purerl.Box(-1.0, np.ones(3))).low.shape == (3,)
