"""The adapter for gymnax 1.0: gymnax's registered environments, and any object with the same methods.

Shapes and dtypes are read from the results of `reset` and `step`, since the declared spaces are wrong for several environments
(FourRooms, Catch, UmbrellaChain, BernoulliBandit in gymnax 1.0.1). Rewards become float32 and weak types are stripped, so that
the carry of a scan keeps its dtypes. Observations keep their dtype; the network casts them.
"""

import contextlib
import functools
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from purerl.core.auto_reset import AutoReset
from purerl.core.environment import Environment, TimeStep
from purerl.core.errors import Problem, config_error, convert_errors, raise_if_any, warn
from purerl.core.platform import to_strong_dtypes
from purerl.core.spaces import Space, action_shapes
from purerl.envs.animation import draw_in_memory, ffmpeg
from purerl.envs.converted_spaces import action_space_of, observation_space_of
from purerl.envs.importing import import_lazily
from purerl.envs.outputs import make_time_step, plain_dicts, step_problems, unpack_result, warn_of_counters
from purerl.envs.parameters import Made, construct_outside_trace
from purerl.envs.random_rollout import alike_rows
from purerl.envs.suites import suggest

with import_lazily("seaborn", "matplotlib.pyplot"):  # needed for drawing alone, and half of gymnax's import time
    import gymnax
    from gymnax.environments.environment import Environment as GymnaxEnvironment
    from gymnax.environments.environment import EnvParams, EnvState

PROTOCOL = "gymnax 1.0"
LIMIT = "max_steps_in_episode"

DRAWN = {
    *("Acrobot-v1", "CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0"),
    *("Catch-bsuite", "PointRobot-misc", "MetaMaze-misc", "FourRooms-misc", "Pong-misc"),
    *(f"{game}-MinAtar" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
}


def make(env_id: str, env_kwargs: tuple) -> Made:
    """Return the registered environment of this id.

    Raises:
        ConfigError: the id is unknown, or the constructor refused the arguments.
    """
    if ":" in env_id:
        raise config_error("env", env_id, "import paths work only on the command line; in Python, pass the object as env=")
    if env_id not in gymnax.registered_envs:
        raise config_error("env", env_id, f"no such environment; {suggest(env_id, gymnax.registered_envs)}")
    with construct_outside_trace(env_id, env_kwargs):
        env = gymnax.make(env_id, **dict(env_kwargs))[0]
    return make_from_object(env)


def make_from_object(env: Any, params: Any = None) -> Made:
    """Return an object with gymnax 1.0's methods as `Made`, with `params`, or if None with its default parameters."""
    return Made(functools.partial(adapt, env), default_params(env) if params is None else params)


def adapt(env: Any, params: Any) -> Environment:
    """Return an object with gymnax 1.0's methods as a `purerl.Environment`.

    If the object's `step` is gymnax's own, `reset_env`, `step_env` and `is_truncated` run under purerl's auto-reset. If the
    object has another `step` (a wrapper, DeepSea), that `step` is called, and must return the observation before the reset as
    `info["final_observation"]`.

    Raises:
        ConfigError: the object violates gymnax's protocol.
    """
    own_step = getattr(type(env), "step", None)
    bare = own_step is GymnaxEnvironment.step
    if own_step is None and (hasattr(type(env), "step_env") or hasattr(type(env), "reset_env")):
        hint = "is a wrapper without step and reset, so that its step_env and reset_env are never called; define step and reset"
        raise config_error("env", type(env), hint)
    of = lambda name: next(i for i, base in enumerate(type(env).__mro__) if name in vars(base))
    if bare and of("reset") < of("reset_env"):
        raise config_error("env", type(env), "overrides reset, which its step never calls; override reset_env")
    if bare and _inherits_limit(params) and type(env).is_truncated is GymnaxEnvironment.is_truncated:
        hint = "must declare max_steps_in_episode, since gymnax's default ends each episode after one step"
        raise config_error("env", type(params), hint)
    begin = "reset_env" if bare else "reset"

    def reset(key):
        obs, env_state = unpack_result(getattr(env, begin)(key, params), 2, begin, PROTOCOL)
        return to_strong_dtypes((env_state, plain_dicts(obs)))

    def step(key: jax.Array, env_state: Any, action: jax.Array) -> TimeStep:
        if bare:
            values = unpack_result(env.step_env(key, env_state, action, params), 5, "step_env", PROTOCOL)
            obs, env_state, reward, terminated, info = values
            return make_time_step(obs, env_state, reward, terminated, env.is_truncated(env_state, params), info)
        values = unpack_result(env.step(key, env_state, action, params), 6, "step", PROTOCOL)
        if "final_observation" not in values[-1]:
            hint = "step resets the environment but returns no info['final_observation'], which truncated episodes need"
            raise config_error("env", env, hint)
        return make_time_step(*values).replace(next_obs=to_strong_dtypes(plain_dicts(values[-1]["final_observation"])))

    with convert_errors("env", f"{begin}(key, params)"):
        env_state, obs = jax.eval_shape(reset, jax.random.key(0))
    with convert_errors("env", "action_space(params)"):
        action_space = action_space_of(env.action_space(params))
    called = "step_env(key, state, action, params)" if bare else "step(key, state, action, params)"
    with convert_errors("env", called), warn_of_counters(env):
        after = jax.eval_shape(step, jax.random.key(0), env_state, action_shapes(action_space))
    raise_if_any(step_problems(env_state, obs, after))
    if not (bare or type(env).__module__.startswith("gymnax.") or type(env) in _tried):
        _warn_of_final_observations(env, params, reset, step, action_space)
    public = lambda keys, env_state, action: jax.vmap(step)(keys[0], env_state, action)
    return Environment(
        reset=jax.vmap(reset),
        step=AutoReset(jax.vmap(step), jax.vmap(reset), slow_reset=False) if bare else public,
        observation_space=observation_space_of(_declared_space(env, params), obs),
        action_space=action_space,
        max_steps=_max_steps(params),
        info=tuple(after.info),
        draw=_draw(env, params) if isinstance(env_state, EnvState) else None,  # the visualizer reads states of gymnax
        truncates_after=_max_steps(params) if bare and _truncates_at_limit(env) else None,
        resets_itself=not bare,
    )


_tried: set[type] = set()  # the classes of wrappers that were tried


def _warn_of_final_observations(env: Any, params: Any, reset: Callable, step: Callable, space: Space) -> None:
    """Warn if the first step of an episode, which does not end it, has another `info["final_observation"]` than `obs`."""

    def differs(key: jax.Array) -> jax.Array:
        action = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), action_shapes(space))
        after = step(key, reset(key)[0], action)
        obs, next_obs = (jax.tree.map(lambda x: x[None], x) for x in (after.obs, after.next_obs))
        return ~(after.terminated | after.truncated) & ~alike_rows(obs, next_obs, 1, ulps=8)[0]

    found = False
    if not any(isinstance(x, Tracer) for x in jax.tree.leaves((params, space))):
        with contextlib.suppress(Exception), jax.ensure_compile_time_eval():  # an environment may hold tracers
            found = bool(jax.jit(differs)(jax.random.key(0)))
            _tried.add(type(env))
    if found:
        hint = "changes observations, but not info['final_observation'], the value of which follows a truncated episode"
        warn(str(Problem("env", type(env), hint)))


# --- parameters and spaces --------------------------------------------------------------------------------------------


def default_params(env: Any) -> Any:
    """Return the default parameters of an environment, or None if it has no parameters.

    Raises:
        ConfigError: the environment inherits gymnax's default parameters, whose time limit is one step.
    """
    if getattr(type(env), "default_params", None) is GymnaxEnvironment.default_params:
        hint = "must define default_params, since the defaults of gymnax end each episode after one step; or pass env_params"
        raise config_error("env", type(env), hint)
    with jax.ensure_compile_time_eval():
        return getattr(env, "default_params", None)


def _inherits_limit(params: Any) -> bool:
    """Return True if the time limit is the default of gymnax's base class, one step, which no subclass declares."""
    declared = [base for base in type(params).__mro__ if LIMIT in vars(base).get("__annotations__", {})]
    limit = getattr(params, LIMIT, None)
    return declared == [EnvParams] and not isinstance(limit, Tracer) and limit == EnvParams().max_steps_in_episode


def _draw(env: Any, params: Any):
    """Return a function that draws with gymnax's visualizer, or None if gymnax has no drawing for this environment."""
    if getattr(env, "name", None) not in DRAWN:
        return None

    def draw(env_states, returns, path):
        import gymnasium
        import matplotlib
        from gymnax.visualize import visualizer

        draw_in_memory()
        if pathlib.Path(path).suffix == ".mp4":
            matplotlib.rcParams["animation.ffmpeg_path"] = ffmpeg()
        try:
            visualizer.Visualizer(env, params, env_states, returns).animate(str(path))
        except gymnasium.error.DependencyNotInstalled as error:
            raise config_error("env", env.name, "rendering needs pygame; run pip install '.[render]'") from error

    return draw


def _max_steps(params: Any) -> int | None:
    limit = getattr(params, LIMIT, None)
    if limit is None or isinstance(limit, Tracer) or not np.isfinite(limit) or _inherits_limit(params):
        return None
    return math.ceil(limit)


def _truncates_at_limit(env: Any) -> bool:
    """Return True for gymnax's own environments that truncate only at the limit, in steps. Others may truncate earlier."""
    return type(env).__module__.startswith("gymnax.") and type(env).is_truncated is GymnaxEnvironment.is_truncated


def _declared_space(env: Any, params: Any) -> Any:
    """Return the declared observation space, or None."""
    try:
        return env.observation_space(params)
    except (AttributeError, NotImplementedError):
        return None
