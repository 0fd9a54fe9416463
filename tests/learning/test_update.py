"""Updates before learning starts, and after it stops early."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from purerl.learning.update import adapted_kl_coef
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)


@pytest.mark.slow
def test_learning_starts_delays_parameter_updates():
    train = tiny(CFG.replace(learning_starts=100))  # two of four updates
    state, update = train.init(KEY), jax.jit(train.update)
    digests, counts = [digest(state.params)], []
    for _ in range(3):
        state, metrics = update(state)
        digests.append(digest(state.params))
        counts.append(int(metrics["policy_loss"].count))
    assert digests[0] == digests[1] == digests[2] != digests[3]
    assert counts == [0, 0, 4]


@pytest.mark.slow
def test_updates_before_learning_starts_keep_penalty_and_schedule():
    late = CFG.replace(learning_starts=128, kl_penalty="adaptive", lr_schedule="polynomial")
    metrics = purerl.summarize(jax.jit(tiny(late))(KEY).metrics)
    assert metrics["kl_coef"][:3].tolist() == [1, 1, 1]
    np.testing.assert_allclose(metrics["lr"][:3], late.lr)
    assert tiny(late).plan.gradient_steps == 2 * 4
    constant = purerl.summarize(jax.jit(tiny(lr_schedule=lambda step: 1e-3))(KEY).metrics)
    np.testing.assert_allclose(constant["lr"], 1e-3)


@pytest.mark.slow
def test_learning_rate_keeps_adapting_after_an_early_stop():
    cfg = CFG.replace(lr_schedule="kl_adaptive", desired_kl=1e-5, target_kl=1e-5, lr=1e-2)
    lr = purerl.summarize(jax.jit(tiny(cfg))(KEY).metrics)["lr"]
    assert lr[-1] < lr[0] < 1e-2


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
