"""Environments of the suites, with arguments for their tests."""

import pytest

from purerl.envs.suites import SUITES

# Constructor arguments for an early time limit, and enough steps of random actions to reach it.
IDS = {
    "brax/fast": ((), 1100),
    "brax/inverted_pendulum": ((("episode_length", 60),), 300),
    "brax/reacher": ((("episode_length", 60),), 150),
    "craftax/Craftax-Classic-Symbolic-v1": ((), 150),
    "craftax/Craftax-Classic-Pixels-v1": ((), 150),
    "craftax/Craftax-Symbolic-v1": ((), 150),
    "playground/CartpoleBalance": ((("episode_length", 60),), 150),
    "playground/PendulumSwingup": ((("episode_length", 60),), 150),
    "playground/BallInCup": ((("episode_length", 60),), 150),
    "jumanji/Snake-v1": ((("time_limit", 60),), 150),
    "jumanji/Game2048-v1": ((), 400),
    "jumanji/Minesweeper-v0": ((), 150),
    "navix/Navix-DoorKey-5x5-v0": ((("max_steps", 60),), 150),
    "navix/Navix-Empty-Random-6x6-v0": ((("max_steps", 60), ("observation_fn", "symbolic_first_person")), 150),
    "navix/Navix-KeyCorridorS3R1-v0": ((("max_steps", 60), ("observation_fn", "categorical")), 150),
    "pgx/minatar-breakout": ((("episode_length", 60),), 300),
    "pgx/minatar-asterix": ((), 300),
    "pgx/2048": ((), 300),
    "xminigrid/MiniGrid-DoorKey-5x5": ((("max_steps", 60),), 150),
    "xminigrid/MiniGrid-MemoryS8": ((("max_steps", 60),), 150),
    "xminigrid/XLand-MiniGrid-R1-9x9": ((("max_steps", 60),), 150),
}


def installed(env_id):
    pytest.importorskip(SUITES[env_id.partition("/")[0]])
