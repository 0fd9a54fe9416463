"""The adapter for single environments: objects whose methods are pure functions."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from purerl.core.auto_reset import AutoReset
from purerl.core.environment import NEVER, Environment
from purerl.core.errors import config_error, convert_errors, is_count, raise_if_any
from purerl.core.platform import to_strong_dtypes
from purerl.core.spaces import action_shapes
from purerl.envs.converted_spaces import action_space_of, observation_space_of
from purerl.envs.outputs import make_time_step, plain_dicts, step_problems, unpack_result, warn_of_counters

PROTOCOL = "purerl.wrap_env"


def check_object(env: Any, methods: tuple[str, ...], remedy: str) -> None:
    """Raise a ConfigError if `env` is a class or a gymnasium environment, or lacks one of these methods."""
    kind = env if isinstance(env, type) else type(env)
    if any(cls.__module__.startswith("gymnasium.") for cls in kind.__mro__):
        hint = "is a single gymnasium environment; use purerl.from_gymnasium(lambda: ...), or an id such as gymnasium/CartPole-v1"
        raise config_error("env", kind, hint)
    if isinstance(env, type):
        raise config_error("env", kind, f"must be an object, not a class; write {kind.__name__}()")
    if missing := [name for name in methods if not callable(getattr(env, name, None))]:
        raise config_error("env", env, f"has no method {' or '.join(missing)}; {remedy}")


def wrap_if_bare(env: Any) -> Any:
    """Apply `wrap_env` to a single environment. Return others unchanged, such as gymnax's, whose `action_space` is a method."""
    bare = not isinstance(env, Environment | type) and hasattr(env, "action_space") and not callable(env.action_space)
    return wrap_env(env) if bare else env


def wrap_env(env: Any, max_steps: int | None = None, slow_reset: bool = False) -> Environment:
    """Return a single environment as a batched `Environment`, with a time limit, auto-reset and final observations.

    Args:
        env: any object with the members below; no base class is needed.

            - `reset(key) -> (state, obs)`
            - `step(key, state, action) -> (state, obs, reward, terminated, truncated, info)`
            - `action_space`: `purerl.Discrete(n)`, `MultiDiscrete`, `MultiBinary` or `Box(low, high)`, a `Discrete` or `Box` of
              gymnax or gymnasium, or a dict or tuple of these; `step` receives actions in this structure
            - `observation_space`: optional; needed only for categorical observations: `purerl.Discrete(n)` or `Indices`, alone or
              in a dict or tuple with the structure of the observation, in which all other entries can be None
            - `max_steps`: optional; the time limit in steps

          `reset` and `step` are pure, have fixed shapes, and act on one environment. The state and `obs` are PyTrees of
          arrays, `reward` is a scalar, `terminated` and `truncated` are bool scalars, and `info` is a dict of arrays. `step`
          never resets.
        max_steps: the time limit in steps; None for `env.max_steps`. An episode that reaches the limit is truncated. Without a
          limit, only the environment's own `truncated` cuts episodes short.
        slow_reset: True if a reset takes as long as dozens of steps, for example to make a world. A CPU then resets only the
          environments whose episode ended. An accelerator computes the first states for a rollout in one batch; `reset_pool` in
          the config sets the size of the batch.

    Raises:
        ConfigError: a member is missing, or a method returns something else.

    Example:
        >>> class Corridor:
        ...     action_space = purerl.Discrete(2)
        ...     def reset(self, key):
        ...         return jnp.int32(0), jnp.zeros(1)
        ...     def step(self, key, at, action):
        ...         at = jnp.clip(at + 2 * action - 1, 0, 5)
        ...         return at, at[None] / 5.0, at == 5, at == 5, False, {}
        >>> env = purerl.wrap_env(Corridor(), max_steps=20)
        >>> train = purerl.make_train(purerl.PPOConfig(), env=env)
    """
    if isinstance(env, Environment):
        raise config_error("env", Environment, "does not need wrap_env; pass the object as env=")
    check_object(env, ("reset", "step"), "see help(purerl.wrap_env)")
    if not hasattr(env, "action_space"):
        raise config_error("env", env, "has no action_space; see help(purerl.wrap_env)")
    limit = getattr(env, "max_steps", None) if max_steps is None else max_steps
    if limit is not None and not (is_count(limit) and limit < 2**31):
        raise config_error("max_steps", limit, "must be an int from 1 to 2**31 - 1, or None")

    own_limits = []

    def reset(key):
        env_state, obs = unpack_result(env.reset(key), 2, "reset", PROTOCOL)
        return to_strong_dtypes(((env_state, jnp.int32(0)), plain_dicts(obs)))

    def step(key, env_state, action):
        inner, count = env_state
        inner, obs, reward, terminated, truncated, info = unpack_result(env.step(key, inner, action), 6, "step", PROTOCOL)
        own_limits.append(isinstance(truncated, Tracer) or bool(truncated))
        truncated = truncated if limit is None else jnp.asarray(truncated) | (count + 1 >= limit)
        return make_time_step(obs, (inner, count + 1), reward, terminated, truncated, info)

    with convert_errors("env", "reset(key)"):
        env_state, obs = jax.eval_shape(reset, jax.random.key(0))
    action_space = action_space_of(env.action_space)
    observation_space = observation_space_of(getattr(env, "observation_space", None), obs, found := [])
    raise_if_any(found)
    with convert_errors("env", "step(key, state, action)"), warn_of_counters(env):
        after = jax.eval_shape(step, jax.random.key(0), env_state, action_shapes(action_space))
    raise_if_any(step_problems(env_state, obs, after))
    return Environment(
        reset=jax.vmap(reset),
        step=AutoReset(jax.vmap(step), jax.vmap(reset), slow_reset),
        observation_space=observation_space,
        action_space=action_space,
        max_steps=limit,
        info=tuple(after.info),
        name=f"{type(env).__module__}.{type(env).__qualname__}",
        truncates_after=(limit or NEVER) if not any(own_limits) else None,  # None if `env` may truncate earlier
    )
