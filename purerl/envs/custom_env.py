"""Custom environments that implement `purerl.Environment`, such as batched simulators."""

from typing import Any

import jax
import jax.numpy as jnp

from purerl.core.auto_reset import AutoReset, after_step, change_step
from purerl.core.environment import Environment, TimeStep
from purerl.core.errors import Problem, config_error, convert_errors, is_count, raise_if_any
from purerl.core.platform import to_strong_dtypes
from purerl.core.spaces import Discrete, Indices, Space, action_shapes, entries_of, is_index
from purerl.envs.converted_spaces import action_space_of, fits
from purerl.envs.outputs import check_names, plain_dicts, step_problems


def check_custom(env: Environment, num_envs: int) -> Environment:
    """Check a custom `Environment` by tracing it with `num_envs` environments; return it with strongly typed outputs.

    Raises:
        ConfigError: the environment violates the protocol, as found by tracing, without compilation.
    """
    if not isinstance(env.action_space, Space):
        hint = "must be purerl.Discrete, MultiDiscrete, MultiBinary, Box or Mixed"
        raise config_error("env.action_space", env.action_space, hint)
    action_space, env = action_space_of(env.action_space), env._replace(observation_space=plain_dicts(env.observation_space))
    limit = env.max_steps
    if limit is not None and not (is_count(limit) and limit < 2**31):
        raise config_error("env.max_steps", limit, "must be an int from 1 to 2**31 - 1, or None")
    least = env.truncates_after
    if least is not None and not is_count(least):
        raise config_error("env.truncates_after", least, "must be an int of at least 1, or None")

    def reset(keys):
        with convert_errors("env", f"reset(keys [{keys.shape[0]}])"):
            env_state, obs = to_strong_dtypes(env.reset(keys))
            return env_state, plain_dicts(obs)

    def check_step(step):
        def run(keys, env_state, action):
            shapes = jax.tree.map(lambda x: list(x.shape), action)
            with convert_errors("env", f"step(keys {list(keys.shape)}, env_state, action {shapes})"):
                after = to_strong_dtypes(step(keys, env_state, action))
                if not isinstance(after, TimeStep):
                    return after  # refused below
                return after.replace(obs=plain_dicts(after.obs), next_obs=plain_dicts(after.next_obs))

        return run

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (2, num_envs)))
    with convert_errors("env", f"reset(keys [{num_envs}])"):
        env_state, obs = jax.eval_shape(reset, jax.ShapeDtypeStruct((num_envs,), keys.dtype))
    action = action_shapes(action_space, num_envs)
    step = change_step(env.step, reset, check_step)
    after = jax.eval_shape(step, keys, env_state, action)
    if not isinstance(after, TimeStep):
        raise config_error("env", type(after), "step must return a purerl.TimeStep")
    raise_if_any(_problems(env, obs, after, num_envs) + step_problems(env_state, obs, after, (num_envs,)))
    # A step of the user's in an environment with a reset or a name of purerl's replaces a step, and may truncate earlier.
    is_ours = lambda function: getattr(function, "__module__", "").startswith("purerl.")
    is_made = bool(env.name) or is_ours(env.reset)
    is_replaced = is_made and not (isinstance(env.step, AutoReset) and is_ours(env.step.advance))
    return env._replace(reset=reset, step=step, action_space=action_space, truncates_after=None if is_replaced else least)


def _problems(env: Environment, obs: Any, after: TimeStep, num_envs: int) -> list[Problem]:
    """Report observations that do not match the declared space, and entries of `info` that are missing or misshapen."""
    found = []
    is_space = lambda x: hasattr(x, "dtype") and hasattr(x, "shape")
    spaces = entries_of(env.observation_space)
    if not all(map(is_space, spaces.values())):
        hint = "must be a jax.ShapeDtypeStruct, Discrete or Indices, or a dict or tuple of these"
        return [Problem("env.observation_space", env.observation_space, hint)]
    alike = jax.tree.structure(env.observation_space, is_leaf=is_space) == jax.tree.structure(obs)
    if not alike or [(num_envs, *x.shape) for x in spaces.values()] != [x.shape for x in jax.tree.leaves(obs)]:
        shapes = jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", obs)
        hint = f"does not match the observations of {num_envs} environments, {shapes}"
        found.append(Problem("env.observation_space", env.observation_space, hint))
    else:
        for (name, space), x in zip(spaces.items(), jax.tree.leaves(obs), strict=True):
            if isinstance(space, Indices) and not fits(space, jax.ShapeDtypeStruct(x.shape[1:], x.dtype)):
                hint = (
                    f"does not fit the observation {name} of {x.dtype}{list(x.shape[1:])}; give one size, or one for each channel"
                )
                found.append(Problem("env.observation_space", space, hint))
            elif isinstance(space, Discrete) and not is_count(space.n):
                found.append(Problem("env.observation_space", space, "must have a whole number of categories, at least 1"))
            elif is_index(space) and not jnp.issubdtype(x.dtype, jnp.integer):
                found.append(Problem("env.observation_space", space, f"the observation {name} must be integer, not {x.dtype}"))
            elif not is_index(space) and jax.dtypes.canonicalize_dtype(space.dtype) != x.dtype:
                hint = f"must declare {x.dtype}, the dtype of the observation {name}".rstrip()
                found.append(Problem("env.observation_space", space, hint))
    for name in env.info:
        if name not in after.info or after.info[name].shape[:1] != (num_envs,):
            found.append(Problem("env.info", name, f"TimeStep.info must have this entry, with a first axis of size {num_envs}"))
    return found


def with_info(env: Environment, names: tuple[str, ...]) -> Environment:
    """Return the environment with only these `info` entries, as float32.

    Raises:
        ConfigError: the environment has no such entry.
    """
    check_names(names, env.info)

    keep_info = lambda _, __, after: after.replace(info={name: after.info[name].astype(jnp.float32) for name in names})
    return env._replace(step=change_step(env.step, env.reset, after_step(keep_info)), info=names)
