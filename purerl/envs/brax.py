"""The adapter for brax: `brax/ant`, `brax/inverted_pendulum`, `brax/fast`, ...

In brax, `EpisodeWrapper` sets the time limit; here, `purerl.wrap_env` does. An episode that reaches the limit is truncated,
and its return is bootstrapped from the value of its last observation. `done` of the unwrapped environment marks a terminal state.

`env_kwargs` can have `episode_length` (by default 1000 steps of brax, as in brax's training) and `action_repeat` (by default
1; repeats stop when the episode ends). All other entries are constructor arguments; `backend` is `spring` by default.
`env_params` are scalars of the environment's `System`, such as `ang_damping`.
"""

import copy
import warnings
from typing import Any, NamedTuple

from purerl.core.environment import Environment
from purerl.core.errors import ConfigError, Problem, is_count, nearest
from purerl.envs.functions import wrap_env
from purerl.envs.importing import importing_mujoco
from purerl.envs.one_state import OneState, drawn
from purerl.envs.parameters import constructing

with importing_mujoco():
    from brax import envs
    from brax.io import image

WITHOUT_BACKEND = ("fast",)


class BraxTask(NamedTuple):
    """A brax environment with the arguments of brax's `EpisodeWrapper`."""

    env: Any
    episode_length: int
    action_repeat: int


def make(name: str, env_kwargs: tuple) -> BraxTask:
    """Return the environment of this name.

    Raises:
        ConfigError: the name is unknown, or the constructor refused the arguments.
    """
    if name not in envs._envs:
        raise ConfigError([Problem("env", f"brax/{name}", f"no such environment; {nearest(name, envs._envs)}")])
    kwargs = dict(env_kwargs)
    sizes = {key: kwargs.pop(key, default) for key, default in (("episode_length", 1000), ("action_repeat", 1))}
    if found := [Problem("env_kwargs", {key: x}, "must be an int of at least 1") for key, x in sizes.items() if not is_count(x)]:
        raise ConfigError(found)
    if name not in WITHOUT_BACKEND:
        kwargs = {"backend": "spring", **kwargs}
    with constructing(f"brax/{name}", env_kwargs), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Brax System, piplines and environments", UserWarning)
        return BraxTask(envs.get_environment(name, **kwargs), **sizes)


def default_params(made: BraxTask) -> Any:
    """Return the `System` that brax simulates, or None for `fast`."""
    return getattr(made.env, "sys", None)


def adapt(made: BraxTask, params: Any) -> Environment:
    """Return the environment with this system as a `purerl.Environment`."""
    env = made.env
    if params is not None and params is not env.sys:
        env = copy.copy(env)
        env.sys = params
    wrapped = wrap_env(
        OneState(env, made.action_repeat), max_steps=-(-made.episode_length // made.action_repeat), slow_reset=True
    )
    if params is None:
        return wrapped
    render = lambda states: image.render_array(env.sys, [state.pipeline_state for state in states])
    return wrapped._replace(draw=drawn(render, seconds=float(env.dt) * made.action_repeat))
