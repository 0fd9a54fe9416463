"""The adapter for Pgx's single-player games: `pgx/minatar-breakout` and the other MinAtar games, and `pgx/2048`.

By default, Pgx's MinAtar has only the actions that a game needs, and repeats the previous action with probability 0.1. gymnax's
MinAtar does not repeat actions, so scores of the two suites are not comparable. Pgx has no time limit. `episode_length` in
`env_kwargs` sets a limit, at which an episode is truncated. The other `env_kwargs` are constructor arguments:
`sticky_action_prob`, `use_minimal_action_set`.

In 2048 a move can be invalid, so an observation is a dict with the entries `board` and `action_mask`.
"""

import colorsys
from typing import Any

import jax
import numpy as np
import pgx as suite

from purerl.core.errors import config_error, nearest
from purerl.core.spaces import Discrete
from purerl.envs.animation import make_draw
from purerl.envs.functions import wrap_env
from purerl.envs.parameters import Made, construct_outside_trace

NAMES: tuple[suite.EnvId, ...] = ("2048", *(name for name in suite.available_envs() if name.startswith("minatar-")))


class _PgxEnv:
    """A single-player game with the methods and spaces that `purerl.wrap_env` needs."""

    def __init__(self, env: Any):
        self._env, self._masked = env, env.id == "2048"
        self.action_space = Discrete(int(env.num_actions))

    def _obs(self, state: Any) -> Any:
        return {"board": state.observation, "action_mask": state.legal_action_mask} if self._masked else state.observation

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = self._env.init(key)
        return state, self._obs(state)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        state = self._env.step(state, action, key)
        return state, self._obs(state), state.rewards[0], state.terminated, False, {}


def make(name: str, env_kwargs: tuple) -> Made:
    """Return the single-player game of this name.

    Raises:
        ConfigError: the name is unknown, the game has several players, or the constructor refused the arguments.
    """
    if name not in NAMES and name in suite.available_envs():
        hint = f"has {suite.make(name).num_players} players; train one of them with env=purerl.versus({name!r}, opponent)"
        raise config_error("env", f"pgx/{name}", hint)
    kwargs = dict(env_kwargs)
    limit = kwargs.pop("episode_length", None)
    with construct_outside_trace(f"pgx/{name}", env_kwargs, NAMES):
        env = type(suite.make(name))(**kwargs)  # pyright: ignore[reportArgumentType]
    return Made(lambda params: wrap_env(_PgxEnv(env), max_steps=limit)._replace(draw=make_draw(_images, seconds=0.1)))


def game_of_several(name: str) -> Any:
    """Return the multi-player game of this name.

    Raises:
        ConfigError: Pgx has no multi-player game of this name.
    """
    names = [other for other in suite.available_envs() if other not in NAMES]
    if name not in names:
        raise config_error("game", name, f"no such multi-player game; {nearest(name, names)}")
    return suite.make(name)  # pyright: ignore[reportArgumentType]


def _images(states: list) -> list[np.ndarray]:
    """Draw each cell in the colour of its content. Pgx's own drawings are vector graphics, which a GIF cannot hold."""
    seen = np.stack([np.asarray(state.observation) for state in states])
    kinds = seen.shape[-1]
    colours = [(0.0, 0.0, 0.0), *(colorsys.hsv_to_rgb(kind / kinds, 0.8, 1.0) for kind in range(kinds))]
    images = (255 * np.array(colours))[np.where(seen.any(-1), kinds - seen[..., ::-1].argmax(-1), 0)].astype(np.uint8)
    return list(images.repeat(16, axis=1).repeat(16, axis=2))
