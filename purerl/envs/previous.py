"""Observations with the previous action and reward, for recurrent networks."""

import jax
import jax.numpy as jnp

from purerl.core.auto_reset import after_step, change_step
from purerl.core.environment import Environment
from purerl.core.errors import ConfigError, Problem, config_error
from purerl.core.spaces import Discrete, Mixed, MultiDiscrete, Space, is_index, parts_of, values_of
from purerl.core.types import PyTree


def with_previous(env: Environment, names: tuple[str, ...]) -> Environment:
    """Return the environment with `previous_action`, `previous_reward` or both as entries of its observations.

    At an episode start, the entries are zero, except that a discrete action is -1, whose one-hot encoding is zero. An observation
    that is not a dict becomes the entry `obs`.

    Args:
        env: any environment.
        names: "action", "reward" or both; if empty, the environment is returned unchanged.

    Raises:
        ConfigError: the observation already has such an entry, or has entries whose names are not strings.
    """
    if not names:
        return env
    entries = env.observation_space if isinstance(env.observation_space, dict) else {}
    if taken := [name for name in names if f"previous_{name}" in entries]:
        hint = "the environment's observation already has the entry previous_"
        raise ConfigError([Problem("memory_inputs", name, hint + name) for name in taken])

    if others := [name for name in entries if not isinstance(name, str)]:
        hint = f"needs a dict of observations whose keys are strings, but there is the key {others[0]!r}"
        raise config_error("memory_inputs", names, hint)

    def add_previous(obs, **previous):
        entries = obs if isinstance(obs, dict) else {"obs": obs}
        return entries | {f"previous_{name}": previous[name] for name in names}

    spaces = {"action": _spaces(env.action_space), "reward": jax.ShapeDtypeStruct((), jnp.float32)}

    def no_previous(count):
        none = lambda space: jnp.full((count, *space.shape), -1 if is_index(space) else 0, space.dtype)
        return jax.tree.map(none, spaces, is_leaf=is_index)

    def reset(keys):
        env_state, obs = env.reset(keys)
        return env_state, add_previous(obs, **no_previous(keys.shape[0]))

    def show_previous(_, action, after):
        done = after.terminated | after.truncated
        previous = {"action": _entries(env.action_space, action), "reward": after.reward}
        fresh = jax.tree.map(lambda new, x: jax.vmap(jnp.where)(done, new, x), no_previous(done.shape[0]), previous)
        return after.replace(obs=add_previous(after.obs, **fresh), next_obs=add_previous(after.next_obs, **previous))

    step, space = change_step(env.step, reset, after_step(show_previous)), add_previous(env.observation_space, **spaces)
    return env._replace(reset=reset, step=step, observation_space=space)


def _entries(space: Space, action: PyTree) -> PyTree:
    """Return an action as an observation: an integer for `Discrete`, a tuple for `MultiDiscrete` and `Mixed`, else float32."""
    if isinstance(space, Mixed):
        return tuple(_entries(part, x) for part, x in zip(parts_of(space), values_of(space, action), strict=True))
    if isinstance(space, MultiDiscrete):
        return tuple(action[:, i] for i in range(len(space.sizes)))
    return action if isinstance(space, Discrete) else action.astype(jnp.float32)


def _spaces(space: Space) -> PyTree:
    """Return the space of the observation that `_entries` returns."""
    if isinstance(space, Mixed):
        return tuple(_spaces(part) for part in parts_of(space))
    if isinstance(space, MultiDiscrete):
        return tuple(Discrete(n) for n in space.sizes)
    return space if isinstance(space, Discrete) else jax.ShapeDtypeStruct(space.shape, jnp.float32)
