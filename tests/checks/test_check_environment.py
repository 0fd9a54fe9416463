"""Fields that do not fit the observations or the actions."""

import jax
import numpy as np
import pytest

import purerl
from purerl.core.spaces import Box
from tests.helpers.probes import Rich, Varied, acting
from tests.helpers.tiny import CFG


@pytest.mark.parametrize(
    ("cfg", "env", "says"),
    [
        ({"action_distribution": "tanh"}, Varied(), "needs continuous actions, not Discrete"),
        ({"arch": "shared", "critic_obs": "secret"}, Rich(), "shows the policy"),
        ({"torso": "nature_cnn"}, Varied(), "at least 36 x 36"),
        ({"action_mask": "legal"}, Varied(), "is not a dict"),
        ({"action_mask": "legall"}, Rich(), "choose from 'index', 'legal', 'secret', 'seen'"),
        ({"action_mask": "secret"}, Rich(), r"must have shape \[5\], one flag per action, not \[6\]"),
        ({"action_mask": "legal"}, acting(Rich, "box")(), "only discrete actions can be masked"),
        ({"critic_obs": "x"}, Rich(), "critic_obs = 'x'"),
        ({"critic_obs": "legal", "action_mask": "legal"}, Rich(), "critic_obs = 'legal': is the action mask"),
        ({"normalize_obs": True, "normalize_entries": ("index",)}, Rich(), "normalize_entries = 'index': is categorical"),
        ({"normalize_obs": True, "normalize_entries": ("legal",), "action_mask": "legal"}, Rich(), "'legal': is the action mask"),
        ({"info": ("nothing",)}, Rich(), "'illegal', 'time'"),
    ],
)
def test_fields_that_do_not_fit_the_environment_are_refused(cfg, env, says):
    with pytest.raises(purerl.ConfigError, match=says):
        purerl.make_train(CFG.replace(**cfg), env=env)


@pytest.mark.parametrize("bound", [np.inf, 1e8])
def test_tanh_and_warmup_need_bounded_actions(bound):
    endless = Box(np.full(1, -bound, np.float32), np.full(1, bound, np.float32))
    env = acting(Varied, "box")()
    env.action_space = lambda params=None: endless
    missing = "needs finite action bounds, and those of -1e6 and 1e6, or wider, count as missing"
    for changes in ({"action_distribution": "tanh"}, {"action_distribution": "beta"}, {"warmup_steps": 64}):
        with pytest.raises(purerl.ConfigError, match=missing):
            purerl.make_train(CFG.replace(**changes), env=env)


def test_categorical_observations_cannot_be_normalised():
    with pytest.raises(purerl.ConfigError, match=r"normalize_obs = True: .* categorical"):
        purerl.make_train(purerl.PPOConfig(env="FrozenLake-misc", normalize_obs=True))


KEY = jax.random.key(0)


def test_empty_policy_observations_and_duplicate_entries_are_refused():
    class Named(Varied):
        def observe_state(self, state):
            return {"previous_reward": super().observe_state(state)}

    with pytest.raises(purerl.ConfigError, match="the policy would see nothing; hide fewer entries"):
        purerl.make_train(CFG.replace(critic_obs="previous_reward"), env=Named())
    with pytest.raises(purerl.ConfigError, match="already has the entry previous_reward"):
        purerl.make_train(CFG.replace(memory="gru", memory_inputs=("reward",)), env=Named())
    seen = purerl.make_train(CFG, env=Named()).init(KEY).params["policy"]["torso"]["Dense_0"]["kernel"]
    assert seen.shape[0] == 4
