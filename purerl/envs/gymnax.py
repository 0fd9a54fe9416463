"""The adapter for gymnax 1.0: its registered environments, and any object with the same methods.

Shapes and dtypes are read from what the functions return, since the declared spaces are wrong for several environments
(FourRooms, Catch, UmbrellaChain, BernoulliBandit in gymnax 1.0.1). Rewards become float32 and weak types are stripped, so
that the state of a scan is a fixed point. Observations keep their dtype; the network casts them.
"""

import dataclasses
import os
from typing import Any

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces
from gymnax.environments.environment import Environment as GymnaxEnvironment
from gymnax.visualize import vis_gym, visualizer

from purerl.core.errors import ConfigError, Problem, code_of, nearest
from purerl.core.types import Box, Discrete, Environment, MultiBinary, MultiDiscrete, Space, TimeStep
from purerl.envs.auto_reset import auto_reset

DRAWN = {
    *vis_gym.SUPPORTED_GYM_ENVS,
    *("Catch-bsuite", "PointRobot-misc", "MetaMaze-misc", "FourRooms-misc", "Pong-misc"),
    *(f"{game}-MinAtar" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
}


def make(env_id: str, env_kwargs: tuple) -> Any:
    """The registered environment of this id.

    Raises:
        ConfigError: no such id, or its constructor refused the arguments.
    """
    if env_id not in gymnax.registered_envs:
        hint = f"not a registered environment; {nearest(env_id, gymnax.registered_envs)}"
        raise ConfigError([Problem("env", env_id, hint)])
    try:
        # Some constructors compute with jax.numpy, which inside a trace would make tracers of the environment's constants.
        with jax.ensure_compile_time_eval():
            return gymnax.make(env_id, **dict(env_kwargs))[0]
    except Exception as error:  # a constructor may refuse an argument in any way
        raise ConfigError([Problem("env_kwargs", env_kwargs, f"refused by {env_id}: {error}")]) from error


def adapt(env: Any, overrides: dict[str, Any], params: Any = None, info: tuple[str, ...] = ()) -> Environment:
    """An environment object with gymnax 1.0's methods behind purerl's protocol.

    Where the public `step` is gymnax's own, the bare `reset_env`, `step_env` and `is_truncated` run under purerl's
    auto-reset. An object that replaces `step` (a wrapper, DeepSea) is stepped through it, and has to give the observation
    before the reset as `info["final_observation"]`.

    Raises:
        ConfigError: it does not keep the protocol.
    """
    params = _override(default_params(env) if params is None else params, overrides)
    bare = getattr(type(env), "step", None) is GymnaxEnvironment.step
    begin = "reset_env" if bare else "reset"
    reset = lambda key: _strong(_unpack(getattr(env, begin)(key, params), 2, begin))
    step = (_bare_step if bare else _public_step)(env, params, info)
    with code_of("env", f"{begin}(key, params)"):
        obs, env_state = jax.eval_shape(reset, jax.random.key(0))
    with code_of("env", "action_space(params)"):
        action_space = _action_space(env.action_space(params))
    with code_of("env", "step_env(key, state, action, params)" if bare else "step(key, state, action, params)"):
        _check(step, action_space, obs, env_state)
    return Environment(
        reset=lambda keys: jax.vmap(reset)(keys)[::-1],
        step=auto_reset(reset, step) if bare else _batched(step),
        observation_space=_observation_space(env, params, obs),
        action_space=action_space,
        max_steps=_max_steps(params),
        info=info,
        draw=_draw(env, params),
    )


def _bare_step(env: Any, params: Any, names: tuple[str, ...]):
    def step(key, env_state, action):
        obs, env_state, reward, terminated, info = _unpack(env.step_env(key, env_state, action, params), 5, "step_env")
        truncated = env.is_truncated(env_state, params)
        return (*_signals(obs, env_state, reward, terminated, truncated), _chosen(info, names))

    return step


def _public_step(env: Any, params: Any, names: tuple[str, ...]):
    def step(key, env_state, action):
        values = _unpack(env.step(key, env_state, action, params), 6, "step")
        obs, env_state, reward, terminated, truncated, info = values
        if "final_observation" not in info:
            hint = "its step resets by itself but gives no info['final_observation'], so a cut-short episode cannot be valued"
            raise ConfigError([Problem("env", env, hint)])
        signals = _signals(obs, env_state, reward, terminated, truncated)
        return (_strong(info["final_observation"]), *signals, _chosen(info, names))

    return step


def _batched(step):
    def batched_step(keys, env_state, action):
        next_obs, obs, *rest = jax.vmap(step)(keys[0], env_state, action)
        env_state, reward, terminated, truncated, info = rest
        return TimeStep(env_state, obs, next_obs, reward, terminated, truncated, info)

    return batched_step


def _signals(obs, env_state, reward, terminated, truncated):
    if reward is None:
        raise ConfigError([Problem("env", "step", "its reward is None; it must be a real scalar")])
    obs, env_state, reward, terminated, truncated = _strong((obs, env_state, reward, terminated, truncated))
    return obs, env_state, reward.astype(jnp.float32) if jnp.isrealobj(reward) else reward, terminated, truncated


def _chosen(info: dict[str, Any], names: tuple[str, ...]) -> dict[str, jax.Array]:
    """Those entries of `info` that were asked for, as float32 scalars."""
    wrong = [name for name in names if name not in info or jnp.shape(info[name])]
    if wrong:
        hint = f"no number in the environment's info, which has {', '.join(map(repr, info)) or 'nothing'}"
        raise ConfigError([Problem("info", name, hint) for name in wrong])
    return {name: jnp.asarray(info[name], jnp.float32) for name in names}


def _strong(tree: Any) -> Any:
    """Arrays whose dtype no longer depends on what they meet: weakly typed leaves would drift in a scan's carry."""

    def strong(path, x):
        try:
            x = jnp.asarray(x)
        except TypeError as error:
            hint = "is no array, so the environment cannot be traced; keep arrays only in its state, observation and signals"
            raise ConfigError([Problem(f"env: {jax.tree_util.keystr(path)}", x, hint)]) from error
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return x if is_key else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree_util.tree_map_with_path(strong, tree)


def _unpack(values: tuple, count: int, method: str) -> tuple:
    if not isinstance(values, tuple | list):
        raise ConfigError([Problem("env", method, f"returns one {type(values).__name__}, not gymnax 1.0's {count} values")])
    if len(values) != count:
        hint = f"returns {len(values)} values, not gymnax 1.0's {count}"
        if count == 6 and len(values) == 5:
            hint += "; five are gymnax 0.0's, which cannot tell termination from truncation: it needs gymnax >= 1.0.1"
        raise ConfigError([Problem("env", method, hint)])
    return values


# --- parameters and spaces --------------------------------------------------------------------------------------------


def default_params(env: Any) -> Any:
    """An environment's own parameters; None where it has none.

    Raises:
        ConfigError: it inherits gymnax's, which are a time limit of one step.
    """
    if getattr(type(env), "default_params", None) is GymnaxEnvironment.default_params:
        hint = "has no default_params of its own, and gymnax's end each episode after one step; define them, or pass env_params"
        raise ConfigError([Problem("env", type(env).__name__, hint)])
    with jax.ensure_compile_time_eval():
        return getattr(env, "default_params", None)


def _override(params: Any, overrides: dict[str, Any]) -> Any:
    """The parameters with some replaced, each cast to the type it had."""
    names = [field.name for field in dataclasses.fields(params)] if dataclasses.is_dataclass(params) else []
    unknown = [name for name in overrides if name not in names]
    if unknown:
        hint = "the environment has no parameters" if not names else None
        raise ConfigError([Problem("env_params", name, hint or f"no such parameter; {nearest(name, names)}") for name in unknown])

    found = [Problem("env_params", {name: x}, hint) for name, x in overrides.items() if (hint := _misfit(params, name, x))]
    if found:
        raise ConfigError(found)
    cast = lambda kind, x: x.astype(kind) if isinstance(x, jax.Array) else np.asarray(x).astype(kind)[()]
    changes = {name: cast(jnp.result_type(getattr(params, name)), value) for name, value in overrides.items()}
    return dataclasses.replace(params, **changes) if changes else params


def swept_problems(params: Any, overrides: dict[str, Any]) -> list[Problem]:
    """What is wrong with the values `[configs]` of parameters that a batch of configs sweeps."""
    swept = {name: np.asarray(x) for name, x in overrides.items() if np.ndim(x)}
    return [Problem("env_params", {name: x}, hint) for name, x in swept.items() if (hint := _out_of_range(params, name, x))]


def _misfit(params: Any, name: str, value: Any) -> str | None:
    """Why a value cannot take a parameter's place."""
    shape = np.shape(getattr(params, name))
    if np.shape(value) != shape:
        sweep = f'must be one number; to sweep it, jax.vmap(lambda x: cfg.replace(env_params={{"{name}": x}}))(values)'
        return f"must have the shape {list(shape)}" if shape else sweep
    return None if isinstance(value, jax.core.Tracer) else _out_of_range(params, name, np.asarray(value))


def _out_of_range(params: Any, name: str, values: np.ndarray) -> str | None:
    """What is wrong with any of the values of a parameter."""
    kind = jnp.result_type(getattr(params, name))
    whole = np.issubdtype(kind, np.integer)
    if whole and (values != np.floor(values)).any():
        return "must be a whole number"
    low, high = (np.iinfo(kind).min, np.iinfo(kind).max) if whole else (-np.inf, np.inf)
    low = 1 if name == "max_steps_in_episode" else low
    return None if ((low <= values) & (values <= high)).all() else f"must be between {low} and {high}"


def _draw(env: Any, params: Any):
    """gymnax's own drawing, where it has one for this environment."""
    if getattr(env, "name", None) not in DRAWN:
        return None

    def draw(env_states, returns, path):
        for driver in ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER"):
            os.environ.setdefault(driver, "dummy")  # pygame draws into memory; without a screen it would complain
        try:
            visualizer.Visualizer(env, params, env_states, returns).animate(str(path))
        except gymnasium.error.DependencyNotInstalled as error:
            hint = "drawing classic control needs pygame: pip install 'purerl[render]'"
            raise ConfigError([Problem("env", env.name, hint)]) from error

    return draw


def _max_steps(params: Any) -> int | None:
    limit = getattr(params, "max_steps_in_episode", None)
    return None if limit is None or isinstance(limit, jax.core.Tracer) else int(limit)


def _observation_space(env: Any, params: Any, obs: Any) -> Any:
    try:
        declared = env.observation_space(params)
    except (AttributeError, NotImplementedError):  # it need not be declared
        declared = None

    def read(declared, obs):
        if isinstance(obs, dict):
            inside = getattr(declared, "spaces", {})
            return {name: read(inside.get(name), x) for name, x in obs.items()}
        if isinstance(declared, spaces.Discrete | Discrete) and obs.shape == ():
            return Discrete(declared.n)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), obs)

    return read(declared, obs)


def _action_space(space: Any) -> Space:
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        sizes = (space.n,) if not isinstance(space, MultiDiscrete) else space.sizes
        if not isinstance(sizes, tuple) or not all(isinstance(size, int | np.integer) for size in sizes):
            raise ConfigError(
                [Problem("env", space, "the sizes of its action space must be whole numbers, several of them in a tuple")]
            )
    elif isinstance(space, spaces.Discrete):
        space, sizes = Discrete(space.n), (space.n,)
    elif isinstance(space, spaces.Box | Box):
        return _box(space)
    else:
        raise ConfigError(
            [Problem("env", space, "its action space must be Discrete, Box, or purerl's MultiDiscrete or MultiBinary")]
        )
    if not sizes or min(sizes) < 1:
        raise ConfigError([Problem("env", space, "its action space has no action")])
    return space


def _box(space: Any) -> Box:
    if not jnp.issubdtype(space.dtype, jnp.floating):
        raise ConfigError([Problem("env", space, "its action space is a Box of integers; use Discrete, or a Box of floats")])
    low, high = (jnp.broadcast_to(jnp.asarray(bound, jnp.float32), space.shape) for bound in (space.low, space.high))
    if not low.size:
        raise ConfigError([Problem("env", space, "its action space has no dimension")])
    if not isinstance(low, jax.core.Tracer) and not isinstance(high, jax.core.Tracer) and not (low < high).all():
        raise ConfigError([Problem("env", space, "its action space needs low < high in every dimension")])
    return Box(low, high)


# --- checks -----------------------------------------------------------------------------------------------------------


def _check(step, action_space: Space, obs: Any, env_state: Any) -> None:
    """Refuses an environment whose step and reset disagree, or whose signals have the wrong shape. Nothing is compiled."""
    after = jax.eval_shape(step, jax.random.key(0), env_state, _one_action(action_space))
    *observations, state_after, reward, terminated, truncated, _ = after
    found = []
    if not sum(x.size for x in jax.tree.leaves(obs)):
        found.append(Problem("env", obs, "observations are empty"))
    for before, after, what in [(env_state, state_after, "state"), *((obs, o, "observation") for o in observations)]:
        found += _differences(before, after, what)
    if reward.shape != () or jnp.issubdtype(reward.dtype, jnp.complexfloating):
        found.append(Problem("env", reward, "the reward must be a real scalar; take reward[0] or reward.sum() in its step"))
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if flag.shape != () or flag.dtype != bool:
            found.append(Problem("env", flag, f"`{name}` must be a bool scalar"))
    if found:
        raise ConfigError(found)


def _one_action(space: Space) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(space.shape, space.dtype)


def _differences(before: Any, after: Any, what: str) -> list[Problem]:
    if jax.tree.structure(before) != jax.tree.structure(after):
        hint = f"the {what} after a step has another structure than after a reset: {jax.tree.structure(before)}"
        return [Problem("env", jax.tree.structure(after), hint)]
    pairs = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    return [
        Problem("env", _says(new), f"the {what}{jax.tree_util.keystr(path)} after a step is not what a reset gives: {_says(old)}")
        for (path, old), new in pairs
        if (old.shape, old.dtype) != (new.shape, new.dtype)
    ]


def _says(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}"
