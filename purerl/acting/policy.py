"""A trained policy, ready to act."""

import dataclasses

import jax
import jax.numpy as jnp

from purerl.acting.rollout import one_step
from purerl.core.spaces import Space
from purerl.core.types import Network, Outputs, PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """A network with its parameters. Acting is pure: a call changes nothing.

    Attributes:
        network: policy and value function.
        params: parameters of the network.
        action_space: action space of the environments.
        statistics: the running statistics that `network` applies.
    """

    network: Network = dataclasses.field(repr=False)
    params: PyTree = dataclasses.field(repr=False)
    action_space: Space
    statistics: PyTree = dataclasses.field(default=(), repr=False)

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the initial hidden state for `num_envs` environments; empty if the network is not recurrent."""
        return self.network.initial_carry(num_envs)

    def __call__(
        self, carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array, deterministic: bool = False
    ) -> tuple[PyTree, PyTree]:
        """Act in `B` environments.

        Args:
            carry: the hidden state, leaves `[B, ...]`.
            obs: `[B, ...]`.
            first: `[B]` bool, True where `obs` is the first of its episode.
            key: consumed; not used if deterministic.
            deterministic: take the mode of the policy instead of a random action.

        Returns:
            The actions that the environments receive, `[B, ...]`, and the next hidden state.
        """
        outputs, carry = self.outputs(carry, obs, first)
        action = outputs.policy.mode() if deterministic else outputs.policy.sample(outputs.policy.noise(key))
        return outputs.policy.env_action(action, self.action_space), carry

    def outputs(self, carry: PyTree, obs: PyTree, first: jax.Array) -> tuple[Outputs, PyTree]:
        """Return the outputs of the network, with running statistics applied, and the next hidden state.

        The arguments are those of `__call__`. `outputs.policy` is a distribution over actions (`purerl.distributions`) of batch
        shape `[B]`; `outputs.value` is the result of `value`.
        """
        return one_step(self.network, self.params, carry, obs, first)

    def value(self, carry: PyTree, obs: PyTree, first: jax.Array | None = None) -> jax.Array:
        """Return the values of `obs`, `[B]`. With intrinsic rewards, return `[B, 2]`, with the intrinsic values last.

        The value is the expected discounted sum of training rewards. With `normalize_reward`, training rewards are divided by
        `sqrt(state.statistics.reward.moments.variance)` and clipped, so the value is not in the units of the environment.
        """
        first = jnp.zeros(jax.tree.leaves(obs)[0].shape[0], bool) if first is None else first
        return self.outputs(carry, obs, first)[0].value
