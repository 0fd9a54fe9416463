"""A gymnasium environment whose episodes terminate, are truncated, or both."""

import os

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 3


class Ends(gymnasium.Env):
    """An environment with episodes of three steps, which terminate, are truncated, or both, in turn.

    Observations are the number of the episode and the step.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, error_at=None, die_at=None, keeps=()):
        self.episode, self.time, self.error_at, self.die_at = -1, 0, error_at, die_at
        self.keeps = set(keeps) if keeps else None

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.time += 1
        if self.time == self.error_at:
            raise ValueError("boom")
        if self.time == self.die_at and self.episode == 2:
            os._exit(1)
        done, kind = self.time == LENGTH, self.episode % 3
        info = {"twice": 2.0 * self.time} | ({"ended": float(self.episode)} if done else {})
        return self._obs(), float(self.episode), done and kind != 1, done and kind != 0, info

    def _obs(self):
        return np.array([self.episode, self.time], np.float64)
