"""An environment like dm_env's, with step types and discounts, adapted for `purerl.wrap_env`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import purerl

MID, LAST = 1, 2


class DmStep(NamedTuple):
    step_type: jax.Array
    reward: jax.Array
    discount: jax.Array
    observation: dict


def dm_reset(key):
    at = jax.random.randint(key, (), 1, 6)
    return at, DmStep(jnp.int32(0), 0.0, 1.0, {"at": at})


def dm_step(at, action):
    at = at + 2 * action - 1
    out, kind = (at <= 0) | (at >= 6), jnp.where((at <= 0) | (at >= 6), LAST, MID)
    return at, DmStep(kind, (at >= 6).astype(jnp.float32), 1.0 - out, {"at": at})


class Bare:
    action_space, observation_space = purerl.Discrete(2), {"at": purerl.Discrete(7)}

    def reset(self, key):
        state, first = dm_reset(key)
        return state, first.observation

    def step(self, key, state, action):
        state, ts = dm_step(state, action)
        last = ts.step_type == LAST
        ended = last & (ts.discount == 0), last & (ts.discount > 0)
        return state, ts.observation, ts.reward, *ended, {"right": ts.reward}


walk = purerl.wrap_env(Bare(), max_steps=30)
