"""Rewards before advantages are estimated."""

import jax
import numpy as np
import pytest

import purerl
from purerl.acting.rollout import step_counts
from purerl.core.keys import clock_at
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG, tiny

KEY = jax.random.key(0)


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
