"""Environments of gymnax: transitions, parameters, and refused names."""

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments.environment import Environment as GymnaxEnvironment
from gymnax.environments.environment import EnvParams
from gymnax.wrappers.purerl import GymnaxWrapper

import purerl
from purerl import ConfigError, PPOConfig
from purerl.core.spaces import Box, Discrete
from purerl.envs import make_env
from purerl.envs.parameters import override
from tests.helpers import probes
from tests.helpers.probes import Params, Varied
from tests.helpers.tiny import CFG


def walk(env, num_envs=3, num_steps=20, seed=0):
    """Take random actions; return the time steps, `[T, B]`."""
    key = jax.random.key(seed)
    state, _ = env.reset(jax.random.split(key, num_envs))
    seen = []
    step = jax.jit(env.step)
    for t in range(num_steps):
        key_t = jax.random.fold_in(key, t)
        if isinstance(env.action_space, Discrete):
            action = jax.random.randint(key_t, (num_envs,), 0, env.action_space.n)
        else:
            action = jax.random.uniform(key_t, (num_envs, *env.action_space.shape))
        after = step(jax.random.split(key_t, (2, num_envs)), state, action)
        state = after.env_state
        seen.append(after)
    return jax.tree.map(lambda *x: jnp.stack(x), *seen)


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "kind"), [("UmbrellaChain-bsuite", jnp.int32), ("CartPole-v1", jnp.float32)])
def test_rewards_become_float32(env_id, kind):
    env, params = gymnax.make(env_id)
    _, state = env.reset(jax.random.key(0), params)
    assert env.step(jax.random.key(0), state, 0, params)[2].dtype == kind
    steps = walk(make_env(env_id, (), {}))
    assert steps.reward.dtype == jnp.float32


def test_categorical_observation_is_encoded_one_hot():
    env = make_env("FrozenLake-misc", (), {})
    assert env.observation_space == Discrete(16)
    params = purerl.make_train(PPOConfig(env="FrozenLake-misc")).init(jax.random.key(0)).params
    assert params["policy"]["torso"]["Dense_0"]["kernel"].shape == (16, 64)


def test_step_returns_the_observation_before_the_reset():
    steps = walk(make_env("", (), {}, probes.TimeLimit()), num_steps=20)
    done = np.asarray(steps.truncated)
    np.testing.assert_array_equal(done[:, 0], np.arange(1, 21) % 8 == 0)
    assert not np.asarray(steps.terminated).any()
    steps = walk(make_env("", (), {}, probes.BothFlags()), num_steps=8)
    flags = np.asarray(steps.terminated & steps.truncated)[:, 0]
    np.testing.assert_array_equal(flags, [False] * 3 + [True] + [False] * 3 + [True])
    np.testing.assert_array_equal(np.asarray(steps.next_obs[:, 0]).argmax(-1), [1, 2, 3, 4, 1, 2, 3, 4])
    np.testing.assert_array_equal(np.asarray(steps.obs[:, 0]).argmax(-1), [1, 2, 3, 0, 1, 2, 3, 0])


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["CartPole-v1", "DeepSea-bsuite", "Acrobot-v1"])
def test_transitions_equal_those_of_gymnax(env_id):
    """Flags, rewards and successors equal those of gymnax's own step; start states after a reset may differ."""
    bare, params = gymnax.make(env_id)
    env = make_env(env_id, (), {})
    key = jax.random.key(1)
    state, _ = env.reset(key[None])
    step, reference = jax.jit(env.step), jax.jit(bare.step)
    for t in range(40):
        keys = jax.random.split(jax.random.fold_in(key, t), (2, 1))
        action = jnp.array([t % 2])
        theirs = reference(keys[0, 0], jax.tree.map(lambda x: x[0], state), action[0], params)
        after = step(keys, state, action)
        np.testing.assert_allclose(after.next_obs[0], theirs[5]["final_observation"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(after.reward[0], theirs[2], rtol=1e-5, atol=1e-6)
        assert (bool(after.terminated[0]), bool(after.truncated[0])) == (bool(theirs[3]), bool(theirs[4]))
        state = after.env_state


def test_wrapped_environment_uses_the_wrappers_step():
    from gymnax.wrappers import FlattenObservationWrapper

    inner, params = gymnax.make("Catch-bsuite")
    env = make_env("", (), {}, FlattenObservationWrapper(inner), params)
    steps = walk(env)
    assert steps.next_obs.shape == (20, 3, 50)
    assert steps.terminated.any()


def test_constructor_arguments_and_parameters_take_effect():
    assert make_env("DeepSea-bsuite", (("size", 12),), {}).observation_space.shape == (12, 12)
    assert make_env("CartPole-v1", (), {"max_steps_in_episode": 30}).max_steps == 30
    slow = walk(make_env("CartPole-v1", (), {"max_steps_in_episode": 5, "gravity": 0.0}))
    assert slow.truncated[4].all()
    assert not slow.terminated.any()


def test_environment_parameters_may_be_traced():
    def first_reward(torque):
        env = make_env("Pendulum-v1", (), {"max_torque": torque})
        return env.action_space.high

    np.testing.assert_array_equal(jax.vmap(first_reward)(jnp.array([1.0, 3.0])), [[1], [3]])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: PPOConfig(env="Breakout"), "did you mean 'Breakout-MinAtar'"),
        (lambda: PPOConfig(env_kwargs=(("size", 3),)), "CartPole-v1 does not accept these arguments"),
        (lambda: PPOConfig(env_kwargs={"size": 3}), "tuple of pairs"),
        (lambda: PPOConfig(env_params={"gravty": 3.0}), "did you mean 'gravity'"),
        (lambda: PPOConfig(env_params={"max_steps_in_episode": 2.5}), "whole number"),
        (lambda: PPOConfig(env_params=3), "dict"),
    ],
)
def test_invalid_environment_names_and_arguments_are_refused(build, says):
    with pytest.raises(ConfigError, match=says):
        purerl.make_train(build())


def test_action_bounds_are_read_from_the_environment():
    env = make_env("Pendulum-v1", (), {})
    assert isinstance(env.action_space, Box)
    np.testing.assert_array_equal(env.action_space.high, [2])
    assert issubclass(probes.Probe, GymnaxEnvironment)


class Undeclared(gymnax.environments.environment.Environment):
    """An environment without declared parameters."""

    reset_env, step_env, action_space = Varied.reset_env, Varied.step_env, Varied.action_space
    observe_state, goes, ends, kinds, kind = Varied.observe_state, Varied.goes, Varied.ends, Varied.kinds, Varied.kind


@struct.dataclass
class Unlimited(EnvParams):
    """Parameters that inherit gymnax's time limit of one step."""

    speed: float = 1.0


class Endless(Undeclared):
    default_params = Unlimited()


class Bounded(Endless):
    def is_truncated(self, state, params):
        return state.time >= 5


def test_inherited_time_limit_of_one_step_is_refused_or_unknown():
    with pytest.raises(purerl.ConfigError, match=r"env = Unlimited: must declare max_steps_in_episode.*after one step"):
        purerl.make_train(CFG, env=Endless())
    assert purerl.make_train(CFG, env=Endless(), env_params=Unlimited(max_steps_in_episode=7)).env.max_steps == 7
    assert purerl.make_train(CFG.replace(env_params={"max_steps_in_episode": 9}), env=Endless()).env.max_steps == 9
    with pytest.raises(purerl.ConfigError, match="must declare max_steps_in_episode"):
        purerl.make_train(CFG, env=Varied(), env_params=Unlimited())
    assert purerl.make_train(CFG, env=Bounded()).env.max_steps is None


class Scaled(GymnaxWrapper):
    def step_env(self, key, state, action, params):
        obs, state, reward, *rest = self._env.step_env(key, state, action, params)
        return obs, state, 0.1 * reward, *rest


class Begins(Varied):
    def reset(self, key, params=None):
        return super().reset(key, params)


def test_reset_beside_reset_env_is_accepted():
    class Agrees(Varied):
        reset_env = Varied.reset_env

        def reset(self, key, params=None):
            return self.reset_env(key, params or self.default_params)

    assert purerl.make_train(CFG, env=Agrees()).env.max_steps == Varied.limit


@pytest.mark.parametrize(
    ("env", "says"),
    [(Scaled(Varied()), "is a wrapper without step and reset"), (Begins(), "overrides reset, which its step never calls")],
)
def test_methods_that_are_never_called_are_refused(env, says):
    with pytest.raises(purerl.ConfigError, match=says):
        purerl.make_train(CFG, env=env)


def test_environment_without_declared_parameters_is_refused():
    with pytest.raises(purerl.ConfigError, match=r"env = Undeclared: must define default_params.*after one step"):
        purerl.make_train(CFG, env=Undeclared())
    train = purerl.make_train(CFG, env=Undeclared(), env_params=Params(max_steps_in_episode=5))
    assert train.env.max_steps == 5


class Scaled(GymnaxWrapper):
    """A wrapper that divides observations, but not the final observation in `info` unless `both`."""

    both = False

    def reset(self, key, params=None):
        obs, state = self._env.reset(key, params)
        return obs / 100, state

    def step(self, key, state, action, params=None):
        obs, *rest, info = self._env.step(key, state, action, params)
        info = info | {"final_observation": info["final_observation"] / 100} if self.both else info
        return obs / 100, *rest, info


def test_wrapper_that_leaves_the_final_observation_as_it_is_warns():
    with pytest.warns(UserWarning, match="changes observations, but not info"):
        purerl.make_train(CFG, env=Scaled(gymnax.make("Pendulum-v1")[0]))
    purerl.make_train(CFG, env=type("Both", (Scaled,), {"both": True})(gymnax.make("Pendulum-v1")[0]))


@struct.dataclass
class Weights:
    mass: float = 1
    max_steps_in_episode: int = 10


class Weighed(Varied):
    default_params = Weights()

    def reward_of(self, *args):
        return jnp.float32(0)


def test_whole_default_of_a_field_of_floats_is_a_float():
    made = override(Weights(), {"mass": 0.5})
    assert (made.mass, made.mass.dtype) == (0.5, np.float32)
    traced = jax.vmap(lambda mass: override(Weights(), {"mass": mass}).mass)(jnp.array([0.5, 2.7]))
    np.testing.assert_array_equal(traced, np.float32([0.5, 2.7]))
    with pytest.raises(ConfigError, match="must be a whole number"):
        override(Weights(), {"max_steps_in_episode": 0.5})
