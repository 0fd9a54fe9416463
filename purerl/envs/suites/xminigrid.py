"""The adapter for XLand-MiniGrid: `xminigrid/MiniGrid-DoorKey-5x5`, `xminigrid/XLand-MiniGrid-R1-9x9`, ...

An observation is the agent's partial view of the grid, a tile and a colour for each cell, and does not show the carried object.
Most tasks therefore need a recurrent network. An episode is truncated after `max_steps`, and terminated when the goal is reached.

`env_kwargs` replace fields of the suite's `EnvParams`: `max_steps`, `view_size`, `height`, `width`. For tasks with rule sets,
`XLand-MiniGrid-...`, `env_kwargs` can have two further entries. `benchmark` names a collection of rule sets, such as
`trivial-21k`, from which each reset samples one. Without `benchmark`, all episodes have the suite's default rule set.
`rulesets`, a pair `(start, stop)`, selects the rule sets from `start` to `stop - 1`.
"""

import os
from typing import Any

import jax
import numpy as np

from purerl.core.errors import config_error, is_int, nearest
from purerl.core.spaces import Discrete, Indices
from purerl.envs.animation import make_draw
from purerl.envs.functions import wrap_env
from purerl.envs.importing import import_quietly
from purerl.envs.parameters import Made, check_counts, construct_outside_trace

with import_quietly():
    from xminigrid import registration as suite
    from xminigrid.benchmarks import DATA_PATH, NAME2HFFILENAME, load_benchmark
    from xminigrid.core.constants import NUM_COLORS, NUM_TILES


class _GridEnv:
    """An XLand-MiniGrid environment for `purerl.wrap_env`. Each reset samples one of `rulesets`, unless these are None."""

    def __init__(self, env: Any, params: Any, rulesets: Any):
        self._env, self._params, self._rulesets = env, params, rulesets
        self.action_space, shape = Discrete(env.num_actions(params)), env.observation_shape(params)
        self.observation_space = Indices((NUM_TILES, NUM_COLORS), tuple(shape), np.dtype(np.uint8))

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        params = self._params
        if self._rulesets is not None:
            key, draw = jax.random.split(key)
            params = params.replace(ruleset=self._rulesets.sample_ruleset(draw))
        state = self._env.reset(params, key)
        return state, state.observation

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        state = self._env.step(self._params, state, action)
        terminated = state.last() & (state.discount == 0)
        return state, state.observation, state.reward, terminated, state.state.step_num >= self._params.max_steps, {}


def make(name: str, env_kwargs: tuple) -> Made:
    """Return the environment of this name.

    Raises:
        ConfigError: the name is unknown, the suite refused the arguments, or the rule sets are not downloaded.
    """
    kwargs = dict(env_kwargs)
    benchmark, part = kwargs.pop("benchmark", None), kwargs.pop("rulesets", None)
    if part is not None and benchmark is None:
        raise config_error("env_kwargs", {"rulesets": part}, "needs a benchmark, which contains the rule sets")
    check_counts({"max_steps": kwargs.get("max_steps", 1)})
    with construct_outside_trace(f"xminigrid/{name}", env_kwargs, suite.registered_environments()):
        env, params = suite.make(name, **kwargs)
    rulesets = None if benchmark is None else _rulesets(params, benchmark, part)
    limit = int(params.max_steps)
    draw = make_draw(lambda states: [env.render(params, state) for state in states], seconds=0.2)
    wrap = lambda _: wrap_env(_GridEnv(env, params, rulesets))._replace(max_steps=limit, truncates_after=limit, draw=draw)
    return Made(wrap)


def _rulesets(params: Any, name: str, part: tuple[int, int] | None) -> Any:
    """Return a collection of rule sets, or its part from `start` to `stop - 1` if `part = (start, stop)`."""
    if not hasattr(params, "ruleset"):
        raise config_error("env_kwargs", {"benchmark": name}, "only the XLand-MiniGrid environments have rule sets")
    if name not in NAME2HFFILENAME:
        raise config_error("env_kwargs", {"benchmark": name}, f"no such benchmark; {nearest(str(name), NAME2HFFILENAME)}")
    if not os.path.exists(os.path.join(DATA_PATH, NAME2HFFILENAME[name])):
        hint = f"is not downloaded; run python -c 'import xminigrid; xminigrid.load_benchmark(\"{name}\")'"
        raise config_error("env_kwargs", {"benchmark": name}, hint)
    every = load_benchmark(name)
    part = (0, every.num_rulesets()) if part is None else part
    is_pair = isinstance(part, tuple | list) and len(part) == 2 and all(is_int(x) for x in part)
    if not (is_pair and 0 <= part[0] < part[1] <= every.num_rulesets()):
        hint = f"must be two ints (start, stop) with 0 <= start < stop <= {every.num_rulesets()}"
        raise config_error("env_kwargs", {"rulesets": part}, hint)
    return jax.tree.map(lambda x: x[slice(*part)], every)
