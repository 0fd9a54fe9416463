"""Levels: training episodes that begin in one of a fixed number of initial states."""

import jax

from purerl.core.auto_reset import AutoReset
from purerl.core.dependence import inputs_read
from purerl.core.environment import Environment
from purerl.core.errors import config_error
from purerl.core.spaces import action_shapes

KIND = "threefry2x32"


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
