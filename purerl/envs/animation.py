"""Animations of images: GIF and MP4 files."""

import os
import pathlib
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from purerl.core.errors import config_error

FASTEST = 0.02  # minimum seconds per image of a GIF; viewers slow down faster GIFs


def draw_in_memory() -> None:
    """Let pygame draw without a screen or an audio device."""
    for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        os.environ.setdefault(driver, "dummy")


def ffmpeg() -> str:
    """Return the path of the ffmpeg program that comes with imageio-ffmpeg.

    Raises:
        ConfigError: imageio-ffmpeg is not installed.
    """
    try:
        from imageio_ffmpeg import get_ffmpeg_exe  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise config_error("path", ..., "a .mp4 needs ffmpeg; run pip install '.[video]', or write a .gif") from error
    return get_ffmpeg_exe()


def make_draw(render: Callable[[list], Sequence[np.ndarray] | np.ndarray], seconds: float) -> Callable:
    """Return the function `draw` of an environment of `wrap_env`. It saves the images `render(states)`, `seconds` per image."""

    def draw(env_states: list, returns: np.ndarray, path: Any) -> None:
        save_animation(render([state for state, _ in env_states]), path, seconds)

    return draw


def save_animation(images: Sequence[np.ndarray] | np.ndarray, path: str | os.PathLike, seconds: float) -> None:
    """Save images `[height, width, 3]` uint8, `seconds` per image, as an MP4 if the path ends in `.mp4`, otherwise as a GIF.

    If a GIF would be too fast for viewers, images are left out.
    """
    if pathlib.Path(path).suffix == ".mp4":
        pixels = np.asarray(images, np.uint8)
        given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{pixels.shape[2]}x{pixels.shape[1]}", "-r", str(1 / seconds)]
        coded = ["-pix_fmt", "yuv420p", "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]  # the codec needs even sizes
        command = [ffmpeg(), "-y", "-loglevel", "error", *given, "-i", "-", *coded, os.fspath(path)]
        subprocess.run(command, input=pixels.tobytes(), check=True, capture_output=True)
        return
    from PIL import Image

    every = max(1, round(FASTEST / seconds))
    frames = [Image.fromarray(image) for image in images[::every]]
    duration = max(20, round(1000 * seconds * every))
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=duration, loop=0)
