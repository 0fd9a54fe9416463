"""Action masks: which entry is the mask, which masks are refused, and which are counted."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import purerl
from purerl.core.masks import mask_metrics
from purerl.core.metrics import Sum
from purerl.core.spaces import Discrete, MultiDiscrete
from purerl.runs.watch import MetricWatch
from tests.helpers.gymnasium_env import Ends
from tests.helpers.masks import Doors
from tests.helpers.probes import Varied

CFG = purerl.PPOConfig(total_timesteps=64, num_envs=4, num_steps=8, num_epochs=1, num_minibatches=2, hidden=(8,))
INF = np.inf


def logarithms(door):
    return jnp.where(jax.nn.one_hot(door, 3, dtype=bool), 0.0, -jnp.inf)


def closed(door):
    return jax.nn.one_hot(door, 3, dtype=bool) & (door < 2)


class Dicts(Ends):
    observation_space = spaces.Dict({"seen": Ends.observation_space, "action_mask": spaces.MultiBinary(2)})

    def _obs(self):
        return {"seen": super()._obs(), "action_mask": np.array([1, self.time % 2], np.int8)}


class Gymnax(Varied):
    def observe_state(self, state):
        return {"seen": super().observe_state(state), "action_mask": jnp.ones(2, bool)}


@pytest.mark.parametrize(
    "env",
    [
        lambda: purerl.wrap_env(Doors()),
        lambda: purerl.wrap_env(Doors())._replace(name="batch"),
        Gymnax,
        lambda: purerl.from_gymnasium(Dicts),
    ],
)
def test_observation_entry_action_mask_is_used_by_default(env):
    assert purerl.make_train(CFG, env=env()).cfg.action_mask == "action_mask"
    assert purerl.make_train(CFG.replace(action_mask=""), env=env()).cfg.action_mask == ""


@pytest.mark.parametrize("dtype", [bool, jnp.uint8, jnp.int32, jnp.float32])
def test_masks_of_every_dtype_are_equivalent(dtype):
    mask = jnp.array([[1, 0, 1], [0, 0, 1]], dtype)
    policy = purerl.distributions.Categorical(jnp.zeros((2, 3))).mask(mask)
    np.testing.assert_allclose(np.exp(policy.log_prob(jnp.array([2, 2]))), [0.5, 1.0], rtol=1e-6)
    assert [int(x.total) for x in mask_metrics(mask[None], Discrete(3)).values()] == [0, 0]
    purerl.make_train(CFG, env=purerl.wrap_env(Doors(lambda door: jax.nn.one_hot(door, 3).astype(dtype))))


def test_empty_and_malformed_masks_are_counted():
    counts = lambda rows, space: {k: int(x.total) for k, x in mask_metrics(jnp.array([rows]), space).items()}
    assert counts([[0, -INF], [-INF, -INF], [0.0, 0.0], [1.0, 0.0]], Discrete(2)) == {"empty_masks": 1, "malformed_masks": 2}
    assert counts([[0.5, 1], [np.nan, 1], [2, 1]], Discrete(2)) == {"empty_masks": 0, "malformed_masks": 3}
    both = [[1, 0, 0, 1], [1, 0, 0, 0], [0, 0, 1, 1]]  # each of the two action dimensions needs a valid action
    assert counts(both, MultiDiscrete((2, 2))) == {"empty_masks": 2, "malformed_masks": 0}


def test_runs_without_masks_have_no_mask_metrics():
    train = purerl.make_train(CFG, env=Varied())
    metrics = jax.eval_shape(lambda key: train.update(train.init(key))[1], jax.random.key(0))
    assert not {"empty_masks", "malformed_masks"} & set(metrics)


def test_invalid_masks_warn_once():
    rows = {"empty_masks": Sum(np.array([[0, 2], [0, 3]])), "malformed_masks": Sum(np.zeros((2, 2), np.int32))}
    watch = MetricWatch(("seed 0", "seed 1"), batch_size=64, updates=0)
    with pytest.warns(UserWarning, match="empty_masks: 5 observations have an action mask without a valid action"):
        watch(rows, 2, False, True)
    watch(rows, 4, False, True)  # a second warning would be an error here


@pytest.mark.long
@pytest.mark.slow
def test_fit_warns_of_masks_without_a_valid_action():
    with pytest.warns(UserWarning, match=r"empty_masks: \d+ observations have an action mask without a valid action"):
        metrics = purerl.fit(CFG, env=purerl.wrap_env(Doors(closed)), chunk_seconds=1e-9).metrics
    assert metrics["empty_masks"].total.sum() > 0
    assert metrics["malformed_masks"].total.sum() == 0


@pytest.mark.slow
def test_fit_warns_of_masks_in_log_space():
    with pytest.warns(UserWarning, match="malformed_masks: 32 observations .* not logits such as 0 and -inf"):
        purerl.fit(CFG, env=purerl.wrap_env(Doors(logarithms)))


@pytest.mark.slow
def test_check_env_reports_empty_and_malformed_masks():
    either = lambda door: jnp.where(door < 1, logarithms(door), closed(door))
    malformed, empty = purerl.check_env(purerl.wrap_env(Doors(either)), num_envs=4, num_steps=20).problems
    assert "values other than 0 and 1; an action mask must be 1" in malformed
    assert "% of the action masks ('action_mask') in random steps have no valid action" in empty


class Methods(Ends):
    def action_masks(self):
        return np.ones(2, bool)


class Informs(Ends):
    def reset(self, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": np.ones(2, np.int8)}


@pytest.mark.parametrize(("env", "where"), [(Methods, r"Methods\.action_masks"), (Informs, r"info\['action_mask'\]")])
def test_gymnasium_masks_outside_the_observation_warn(env, where):
    for vectorization, make in [("sync", env), ("vector", lambda count: gymnasium.vector.SyncVectorEnv([env] * count))]:
        made = purerl.from_gymnasium(make, vectorization)
        with pytest.warns(UserWarning, match=rf"{where} is not read; use a wrapper that adds the mask to a dict observation"):
            purerl.make_train(CFG, env=made)
        purerl.make_train(CFG.replace(action_mask=""), env=made)
