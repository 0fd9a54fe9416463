"""Warnings about a run's metrics: values that a clip keeps far from the returns, and episodes beyond the time limit."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.core.metrics import Mean
from purerl.runs.watch import MetricWatch


class Constant:
    """A task that pays the same reward in every step, whatever the action."""

    action_space, max_steps = purerl.Discrete(2), 1000

    def __init__(self, reward):
        self.reward = jnp.float32(reward)

    def reset(self, key):
        return jnp.int32(0), jnp.ones(1)

    def step(self, key, state, action):
        return state, jnp.ones(1), self.reward, False, False, {}


CFG = purerl.PPOConfig(num_envs=4, num_steps=8, total_timesteps=3_200, hidden=(8,), num_minibatches=1, num_epochs=4, lr=1e-3)


def test_clip_that_holds_values_far_from_returns_warns():
    text = r"after 100 updates the value error is \d{3}, .* move by about 0.2 per update; normalize_reward=True"
    with pytest.warns(UserWarning, match=text):
        purerl.fit(CFG, env=purerl.wrap_env(Constant(100)))


@pytest.mark.parametrize(
    "changes",
    [
        {"value_clip": "none"},
        *(pytest.param({name: True}, marks=pytest.mark.long) for name in ("normalize_reward", "normalize_value")),
    ],
)
def test_values_that_can_follow_returns_do_not_warn(changes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        purerl.fit(CFG.replace(**changes), env=purerl.wrap_env(Constant(100)))


def test_value_warning_uses_the_last_row_of_each_run_once():
    def rows(*errors):
        return {"value_loss": Mean(np.array([[0.0, x**2 / 2] for x in errors]), np.ones((len(errors), 2)))}

    watch = MetricWatch(("seed 0", "seed 1"), 64, 0, value_clip=0.2)
    watch(rows(5_000, 5_000), 99, False, True)  # too early to tell
    watch(rows(99, 50), 100, False, True)
    with pytest.warns(UserWarning, match="seed 1: after 200 updates the value error is 250"):
        watch(rows(99, 250), 200, False, True)
    watch(rows(99, 900), 300, False, True)
    MetricWatch(("seed 0", "seed 1"), 64, 0)(rows(5_000, 5_000), 200, False, True)


def test_episodes_beyond_the_time_limit_warn():
    rows = {"episode_length": Mean(np.array([[10.0, 0.0]]), np.array([[2, 0]]))}
    watch = lambda limit: MetricWatch(("seed 0",), 64, 0, max_steps=limit)(rows, 2, False, True)
    watch(None)
    watch(5)
    with pytest.warns(UserWarning, match="episodes last 5 steps, but max_steps of the environment is 3"):
        watch(3)
