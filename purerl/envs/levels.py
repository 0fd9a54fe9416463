"""Levels: training episodes that begin in one of a fixed number of initial states."""

import jax
import jax.numpy as jnp
from jax.core import Tracer

from purerl.core.auto_reset import AutoReset
from purerl.core.dependence import inputs_read
from purerl.core.environment import Environment
from purerl.core.errors import config_error
from purerl.core.keys import fold_in_name, split_keys
from purerl.core.spaces import action_shapes
from purerl.core.types import PyTree
from purerl.envs.random_rollout import alike_rows, random_actions

KIND = "threefry2x32"
MOST_TRIED = 2**18  # steps of all environments in a trial of a custom environment


def with_levels(env: Environment, num_levels: int, num_envs: int = 2) -> Environment:
    """Return environments whose episodes begin in one of `num_levels` levels. With 0, return the environments unchanged.

    A level is everything that a reset samples, such as a map. In every run, level `i` is the reset with the key
    `fold_in(key(0), i)`. Each episode samples its level uniformly.

    Args:
        env: the environments.
        num_levels: number of levels.
        num_envs: number of environments with which a custom environment is traced.

    Raises:
        ConfigError: the environment is external (Python) or resets itself, or `reset` or `step` is called with keys other than
          threefry2x32. Keys of another kind, such as rbg, sample different numbers in a batch than alone.

    Source: Cobbe et al. 2020 (arXiv:1912.01588), levels of Procgen by seed.
    """
    if not num_levels:
        return env
    if env.host or env.resets_itself or not (isinstance(env.step, AutoReset) or _reads_keys(env, num_envs)):
        why = "external (Python) environments do not reset from keys" if env.host else "this environment resets itself"
        raise config_error("num_levels", num_levels, f"needs an environment that purerl resets, but {why}; use 0")
    if not isinstance(env.step, AutoReset) and _begins_alike(env, num_envs):
        hint = "a step must draw the first states of new episodes from keys[1] alone, but they do not depend on keys[1]; use 0"
        raise config_error("num_levels", num_levels, hint)

    def level(key: jax.Array) -> jax.Array:
        if (kind := jax.random.key_impl(key)) != KIND:
            hint = f"needs {KIND} keys, which draw the same numbers alone and in a batch, not {kind} keys"
            raise config_error("num_levels", num_levels, hint)
        return jax.random.fold_in(jax.random.key(0, impl=KIND), jax.random.randint(key, (), 0, num_levels))

    def reset(keys):
        return env.reset(jax.vmap(level)(keys))

    def step(keys, env_state, action):
        return env.step(keys.at[1].set(jax.vmap(level)(keys[1])), env_state, action)

    if isinstance(env.step, AutoReset):
        step = AutoReset(env.step.advance, reset, env.step.slow_reset)
    return env._replace(reset=reset, step=step)


def _reads_keys(env: Environment, num_envs: int) -> bool:
    """Return True if a step reads its keys, from which it must draw the first states of episodes."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (2, num_envs)))
    env_state, _ = jax.eval_shape(env.reset, jax.ShapeDtypeStruct((num_envs,), keys.dtype))
    return inputs_read(env.step, keys, env_state, action_shapes(env.action_space, num_envs))[0]


def _begins_alike(env: Environment, num_envs: int) -> bool:
    """Return True if new episodes begin alike for two different keys of first states, although resets do not.

    In a trial with random actions, each step is taken twice, with different keys in `keys[1]` alone. The result is False if no
    episode ends in the trial, or if nothing can be computed, inside of a trace.
    """
    if isinstance(jnp.zeros(()), Tracer):
        return False
    key = jax.random.key(0)
    arrays = lambda tree: [x for x in jax.tree.leaves(tree) if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)]
    rows = lambda tree: [x for x in arrays(tree) if x.shape[:1] == (num_envs,)]

    def step(carry: tuple[PyTree, PyTree], index: jax.Array) -> tuple[tuple[PyTree, PyTree], tuple[jax.Array, jax.Array]]:
        env_state, obs = carry
        mask = obs[env.action_mask] if env.action_mask else None
        action = random_actions(env.action_space, fold_in_name(key, "action", index), num_envs, mask)
        keys = split_keys(fold_in_name(key, "environment", index), 3, num_envs)
        one, other = (env.step(keys[jnp.array([0, row])], env_state, action) for row in (1, 2))
        alike = alike_rows(rows((one.env_state, one.obs)), rows((other.env_state, other.obs)), num_envs)
        ended = one.terminated | one.truncated
        return (one.env_state, one.obs), (ended.any(), (ended & ~alike).any())

    def trial() -> tuple[jax.Array, jax.Array, jax.Array]:
        begin, other = (env.reset(keys) for keys in split_keys(key, 2, num_envs))
        count = max(64, min(env.max_steps or 1000, 1000, MOST_TRIED // num_envs))
        _, (ended, differ) = jax.lax.scan(step, begin, jnp.arange(count, dtype=jnp.uint32))
        return ended.any(), differ.any(), ~alike_rows(rows(begin), rows(other), num_envs).all()

    ended, differ, resets_differ = map(bool, jax.jit(trial)())
    return ended and resets_differ and not differ
