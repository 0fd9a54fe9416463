"""Adaptive coefficients of the KL penalty."""

import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from purerl.learning.kl_penalty import adapted_kl_coef


@pytest.mark.parametrize(("system", "tolerance", "more"), [("ppo_paper", 1.5, 2.0), ("rllib", 2.0, 1.5)])
def test_kl_coefficients_match_the_reference_vector(vectors, system, tolerance, more):
    given, expected = vectors["kl_adaptive_coefficient"]
    cfg = PPOConfig(desired_kl=given["target"], kl_coef_tolerance=tolerance, kl_coef_raise=more)
    cfg = purerl.config.fields.single_precision(cfg)
    coef, got = jnp.float32(given["initial_beta"]), []
    for kl in given["kl"]:
        coef = adapted_kl_coef(cfg, coef, jnp.float32(kl))
        got.append(coef)
    np.testing.assert_allclose(got, expected[system], rtol=1e-5)
