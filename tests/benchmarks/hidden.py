"""Environments in which the observation hides velocities, or has distractors."""

from typing import Any

import jax
from gymnax.environments.classic_control.cartpole import CartPole
from gymnax.environments.classic_control.pendulum import Pendulum
from gymnax.environments.minatar.breakout import MinBreakout


class StillCartPole(CartPole):
    """CartPole whose observation is only the cart position and the pole angle."""

    def get_obs(self, state: Any, params: Any = None, key: Any = None) -> jax.Array:
        return super().get_obs(state)[jax.numpy.array([0, 2])]


class StillPendulum(Pendulum):
    """Pendulum whose observation is only the cosine and the sine of the angle."""

    def get_obs(self, state: Any, params: Any = None, key: Any = None) -> jax.Array:
        return super().get_obs(state)[:2]


class NoisyBreakout(MinBreakout):
    """Breakout with four more planes, in which each cell is set with probability 0.1 in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.obs_shape = (10, 10, 8)

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> tuple:
        obs, *rest = super().step_env(key, state, action, params)
        return _with_noise(obs, key), *rest

    def reset_env(self, key: jax.Array, params: Any) -> tuple:
        obs, state = super().reset_env(key, params)
        return _with_noise(obs, key), state

    def get_obs(self, state: Any, params: Any = None, key: Any = None) -> jax.Array:
        return super().get_obs(state, params, key)[..., :4]


def _with_noise(obs: jax.Array, key: jax.Array) -> jax.Array:
    noise = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.1, (10, 10, 4))
    return jax.numpy.concatenate([obs, noise], axis=-1)
