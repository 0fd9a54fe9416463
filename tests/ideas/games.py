"""Train agents of games side by side: the environments of a batch are the agents of all games."""

import jax
import jax.numpy as jnp
import numpy as np

import purerl

AGENTS, LENGTH = 3, 10


def reset(keys):
    by_game = keys.reshape(len(keys) // AGENTS, AGENTS)
    state = {"at": jax.vmap(lambda key: jax.random.uniform(key, (AGENTS, 2)))(by_game[:, 0]), "time": jnp.zeros(len(by_game))}
    return state, state["at"].reshape(-1, 2)


def step(keys, state, action):
    of_each = lambda x: jnp.repeat(x, AGENTS)
    at, time = jnp.clip(state["at"] + 0.2 * action.reshape(-1, AGENTS, 2), -2, 2), state["time"] + 1
    late, fresh = time >= LENGTH, reset(keys[1])[0]
    new = jax.tree.map(lambda a, b: jax.vmap(jnp.where)(late, a, b), fresh, {"at": at, "time": time})
    shared = -jnp.abs(at.sum(1)).sum(-1)
    never = jnp.zeros(keys.shape[1], bool)
    info = {"shared": of_each(shared)}
    return purerl.TimeStep(new, new["at"].reshape(-1, 2), at.reshape(-1, 2), of_each(shared), never, of_each(late), info)


ACTIONS = purerl.Box(-np.ones(2, np.float32), np.ones(2, np.float32))
games = purerl.Environment(reset, step, jax.ShapeDtypeStruct((2,), jnp.float32), ACTIONS, LENGTH, ("shared",))
