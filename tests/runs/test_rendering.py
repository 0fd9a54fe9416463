"""Renderings of episodes."""

import functools

import gymnasium
import jax
import numpy as np
import PIL.ImageSequence
import pytest

import purerl
from purerl.runs.analysis.rendering import render
from tests.helpers.gymnasium_env import LENGTH, Ends
from tests.helpers.probes import Varied

SMALL = purerl.PPOConfig(total_timesteps=2048, num_envs=4, num_steps=16, hidden=(8,))


def test_unrenderable_environment_is_refused(tmp_path):
    train = purerl.make_train(SMALL, env=Varied())
    with pytest.raises(purerl.ConfigError, match="does not support rendering"):
        render(train, train.init(jax.random.key(0)), tmp_path / "a.gif")


CFG = purerl.PPOConfig(total_timesteps=64 * 4, num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden=(8,))


class Drawn(Ends):
    """An environment whose pictures become brighter with each step."""

    render_mode = "rgb_array"
    metadata = {"render_fps": 10}

    def render(self):
        return np.full((4, 4, 3), 40 * self.time, np.uint8)


def test_parameters_are_no_constants_of_a_rendered_episode(tmp_path):
    """A program with constants of one state could not be taken from a cache for the next state."""
    train = purerl.make_train(purerl.PPOConfig(env="CartPole-v1"))
    before = jax.config.jax_captured_constants_warn_bytes
    jax.config.update("jax_captured_constants_warn_bytes", 1000)  # JAX's warning would be an error here
    try:
        purerl.render(train, train.init(jax.random.key(0)), tmp_path / "a.gif", max_steps=3)
    finally:
        jax.config.update("jax_captured_constants_warn_bytes", before)


@pytest.mark.slow
def test_render_writes_one_whole_episode(tmp_path):
    train = purerl.make_train(CFG, env=purerl.from_gymnasium(Drawn))
    state = jax.jit(train.init)(jax.random.key(0))
    purerl.render(train, state, tmp_path / "a.gif", max_steps=5)
    with PIL.Image.open(tmp_path / "a.gif") as drawing:
        assert (drawing.n_frames, drawing.info["duration"]) == (LENGTH, 100)
        shades = [np.asarray(frame.convert("L"))[0, 0] for frame in PIL.ImageSequence.Iterator(drawing)]
    assert shades == [0, 40, 80]
    jax.block_until_ready(jax.jit(train.update)(state))  # rendering uses separate environments
    for env in (Ends, functools.partial(gymnasium.make, "CartPole-v1")):
        with pytest.raises(purerl.ConfigError, match="does not support rendering"):
            purerl.render(purerl.make_train(CFG, env=purerl.from_gymnasium(env)), state, tmp_path / "b.gif")
