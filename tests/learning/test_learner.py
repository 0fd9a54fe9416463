"""Coefficients of an update, and rewards before advantages are estimated."""

import jax
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from purerl.acting.rollout import step_counts
from purerl.core.keys import clock_at
from purerl.learning.learner import scheduled_config
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG, PLAIN, tiny

KEY = jax.random.key(0)


def test_coefficients_follow_their_schedules():
    cfg = PPOConfig(**PLAIN, total_timesteps=512 * 10, ent_schedule="linear", clip_schedule="linear", clip_eps_final=0.1)
    state = tiny().init(KEY).replace(clock=clock_at(5))
    halfway = scheduled_config(cfg, state)
    np.testing.assert_allclose([halfway.ent_coef, halfway.clip_eps], [0.005, 0.15], rtol=1e-6)
    assert scheduled_config(PPOConfig(), state) == PPOConfig()


@pytest.mark.slow
def test_reward_shaper_receives_the_reward_and_the_step():
    """Learning uses the shaped rewards; metrics report those of the environment."""
    train = purerl.make_train(CFG.replace(reward_clip=1.0), env=Varied(), reward_shaper=lambda reward, step: 0 * reward + step)
    plain = tiny(CFG)
    shaped, same = (purerl.summarize(jax.jit(t)(KEY).metrics) for t in (train, plain))
    assert shaped["reward_max"][0] == same["reward_max"][0]
    assert shaped["value_loss"][0] > 10 * same["value_loss"][0]
    counts = step_counts(clock_at(3), 16, 4)
    np.testing.assert_array_equal(counts[:, 0], 3 * 64 + 4 * np.arange(16))
