"""GIF animations of images."""

import os
from collections.abc import Sequence

import numpy as np

FASTEST = 0.02  # seconds per image; viewers slow down faster animations


def draw_in_memory() -> None:
    """Let pygame draw without a screen or an audio device."""
    for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        os.environ.setdefault(driver, "dummy")


def save_gif(images: Sequence[np.ndarray] | np.ndarray, path: str | os.PathLike, seconds: float) -> None:
    """Encode images `[height, width, 3]` uint8 as a GIF, `seconds` per image. If that is too fast for viewers, skip images."""
    from PIL import Image

    every = max(1, round(FASTEST / seconds))
    frames = [Image.fromarray(image) for image in images[::every]]
    duration = max(20, round(1000 * seconds * every))
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=duration, loop=0)
