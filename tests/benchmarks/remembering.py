"""Tasks of remembering, as environments of one's own: the suit of k steps ago, and the number of marks in a noisy signal."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import purerl


class Cards(NamedTuple):
    """The latest `back + 1` suits, the newest at `step % (back + 1)`, and the number of steps in the episode."""

    suits: jax.Array
    step: jax.Array


class RepeatPrevious:
    """A card is shown in each step; the action names the suit of `back` steps ago (Morad et al. 2023, POPGym).

    The rewards of an episode add up to 1 if all actions are right, and to -1 if all are wrong; random actions have -0.5.
    """

    action_space = purerl.Discrete(4)

    def __init__(self, back: int, steps: int):
        self.back, self.max_steps = back, steps

    def reset(self, key):
        suits = jnp.zeros(self.back + 1, jnp.int32).at[0].set(jax.random.randint(key, (), 0, 4))
        return Cards(suits, jnp.int32(0)), jax.nn.one_hot(suits[0], 4)

    def step(self, key, state, action):
        size = self.back + 1
        asked = state.step >= self.back
        right = action == state.suits[(state.step - self.back) % size]
        reward = jnp.where(asked, jnp.where(right, 1.0, -1.0) / (self.max_steps - self.back), 0.0)
        suit, step = jax.random.randint(key, (), 0, 4), state.step + 1
        state = Cards(state.suits.at[step % size].set(suit), step)
        return state, jax.nn.one_hot(suit, 4), reward, step == self.max_steps, False, {}


class Marks(NamedTuple):
    """The number of marks so far, and the number of steps in the episode."""

    count: jax.Array
    step: jax.Array


class Counting:
    """Marks of height 1 in noise of standard deviation 0.2, four on average; each action names their number so far, up to 8.

    The rewards of an episode add up to 1 if all actions are right, and to -1 if all are wrong.
    """

    action_space = purerl.Discrete(9)

    def __init__(self, steps: int):
        self.max_steps = steps

    def reset(self, key):
        return self._show(key, Marks(jnp.int32(0), jnp.int32(0)))

    def step(self, key, state, action):
        reward = jnp.where(action == jnp.minimum(state.count, 8), 1.0, -1.0) / self.max_steps
        state, obs = self._show(key, state._replace(step=state.step + 1))
        return state, obs, reward, state.step == self.max_steps, False, {}

    def _show(self, key, state):
        of_mark, of_noise = jax.random.split(key)
        mark = jax.random.bernoulli(of_mark, 4 / self.max_steps)
        signal = mark + 0.2 * jax.random.normal(of_noise)
        return state._replace(count=state.count + mark), signal[None]
