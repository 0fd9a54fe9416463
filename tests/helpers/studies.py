"""Small sweeps and studies."""

from purerl import Range
from tests.helpers.tiny import CFG

SHORT = CFG.replace(total_timesteps=64 * 4, hidden=(8,))


GRID = {"lr": [1e-3, 1e-2], "ent_coef": [0.0, 0.1], "num_steps": [16, 8]}


TUNED = SHORT.replace(total_timesteps=64 * 8)


SPACE = {"lr": Range(1e-4, 1e-1, log=True), "ent_coef": Range(0.0, 0.1), "num_steps": [16, 8]}


OPTIONS = {"trials": 12, "num_seeds": 2, "at_once": 3, "rungs": 2, "finalists": 2, "final_seeds": 2}


def without_time(step):
    return step._replace(seconds=0.0)
