"""Vector environments of gymnasium.

In gymnasium's auto-reset mode SAME_STEP, the step that ends an episode also resets the environment, and `info["final_obs"]` is
the last observation of the episode. In the other modes, the step returns this observation. This module then resets the
environments whose episode ended, before their next step, by `reset(options={"reset_mask": mask})`.
"""

import contextlib
import functools
import multiprocessing.connection
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from purerl.core.errors import EnvironmentFailed, config_error, warn
from purerl.core.finite import any_of, finite_or_zero, nonfinite_rows
from purerl.core.types import PyTree
from purerl.envs.animation import draw_in_memory
from purerl.envs.external.gymnasium_spaces import convert_actions, convert_observations, map_space, observation_space
from purerl.envs.external.snapshots import Keeper
from purerl.envs.finite_resets import OBSERVATION, REWARD
from purerl.envs.importing import importing_mujoco, opengl_hint

SYNC, ASYNC, VECTOR = "sync", "async", "vector"


class Tracked(gymnasium.Wrapper):
    """A wrapper whose errors name the environment, the step and the action, and whose state can be saved."""

    def __init__(self, make: Callable[[], gymnasium.Env], index: int):
        super().__init__(make())
        self._index, self._steps, self._keeper = index, 0, Keeper(self.env)
        if multiprocessing.parent_process() is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the trainer handles Ctrl-C; it then ends its workers

    def reset(self, **kwargs: Any) -> tuple:
        self._steps = 0
        if not kwargs.get("options", True):
            del kwargs["options"]  # what gymnasium leaves of a reset mask; some environments distinguish {} from None
        try:
            return self.env.reset(**kwargs)
        except Exception as error:  # a custom environment may raise anything
            raise self._failure("its reset", error) from error

    def step(self, action: Any) -> tuple:
        self._steps += 1
        try:
            *after, info = self.env.step(action)
        except Exception as error:
            raise self._failure(f"step {self._steps} of its episode, action {_text(action)}", error) from error
        # gymnasium stores each info entry in the type of the first environment's value, so an int would truncate floats.
        return *after, {name: _as_float(x) for name, x in info.items()}

    def _failure(self, where: str, error: Exception) -> EnvironmentFailed:
        return EnvironmentFailed(f"environment {self._index}, {where}: {type(error).__name__}: {error}")

    def take_snapshot(self) -> dict[str, Any]:
        return self._keeper.snapshot() | {"steps": self._steps}

    def renew(self) -> bool:
        return self._keeper.renew()

    def put_back(self, saved: list[dict[str, Any]]) -> None:
        self._keeper.restore(saved[self._index])
        self._steps = saved[self._index]["steps"]


def _as_float(x: Any) -> Any:
    """Return an integer, a bool or an array of these as floats, and any other entry of `info` unchanged."""
    if isinstance(x, np.ndarray):
        return x.astype(np.float64) if x.dtype.kind in "biu" else x
    return float(x) if isinstance(x, bool | int | np.integer | np.bool_) else x


def _text(action: Any) -> str:
    each = lambda x: np.array2string(np.asarray(x), threshold=8, precision=4, separator=", ")
    return each(action) if isinstance(action, np.ndarray) else str(jax.tree.map(each, action))


def _vectorize(make: Callable[[], gymnasium.Env], vectorization: str, count: int) -> SyncVectorEnv | AsyncVectorEnv:
    functions = [functools.partial(Tracked, make, i) for i in range(count)]
    options = {"autoreset_mode": AutoresetMode.DISABLED, "copy": False}
    if vectorization == SYNC:
        return SyncVectorEnv(functions, **options)
    # JAX is multithreaded, so a forked process can deadlock.
    return AsyncVectorEnv(functions, context="forkserver" if os.name == "posix" else "spawn", **options)


class VectorEnvironments:
    """A gymnasium vector environment as a set of external (Python) environments.

    `step` returns `(obs, next_obs, reward, terminated, truncated, info, nonfinite)`, as in `TimeStep`, in NumPy arrays
    that are not changed afterwards: observations in the dtypes of purerl's observation space, float32 rewards and `info`, bool
    flags. `snapshot` returns JSON values for `restore`, or `{"missing": reason}` if the state cannot be saved.

    Attributes:
        count: number of environments.
        steps: number of steps since all environments were last reset.
        envs: the vector environment.
        same_step: True if gymnasium resets an environment in the step that ends an episode.
        told: info of the last `reset` or `step`.

    Args:
        make: `() -> gymnasium.Env`; or with `vector`, `(num_envs) -> gymnasium.vector.VectorEnv`.
        vectorization: `sync`, `async` or `vector`.
        count: number of environments.
        info: a dict from the name to the shape of each `info` entry that `step` returns.
        finite: reset environments whose observation or reward is not finite.

    Raises:
        ConfigError: unsupported space; with `vector`, no VectorEnv, or a NEXT_STEP one that may ignore reset masks.
    """

    def __init__(self, make: Callable, vectorization: str, count: int, info: dict[str, tuple[int, ...]], finite: bool = False):
        self.count, self.steps, self._info, self._finite, self._own = count, 0, info, finite, vectorization == VECTOR
        self._has_reset = False
        self.envs = make(count) if self._own else _vectorize(make, vectorization, count)
        if (found := getattr(self.envs, "num_envs", count)) != count:
            self.close()
            raise config_error("make", found, f"make({count}) must return {count} environments")
        self.same_step = _mode(self.envs) is AutoresetMode.SAME_STEP
        self._space = self.envs.single_observation_space
        self._convert = functools.partial(convert_observations, self._space, observation_space(self._space))

    def reset(self, seeds: np.ndarray) -> PyTree:
        # `reset` of a custom vector environment takes one seed for all of its environments.
        self.steps = 0
        seed: Any = int(seeds[0]) if self._own else seeds.tolist()
        with self._errors("reset"):
            obs, self.told = self.envs.reset(seed=seed)
        return self._begin(self._convert(obs))

    def step(self, action: Any) -> tuple:
        return self._step(map_space(convert_actions, self.envs.single_action_space, action))

    def explore(self, most: int) -> Iterator[PyTree]:
        """Yield the observations of a reset and of random steps, until an episode ends, or `most` steps are taken."""
        self.envs.action_space.seed(0)
        yield self.reset(np.zeros(self.count, np.uint32))
        for _ in range(most):
            obs, _, _, terminated, truncated, *_ = self._step(self.envs.action_space.sample())
            yield obs
            if (terminated | truncated).any():
                return

    def _step(self, actions: Any) -> tuple:
        self.steps += 1
        with self._errors("step", actions):
            obs, reward, terminated, truncated, self.told = self.envs.step(actions)
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        reward, done = np.array(reward, np.float32), terminated | truncated
        following = last = self._convert(obs)
        named = {name: self._entry(name, done) for name in self._info}
        if self.same_step and done.any():
            rows = zip(done, _final_obs(self.told, done), iterate(self.envs.observation_space, obs), strict=True)
            rows = [final if ended else row for ended, final, row in rows]
            last = self._convert(concatenate(self._space, rows, create_empty_array(self._space, len(rows))))
        found, reset = {}, np.zeros_like(done) if self.same_step else done
        if self._finite:
            found = {name: self._began[name] | rows for name, rows in nonfinite_rows(last, OBSERVATION).items()}
            found |= nonfinite_rows(reward, REWARD)
            bad, last = any_of(found), finite_or_zero(last)
            reset = bad & ~done if self.same_step else bad | done
            reward[bad], terminated, truncated = 0, terminated | bad, truncated & ~bad
        if reset.any():
            following = self._restart(reset, following)
        return self._begin(following), last, reward, terminated, truncated, named, found

    def _begin(self, obs: PyTree) -> PyTree:
        """Return the observations to act on. With `finite`, store flags of nonfinite rows, and replace nonfinite numbers by 0."""
        self._began = nonfinite_rows(obs, OBSERVATION) if self._finite else {}
        return finite_or_zero(obs) if self._finite else obs

    def _restart(self, which: np.ndarray, obs: PyTree) -> PyTree:
        if self.same_step and not isinstance(self.envs.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            hint = "had NaN or numbers beyond 1e18, but its vector environment cannot reset it alone; use nonfinite='ignore'"
            raise EnvironmentFailed(f"environment {which.argmax()}, step {self.steps} {hint}")
        with self._errors("reset"):
            new = self._convert(self.envs.reset(options={"reset_mask": which})[0])
        if self._own and not self._has_reset:  # the first reset by a mask
            pairs = zip(*map(jax.tree.leaves, (new, obs)), strict=True)
            if not all(np.array_equal(x[~which], y[~which], equal_nan=True) for x, y in pairs):
                hint = "if it resets other environments than those of the mask, their episodes go on without purerl"
                warn(f"make: reset(options={{'reset_mask': mask}}) changed the observations of other environments; {hint}")
        self._has_reset = True
        return jax.tree.map(lambda x, y: np.where(which.reshape(-1, *[1] * (x.ndim - 1)), x, y), new, obs)

    def frame(self) -> np.ndarray:
        draw_in_memory()
        try:
            with importing_mujoco():
                return self.envs.call("render")[0]
        except Exception as error:
            if not self.envs.call("has_wrapper_attr", "mujoco_renderer")[0]:
                raise
            raise EnvironmentFailed(opengl_hint(error)) from error

    def snapshot(self) -> dict[str, Any]:
        if self._own:
            return {"missing": "custom vector environments cannot be saved"}
        with self._errors("snapshot"):
            kept = self.envs.call("take_snapshot")
        missing = sorted({name for each in kept for name in each.get("missing", ())})
        if missing:
            return {"missing": f"these attributes cannot be saved: {', '.join(missing)}"}
        return {"environments": kept, "began": {name: rows.tolist() for name, rows in self._began.items()}}

    def restore(self, saved: dict[str, Any]) -> None:
        with self._errors("restoring"):
            self.envs.call("put_back", saved["environments"])
        self._began = {name: np.array(rows) for name, rows in saved.get("began", self._began).items()}

    def renew(self) -> bool:
        """Restore all environments as they were made; return False if some cannot be restored."""
        with contextlib.suppress(Exception):  # failed environments may raise anything
            return not self._own and all(self.envs.call("renew"))
        return False

    def close(self) -> None:
        workers = getattr(self.envs, "processes", ())
        with contextlib.suppress(Exception):  # failed environments may raise anything
            self.envs.close(**({"terminate": True} if workers else {}))
        self.envs.closed = True
        for worker in workers:
            worker.terminate()

    def _entry(self, name: str, done: np.ndarray) -> np.ndarray:
        """Return an `info` entry for each environment; 0 if the environment's step has no such entry."""
        last = self.told.get("final_info", {})
        entry = np.zeros((len(done), *self._info[name]), np.float32)
        for values, where in ((self.told, ~(done & bool(last))), (last, done)):
            if name in values:
                there = where & np.asarray(values.get(f"_{name}", True))
                entry[there] = np.asarray(values[name], np.float32)[there]
        return entry

    @contextlib.contextmanager
    def _errors(self, where: str, actions: Any = None) -> Iterator[None]:
        """Raise an error of the block as `EnvironmentFailed` with the call and, if a process ended, with its environment."""
        try:
            yield
        except EnvironmentFailed:
            raise
        except Exception as error:
            workers = getattr(self.envs, "processes", ()) if isinstance(error, EOFError | OSError) else ()
            ended = multiprocessing.connection.wait([worker.sentinel for worker in workers], timeout=1) if workers else []
            dead = [f"environment {i} (its process has ended), " for i, worker in enumerate(workers) if worker.sentinel in ended]
            at = where if actions is None else f"step {self.steps}, actions {_text(actions)}"
            raise EnvironmentFailed(f"{''.join(dead[:1])}{at}: {type(error).__name__}: {error}") from error


def _mode(env: VectorEnv) -> AutoresetMode:
    """Return the auto-reset mode of a vector environment. Raise a ConfigError for NEXT_STEP if a reset mask might be ignored."""
    if not isinstance(env, VectorEnv):
        raise config_error("make", type(env), "must return a gymnasium.vector.VectorEnv")
    mode, inner = AutoresetMode(env.metadata.get("autoreset_mode") or AutoresetMode.NEXT_STEP), env.unwrapped
    # Without shared memory, the workers of AsyncVectorEnv do not clear their auto-reset flag in a reset, and would reset again.
    by_mask = isinstance(inner, SyncVectorEnv | AsyncVectorEnv) and getattr(inner, "shared_memory", True)
    if mode is AutoresetMode.NEXT_STEP and not by_mask:
        hint = "resets one step late (AutoresetMode.NEXT_STEP) and may ignore a reset mask; use AutoresetMode.SAME_STEP"
        raise config_error("make", type(inner), hint)
    return mode


def _final_obs(info: dict[str, Any], done: np.ndarray) -> Any:
    """Return the last observations of the episodes that ended, indexed by environment.

    Raises:
        EnvironmentFailed: the last observation of an ended episode is missing.
    """
    found, ended = info.get("final_obs"), np.flatnonzero(done)
    if isinstance(found, np.ndarray | list | tuple) and len(found) == len(done) and all(found[i] is not None for i in ended):
        return found
    hint = "needs info['final_obs'] with the last observation of each environment whose episode ended"
    raise EnvironmentFailed(f"AutoresetMode.SAME_STEP {hint}; info has {sorted(info)}")
