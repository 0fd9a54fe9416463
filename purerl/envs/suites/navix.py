"""The adapter for Navix: `navix/Navix-DoorKey-5x5-v0`, `navix/Navix-Empty-Random-6x6-v0`, ...

An episode is truncated after `max_steps`, and terminated if the environment's own condition holds. If both happen at once, the
episode is terminated. `env_kwargs` are constructor arguments, such as `max_steps` (the registry's default is 100).
The arguments `observation_fn`, `reward_fn` and `termination_fn` are names of functions in `navix.observations`, `navix.rewards`
and `navix.terminations`. The observation `symbolic` is the whole grid, with a tile, a colour and a state for each cell.
"""

from typing import Any

import jax
import navix as suite
import numpy as np
from navix.environments.environment import StepType

from purerl.core.errors import config_error, nearest
from purerl.core.spaces import Discrete, Indices
from purerl.envs.animation import make_draw
from purerl.envs.functions import wrap_env
from purerl.envs.parameters import Made, construct_outside_trace

BY_NAME = {"observation_fn": suite.observations, "reward_fn": suite.rewards, "termination_fn": suite.terminations}
SYMBOLS = (11, 6, 4)  # numbers of entities, colours, and states (of a door, or the player's direction)
SYMBOLIC = (suite.observations.symbolic, suite.observations.symbolic_first_person)


class _NavixEnv:
    """A Navix environment with the methods and spaces that `purerl.wrap_env` needs."""

    def __init__(self, env: Any):
        self._env = env
        self.action_space = Discrete(len(env.action_set))
        shape = jax.eval_shape(env.reset, jax.random.key(0)).observation
        if env.observation_fn in SYMBOLIC:
            self.observation_space = Indices(SYMBOLS, shape.shape, shape.dtype)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        state = self._env.reset(key)
        return state, state.observation

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        state = self._env._step(state, action)
        ended = state.step_type == StepType.TERMINATION, state.step_type == StepType.TRUNCATION
        return state, state.observation, state.reward, *ended, {}


def make(name: str, env_kwargs: tuple) -> Made:
    """Return the environment of this name.

    Raises:
        ConfigError: the environment or a function is unknown, or the constructor refused the arguments.
    """
    kwargs = {key: _function(key, x) if key in BY_NAME else x for key, x in env_kwargs}
    with construct_outside_trace(f"navix/{name}", env_kwargs, suite.registry()):
        env = suite.make(name, **kwargs)
    limit = int(env.max_steps)
    draw = make_draw(_images, seconds=0.2)
    return Made(lambda params: wrap_env(_NavixEnv(env))._replace(max_steps=limit, truncates_after=limit, draw=draw))


def _function(key: str, name: Any) -> Any:
    module = BY_NAME[key]
    there = {x: function for x, function in vars(module).items() if getattr(function, "__module__", "") == module.__name__}
    if name not in there:
        raise config_error("env_kwargs", {key: name}, f"{module.__name__} has no such function; {nearest(str(name), there)}")
    return there[name]


def _images(states: list) -> list[np.ndarray]:
    picture = jax.jit(lambda state: suite.observations.rgb(state.state))
    return [np.asarray(picture(state)) for state in states]
