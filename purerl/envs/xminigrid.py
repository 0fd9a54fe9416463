"""The adapter for XLand-MiniGrid: `xminigrid/MiniGrid-DoorKey-5x5`, `xminigrid/XLand-MiniGrid-R1-9x9`, ...

An observation is the agent's view of the grid: a tile and a colour for each cell, without the carried object. Most tasks
therefore need a recurrent network. An episode is truncated after `max_steps`, and terminated when the goal is reached.

`env_kwargs` replace fields of the suite's `EnvParams`: `max_steps`, `view_size`, `height`, `width`. For tasks with rule sets,
`XLand-MiniGrid-...`, `env_kwargs` can have two further entries. `benchmark` names a collection of rule sets, such as
`trivial-21k`, from which each reset draws. Without `benchmark`, all episodes have the suite's default rule set. `rulesets`, a
pair `(first, end)`, selects a part of the collection.
"""

import os
from typing import Any, NamedTuple

import jax
import numpy as np

from purerl.core.environment import Environment
from purerl.core.errors import ConfigError, Problem, nearest
from purerl.core.spaces import Discrete, Indices
from purerl.envs.animation import save_animation
from purerl.envs.functions import wrap_env
from purerl.envs.importing import quietly
from purerl.envs.parameters import constructing

with quietly():
    from xminigrid import registration as suite
    from xminigrid.benchmarks import DATA_PATH, NAME2HFFILENAME, load_benchmark
    from xminigrid.core.constants import NUM_COLORS, NUM_TILES


class GridWorld(NamedTuple):
    """An environment of the suite, its parameters, and the rule sets from which resets draw."""

    env: Any
    params: Any
    rulesets: Any = None


class _GridEnv:
    """An XLand-MiniGrid environment, as `purerl.wrap_env` takes it."""

    def __init__(self, made: GridWorld):
        self._made = made
        self.action_space = Discrete(made.env.num_actions(made.params))
        shape = made.env.observation_shape(made.params)
        self.observation_space = Indices((NUM_TILES, NUM_COLORS), tuple(shape), np.dtype(np.uint8))

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        env, params, rulesets = self._made
        if rulesets is not None:
            key, draw = jax.random.split(key)
            params = params.replace(ruleset=rulesets.sample_ruleset(draw))
        state = env.reset(params, key)
        return state, state.observation

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        env, params, _ = self._made
        state = env.step(params, state, action)
        terminated = state.last() & (state.discount == 0)
        return state, state.observation, state.reward, terminated, state.state.step_num >= params.max_steps, {}


def make(name: str, env_kwargs: tuple) -> GridWorld:
    """Return the environment of this name.

    Raises:
        ConfigError: the name is unknown, the suite refused the arguments, or the rule sets are not on this machine.
    """
    names = suite.registered_environments()
    if name not in names:
        raise ConfigError([Problem("env", f"xminigrid/{name}", f"no such environment; {nearest(name, names)}")])
    kwargs = dict(env_kwargs)
    benchmark, part = kwargs.pop("benchmark", None), kwargs.pop("rulesets", None)
    if part is not None and benchmark is None:
        raise ConfigError([Problem("env_kwargs", {"rulesets": part}, "needs a benchmark, which contains the rule sets")])
    steps = kwargs.get("max_steps", 1)
    if not (isinstance(steps, int) and steps >= 1):
        raise ConfigError([Problem("env_kwargs", {"max_steps": steps}, "must be an int of at least 1")])
    with constructing(f"xminigrid/{name}", env_kwargs):
        made = GridWorld(*suite.make(name, **kwargs))
    return made if benchmark is None else made._replace(rulesets=_rulesets(made, benchmark, part))


def _rulesets(made: GridWorld, name: str, part: tuple[int, int] | None) -> Any:
    """Return a collection of rule sets, or its part from `first` to `end - 1` if `part = (first, end)`."""
    if not hasattr(made.params, "ruleset"):
        raise ConfigError([Problem("env_kwargs", {"benchmark": name}, "only the XLand-MiniGrid environments have rule sets")])
    if name not in NAME2HFFILENAME:
        hint = f"no such benchmark; {nearest(str(name), NAME2HFFILENAME)}"
        raise ConfigError([Problem("env_kwargs", {"benchmark": name}, hint)])
    if not os.path.exists(os.path.join(DATA_PATH, NAME2HFFILENAME[name])):
        hint = f"is not downloaded; run python -c 'import xminigrid; xminigrid.load_benchmark(\"{name}\")'"
        raise ConfigError([Problem("env_kwargs", {"benchmark": name}, hint)])
    every = load_benchmark(name)
    first, end = part or (0, every.num_rulesets())
    if not 0 <= first < end <= every.num_rulesets():
        hint = f"must be two ints (start, stop) with 0 <= start < stop <= {every.num_rulesets()}"
        raise ConfigError([Problem("env_kwargs", {"rulesets": part}, hint)])
    return jax.tree.map(lambda x: x[first:end], every)


def default_params(made: GridWorld) -> None:
    """Return None: this suite's parameters are sizes of arrays, set through `env_kwargs`."""


def adapt(made: GridWorld, params: None) -> Environment:
    """Return the environment as a `purerl.Environment`."""
    limit = int(made.params.max_steps)
    return wrap_env(_GridEnv(made))._replace(max_steps=limit, truncates_after=limit, draw=_draw(made))


def _draw(made: GridWorld):
    def draw(env_states: list, returns: np.ndarray, path: Any) -> None:
        save_animation([made.env.render(made.params, state) for state, _ in env_states], path, seconds=0.2)

    return draw
