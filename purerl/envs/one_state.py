"""The common adapter for brax and MuJoCo Playground, whose `step` maps a state and an action to the next state."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import Environment
from purerl.core.errors import config_error
from purerl.core.spaces import Box
from purerl.envs.animation import make_draw
from purerl.envs.functions import wrap_env
from purerl.envs.importing import opengl_hint
from purerl.envs.parameters import check_counts


class OneState:
    """A brax or Playground environment with the methods and spaces that `purerl.wrap_env` needs.

    A state of the suite has `obs`, `reward`, `done`, `metrics` and `info`; scalars and vectors in `metrics` and `info` become
    entries of `info`. `done` is 1 only if the episode ended in a terminal state: the time limit is set by `wrap_env`, not by the
    suite's wrapper. Actions are between -1 and 1.

    Args:
        env: the suite's environment, without its wrappers.
        action_repeat: number of times that each action is taken; the rewards are summed until the episode terminates.
    """

    def __init__(self, env: Any, action_repeat: int = 1):
        bounds = np.ones(env.action_size, np.float32)
        self.action_space, self._env, self._repeat = Box(-bounds, bounds), env, action_repeat

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = self._env.reset(key)
        return state, state.obs

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        reward, terminated = jnp.float32(0), jnp.bool_(False)
        for _ in range(self._repeat):
            # A step changes `metrics` and `info` in place, so pass copies.
            after = self._env.step(state.replace(metrics=dict(state.metrics), info=dict(state.info)), action)
            state = after if self._repeat == 1 else _unless(terminated, state, after)
            reward, terminated = reward + jnp.where(terminated, 0, after.reward), terminated | (after.done > 0.5)
        info = {name: x for name, x in {**state.info, **state.metrics}.items() if _is_number(x)}
        return state, state.obs, reward, terminated, False, info


def _unless(ended: jax.Array, before: Any, after: Any) -> Any:
    return jax.tree.map(lambda old, new: jnp.where(ended, old, new), before, after)


def _is_number(x: Any) -> bool:
    return hasattr(x, "dtype") and x.ndim <= 1 and jnp.issubdtype(x.dtype, jnp.number)


def one_state(env: Any, episode_length: int, action_repeat: int, render: Callable | None = None) -> Environment:
    """Return a brax or Playground environment as a `purerl.Environment`.

    Args:
        env: the suite's environment, without its wrappers.
        episode_length: the time limit in steps of the suite.
        action_repeat: number of times that each action is taken.
        render: maps states to images; None if the environment cannot be rendered.
    """
    check_counts({"action_repeat": action_repeat, "episode_length": episode_length})
    wrapped = wrap_env(OneState(env, action_repeat), max_steps=-(-episode_length // action_repeat), slow_reset=True)
    if render is None:
        return wrapped

    def images(states: list) -> Sequence[np.ndarray] | np.ndarray:
        try:
            return render(states)
        except Exception as error:  # a missing OpenGL library may raise any error
            raise config_error("env", type(env), opengl_hint(error)) from error

    with jax.ensure_compile_time_eval():  # brax computes `dt` with jax.numpy, and a trace would make it a tracer
        seconds = float(env.dt) * action_repeat
    return wrapped._replace(draw=make_draw(images, seconds))
