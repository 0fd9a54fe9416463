"""Tasks of `peers.py`, and the steps and seconds at which runs reach a threshold."""

from typing import NamedTuple

import numpy as np

POINTS = 50


class Task(NamedTuple):
    """A task: the training steps, the return that counts as learnt, and the number of seeds that choose hyperparameters."""

    steps: int
    threshold: float
    tuning_seeds: int = 2


TASKS = {
    "CartPole-v1": Task(250_000, 475),
    "Acrobot-v1": Task(250_000, -100),
    "Pendulum-v1": Task(250_000, -200),
    "MountainCarContinuous-v0": Task(50_000, 90),
    "Breakout-MinAtar": Task(1_000_000, 15, tuning_seeds=4),
    "Asterix-MinAtar": Task(3_000_000, 5, tuning_seeds=4),
}


def curves(row):
    """Return the mean return at each point of the training of each seed, NaN if unknown. `[seeds, 50]`."""
    return np.array([[np.nan if x is None else x for x in curve] for curve in row["curves"]])


def reached(row, env, points=POINTS):
    """Return the steps and seconds of each seed to the first point that reaches the threshold; inf without such a point."""
    there = curves(row) >= TASKS[env].threshold  # False for NaN
    first = np.where(there.any(1), there.argmax(1) + 1, np.inf) / points
    return first * TASKS[env].steps, row["startup"] + first * np.median(row["seconds"])
