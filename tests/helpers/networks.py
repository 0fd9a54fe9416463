"""Built-in networks with random parameters."""

import jax
import jax.numpy as jnp

from purerl.core.spaces import Discrete
from purerl.networks.actor_critic import actor_critic
from tests.helpers.tiny import CFG

KEY = jax.random.key(0)
FLAT, IMAGE = jax.ShapeDtypeStruct((4,), jnp.float32), jax.ShapeDtypeStruct((10, 10, 3), jnp.bool_)
THREE = Discrete(3)


def made(cfg=CFG, space=FLAT, actions=THREE):
    network = actor_critic(cfg, space, actions)
    obs = jax.tree.map(lambda x: jnp.ones((2, 5, *x.shape), x.dtype), space)
    params = jax.jit(network.init)(KEY, obs)
    return network, params, obs


def outputs(network, params, obs):
    return network.apply(params, (), obs, jnp.zeros(jax.tree.leaves(obs)[0].shape[:2], bool))[0]
