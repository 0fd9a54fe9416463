"""External (Python) environments: the compiled program calls back to Python to reset and to step the environments.

The `env_state` of the program is a handle, `Handle`: the id of a set of environments, and the number of steps taken. Each step
changes the set, so only the latest handle can be stepped. An older handle raises an error. Calls run in order because each call
needs the handle that the previous call returned.
"""

import contextlib
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental import io_callback

from purerl.core.environment import Environment, TimeStep
from purerl.core.errors import EnvironmentFailed, Problem, config_error, refuse_vmap
from purerl.core.finite import float_entries
from purerl.core.spaces import Mixed
from purerl.core.types import PyTree
from purerl.envs.animation import save_animation
from purerl.envs.finite_resets import OBSERVATION, REWARD
from purerl.envs.outputs import check_names

if TYPE_CHECKING:  # an import of gymnasium takes time
    from purerl.envs.external.gymnasium_vector import VectorEnvironments


class Handle(struct.PyTreeNode):
    """A handle to a set of external environments: the set's id and step count, repeated for each environment, `[B]` uint32."""

    number: jax.Array
    steps: jax.Array


Shapes = dict[str, tuple[int, ...]]
ONE_RUN = "external (Python) environments do not support jax.vmap; use fit(num_seeds=...), jax.lax.map or a loop"
one_run = refuse_vmap("env", ONE_RUN)
SETS = 2  # open sets per run: one for training and, with RND, one for the random steps before training
_failures: list[EnvironmentFailed] = []
_open: dict[int, "VectorEnvironments"] = {}  # by id, since separately compiled programs of one run share sets
_numbers = itertools.count(1)
_lock = threading.Lock()


@dataclasses.dataclass(eq=False)
class Host:
    """A description of external environments, with functions that open, reset, step and close them.

    Attributes:
        make: `(count, info_shapes, finite)` opens a set of environments. `info_shapes` is a dict from the name to the shape of an
          `info` entry. If `finite` is True, environments are reset as by `purerl.envs.finite_resets.with_finite`.
        env: an `Environment` with the spaces and limits; its `reset` and `step` are not used.
        info_shapes: function without arguments that returns the shape of each entry of info, by name.
        drawn: like `make`, for environments that can be drawn; None if nothing can be drawn.
        frame_seconds: duration of an image, in seconds.
        arguments: constructor arguments by name, to tell runs with other arguments apart; {} if unknown.
        warnings: probable mistakes, such as wrappers that change rewards.
        info: names of the `info` entries of a step.
        finite: reset environments whose observation or reward is not finite.
        runs: number of runs side by side. The sets of the latest `SETS * runs` resets are open. A further reset restores the
          oldest set as it was made, or closes it if that is impossible or the number of environments differs.
        frames: images of the first environment, one after each reset and step; None if nothing is drawn.
    """

    make: Callable[[int, Shapes, bool], "VectorEnvironments"]
    env: Environment
    info_shapes: Callable[[], Shapes]
    drawn: Callable[[int, Shapes, bool], "VectorEnvironments"] | None = None
    frame_seconds: float = 1 / 30
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    warnings: tuple[Problem, ...] = ()
    info: tuple[str, ...] = ()
    finite: bool = False
    runs: int = 1
    frames: list[np.ndarray] | None = None

    def __post_init__(self):
        shapes, self._mine = self.info_shapes() if self.info else {}, []
        check_names(self.info, shapes)
        self._info = {name: shapes[name] for name in self.info}
        weakref.finalize(self, _close, self._mine)

    def environment(self, info: tuple[str, ...] = (), finite: bool = False) -> Environment:
        """Return an `Environment` that shares no set of environments and has not opened any set yet."""
        host = dataclasses.replace(self, info=info, finite=finite, runs=1, frames=None)
        return self.env._replace(reset=host.reset, step=host.step, info=info, host=host, draw=host.draw if host.drawn else None)

    def start_recording(self) -> None:
        """Record images of the first environment from now on.

        Raises:
            ConfigError: the environment cannot be drawn here.
        """
        self.make, self.frames = self.drawn or self.make, []
        try:
            with contextlib.closing(self.make(1, {}, False)) as environments:
                environments.reset(np.zeros(1, np.uint32))
                environments.frame()
        except Exception as error:  # a missing library may raise any error
            raise config_error("env", self.env.name, f"cannot be rendered on this machine: {error}") from error

    def draw(self, env_states: list, returns: np.ndarray, path: Any) -> None:
        """Save the frames recorded since `start_recording`; arguments as in `Environment.draw`."""
        save_animation((self.frames or [])[: len(env_states)], path, self.frame_seconds)

    def reset(self, keys: jax.Array) -> tuple[Handle, PyTree]:
        """Open or reuse a set of environments, and reset it. The last word of each key is the seed of an environment."""
        seeds, count = one_run(jax.random.key_data(keys)[..., -1]), keys.shape[0]
        obs = self._shapes(self.env.observation_space, count)
        number, obs = io_callback(self._reset, (jax.ShapeDtypeStruct((), np.uint32), obs), seeds)
        return Handle(jnp.broadcast_to(number, count), jnp.zeros(count, jnp.uint32)), obs

    def step(self, keys: jax.Array, handle: Handle, action: PyTree) -> TimeStep:
        """Step the environments. The keys are not used, since external environments have their own random numbers."""
        count, space = handle.number.shape[0], self.env.action_space
        action = space.join(action) if isinstance(space, Mixed) else action
        words = lambda x: jax.lax.bitcast_convert_type(x, jnp.int32).reshape(-1)
        # All words are passed in one array, since each array that is passed to the host takes 30 microseconds.
        handed = jnp.concatenate([words(handle.number[:1]), words(handle.steps[:1]), words(action.astype(space.dtype))])
        obs, of = self._shapes(self.env.observation_space, count), lambda dtype: jax.ShapeDtypeStruct((count,), dtype)
        info = {name: jax.ShapeDtypeStruct((count, *shape), np.float32) for name, shape in self._info.items()}
        entries = [*float_entries(obs, OBSERVATION), REWARD] if self.finite else []
        signals = of(np.float32), of(np.bool_), of(np.bool_), info, {name: of(np.bool_) for name in entries}
        shapes = (jax.ShapeDtypeStruct((), np.uint32), obs, obs, *signals)
        steps, *after = io_callback(self._step, shapes, one_run(handed))
        return TimeStep(handle.replace(steps=jnp.broadcast_to(steps, count)), *after)

    def _shapes(self, space: PyTree, count: int) -> PyTree:
        leaf = lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype)
        return jax.tree.map(leaf, space, is_leaf=lambda x: hasattr(x, "dtype"))

    # --- on the host --------------------------------------------------------------------------------------------------

    def _reset(self, seeds: jax.Array) -> tuple[np.uint32, PyTree]:
        with _store_error(self.env.name), _lock:
            count, number = seeds.shape[0], next(_numbers)
            environments = _open.pop(self._mine.pop(0)) if len(self._mine) >= SETS * self.runs else None
            if environments is not None and (environments.count != count or not environments.renew()):
                environments.close()
                environments = None
            environments = _open[number] = environments or self.make(count, self._info, self.finite)
            self._mine.append(number)
            obs = environments.reset(np.asarray(seeds))
            self._draw(environments)
            return np.uint32(number), obs

    def _step(self, handed: jax.Array) -> tuple:
        with _store_error(self.env.name):
            words, space = np.asarray(handed), self.env.action_space
            number, before = words[:2].view(np.uint32).tolist()
            if (opened := _open.get(number)) is None:
                raise EnvironmentFailed("the environments of this state are closed; start with train.init, or resume with fit")
            if opened.steps % 2**32 != before:
                at = f"from step {before}, but its environments are at step {opened.steps}; use the newest state"
                raise EnvironmentFailed(f"this state is outdated: {at}")
            action = words[2:].view(space.dtype).reshape(opened.count, *space.shape)
            after = opened.step(space.separate(action) if isinstance(space, Mixed) else action)
            self._draw(opened)
            return np.uint32(opened.steps % 2**32), *after

    def _draw(self, environments: Any) -> None:
        if self.frames is not None:
            self.frames.append(environments.frame())


@contextlib.contextmanager
def _store_error(name: str) -> Iterator[None]:
    """Store an error of the block for `take_failure`, and re-raise it."""
    _failures.clear()
    try:
        yield
    except Exception as error:
        text = str(error) if isinstance(error, EnvironmentFailed) else f"{type(error).__name__}: {error}"
        _failures.append(EnvironmentFailed(f"{name}: {text}"))
        raise


def _close(numbers: list[int]) -> None:
    """Close the sets with these ids, and empty the list."""
    while numbers:
        _open.pop(numbers.pop()).close()


# --- for checkpoints --------------------------------------------------------------------------------------------------


def snapshot(handle: Handle) -> dict[str, Any]:
    """Return a snapshot of a handle's environments, or `{"missing": reason}` if the environments cannot be saved."""
    opened = _open.get(int(handle.number[0]))
    with contextlib.suppress(EnvironmentFailed):
        if opened is not None and opened.steps % 2**32 == handle.steps[0]:
            return opened.snapshot()
    return {"missing": "they failed, or were stepped or closed, before this state was saved"}


def restore(handle: Handle, saved: dict[str, Any]) -> None:
    """Restore the environments of a handle from a snapshot."""
    _open[int(handle.number[0])].restore(saved)


def take_failure() -> EnvironmentFailed | None:
    """Return and clear the recorded error of the last call, or None. JAX replaces this error by an error of its own."""
    failure, _failures[:] = next(iter(_failures), None), []
    return failure


@contextlib.contextmanager
def host_errors() -> Iterator[None]:
    """Raise the recorded `EnvironmentFailed` of an external environment in place of JAX's error."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if (failure := take_failure()) is None:
            raise
        raise failure from error
