"""The adapter for gymnasium, whose environments live on the host: `gymnasium/HalfCheetah-v5`, `gymnasium/ALE/Pong-v5`, ...

Among `env_kwargs` is `vectorization`: `sync`, one environment after the other in this process, or `async`, each in a process of
its own. All others are the constructor's.

The vector environments are gymnasium's. An episode's last observation and flags are those of its last step, in each of
gymnasium's modes of auto-reset: where it resets in the same step, it gives the last observation apart; in the others nothing is
reset before the next step, and what has ended is reset by a mask.
"""

import contextlib
import functools
import importlib
import json
import multiprocessing.connection
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from purerl.core.errors import ConfigError, EnvironmentFailed, Problem, code_of, nearest
from purerl.core.masks import choices_of
from purerl.core.spaces import Box, Discrete, Indices, MultiBinary, MultiDiscrete, entries_of
from purerl.core.types import Environment, PyTree
from purerl.envs.converted_spaces import action_space_of
from purerl.envs.gif import draw_in_memory
from purerl.envs.gymnasium_wrappers import check_statistics, layers_of, reward_warnings, unread_masks
from purerl.envs.host import Host, Recipe
from purerl.envs.importing import importing_mujoco, opengl_hint, quietly
from purerl.envs.parameters import constructing
from purerl.envs.snapshots import Keeper

SYNC, ASYNC, VECTOR = "sync", "async", "vector"
MODES = (SYNC, ASYNC)
IMAGES = "rgb_array"
REGISTERS = {"ALE": "ale_py"}  # the package whose import registers the ids that begin like this
PROBED = 1000  # steps of a random episode, at most, that is looked at for the entries of info


class Opened(NamedTuple):
    """Functions that make one environment, one that can be drawn, and several of them."""

    make: Callable[[], gymnasium.Env]
    drawn: Callable[[], gymnasium.Env] | None
    vectorization: str
    name: str


def make(name: str, env_kwargs: tuple) -> Opened:
    """Return the environment of this id, or of `module:id` if the module, which registers the id, is imported.

    Raises:
        ConfigError: no such id, or its constructor refused the arguments.
    """
    module, _, registered = name.rpartition(":")
    if module and module not in sys.modules:
        hint = f"a config imports no module: import {module} before; --env on the command line does"
        raise ConfigError([Problem("env", f"gymnasium/{name}", hint)])
    try:
        _register(registered)
    except ImportError as error:
        hint = f"{error}; it needs pip install {REGISTERS[_namespace(registered)].replace('_', '-')}"
        raise ConfigError([Problem("env", f"gymnasium/{name}", hint)]) from error
    if registered not in gymnasium.registry:
        hint = f"no registered environment; {nearest(registered, gymnasium.registry)}"
        raise ConfigError([Problem("env", f"gymnasium/{name}", hint)])
    kwargs = dict(env_kwargs)
    vectorization = _checked(kwargs.pop("vectorization", SYNC), MODES)
    one = functools.partial(_made, name, disable_env_checker=True, **kwargs)
    try:
        with constructing(f"gymnasium/{name}", env_kwargs), contextlib.closing(one()) as env:
            modes = env.metadata.get("render_modes", ())
    except ConfigError as error:
        if isinstance(error.__cause__, gymnasium.error.DependencyNotInstalled | ImportError):
            of_mujoco = "mujoco" in str(gymnasium.spec(registered).entry_point)
            hint = f"{error.__cause__}" + ("; it needs pip install 'purerl[gymnasium]'" if of_mujoco else "")
            raise ConfigError([Problem("env", f"gymnasium/{name}", hint)]) from error
        raise
    drawn = functools.partial(one, **kwargs | {"render_mode": IMAGES}) if IMAGES in modes else None
    return Opened(one, drawn, vectorization, f"gymnasium/{name}")


def _namespace(name: str) -> str:
    return name.partition("/")[0]


def _register(name: str) -> None:
    """Imports the package that registers an id, in this process."""
    if name not in gymnasium.registry and _namespace(name) in REGISTERS:
        with quietly():
            importlib.import_module(REGISTERS[_namespace(name)])


def _made(name: str, **kwargs: Any) -> gymnasium.Env:
    _register(name.rpartition(":")[2])
    with importing_mujoco():  # if it is an environment of MuJoCo's, and the first one in this process
        return gymnasium.make(name, **kwargs)


def default_params(made: Opened) -> None:
    """Return None: this suite is configured through `env_kwargs`."""


def adapt(made: Opened, params: None) -> Environment:
    """Return the environment as a `purerl.Environment`."""
    return environment(made.make, made.vectorization, made.drawn)


def environment(make: Callable[..., Any], vectorization: str, drawn: Callable | None = None) -> Environment:
    """Return the result of `purerl.from_gymnasium`; `drawn` makes an environment that can be drawn, if `make` does not."""
    _checked(vectorization, (*MODES, VECTOR))
    if not callable(make) or isinstance(make, gymnasium.Env | VectorEnv):
        raise ConfigError([Problem("make", make, "must be a function that makes an environment, since several are needed")])
    own = vectorization == VECTOR
    first = functools.partial(make, 1) if own else make
    with code_of("make", "make(1)" if own else "make()"):
        env, kind = first(), VectorEnv if own else gymnasium.Env
        layers = layers_of(env) if isinstance(env, kind) else []
    if not layers:
        raise ConfigError([Problem("make", type(env).__name__, f"must make a {kind.__module__}.{kind.__name__}")])
    check_statistics(layers)
    if isinstance(env, VectorEnv):
        _mode(env)
    else:
        _check_anew(make, env)
    space_of = lambda name: getattr(env, f"single_{name}" if own else name)
    spec = getattr(env, "spec", None)
    not_used = lambda *args: None
    made = Environment(
        reset=not_used,
        step=not_used,
        observation_space=_observation_space(space_of("observation_space")),
        action_space=_action_space(space_of("action_space")),
        max_steps=getattr(spec, "max_episode_steps", None) or _limit(env),
        name=_name(make, spec),
    )
    with code_of("make", "reset and step of what it makes"):
        if not own:  # gymnasium's vector environments say less clearly what is wrong
            _check_shapes(_converter(env.observation_space)(env.reset(seed=0)[0]), made)
        told = _try(_Environments((lambda count: env) if own else lambda: env, VECTOR if own else SYNC, 1, {}), made)
    info_shapes = functools.cache(lambda: _info_shapes(first(), own))
    drawn = make if drawn is None and not own and env.render_mode == IMAGES else drawn
    film = drawn and functools.partial(_Environments, drawn, SYNC, 1, {})
    seconds = 1 / env.metadata.get("render_fps", 30)
    masks = unread_masks(layers, told) if choices_of(made.action_space) else ()
    several = functools.partial(_Environments, make, vectorization)
    return Host.environment(Recipe(several, made, info_shapes, film, seconds, reward_warnings(layers), masks))


def _check_anew(make: Callable, env: gymnasium.Env) -> None:
    """Check that a function makes another environment each time.

    Raises:
        ConfigError: it gives this one again.
    """
    with code_of("make", "make()"):
        again = make()
    if again.unwrapped is env.unwrapped:
        raise ConfigError([Problem("make", make, "gives the same environment again; it must make a new one each time")])
    with contextlib.suppress(Exception):  # what cannot be closed is not used
        again.close()


def _try(environments: "_Environments", env: Environment) -> set[str]:
    """Reset one environment, take a step, or where it resets in the same step a whole episode, and close it.

    Returns:
        The names of the entries of info.

    Raises:
        ConfigError: an observation is not of its space.
    """
    bounds = [env.action_space.low, env.action_space.high] if isinstance(env.action_space, Box) else [0, 0]
    action = np.zeros((1, *env.action_space.shape), env.action_space.dtype)
    with contextlib.closing(environments):
        seen, told = [environments.reset(np.zeros(1, np.uint32))], set(environments.told)
        seen.append(environments.step(np.clip(action, *map(np.asarray, bounds)))[0])
        told |= set(environments.told)
        if environments.same_step:
            environments.play(PROBED)
    for obs in seen:
        _check_shapes(jax.tree.map(lambda x: x[0], obs), env)
    return told


def _check_shapes(obs: PyTree, env: Environment) -> None:
    """Check that an observation is of its space.

    Raises:
        ConfigError: it is not.
    """
    shapes, wanted = [x.shape for x in jax.tree.leaves(obs)], [tuple(x.shape) for x in entries_of(env.observation_space).values()]
    if shapes != wanted:
        raise ConfigError([Problem("make", shapes, f"observations have these shapes, and those of the space are {wanted}")])


def _checked(vectorization: Any, choices: tuple[str, ...]) -> str:
    if vectorization not in choices:
        raise ConfigError([Problem("vectorization", vectorization, f"must be one of {', '.join(choices)}")])
    return vectorization


def _name(make: Callable, spec: Any) -> str:
    return f"gymnasium/{spec.id}" if getattr(spec, "id", None) else getattr(make, "__qualname__", type(make).__name__)


def _limit(env: Any) -> int | None:
    """Return the steps of gymnasium's wrapper for a time limit, if it is among an environment's wrappers."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return env._max_episode_steps
        env = env.env
    return None


def _mode(env: VectorEnv) -> AutoresetMode:
    """Return the mode in which a vector environment resets ended episodes."""
    mode = env.metadata.get("autoreset_mode")
    mode = mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode) if mode else AutoresetMode.NEXT_STEP
    if mode is AutoresetMode.NEXT_STEP and not isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        hint = "resets in the step after the last one, which is then no step to learn from; make it reset in the same step"
        raise ConfigError([Problem("make", type(env.unwrapped).__name__, hint)])
    if mode is AutoresetMode.NEXT_STEP and not getattr(env.unwrapped, "shared_memory", True):
        hint = "resets twice after an episode; make it with shared_memory=True, or autoreset_mode=AutoresetMode.SAME_STEP"
        raise ConfigError([Problem("make", "AsyncVectorEnv(shared_memory=False)", hint)])
    return mode


# --- spaces -----------------------------------------------------------------------------------------------------------


def _observation_space(space: spaces.Space) -> PyTree:
    """Return the space of one observation as purerl's."""
    if isinstance(space, spaces.Dict):
        return {name: _observation_space(x) for name, x in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_observation_space, space.spaces))
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete) and (space.nvec.ndim == 1 or (space.nvec == space.nvec.flat[0]).all()):
        sizes = tuple(map(int, space.nvec)) if space.nvec.ndim == 1 else int(space.nvec.flat[0])
        return Indices(sizes, space.shape)
    if isinstance(space, spaces.MultiBinary):
        return jax.ShapeDtypeStruct(space.shape, np.float32)
    if isinstance(space, spaces.Box):
        dtype = jax.dtypes.canonicalize_dtype(space.dtype)
        if dtype != space.dtype and np.issubdtype(dtype, np.integer):
            fits = np.iinfo(dtype).min <= space.low.min() and space.high.max() <= np.iinfo(dtype).max
            dtype = dtype if fits else np.dtype(np.float32)  # larger numbers would wrap around
        return jax.ShapeDtypeStruct(space.shape, dtype)
    hint = "observations must be of Box, Discrete, MultiDiscrete or MultiBinary spaces, or a Dict or Tuple of them"
    raise ConfigError([Problem("env", space, hint)])


def _converter(space: spaces.Space) -> Callable[[Any], PyTree]:
    """Return a function that converts observations, one or a batch, to purerl's, copied."""
    if isinstance(space, spaces.Dict):
        of_each = {name: _converter(x) for name, x in space.spaces.items()}
        return lambda obs: {name: convert(obs[name]) for name, convert in of_each.items()}
    if isinstance(space, spaces.Tuple):
        in_turn = tuple(map(_converter, space.spaces))
        return lambda obs: tuple(convert(part) for convert, part in zip(in_turn, obs, strict=True))
    dtype, start = np.dtype(_observation_space(space).dtype), getattr(space, "start", 0)
    if np.any(start):
        return lambda obs: np.array(obs - start, dtype)
    return lambda obs: np.array(obs, dtype)


def _where(flags: np.ndarray, new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda x, y: np.where(flags.reshape(-1, *[1] * (x.ndim - 1)), x, y), new, old)


def _action_space(space: spaces.Space) -> Any:
    """Return the space of one action as purerl's."""
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscrete(tuple(int(n) for n in space.nvec.flat))
    if isinstance(space, spaces.MultiBinary):
        return MultiBinary(int(np.prod(space.shape)))
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    with jax.ensure_compile_time_eval():  # bounds are computed, maybe while a program is traced
        return action_space_of(space)


def _action_converter(space: spaces.Space) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that converts actions `[B, ...]` of purerl's to gymnasium's."""
    start = getattr(space, "start", 0)
    plain = lambda action: action.reshape(len(action), *(space.shape or ())).astype(space.dtype)
    if isinstance(space, spaces.Box):  # a bound of 0.1 is a larger number in float32 than in float64
        return lambda action: np.clip(plain(action), space.low, space.high)
    return (lambda action: plain(action) + start) if np.any(start) else plain


# --- info -------------------------------------------------------------------------------------------------------------


def _info_shapes(env: Any, vector: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the entries of info that are numbers, or rows of them, in the steps of a random episode."""
    found = {}
    with contextlib.closing(env):
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(PROBED):
            *_, terminated, truncated, info = env.step(env.action_space.sample())
            if vector:  # where it resets in the same step, the last info of an episode is apart
                rows = info | info.pop("final_info", {})
                info = {name: x[0] for name, x in rows.items() if name[0] != "_" and isinstance(x, np.ndarray)}
            found |= {name: np.shape(x) for name, x in info.items() if _is_number(x)}
            if np.all(terminated) or np.all(truncated):
                break
    return found


def _is_number(x: Any) -> bool:
    return isinstance(x, bool | int | float | np.ndarray | np.generic) and np.ndim(x) <= 1 and np.asarray(x).dtype.kind in "biuf"


def _final_obs(info: dict[str, Any], done: np.ndarray) -> Any:
    """Return the last observations of the environments that ended, for each environment one.

    Raises:
        EnvironmentFailed: they are missing, though the environments reset in the same step.
    """
    found = info.get("final_obs")
    rows = found if isinstance(found, np.ndarray | list | tuple) and len(found) == len(done) else None
    if rows is None or any(rows[i] is None for i in np.flatnonzero(done)):
        hint = "info['final_obs'] must have the last observation of each environment whose episode ended, which values need"
        raise EnvironmentFailed(f"resets in the same step (AutoresetMode.SAME_STEP), where {hint}; info has {sorted(info)}")
    return found


# --- environments that are open -----------------------------------------------------------------------------------------


class _Named(gymnasium.Wrapper):
    """An environment whose errors name it, the step and the action, and that can be saved."""

    def __init__(self, env: gymnasium.Env, index: int):
        super().__init__(env)
        self._index, self._steps, self._keeper = index, 0, Keeper(env)
        if multiprocessing.parent_process() is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's, which ends the others

    def reset(self, **kwargs: Any) -> tuple:
        self._steps = 0
        try:
            return self.env.reset(**kwargs)
        except Exception as error:  # a user's environment may raise anything
            raise self._failed("its reset", error) from error

    def step(self, action: Any) -> tuple:
        self._steps += 1
        try:
            *after, info = self.env.step(action)
        except Exception as error:
            raise self._failed(f"step {self._steps} of its episode, action {_text(action)}", error) from error
        # Of several environments, the first one's number would give all of them its type.
        return *after, {name: float(x) if isinstance(x, bool | int) else x for name, x in info.items()}

    def _failed(self, where: str, error: Exception) -> EnvironmentFailed:
        return EnvironmentFailed(f"environment {self._index}, {where}: {type(error).__name__}: {error}")

    def kept(self) -> dict[str, Any]:
        return self._keeper.snapshot() | {"steps": self._steps}

    def put_back(self, saved: list[dict[str, Any]]) -> None:
        self._keeper.restore(saved[self._index])
        self._steps = saved[self._index]["steps"]


def _text(action: Any) -> str:
    return np.array2string(np.asarray(action), threshold=8, precision=4, separator=", ")


def _named(make: Callable, index: int) -> gymnasium.Env:
    return _Named(make(), index)


class _Environments:
    """`HostEnvironments` of gymnasium's."""

    def __init__(self, make: Callable, vectorization: str, count: int, info: dict[str, tuple[int, ...]]):
        self._info, self._own = info, vectorization == VECTOR
        if self._own:
            self._envs = make(count)
        else:
            functions = [functools.partial(_named, make, i) for i in range(count)]
            mode = {"autoreset_mode": AutoresetMode.DISABLED, "copy": False}
            if vectorization == ASYNC:
                # JAX has threads, which a forked process would not survive.
                self._envs = AsyncVectorEnv(functions, context="forkserver" if os.name == "posix" else "spawn", **mode)
            else:
                self._envs = SyncVectorEnv(functions, **mode)
        self.same_step = _mode(self._envs) is AutoresetMode.SAME_STEP
        self._space = self._envs.single_observation_space
        self._converted, self._action = _converter(self._space), _action_converter(self._envs.single_action_space)
        self._taken, self.told = 0, {}

    def reset(self, seeds: np.ndarray) -> PyTree:
        obs, self.told = self._call(lambda: "reset", lambda: self._begin([int(seed) for seed in seeds]))
        return self._converted(obs)

    def _begin(self, seeds: list[int | None]) -> tuple:
        try:
            return self._envs.reset(seed=seeds)
        except Exception as error:
            try:
                if self._own:  # many vector environments take one seed for all of theirs
                    return self._envs.reset(seed=seeds[0])
            except Exception:
                raise error from None
            raise

    def step(self, action: np.ndarray) -> tuple:
        return self._step(self._action(action))

    def play(self, most: int) -> None:
        """Take random steps until an episode ends, or this many."""
        self._envs.action_space.seed(0)
        ends = (any(map(np.any, self._step(self._envs.action_space.sample())[3:5])) for _ in range(most))
        next(filter(None, ends), None)

    def _step(self, action: np.ndarray) -> tuple:
        self._taken += 1
        where = lambda: f"step {self._taken}, actions {_text(action)}"
        obs, reward, terminated, truncated, info = self._call(where, lambda: self._envs.step(action))
        self.told = info
        terminated, truncated = (np.array(x, np.bool_) for x in (terminated, truncated))
        done, following = terminated | truncated, self._converted(obs)
        last, named = following, {name: self._entry(info, name, done) for name in self._info}
        if done.any() and self.same_step:
            final_obs = _final_obs(info, done)
            rows = zip(done, final_obs, iterate(self._envs.observation_space, obs), strict=True)
            rows = [final if ended else row for ended, final, row in rows]
            last = self._converted(concatenate(self._space, rows, create_empty_array(self._space, len(rows))))
        elif done.any():
            following = _where(done, self.restart(done), following)
        return following, last, np.array(reward, np.float32), terminated, truncated, named

    def restart(self, which: np.ndarray) -> PyTree:
        if self.same_step and not isinstance(self._envs.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            hint = "a number that is not finite, and this vector environment cannot reset one alone; use nonfinite='ignore'"
            raise EnvironmentFailed(f"environment {which.argmax()}, step {self._taken}: {hint}")
        obs, _ = self._call(lambda: "reset", lambda: self._envs.reset(options={"reset_mask": which}))
        return self._converted(obs)

    def frame(self) -> np.ndarray:
        draw_in_memory()
        try:
            with importing_mujoco():
                return self._envs.call("render")[0]
        except Exception as error:
            if isinstance(self._envs, SyncVectorEnv) and hasattr(self._envs.envs[0].unwrapped, "mujoco_renderer"):
                raise EnvironmentFailed(opengl_hint(error)) from error
            raise

    def snapshot(self) -> str:
        if self._own:
            return json.dumps({"missing": "a vector environment gives no state that could be saved"})
        kept = self._call(lambda: "a snapshot", lambda: self._envs.call("kept"))
        missing = sorted({name for each in kept for name in each.get("missing", ())})
        why = f"what is in {', '.join(missing)} cannot be saved"
        return json.dumps({"missing": why} if missing else {"environments": kept})

    def restore(self, saved: dict[str, Any]) -> None:
        self._call(lambda: "restoring", lambda: self._envs.call("put_back", saved["environments"]))

    def close(self) -> None:
        workers = getattr(self._envs, "processes", ())
        with contextlib.suppress(Exception):  # of environments that have failed
            self._envs.close(**({"terminate": True} if workers else {}))
        self._envs.closed = True
        for worker in workers:
            worker.terminate()

    def _entry(self, info: dict[str, Any], name: str, done: np.ndarray) -> np.ndarray:
        """Return an entry of info of each environment, 0 where it has none in this step."""
        last = info.get("final_info", {}) if self.same_step else {}
        found = [(info, ~done), (last, done)] if last else [(info, np.ones_like(done))]
        entry = np.zeros((len(done), *self._info[name]), np.float32)
        for values, where in found:
            if name in values:
                there = where & np.asarray(values.get(f"_{name}", True))
                entry[there] = np.asarray(values[name], np.float32)[there]
        return entry

    def _call(self, where: Callable[[], str], function: Callable) -> Any:
        try:
            return function()
        except EnvironmentFailed:
            raise
        except Exception as error:
            workers = getattr(self._envs, "processes", ()) if isinstance(error, EOFError | OSError) else ()
            ended = multiprocessing.connection.wait([worker.sentinel for worker in workers], timeout=1) if workers else []
            dead = [i for i, worker in enumerate(workers) if worker.sentinel in ended]
            which = f"environment {dead[0]}, whose process has ended, " if dead else ""
            raise EnvironmentFailed(f"{which}{where()}: {type(error).__name__}: {error}") from error
