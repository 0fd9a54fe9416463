"""A simulator that steps a whole batch at once, as a `purerl.Environment`."""

import jax
import jax.numpy as jnp
import numpy as np

import purerl


def reset(keys):
    at = jax.vmap(lambda key: jax.random.uniform(key, (2,), minval=-1.0))(keys)
    state = {"at": at, "time": jnp.zeros(len(keys), jnp.int32)}
    return state, at


def step(keys, state, action):
    at, time = jnp.clip(state["at"] + 0.2 * action, -2, 2), state["time"] + 1
    reward, home = -jnp.abs(at).sum(-1), (jnp.abs(at) < 0.05).all(-1)
    late = time >= 40
    moved, fresh, done = {"at": at, "time": time}, reset(keys[1])[0], home | late
    new = jax.tree.map(lambda a, b: jax.vmap(jnp.where)(done, a, b), fresh, moved)
    info = {"distance": jnp.abs(at).sum(-1), "reached": jnp.stack([home, ~home], -1)}
    return purerl.TimeStep(new, new["at"], at, reward, home, late, info)


ACTIONS = purerl.Box(-np.ones(2, np.float32), np.ones(2, np.float32))
OBSERVATION = jax.ShapeDtypeStruct((2,), jnp.float32)
simulator = purerl.Environment(reset, step, OBSERVATION, ACTIONS, 40, ("distance", "reached"))
