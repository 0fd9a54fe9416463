"""Schedules of the learning rate, and rates that adapt to the KL divergence."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purerl
from purerl import PPOConfig
from purerl.core.keys import clock_at
from purerl.learning.learning_rates import kl_adapted_lr, learning_rate
from purerl.learning.optimizers import Optimizer, phase_optimizer


def test_linear_schedule_matches_the_reference_vector(vectors):
    given, expected = vectors["lr_schedules"][0]["linear"], vectors["lr_schedules"][1]["linear"]
    rate = lambda i: learning_rate(clock_at(int(i) - 1), int(given["n"]), jnp.float32(given["lr"]), jnp.float32(0), "linear")
    np.testing.assert_allclose([rate(i) for i in given["iterations"]], expected, rtol=1e-5)


def test_linear_schedule_decreases_in_equal_steps():
    rate = lambda i: learning_rate(clock_at(i), 8, jnp.float32(2.5e-4), jnp.float32(0), "linear")
    np.testing.assert_allclose([rate(i) for i in range(8)], 2.5e-4 - 3.125e-5 * np.arange(8), rtol=1e-5)
    assert learning_rate(clock_at(7), 8, jnp.float32(2.5e-4), jnp.float32(0), "constant") == np.float32(2.5e-4)
    halfway = learning_rate(clock_at(4), 8, jnp.float32(1e-3), jnp.float32(5e-4), "linear")
    np.testing.assert_allclose(halfway, 7.5e-4, rtol=1e-6)


def test_polynomial_schedule_matches_the_reference_vector(vectors):
    given, expected = vectors["lr_schedules"][0]["poly"], vectors["lr_schedules"][1]["poly"]
    cfg = PPOConfig(lr_schedule="polynomial", lr=given["lr"], lr_final=given["lr_final"], decay_steps=int(given["decay_steps"]))
    cfg = cfg.replace(num_epochs=1, num_minibatches=2)  # step s is the (s % 2)-th of update s // 2
    got = []
    for step in map(int, given["steps"]):
        moving = phase_optimizer(cfg, Optimizer(optax.identity(), True), None)
        got.append(moving.rate(clock_at(step // 2), jnp.uint32(step % 2), 2))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("system", ["skrl", "rsl_rl", "unilab"])
def test_kl_adaptive_rates_match_the_reference_vector(vectors, system):
    given, expected = vectors["kl_adaptive_lr"]
    params = expected[system]["params"]
    cfg = PPOConfig(
        desired_kl=params.get("desired_kl", params.get("kl_threshold")),
        lr_kl_tolerance=params["kl_factor"],
        lr_kl_factor=params["lr_factor"],
        lr_min=params["min_lr"],
        lr_max=params["max_lr"],
        lr_kl_every="minibatch" if params["need_positive"] else "epoch",
    )
    cfg = purerl.config.fields.single_precision(cfg)
    lr, got = jnp.float32(given["initial_lr"]), []
    for kl in given["kl"]:
        lr = kl_adapted_lr(cfg, lr, jnp.float32(kl))
        got.append(lr)
    np.testing.assert_allclose(got, expected[system]["lr"], rtol=1e-5)


def test_kl_adaptive_rates_stay_within_their_bounds(vectors):
    _, expected = vectors["kl_adaptive_lr"]
    cfg = purerl.config.fields.single_precision(PPOConfig(lr_kl_every="epoch"))
    for name, kl in (("clamp_low_skrl", 1.0), ("clamp_high_skrl", 0.0)):
        lr = expected[name][0]
        for want in expected[name][1:]:
            lr = kl_adapted_lr(cfg, jnp.float32(lr), jnp.float32(kl))
            np.testing.assert_allclose(lr, want, rtol=1e-5)
