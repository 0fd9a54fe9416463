"""Animations of images."""

import sys

import jax
import numpy as np
import pytest
from PIL import Image

import purerl
from purerl.envs.animation import save_animation

IMAGES = [np.full((16, 24, 3), 40 * i, np.uint8) for i in range(6)]


def test_gif_skips_images_that_viewers_would_slow_down(tmp_path):
    for seconds, frames, duration in ((0.1, 6, 100), (0.005, 2, 20)):
        save_animation(IMAGES, tmp_path / "a.gif", seconds)
        with Image.open(tmp_path / "a.gif") as image:
            assert (image.n_frames, image.info["duration"], image.size) == (frames, duration, (24, 16))


def test_mp4_has_every_image(tmp_path):
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    save_animation(IMAGES, tmp_path / "a.mp4", 0.1)
    frames = imageio.mimread(tmp_path / "a.mp4")
    assert len(frames) == 6
    np.testing.assert_allclose([frame.mean() for frame in frames], [40 * i for i in range(6)], atol=8)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Breakout-MinAtar"])
def test_gymnax_episodes_become_mp4_files(env, tmp_path):
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    train = purerl.make_train(purerl.PPOConfig(env=env, hidden=(8,)))
    purerl.render(train, train.init(jax.random.key(0)), tmp_path / "agent.mp4", max_steps=3)
    assert len(imageio.mimread(tmp_path / "agent.mp4")) == 3


def test_missing_ffmpeg_is_named_before_the_episode(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    train = purerl.make_train(purerl.PPOConfig())
    with pytest.raises(purerl.ConfigError, match=r"needs ffmpeg; run pip install '\.\[video\]'"):
        purerl.render(train, train.init(jax.random.key(0)), tmp_path / "agent.mp4")
