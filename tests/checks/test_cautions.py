"""Warnings of probable mistakes."""

import jax.numpy as jnp
import pytest

import purerl
from tests.helpers.masks import Doors

CFG = purerl.PPOConfig(total_timesteps=64, num_envs=4, num_steps=8, num_epochs=1, num_minibatches=2, hidden=(8,))


def test_unused_mask_entries_warn():
    wrong = lambda door: jnp.ones((2, 3), bool)
    for env, says in [
        (Doors(name="valid_actions"), "set action_mask='valid_actions' to use the mask"),
        (Doors(name="mask"), "set action_mask='mask' to use the mask"),
        (Doors(wrong), r"an action mask must have shape \[3\], one flag per action, not \[2, 3\]"),
        (type("Switches", (Doors,), {"action_space": purerl.MultiBinary(3)})(), "only discrete actions can be masked"),
    ]:
        with pytest.warns(UserWarning, match=says):
            purerl.make_train(CFG, env=purerl.wrap_env(env))
        purerl.make_train(CFG.replace(action_mask=""), env=purerl.wrap_env(env))  # "" says that no entry is a mask
