"""Environments that live on the host, outside of JAX: a program calls back to reset and to step them.

What a program has of them is a ticket: the number of a set of environments, and how many steps it has taken. A set moves on with
each step, so that the newest ticket alone can be stepped from; any other is refused. The calls follow one another because each
needs the ticket that the one before gave.
"""

import contextlib
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental import io_callback

from purerl.core.errors import ConfigError, EnvironmentFailed, Problem
from purerl.core.finite import any_of, finite_or_zero, float_entries, nonfinite_rows
from purerl.core.types import Environment, PyTree, TimeStep
from purerl.envs.finite_resets import OBSERVATION, REWARD
from purerl.envs.gif import save_gif
from purerl.envs.outputs import check_names


class HostEnvironments(Protocol):
    """A set of `B` environments. Arrays are NumPy's, of the dtypes of the spaces, and not changed afterwards.

    reset: `(seeds [B]) -> obs`, of all environments.
    step: `(action) -> (obs, next_obs, reward, terminated, truncated, info)`, as in `TimeStep`.
    restart: `(which [B], obs) -> obs`, in which the observations of these environments are those after a reset.
    snapshot: what `restore` needs to go on from here, as JSON; `{"missing": reason}` where there is nothing that could.
    restore: makes them those of a snapshot that was read.
    """

    def reset(self, seeds: np.ndarray) -> PyTree: ...
    def step(self, action: np.ndarray) -> tuple: ...
    def restart(self, which: np.ndarray, obs: PyTree) -> PyTree: ...
    def snapshot(self) -> str: ...
    def restore(self, saved: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class Recipe(NamedTuple):
    """A description of external environments, and the functions that make them.

    make: `(num_envs, shapes) -> HostEnvironments` whose info has entries of these shapes, by name.
    env: spaces and limits; its `reset` and `step` are not used.
    info_shapes: `() -> shape of each entry of info, by name`.
    drawn: as `make`; the first environment can also be drawn, by a method `frame() -> image`. None if nothing can be drawn.
    frame_seconds: that an image is shown.
    warnings: what is probably a mistake.
    masks: where there are action masks that are not read, and what to do.
    """

    make: Callable[[int, dict[str, tuple[int, ...]]], HostEnvironments]
    env: Environment
    info_shapes: Callable[[], dict[str, tuple[int, ...]]]
    drawn: Callable[[int, dict[str, tuple[int, ...]]], Any] | None = None
    frame_seconds: float = 1 / 30
    warnings: tuple[Problem, ...] = ()
    masks: tuple[str, ...] = ()


class Ticket(struct.PyTreeNode):
    """A handle to a set of external environments: id and step count, repeated for each environment. Leaves `[B]` uint32."""

    number: jax.Array
    steps: jax.Array


SETS = 2  # of a run: what is trained in, and with curiosity the random steps before it


@dataclasses.dataclass
class _Set:
    """Environments that were reset.

    count: number of environments.
    began: flags of environments whose first observation is not finite, by entry; empty if nothing is checked.
    steps: number of steps since the reset.
    """

    environments: HostEnvironments
    count: int
    began: dict[str, np.ndarray]
    steps: int = 0


_failures: list[EnvironmentFailed] = []
_open: dict[int, _Set] = {}  # by number: the programs of one run, compiled one by one, step the same environments
_numbers = itertools.count(1)
_lock = threading.Lock()


class Host:
    """Opens, steps and closes the environments of a recipe.

    Attributes:
        runs: that are trained side by side. The sets of `SETS * runs` newest resets are open; a further reset takes the oldest.
        finite: reset environments whose observation or reward is not finite.
        frames: images of the first environment, after each reset and step; None where nothing is drawn.
    """

    def __init__(self, recipe: Recipe, info: tuple[str, ...] = (), finite: bool = False):
        shapes = recipe.info_shapes() if info else {}
        check_names(info, shapes)
        self.recipe, self.runs, self.info, self.finite = recipe, 1, {name: shapes[name] for name in info}, finite
        self.frames: list[np.ndarray] | None = None
        self._make: Callable[[int, dict[str, tuple[int, ...]]], Any] = recipe.make
        self._mine: list[int] = []
        weakref.finalize(self, _close, self._mine)

    def environment(self) -> Environment:
        """Return the environments behind purerl's protocol, none of them open yet."""
        draw = self.draw if self.recipe.drawn else None
        return self.recipe.env._replace(reset=self.reset, step=self.step, info=tuple(self.info), host=self, draw=draw)

    def anew(self, info: tuple[str, ...], finite: bool = False) -> Environment:
        """Return environments of the same recipe that nobody else steps, with these entries of info."""
        return Host(self.recipe, info, finite).environment()

    def film(self) -> None:
        """Draw one environment from now on.

        Raises:
            ConfigError: its own way of drawing fails here.
        """
        self._make, self.frames = self.recipe.drawn or self.recipe.make, []
        try:
            with contextlib.closing(self._make(1, {})) as environments:
                environments.reset(np.zeros(1, np.uint32))
                environments.frame()
        except Exception as error:  # whichever library is missing, and however it says so
            raise ConfigError([Problem("env", self.recipe.env.name, f"cannot be drawn here: {error}")]) from error

    def draw(self, env_states: list, returns: np.ndarray, path: Any) -> None:
        """Draw, as in `Environment`, the frames recorded since `film`."""
        save_gif((self.frames or [])[: len(env_states)], path, self.recipe.frame_seconds)

    def reset(self, keys: jax.Array) -> tuple[Ticket, PyTree]:
        """Reset as in `Environment`; the seeds are the last words of the keys."""
        seeds, count = not_vmapped(jax.random.key_data(keys)[..., -1]), keys.shape[0]
        obs = self._shapes(self.recipe.env.observation_space, count)
        number, obs = io_callback(self._reset, (jax.ShapeDtypeStruct((), np.uint32), obs), seeds)
        return Ticket(jnp.broadcast_to(number, count), jnp.zeros(count, jnp.uint32)), obs

    def step(self, keys: jax.Array, ticket: Ticket, action: jax.Array) -> TimeStep:
        """Step as in `Environment`; the environments have random numbers of their own, and the keys are not used."""
        count, space = action.shape[0], self.recipe.env.action_space
        words = lambda x: jax.lax.bitcast_convert_type(x, jnp.int32).reshape(-1)
        # One array, since each that is handed over takes 30 microseconds.
        handed = jnp.concatenate([words(ticket.number[:1]), words(ticket.steps[:1]), words(action.astype(space.dtype))])
        obs, of = self._shapes(self.recipe.env.observation_space, count), lambda dtype: jax.ShapeDtypeStruct((count,), dtype)
        info = {name: jax.ShapeDtypeStruct((count, *shape), np.float32) for name, shape in self.info.items()}
        entries = [*float_entries(obs, OBSERVATION), REWARD] if self.finite else []
        signals = of(np.float32), of(np.bool_), of(np.bool_), info, {name: of(np.bool_) for name in entries}
        shapes = (jax.ShapeDtypeStruct((), np.uint32), obs, obs, *signals)
        steps, *after = io_callback(self._step, shapes, not_vmapped(handed))
        return TimeStep(ticket.replace(steps=jnp.broadcast_to(steps, count)), *after)

    def _shapes(self, space: PyTree, count: int) -> PyTree:
        leaf = lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype)
        return jax.tree.map(leaf, space, is_leaf=lambda x: hasattr(x, "dtype"))

    # --- on the host --------------------------------------------------------------------------------------------------

    def _reset(self, seeds: jax.Array) -> tuple[np.uint32, PyTree]:
        with _noted(self.recipe.env.name), _lock:
            count, number = seeds.shape[0], next(_numbers)
            oldest = _open.pop(self._mine.pop(0)) if len(self._mine) >= SETS * self.runs else None
            if oldest is not None and oldest.count != count:
                oldest.environments.close()
                oldest = None
            environments = self._make(count, self.info) if oldest is None else oldest.environments
            opened = _open[number] = _Set(environments, count, {})
            self._mine.append(number)
            obs = self._begun(opened, environments.reset(np.asarray(seeds)))
            self._draw(environments)
            return np.uint32(number), obs

    def _step(self, handed: jax.Array) -> tuple:
        with _noted(self.recipe.env.name):
            words, space = np.asarray(handed), self.recipe.env.action_space
            number, before = words[:2].view(np.uint32).tolist()
            if (opened := _open.get(number)) is None:
                raise EnvironmentFailed("the environments of this state are closed; begin with train.init, or resume with fit")
            if opened.steps % 2**32 != before:
                at = f"it is of step {before} of its environments, which are at step {opened.steps}"
                raise EnvironmentFailed(f"this state is not the newest; {at}")
            after = opened.environments.step(words[2:].view(space.dtype).reshape(opened.count, *space.shape))
            after = self._checked(opened, *after) if self.finite else (*after, {})
            opened.steps += 1
            self._draw(opened.environments)
            return np.uint32(opened.steps % 2**32), *after

    def _begun(self, opened: _Set, obs: PyTree) -> PyTree:
        """Observations to act on, finite; those that were not are noted."""
        if not self.finite:
            return obs
        opened.began.update(nonfinite_rows(obs, OBSERVATION))
        return finite_or_zero(obs)

    def _checked(self, opened: _Set, obs: PyTree, next_obs: PyTree, reward: np.ndarray, *signals: Any) -> tuple:
        """A step whose episodes also end where a number is not finite, as `purerl.envs.finite_resets.with_finite` does it."""
        terminated, truncated, info = signals
        found = {name: opened.began[name] | rows for name, rows in nonfinite_rows(next_obs, OBSERVATION).items()}
        found |= nonfinite_rows(reward, REWARD)
        bad = any_of(found)
        if (anew := bad & ~(terminated | truncated)).any():
            obs = opened.environments.restart(anew, obs)
        signals = np.where(bad, np.float32(0), reward), terminated | bad, truncated & ~bad, info, found
        return self._begun(opened, obs), finite_or_zero(next_obs), *signals

    def _draw(self, environments: Any) -> None:
        if self.frames is not None:
            self.frames.append(environments.frame())


@jax.custom_batching.custom_vmap
def not_vmapped(x: jax.Array) -> jax.Array:
    """Return `x`, of one run.

    Raises:
        ConfigError: under `jax.vmap`, also of what was traced before.
    """
    return x


@not_vmapped.def_vmap
def _refuse(axis_size: int, in_batched: list, x: jax.Array) -> Any:
    hint = "lives on the host, where one run is trained after the other: fit(num_seeds=...), jax.lax.map or a loop, no jax.vmap"
    raise ConfigError([Problem("env", "under jax.vmap", hint)])


@contextlib.contextmanager
def _noted(name: str) -> Iterator[None]:
    """Notes the error of a block, and lets it pass."""
    _failures.clear()
    try:
        yield
    except Exception as error:
        text = str(error) if isinstance(error, EnvironmentFailed) else f"{type(error).__name__}: {error}"
        _failures.append(EnvironmentFailed(f"{name}: {text}"))
        raise


def _close(numbers: list[int]) -> None:
    """Closes these sets."""
    while numbers:
        _open.pop(numbers.pop()).environments.close()


# --- for checkpoints --------------------------------------------------------------------------------------------------


def snapshot(ticket: Ticket) -> str:
    """Return what a ticket's environments need to go on from here; "" if they are closed, have moved on, or have failed."""
    opened = _open.get(int(ticket.number[0]))
    if opened is None or opened.steps % 2**32 != ticket.steps[0]:
        return ""
    try:
        return opened.environments.snapshot()
    except EnvironmentFailed:
        return ""


def restore(ticket: Ticket, saved: dict[str, Any]) -> None:
    """Makes the environments of a ticket those of a snapshot."""
    _open[int(ticket.number[0])].environments.restore(saved)


def take_failure() -> EnvironmentFailed | None:
    """Return the error that ended the last call, if one did, once: JAX raises an error of its own in its place."""
    failure, _failures[:] = next(iter(_failures), None), []
    return failure


@contextlib.contextmanager
def host_errors() -> Iterator[None]:
    """Within it, what an environment on the host raises is an `EnvironmentFailed`, in place of JAX's error."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if (failure := take_failure()) is None:
            raise
        raise failure from error
