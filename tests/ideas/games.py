"""Games of three agents that share a policy: the batch has one row for each agent of each game."""

import jax
import jax.numpy as jnp
import numpy as np

import purerl

AGENTS, LENGTH = 3, 10


def reset(keys):
    by_game = keys.reshape(len(keys) // AGENTS, AGENTS)
    at = jax.vmap(lambda key: jax.random.uniform(key, (AGENTS, 2)))(by_game[:, 0])
    return {"at": at, "time": jnp.zeros(len(by_game))}, at.reshape(-1, 2)


def step(keys, state, action):
    of_each, never = lambda x: jnp.repeat(x, AGENTS), jnp.zeros(keys.shape[1], bool)
    at = jnp.clip(state["at"] + 0.2 * action.reshape(-1, AGENTS, 2), -2, 2)
    moved = {"at": at, "time": state["time"] + 1}
    late, fresh = moved["time"] >= LENGTH, reset(keys[1])[0]
    new = jax.tree.map(lambda a, b: jax.vmap(jnp.where)(late, a, b), fresh, moved)
    shared = of_each(-jnp.abs(at.sum(1)).sum(-1))
    observations = new["at"].reshape(-1, 2), at.reshape(-1, 2)
    return purerl.TimeStep(new, *observations, shared, never, of_each(late), {"shared": shared})


ACTIONS = purerl.Box(-np.ones(2, np.float32), np.ones(2, np.float32))
SPACE = jax.ShapeDtypeStruct((2,), jnp.float32)
games = purerl.Environment(reset, step, SPACE, ACTIONS, LENGTH, ("shared",))
