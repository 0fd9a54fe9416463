"""Network wrappers: normalised observations, valid actions, values in units of reward, random warm-up.

Each function takes a network and returns a network. Acting, evaluation, bootstrapping and learning use the same wrappers.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from purerl.acting.normalize import Statistics, restore_values, standardize_observations
from purerl.config.base import OnPolicyConfig
from purerl.core.spaces import Space, flat_bounds
from purerl.core.types import Network, TrainState


def with_action_mask(network: Network, name: str) -> Network:
    """Return a network whose policy chooses only actions that the observation entry `name` marks as valid."""

    def apply(params, carry, obs, first):
        outputs, carry = network.apply(params, carry, obs, first)
        return outputs._replace(policy=outputs.policy.mask(obs[name])), carry

    return network._replace(apply=apply)


def with_obs_normalization(cfg: OnPolicyConfig, network: Network, statistics: Statistics) -> Network:
    """Return a network that standardises its observations if `normalize_obs` is set."""

    def apply(params, carry, obs, first):
        return network.apply(params, carry, standardize_observations(cfg, statistics, obs), first)

    return network._replace(apply=apply) if cfg.normalize_obs else network


def with_statistics(cfg: OnPolicyConfig, network: Network, state: TrainState) -> Network:
    """Return a network that normalises its observations, and whose values are in units of the training rewards."""
    network = with_obs_normalization(cfg, network, state.statistics)

    def apply(params, carry, obs, first):
        outputs, carry = network.apply(params, carry, obs, first)
        return outputs._replace(value=restore_values(state.statistics, outputs.value)), carry

    return network._replace(apply=apply) if cfg.normalize_value else network


def with_random_warmup(cfg: OnPolicyConfig, network: Network, state: TrainState, space: Space) -> Network:
    """Return a network that acts uniformly at random for `warmup_steps` environment steps, rounded up to whole updates."""
    updates = -(-int(cfg.warmup_steps) // cfg.batch_size)
    return with_uniform_policy(network, space, state.clock < updates) if updates else network


def acting_network(cfg: OnPolicyConfig, network: Network, behaviour: TrainState, state: TrainState, space: Space) -> Network:
    """Return the network that acts in training, with the statistics of `behaviour` and the random warm-up of `state`."""
    return with_random_warmup(cfg, with_statistics(cfg, network, behaviour), state, space)


def with_uniform_policy(network: Network, space: Space, when: jax.Array) -> Network:
    """Return a network that acts uniformly at random if the scalar `when` is True. The action space must be bounded."""

    def apply(params, carry, obs, first):
        outputs, carry = network.apply(params, carry, obs, first)
        random = jnp.broadcast_to(when, first.shape)
        bounds = tuple(jnp.broadcast_to(bound, (*first.shape, bound.size)) for bound in flat_bounds(space))
        return outputs._replace(policy=UniformOverride(outputs.policy, random, bounds)), carry

    return network._replace(apply=apply)


class UniformOverride(struct.PyTreeNode):
    """A distribution over actions that is uniform where `random` is set.

    Attributes:
        policy: the distribution where `random` is not set.
        random: `[*batch]` bool.
        bounds: the lowest and the highest action of continuous actions, each `[*batch, d]`; empty for other spaces.
    """

    policy: Any
    random: jax.Array
    bounds: tuple[jax.Array, ...]

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return self.policy.noise(key, *leading)

    def sample(self, noise: jax.Array) -> jax.Array:
        action, uniform = self.policy.sample(noise), self.policy.uniform_sample(noise, *self.bounds)
        random = self.random.reshape(self.random.shape + (1,) * (action.ndim - self.random.ndim))
        return jnp.where(random, uniform, action)

    def log_prob(self, action: jax.Array) -> jax.Array:
        return jnp.where(self.random, self.policy.uniform_log_prob(action, *self.bounds), self.policy.log_prob(action))

    def kl(self, other: Any) -> jax.Array:
        return self.policy.kl(other)

    def env_action(self, action: jax.Array, space: Space) -> jax.Array:
        return self.policy.env_action(action, space)

    def metrics(self) -> dict[str, Any]:
        return self.policy.metrics()
