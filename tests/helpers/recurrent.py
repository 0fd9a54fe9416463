"""A recurrent network for purerl's network interface, in a few lines."""

import jax
import jax.numpy as jnp

from purerl import Network, Outputs
from purerl.networks.distributions import Categorical


def running_sum(num_actions, width):
    """Return a network whose hidden state sums the observations of an episode; policy and value are linear in it."""

    def init(key, obs):
        key_policy, key_value = jax.random.split(key)
        return {
            "policy": 0.5 * jax.random.normal(key_policy, (width, num_actions)),
            "value": 0.5 * jax.random.normal(key_value, (width,)),
        }

    def apply(params, carry, obs, first):
        def remember(memory, step):
            obs, first = step
            memory = jnp.where(first[:, None], jnp.zeros_like(memory), memory) + obs
            return memory, memory

        carry, memory = jax.lax.scan(remember, carry, (obs, first))
        return Outputs(Categorical(memory @ params["policy"]), memory @ params["value"]), carry

    return Network(init, apply, lambda num_envs: jnp.zeros((num_envs, width)))
