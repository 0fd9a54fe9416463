"""PPO from purejaxrl's source, on environments of suites that purejaxrl itself does not support.

This needs purejaxrl's repository and distrax, in a virtual environment of their own:

    git clone https://github.com/luchris429/purejaxrl && git -C purejaxrl checkout 31756b1
    python3 -m venv .venv-peer && .venv-peer/bin/pip install '.[suites]' distrax tfp-nightly
    .venv-peer/bin/python -m tests.benchmarks.studies suites --purejaxrl purejaxrl --only purejaxrl

Environments, their resets and their encoded observations are purerl's, so that only the algorithm and its network differ.
purejaxrl gets one flag for termination and truncation, and no action mask, as in its own environments. `Single` replaces
purejaxrl's wrappers.
"""

import pathlib
import sys
import types
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

import purerl
from purerl.core.environment import Environment
from purerl.networks.torsos import drop_entries, encode
from tests.benchmarks.scores import LAST_EPISODES

FIXED = {"GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5}
FIXED |= {"UPDATE_EPOCHS": 4, "ANNEAL_LR": True, "DEBUG": False}


class Space(NamedTuple):
    """The attributes of a space that purejaxrl reads."""

    n: int = 0
    shape: tuple = ()


class Single:
    """A single environment with the methods of gymnax before 1.0. Under `vmap`, purerl's environment steps the whole batch."""

    def __init__(self, env: Environment):
        self._env, self._space = env, drop_entries(env.observation_space, (env.action_mask,))
        self.reset = _batched(self._reset)
        self.step = _batched(self._step)

    def _obs(self, obs: Any) -> jax.Array:
        x = encode(jax.tree.map(lambda x: x[None], drop_entries(obs, (self._env.action_mask,))), self._space)[0]
        return x.reshape(x.shape[0], -1)

    def _reset(self, keys: jax.Array) -> tuple:
        state, obs = self._env.reset(jax.random.wrap_key_data(keys))
        return self._obs(obs), (state, jnp.zeros(keys.shape[0]))

    def _step(self, keys: jax.Array, state: tuple, action: jax.Array) -> tuple:
        keys = jax.vmap(jax.random.split, out_axes=1)(jax.random.wrap_key_data(keys))
        after = self._env.step(keys, state[0], action.astype(jnp.int32))
        done, total = after.terminated | after.truncated, state[1] + after.reward
        info = {"returned_episode": done, "returned_episode_returns": total}
        return self._obs(after.obs), (after.env_state, jnp.where(done, 0, total)), after.reward, done, info

    def action_space(self, params: Any) -> Space:
        return Space(n=self._env.action_space.n)

    def observation_space(self, params: Any) -> Space:
        return Space(shape=jax.eval_shape(self.reset, jax.random.PRNGKey(0), None)[0].shape)


def _batched(function: Any) -> Any:
    """Return a function of single environments, whose `vmap` is `function`, a function of batches."""

    @jax.custom_batching.custom_vmap
    def one(*arguments):
        return jax.tree.map(lambda x: x[0], function(*jax.tree.map(lambda x: x[None], arguments)))

    @one.def_vmap
    def many(size, batched, *arguments):
        after = function(*arguments)
        return after, jax.tree.map(lambda x: True, after)

    return lambda *arguments: one(*arguments[:-1])  # without gymnax's parameters


def last_returns(path: str, cfg: purerl.PPOConfig, seeds: range) -> np.ndarray:
    """Train seeds with the environment, sizes and rate of `cfg`; return mean returns of the last 100 episodes. `[seeds]`."""
    env = Single(purerl.make_train(cfg).env)
    wrappers = types.ModuleType("wrappers")
    for name in ("LogWrapper", "FlattenObservationWrapper"):
        setattr(wrappers, name, lambda env: env)
    for name in ("BraxGymnaxWrapper", "VecEnv", "NormalizeVecObservation", "NormalizeVecReward", "ClipAction"):
        setattr(wrappers, name, None)
    sys.modules["wrappers"], make = wrappers, gymnax.make
    gymnax.make = lambda name: (env, None)
    try:
        module = {"__name__": "purejaxrl_program"}
        exec(compile((pathlib.Path(path) / "purejaxrl" / "ppo.py").read_text(), "purejaxrl", "exec"), module)
        sizes = {"NUM_ENVS": cfg.num_envs, "NUM_STEPS": cfg.num_steps, "NUM_MINIBATCHES": cfg.num_minibatches}
        own = {"LR": float(cfg.lr), "ACTIVATION": cfg.activation, "ENV_NAME": cfg.env, "TOTAL_TIMESTEPS": cfg.total_timesteps}
        run = jax.jit(module["make_train"](FIXED | sizes | own))
        return np.array([_score(run(jax.random.PRNGKey(seed))["metrics"]) for seed in seeds])
    finally:
        gymnax.make = make


def _score(metrics: dict) -> float:
    ended = np.asarray(metrics["returned_episode"]).ravel()
    return float(np.asarray(metrics["returned_episode_returns"]).ravel()[ended][-LAST_EPISODES:].mean())
