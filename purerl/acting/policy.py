"""A trained policy, ready to act."""

import dataclasses

import jax
import jax.numpy as jnp

from purerl.acting.rollout import one_step
from purerl.core.spaces import Space
from purerl.core.types import Network, PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """A network with its parameters. Pure: acting changes nothing.

    network: policy and value function.
    params: its parameters.
    action_space: of the environments to act in.
    """

    network: Network = dataclasses.field(repr=False)
    params: PyTree = dataclasses.field(repr=False)
    action_space: Space

    def initial_carry(self, num_envs: int) -> PyTree:
        """Return the hidden state to start from in `num_envs` environments; empty if the network has none."""
        return self.network.initial_carry(num_envs)

    def __call__(
        self, carry: PyTree, obs: PyTree, first: jax.Array, key: jax.Array, deterministic: bool = False
    ) -> tuple[jax.Array, PyTree]:
        """Act in `B` environments.

        Args:
            carry: the memory, leaves `[B, ...]`.
            obs: `[B, ...]`.
            first: `[B]` bool, where an episode begins.
            key: consumed; not used when deterministic.
            deterministic: the mode of the policy instead of a random action.

        Returns:
            What the environments receive, `[B, ...]`, and the next memory.
        """
        outputs, carry = one_step(self.network, self.params, carry, obs, first)
        action = outputs.policy.mode() if deterministic else outputs.policy.sample(outputs.policy.noise(key))
        return outputs.policy.env_action(action, self.action_space), carry

    def value(self, carry: PyTree, obs: PyTree, first: jax.Array | None = None) -> jax.Array:
        """Return the value of `obs`, `[B]`; with intrinsic rewards `[B, 2]`, theirs last.

        It is the expected discounted sum of the rewards that were learnt from. With `normalize_reward` these are divided by
        `sqrt(state.statistics.reward.moments.variance)` and clipped, and so are not in the units of the environment.
        """
        first = jnp.zeros(jax.tree.leaves(obs)[0].shape[0], bool) if first is None else first
        return one_step(self.network, self.params, carry, obs, first)[0].value
