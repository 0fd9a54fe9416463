"""Images as an animation."""

import os
from collections.abc import Sequence

import numpy as np

FASTEST = 0.02  # seconds of an image; viewers slow down what is faster


def draw_in_memory() -> None:
    """Prepare for pygame to draw: without a screen and a loudspeaker it would complain."""
    for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
        os.environ.setdefault(driver, "dummy")


def save_gif(images: Sequence[np.ndarray] | np.ndarray, path: str | os.PathLike, seconds: float) -> None:
    """Encode images `[height, width, 3]` uint8 as a GIF of so many seconds an image; too fast ones are left out."""
    from PIL import Image

    every = max(1, round(FASTEST / seconds))
    frames = [Image.fromarray(image) for image in images[::every]]
    duration = max(20, round(1000 * seconds * every))
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=duration, loop=0)
