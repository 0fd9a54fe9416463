"""Warnings of probable mistakes."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.checks.cautions import _has_channels_first
from tests.helpers.masks import Doors

CFG = purerl.PPOConfig(total_timesteps=64, num_envs=4, num_steps=8, num_epochs=1, num_minibatches=2, hidden=(8,))


def test_unused_mask_entries_warn():
    wrong = lambda door: jnp.ones((2, 3), bool)
    for env, says in [
        (Doors(name="valid_actions"), "set action_mask='valid_actions' to use the mask"),
        (Doors(name="mask"), "set action_mask='mask' to use the mask"),
        (Doors(name="legal_moves"), "set action_mask='legal_moves' to use the mask"),
        (Doors(name="invalid_action_mask"), "return its negation, True for valid actions"),
        (Doors(wrong), r"an action mask must have shape \[3\], one flag per action, not \[2, 3\]"),
        (type("Switches", (Doors,), {"action_space": purerl.MultiBinary(3)})(), "only discrete actions can be masked"),
    ]:
        with pytest.warns(UserWarning, match=says):
            purerl.make_train(CFG, env=purerl.wrap_env(env))
        purerl.make_train(CFG.replace(action_mask=""), env=purerl.wrap_env(env))  # "" says that no entry is a mask


def test_masks_in_info_warn_and_other_entries_do_not():
    class Tells(Doors):
        def step(self, key, state, action):
            *after, info = super().step(key, state, action)
            return *after, {**info, "legal_actions": jnp.ones(3), "invalid_action": jnp.ones(3), "valid_action": jnp.float32(0)}

    with pytest.warns(UserWarning, match=r"info\['legal_actions'\] is not read") as found:
        purerl.make_train(CFG, env=purerl.wrap_env(Tells(name="board")))
    assert len(found) == 1
    purerl.make_train(CFG, env=purerl.wrap_env(Tells()))
    purerl.make_train(CFG.replace(action_mask=""), env=purerl.wrap_env(Tells(name="board")))


def test_enormous_learning_rates_of_adam_warn():
    with pytest.warns(UserWarning, match="lr = 30.0: Adam moves every parameter by about this much"):
        purerl.make_train(CFG.replace(lr=30.0))
    purerl.make_train(CFG.replace(lr=1.0), lr_schedule=lambda steps: 3e-4)


@pytest.mark.parametrize(
    ("cfg", "says"),
    [
        (purerl.PPGConfig(n_pi=3, e_aux=1), r"is 2 updates, but the phase 'aux' begins in update 3, so it never runs"),
        (purerl.DAACConfig(value_freq=3), "the phase 'value' begins in update 3"),
        (purerl.PPOConfig(learning_starts=64), "the phase '.*' begins in update 3"),
        (purerl.APPOConfig(lag=9), "lag = 9: counts updates, of which training has only 2"),
        (purerl.APPOConfig(target_update_freq=9), "target_update_freq = 9: counts updates, of which training has only 2"),
        (purerl.PPOConfig(warmup_steps=64, learning_starts=0), "actions are random until the end, total_timesteps = 64"),
    ],
)
def test_phases_that_never_run_and_endless_warm_ups_warn(cfg, says):
    sizes = {name: getattr(CFG, name) for name in ("total_timesteps", "num_envs", "num_steps", "num_minibatches", "hidden")}
    with pytest.warns(UserWarning, match=says):
        purerl.make_train(cfg.replace(**sizes))


def test_phases_that_run_once_do_not_warn():
    sizes = {"total_timesteps": 96, "num_envs": 4, "num_steps": 8, "num_minibatches": 2}
    phased = purerl.make_train(purerl.PPGConfig(n_pi=3, e_aux=1, **sizes))
    late = purerl.make_train(purerl.PPOConfig(learning_starts=64, **sizes))
    assert [phase.runs for phase in (phased.plan.phases[-1], *late.plan.phases)] == [1, 1]


@pytest.mark.parametrize(("shape", "says"), [((12, 84, 84), True), ((3, 32, 40), True), ((84, 84, 4), False), ((6, 7, 2), False)])
def test_images_whose_channels_come_first_warn(shape, says):
    assert _has_channels_first(*shape) is says


class Film:
    """Images [frames, height, width]."""

    action_space = purerl.Discrete(2)

    def reset(self, key):
        return (), jnp.zeros((12, 84, 84))

    def step(self, key, state, action):
        return state, jnp.zeros((12, 84, 84)), 0.0, False, False, {}


@pytest.mark.parametrize("count", [1, 2])
def test_stacked_images_whose_channels_come_first_warn(count):
    cfg = CFG.replace(frame_stack=count, torso="mlp")
    with pytest.warns(UserWarning, match=r"observations \[12, 84, .* are read as \[height, width, channels\]"):
        purerl.make_train(cfg, env=purerl.wrap_env(Film()))


def test_levels_with_randomized_parameters_warn():
    cfg = CFG.replace(env="Pendulum-v1", num_levels=3, randomize={"g": purerl.Uniform(8, 12)})
    with pytest.warns(
        UserWarning, match="num_levels = 3: a level has its own randomized parameters, so training has only 3 values"
    ):
        purerl.make_train(cfg)
    with pytest.raises(purerl.ConfigError, match="randomize_each = 'environment': needs num_levels=0"):
        purerl.make_train(cfg.replace(randomize_each="environment"))


@pytest.mark.parametrize(("low", "high"), [(2e6, 5e6), (100, np.inf), (-np.inf, -50), (0, 1e7)])
def test_actions_that_a_gaussian_policy_hardly_reaches_warn(low, high):
    bounds = np.array([[-1, low], [1, high]], np.float32)
    env = type("Wide", (Doors,), {"action_space": purerl.Box(*bounds)})(name="seen")
    cfg = CFG.replace(action_mask="")
    says = re.escape(f"a dimension of the actions lies between {low:g} and {high:g}, but the policy begins")
    with pytest.warns(UserWarning, match=says):
        purerl.make_train(cfg, env=purerl.wrap_env(env))
    if np.isfinite(high - low):
        purerl.make_train(cfg.replace(action_distribution="tanh"), env=purerl.wrap_env(env))


def test_adam_without_epsilon_warns():
    with pytest.warns(UserWarning, match="adam_eps = 0.0: makes parameters NaN whose gradient is 0"):
        purerl.make_train(CFG.replace(adam_eps=0.0))


def test_unbounded_actions_do_not_warn():
    for low, high in ((-np.inf, np.inf), (0.01, np.inf), (-1e6, 1e6), (-np.finfo(np.float32).max, np.finfo(np.float32).max)):
        space = purerl.Box(np.full(1, low, np.float32), np.full(1, high, np.float32))
        purerl.make_train(
            CFG.replace(action_mask=""), env=purerl.wrap_env(type("Free", (Doors,), {"action_space": space})(name="x"))
        )
