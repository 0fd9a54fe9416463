"""Coefficients that follow a schedule."""

import jax
import numpy as np

from purerl import PPOConfig
from purerl.core.keys import clock_at
from purerl.learning.learner import scheduled_config
from tests.helpers.tiny import PLAIN, tiny

KEY = jax.random.key(0)


def test_coefficients_follow_their_schedules():
    cfg = PPOConfig(**PLAIN, total_timesteps=512 * 10, ent_schedule="linear", clip_schedule="linear", clip_eps_final=0.1)
    state = tiny().init(KEY).replace(clock=clock_at(5))
    halfway = scheduled_config(cfg, state)
    np.testing.assert_allclose([halfway.ent_coef, halfway.clip_eps], [0.005, 0.15], rtol=1e-6)
    assert scheduled_config(PPOConfig(), state) == PPOConfig()
