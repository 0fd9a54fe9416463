"""Vector environments of gymnasium: saved states, and refused resets."""

import functools
import json

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import purerl
from purerl.envs.external.gymnasium_vector import SYNC, VectorEnvironments
from tests.helpers.gymnasium_env import Ends

CFG = purerl.PPOConfig(total_timesteps=64 * 4, num_envs=4, num_steps=16, num_epochs=1, num_minibatches=2, hidden=(8,))
EXACT = ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"]
STACKED = "CartPole-v1, stacked"
MUJOCO = ["Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "InvertedDoublePendulum-v5", "Pusher-v5", "Swimmer-v5"]


@pytest.mark.parametrize("name", [*EXACT, STACKED, *(pytest.param(name, marks=pytest.mark.slow) for name in MUJOCO)])
def test_restored_environment_continues_bit_for_bit(name):
    if name in MUJOCO:
        pytest.importorskip("mujoco")
    from purerl.envs.external.gymnasium_vector import VectorEnvironments

    def make():
        env = gymnasium.make(name.removesuffix(", stacked"), disable_env_checker=True)
        return gymnasium.wrappers.FrameStackObservation(env, 3) if name == STACKED else env

    env = make()
    env.action_space.seed(0)
    actions = [np.stack([env.action_space.sample() for _ in range(2)]) for _ in range(200)]
    if isinstance(env.action_space, spaces.Discrete):
        actions = [action - env.action_space.start for action in actions]
    env.close()

    def trial(environments, actions):
        return [environments.step(action)[:5] for action in actions]

    one, other = (VectorEnvironments(make, "sync", 2, {}) for _ in range(2))
    one.reset(np.array([3, 4])), other.reset(np.array([8, 9]))
    trial(one, actions[:100])
    other.restore(json.loads(json.dumps(one.snapshot())))
    same = jax.tree.map(np.array_equal, trial(one, actions[100:]), trial(other, actions[100:]))
    assert all(jax.tree.leaves(same))
    one.close(), other.close()


class BeginsWithNaN(Ends):
    """An environment whose first observation is not finite if the seed is 0."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        return np.full_like(obs, np.nan if seed == 0 else 1), info


def test_restored_environment_remembers_first_observations_that_are_not_finite():
    from purerl.envs.external.gymnasium_vector import VectorEnvironments

    first, second = (VectorEnvironments(BeginsWithNaN, "sync", 2, {}, finite=True) for _ in range(2))
    first.reset(np.zeros(2, np.uint32))
    second.reset(np.ones(2, np.uint32))
    second.restore(json.loads(json.dumps(first.snapshot())))
    for environments in (first, second):
        _, _, _, terminated, _, _, found = environments.step(np.zeros(2, np.int32))
        assert terminated.all()
        assert found["observation"].all()


def test_vector_environments_with_unsupported_resets_are_refused():
    vector = gymnasium.vector
    asynchronous = lambda count: vector.AsyncVectorEnv([Ends] * count, shared_memory=False, context="forkserver")
    with pytest.raises(purerl.ConfigError, match="resets one step late"):
        purerl.from_gymnasium(asynchronous, "vector")
    normalised = lambda count: gymnasium.wrappers.vector.NormalizeReward(vector.SyncVectorEnv([Ends] * count))
    with pytest.raises(purerl.ConfigError, match="'NormalizeReward': has running statistics"):
        purerl.from_gymnasium(normalised, "vector")


class OneSeed(SyncVectorEnv):
    """A vector environment whose reset takes one seed for all, as in many simulators."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None if seed is None else int(seed), options=options)


class Refuses(AsyncVectorEnv):
    def reset(self, *, seed=None, options=None):
        if self.closed:
            raise AttributeError("second try")
        self.closed = True
        raise ValueError("the real reason")


def test_failed_reset_reports_the_first_error():
    make = lambda count: Refuses([Ends] * count, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(Exception, match="the real reason"):
        purerl.from_gymnasium(make, "vector")


@pytest.mark.slow
def test_vector_environments_that_take_a_single_seed_are_accepted():
    make = lambda count: OneSeed([Ends] * count, autoreset_mode=AutoresetMode.SAME_STEP)
    env = purerl.from_gymnasium(make, "vector")
    metrics = jax.jit(purerl.make_train(CFG, env=env))(jax.random.key(0)).metrics
    assert int(metrics["steps"].total.sum()) == CFG.total_timesteps


class WithoutFinalObs(SyncVectorEnv):
    """A vector environment without final observations, or with an array that lacks a row for each environment."""

    given = None

    def step(self, actions):
        *after, info = super().step(actions)
        info.pop("final_obs", None)
        return *after, info | ({"final_obs": self.given} if self.given is not None else {})


@pytest.mark.parametrize("given", [None, {"obs": np.zeros((1, 2))}, np.array([None], object)])
def test_same_step_resets_without_final_observations_are_refused(given):
    kind = type("Vector", (WithoutFinalObs,), {"given": given})
    with pytest.raises(purerl.ConfigError, match=r"needs info\['final_obs'\] with the last observation of each environment"):
        purerl.from_gymnasium(lambda count: kind([Ends] * count, autoreset_mode=AutoresetMode.SAME_STEP), "vector")


class Counts(Ends):
    """An environment whose first instance reports NumPy integers and other instances report floats."""

    made = 0

    def __init__(self):
        super().__init__()
        self.first = Counts.made == 0
        Counts.made += 1

    def step(self, action):
        *after, _ = super().step(action)
        whole = {"number": np.int64(1), "flag": np.bool_(True), "array": np.array([1, 2])}
        return *after, whole if self.first else {"number": 0.5, "flag": 0.5, "array": np.array([0.5, 0.5])}


def test_info_of_integers_does_not_truncate_that_of_other_environments():
    from purerl.envs.external.gymnasium_vector import Tracked

    env = SyncVectorEnv([functools.partial(Tracked, Counts, i) for i in range(2)])
    env.reset()
    info = env.step(np.zeros(2, int))[-1]
    assert info["number"].tolist() == [1, 0.5]
    assert info["flag"].tolist() == [1, 0.5]
    assert info["array"].tolist() == [[1, 2], [0.5, 0.5]]


def test_changed_steps_are_refused_and_changed_limits_are_kept():
    env = purerl.from_gymnasium(Ends)
    assert purerl.make_train(CFG, env=env._replace(max_steps=7)).env.max_steps == 7
    with pytest.raises(purerl.ConfigError, match="has another reset or step; wrap the environment that `make` returns"):
        purerl.make_train(CFG, env=env._replace(step=lambda *args: env.step(*args)))


def test_resets_after_the_first_have_no_options():
    class Recorded(Ends):
        def reset(self, *, seed=None, options=None):
            seen.append(options)
            return super().reset(seed=seed)

    seen = []
    envs = VectorEnvironments(Recorded, SYNC, 2, {})
    envs.reset(np.zeros(2, np.uint32))
    for _ in range(20):
        envs.step(np.zeros(2, np.int32))
    assert len(seen) > 4
    assert set(seen) == {None}


class ResetsAll(SyncVectorEnv):
    """A vector environment whose reset ignores the mask."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class EndsLater(Ends):
    count = 0

    def __init__(self):
        super().__init__()
        EndsLater.count += 1
        self.last = EndsLater.count % 4 + 2

    def step(self, action):
        self.time += 1
        return self._obs(), 1.0, self.time == self.last, False, {}


def test_reset_that_ignores_its_mask_warns():
    env = purerl.from_gymnasium(lambda count: ResetsAll([EndsLater] * count, autoreset_mode=AutoresetMode.DISABLED), "vector")
    with pytest.warns(UserWarning, match="changed the observations of other environments"):
        purerl.fit(CFG, env=env, progress=False)


def test_vector_environments_of_another_size_are_refused():
    env = lambda count: OneSeed([Ends] * 8, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(purerl.ConfigError, match=r"make = 8: make\(1\) must return 1 environments"):
        purerl.from_gymnasium(env, "vector")
