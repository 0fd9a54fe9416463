"""The adapter for Craftax: `craftax/Craftax-Classic-Symbolic-v1`, `craftax/Craftax-Symbolic-v1`, `craftax/Craftax-Pixels-v1`, ...

Craftax marks the end of an episode by one flag. Here, an episode that reaches `max_timesteps` is truncated, and an episode that
would end even without this limit is terminated. Making a world takes as long as dozens of steps, so worlds are made only
for the environments that need one.

`env_params` override Craftax's `EnvParams` (`max_timesteps`, `day_length`, ...); `env_kwargs` override its `StaticEnvParams`
(`map_size`, ...). On a CPU, worlds are made one after the other, which takes no longer than a batch. In a batch on a CPU, XLA
miscompiles the noise of the ninth and all further worlds (jaxlib 0.10.2), whose maps are then different and have seams.

Achievements are entries of `info` at the end of an episode, in percent: `episode_info=("Achievements/collect_wood",)`.
"""

import functools
from typing import Any

import jax
import numpy as np
from craftax.craftax_env import make_craftax_env_from_name
from jax.core import Tracer

from purerl.core.environment import Environment
from purerl.core.platform import by_platform
from purerl.core.spaces import Discrete
from purerl.envs.animation import make_draw
from purerl.envs.functions import wrap_env
from purerl.envs.parameters import Made, construct_outside_trace

NAMES = tuple(f"Craftax{game}-{seen}-v1" for game in ("-Classic", "") for seen in ("Symbolic", "Pixels"))
NO_LIMIT = np.int32(2**31 - 1)


class _CraftaxEnv:
    """A Craftax environment with the methods that `purerl.wrap_env` needs."""

    def __init__(self, env: Any, params: Any):
        self._env, self._params = env, params
        self.action_space = Discrete(env.num_actions)
        self._one_by_one = jax.custom_batching.sequential_vmap(env.reset_env)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        obs, state = by_platform(key, self._params, cpu=self._one_by_one, accelerator=self._env.reset_env)
        return state, obs

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        obs, state, reward, _, info = self._env.step_env(key, state, action, self._params)
        terminated = self._env.is_terminal(state, self._params.replace(max_timesteps=NO_LIMIT))
        return state, obs, reward, terminated, state.timestep >= self._params.max_timesteps, info


def make(name: str, env_kwargs: tuple) -> Made:
    """Return the environment of this name; its parameters are Craftax's `EnvParams`.

    Raises:
        ConfigError: the name is unknown, or the constructor refused the arguments.
    """
    with construct_outside_trace(f"craftax/{name}", env_kwargs, NAMES):
        env = make_craftax_env_from_name(name, auto_reset=False)
        static_params = env.default_static_params().replace(**dict(env_kwargs))  # pyright: ignore[reportAttributeAccessIssue]
        env = type(env)(static_params)

    def adapt(params: Any) -> Environment:
        limit = None if isinstance(params.max_timesteps, Tracer) else int(params.max_timesteps)
        wrapped = wrap_env(_CraftaxEnv(env, params), slow_reset=True)
        draw = make_draw(functools.partial(_images, env), seconds=0.1)
        return wrapped._replace(max_steps=limit, truncates_after=limit, draw=draw)

    return Made(adapt, env.default_params)


def _images(env: Any, states: list) -> list[np.ndarray]:
    if "Classic" in env.name:
        from craftax.craftax_classic import renderer
    else:
        from craftax.craftax import renderer
    picture = jax.jit(renderer.make_craftax_pixel_renderer(16))
    return [np.asarray(picture(state)).clip(0, 255).astype(np.uint8) for state in states]
