"""Animations of images."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from PIL import Image

import purerl
from purerl.envs.animation import ffmpeg, save_animation

IMAGES = [np.full((16, 24, 3), 40 * i, np.uint8) for i in range(6)]


def test_gif_skips_images_that_viewers_would_slow_down(tmp_path):
    for seconds, frames, duration in ((0.1, 6, 100), (0.005, 2, 20)):
        save_animation(IMAGES, tmp_path / "a.gif", seconds)
        with Image.open(tmp_path / "a.gif") as image:
            assert (image.n_frames, image.info["duration"], image.size) == (frames, duration, (24, 16))


def frames_of(path):
    """Return the frames of an MP4 of height 16 and width 24, `[frames, 16, 24, 3]`."""
    command = [ffmpeg(), "-loglevel", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    return np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.uint8).reshape(-1, 16, 24, 3)


def test_mp4_has_every_image(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    save_animation(IMAGES, tmp_path / "a.mp4", 0.1)
    np.testing.assert_allclose(frames_of(tmp_path / "a.mp4").mean((1, 2, 3)), [40 * i for i in range(6)], atol=8)
    save_animation([image[:15, :23] for image in IMAGES], tmp_path / "a.mp4", 0.1)  # odd sizes are padded
    assert len(frames_of(tmp_path / "a.mp4")) == 6


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Breakout-MinAtar"])
def test_gymnax_episodes_become_mp4_files(env, tmp_path):
    count = pytest.importorskip("imageio_ffmpeg").count_frames_and_secs
    train = purerl.make_train(purerl.PPOConfig(env=env, hidden=(8,)))
    purerl.render(train, train.init(jax.random.key(0)), tmp_path / "agent.mp4", max_steps=3)
    assert count(str(tmp_path / "agent.mp4"))[0] == 3


def test_missing_ffmpeg_is_named_before_the_episode(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    train = purerl.make_train(purerl.PPOConfig())
    with pytest.raises(purerl.ConfigError, match=r"needs ffmpeg; run pip install '\.\[video\]'"):
        purerl.render(train, train.init(jax.random.key(0)), tmp_path / "agent.mp4")
