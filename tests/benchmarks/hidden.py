"""Classic control with velocities hidden, so that the observation alone does not say where things go."""

from typing import Any

import jax
from gymnax.environments.classic_control.cartpole import CartPole
from gymnax.environments.classic_control.pendulum import Pendulum


class StillCartPole(CartPole):
    """Cart position and pole angle."""

    def get_obs(self, state: Any, params: Any = None, key: Any = None) -> jax.Array:
        return super().get_obs(state)[jax.numpy.array([0, 2])]


class StillPendulum(Pendulum):
    """Cosine and sine of the angle."""

    def get_obs(self, state: Any, params: Any = None, key: Any = None) -> jax.Array:
        return super().get_obs(state)[:2]
