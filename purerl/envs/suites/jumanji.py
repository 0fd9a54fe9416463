"""The adapter for Jumanji: `jumanji/Snake-v1`, `jumanji/Game2048-v1`, `jumanji/Maze-v0`, ...

An observation is a dict of the suite's entries. The entry `action_mask` marks the valid actions. Boards, puzzles, cubes and
small single integers, such as a row, are categorical. `step_count` becomes a fraction of the time limit.

At a time limit, the suite ends an episode as at a terminal state, with a discount of 0, and most observations contain the number
of steps taken. Such a limit is part of the task, and the episode counts as terminated.

If the mask marks valid combinations of several discrete values (Tetris, Sudoku, Minesweeper), an action is the index of a
combination, since values that are sampled separately could be invalid together.

`env_kwargs` are constructor arguments, such as `time_limit`. The value of `generator`, which makes the instances, is the name of
a class, and its arguments as pairs of name and value. For `jumanji/Maze-v0`:
`(("generator", ("RandomGenerator", (("num_rows", 5), ("num_cols", 5)))),)`.
"""

import importlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import NEVER
from purerl.core.errors import config_error
from purerl.core.spaces import Box, Discrete, Indices, MultiDiscrete
from purerl.envs.functions import wrap_env
from purerl.envs.importing import import_quietly
from purerl.envs.parameters import Made, construct_outside_trace

with import_quietly():
    from jumanji import registration as suite

CODES = ("board", "cube", "puzzle", "grid", "node_types", "colors")  # entries whose integers are categorical
MOST_VALUES = 64  # a single integer, such as a row, is categorical if it has at most this many values
HIGHEST_POWER = 17  # largest exponent of 2 on a board of 2048
# Environments whose reset takes dozens of times as long as a step, in loops whose length depends on the key, or in many moves.
SLOW_RESETS = ("Cleaner-v0", "MMST-v0", "Maze-v0", "RubiksCube-v0", "SlidingTilePuzzle-v0")


class _JumanjiEnv:
    """A Jumanji environment with the methods that `purerl.wrap_env` needs."""

    def __init__(self, env: Any):
        self._env, self._specs = env, _leaves(env.observation_spec)
        mask = self._specs.get("action_mask")
        self._sizes = _sizes(env.action_spec, mask)
        self._joint = mask is not None and len(self._sizes) > 1 and mask.shape == self._sizes
        self.action_space = _action_space(env.action_spec, self._sizes, self._joint)
        self.observation_space = {name: _space(name, spec) for name, spec in self._specs.items()}
        self.masked = mask is not None and not isinstance(self.action_space, Box)

    def _obs(self, state: Any, timestep: Any) -> dict[str, jax.Array]:
        return {name: self._entry(name, x) for name, x in _leaves(timestep.observation).items()}

    def _entry(self, name: str, x: jax.Array) -> jax.Array:
        if name == "action_mask" and self.masked:
            return x.reshape(-1)
        space, spec = self.observation_space[name], self._specs[name]
        x = jnp.asarray(x, spec.dtype)
        if isinstance(space, Indices):
            return (x - np.asarray(getattr(spec, "minimum", 0), x.dtype)).astype(space.dtype)
        if name == "step_count":
            limit = getattr(self._env, "time_limit", None) or spec.maximum
            return x.astype(jnp.float32) / np.float32(limit)
        return x

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state, timestep = self._env.reset(key)
        return state, self._obs(state, timestep)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        action = jnp.stack(jnp.unravel_index(action, self._sizes)) if self._joint else action
        state, after = self._env.step(state, action.astype(self._env.action_spec.dtype))
        terminated = after.last() & (after.discount == 0)
        return state, self._obs(state, after), after.reward, terminated, after.last() & ~terminated, after.extras


def _leaves(tree: Any) -> dict[str, Any]:
    """Return the entries of an observation, or of its spec, by name; a nested entry is named `outer/inner`."""
    parts = getattr(tree, "_specs", None) or (tree._asdict() if hasattr(tree, "_asdict") else vars(tree))
    nested = lambda x: bool(getattr(x, "_specs", None)) or not (hasattr(x, "dtype") or isinstance(x, int | float))
    return {
        name if inner is None else f"{name}/{inner}": leaf
        for name, x in parts.items()
        for inner, leaf in (_leaves(x).items() if nested(x) else [(None, x)])
    }


def _sizes(spec: Any, mask: Any) -> tuple[int, ...]:
    """Return the number of values of each discrete action; () for continuous actions.

    If the mask has the shape `[actions, values]`, the numbers are read from it, since some bounds of the suite are one too high.
    """
    if not jnp.issubdtype(spec.dtype, jnp.integer):
        return ()
    if mask is not None and len(mask.shape) == 2 and (mask.shape[0],) == spec.shape:
        return (mask.shape[1],) * mask.shape[0]
    return tuple(np.broadcast_to(np.asarray(spec.maximum) + 1, spec.shape or (1,)).tolist())


def _action_space(spec: Any, sizes: tuple[int, ...], joint: bool) -> Any:
    if not sizes:
        return Box(*(np.broadcast_to(np.asarray(x, np.float32), spec.shape) for x in (spec.minimum, spec.maximum)))
    return Discrete(math.prod(sizes)) if joint or not spec.shape else MultiDiscrete(sizes)


def _space(name: str, spec: Any) -> Any:
    """Return the space of an observation entry if the entry is categorical, else None."""
    if not jnp.issubdtype(spec.dtype, jnp.integer) or name == "step_count":
        return None
    if not spec.shape and hasattr(spec, "maximum"):
        few = int(spec.minimum) == 0 and int(spec.maximum) < MOST_VALUES
        return Discrete(int(spec.maximum) + 1) if few else None
    if name not in CODES:
        return None
    bounds = [int(np.max(getattr(spec, bound, default))) for bound, default in (("minimum", 0), ("maximum", HIGHEST_POWER))]
    return Indices(bounds[1] - bounds[0] + 1, spec.shape, np.dtype(np.uint8))


def make(name: str, env_kwargs: tuple) -> Made:
    """Return the environment of this name.

    Raises:
        ConfigError: the name is unknown, the environment has several agents, or the constructor refused the arguments.
    """
    kwargs = dict(env_kwargs)
    # Some specs compute their bounds, which would become tracers under a trace.
    with construct_outside_trace(f"jumanji/{name}", env_kwargs, suite.registered_environments()):
        if "generator" in kwargs:
            kwargs["generator"] = _generator(name, *kwargs["generator"])
        env = suite.make(name, **kwargs)
        if agents := env.reward_spec.shape:
            raise config_error("env", f"jumanji/{name}", f"has {agents[0]} agents, but purerl trains one")
        bare, limit = _JumanjiEnv(env), getattr(env, "time_limit", None)
    limit = None if limit is None else int(limit)
    made = wrap_env(bare, slow_reset=name in SLOW_RESETS)
    return Made(lambda params: made._replace(max_steps=limit, truncates_after=NEVER, draw=_draw(env)))


def _generator(name: str, kind: str, arguments: tuple) -> Any:
    """Return a generator of instances, from the module `generator` in the environment's package."""
    package = suite.load(suite._REGISTRY[name].entry_point).__module__.rpartition(".")[0]
    return getattr(importlib.import_module(f"{package}.generator"), kind)(**dict(arguments))


def _draw(env: Any):
    if not hasattr(env, "animate"):
        return None

    def draw(env_states: list, returns: np.ndarray, path: Any) -> None:
        import matplotlib.pyplot as plt

        with plt.ioff(), plt.rc_context({"animation.writer": "pillow"}):
            env.animate([state for state, _ in env_states], interval=200, save_path=str(path))
        plt.close("all")

    return draw
