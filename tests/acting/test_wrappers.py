"""Uniform random actions during warm-up."""

import jax
import numpy as np
import pytest

import purerl
from tests.helpers.tiny import CFG, tiny

KEY = jax.random.key(0)


@pytest.mark.slow
def test_warmup_acts_at_random_and_stores_the_random_policys_log_probability():
    cfg = CFG.replace(warmup_steps=65, log_std_init=-3.0)  # two of four updates
    box = purerl.summarize(jax.jit(tiny(cfg, box=True))(KEY).metrics)["log_prob"]
    np.testing.assert_allclose(box[:2], -np.log(2), rtol=1e-5)
    assert (box[2:] > 0).all()
    discrete = purerl.summarize(jax.jit(tiny(cfg.replace(lr=0.0)))(KEY).metrics)
    np.testing.assert_allclose(discrete["log_prob"][:2], -np.log(2), rtol=1e-5)
