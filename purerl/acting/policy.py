"""A trained policy, ready to act."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from purerl.acting.rollout import one_step
from purerl.core.errors import Problem, config_error, is_flag, raise_if_any
from purerl.core.keys import typed_key
from purerl.core.spaces import Space, entries_of, is_index
from purerl.core.types import Network, Outputs, PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """A network with its parameters. Acting is pure: a call changes nothing.

    Attributes:
        network: policy and value function.
        params: parameters of the network.
        action_space, observation_space: spaces of the environments.
        statistics: the running statistics that `network` applies.
    """

    network: Network = dataclasses.field(repr=False)
    params: PyTree = dataclasses.field(repr=False)
    action_space: Space
    observation_space: PyTree = dataclasses.field(repr=False)
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

        Raises:
            ConfigError: observations, flags, hidden state or key are not those of these environments, or `deterministic` is not a
              bool.
        """
        if isinstance(deterministic, Tracer):
            hint = "must be True or False when the call is traced; use jax.jit(policy, static_argnums=4)"
            raise config_error("deterministic", ..., hint)
        if not is_flag(deterministic):
            raise config_error("deterministic", deterministic, "must be True or False")
        outputs, carry = self.outputs(carry, obs, first)
        action = outputs.policy.mode() if deterministic else outputs.policy.sample(outputs.policy.noise(typed_key(key)))
        return outputs.policy.env_action(action, self.action_space), carry

    def outputs(self, carry: PyTree, obs: PyTree, first: jax.Array) -> tuple[Outputs, PyTree]:
        """Return the outputs of the network, with running statistics applied, and the next hidden state.

        The arguments and errors are those of `__call__`. `outputs.policy` is a distribution over actions (`purerl.distributions`)
        of batch shape `[B]`; `outputs.value` is the result of `value`.
        """
        obs, count = _to_space_dtypes(self.observation_space, obs)
        wanted = jax.eval_shape(lambda: self.initial_carry(count))
        shapes = lambda tree: jax.tree.map(jnp.shape, tree)
        if shapes(carry) != shapes(wanted):
            raise config_error("carry", shapes(carry), f"must be the result of initial_carry({count}), or of the call before")
        if jnp.shape(first) != (count,):
            raise config_error("first", list(jnp.shape(first)), f"must be an array of {count} flags")
        return one_step(self.network, self.params, carry, obs, jnp.asarray(first))

    def value(self, carry: PyTree, obs: PyTree, first: jax.Array | None = None) -> jax.Array:
        """Return the values of `obs`, `[B]`. With intrinsic rewards, return `[B, 2]`, with the intrinsic values last.

        The value is the expected discounted sum of training rewards. With `normalize_reward`, training rewards are divided by
        `sqrt(state.statistics.reward.moments.variance)` and clipped, so the value is not in the units of the environment.
        """
        first = jnp.zeros(jnp.shape(jax.tree.leaves(obs)[0])[:1], bool) if first is None else first
        return self.outputs(carry, obs, first)[0].value


def _to_space_dtypes(space: PyTree, obs: PyTree) -> tuple[PyTree, int]:
    """Return observations `[B, ...]` with the dtypes of their space, and B. Numbers are converted, but floats never to ints.

    Raises:
        ConfigError: the names of entries, their shapes or dtypes do not match the space.
    """
    spaces, given = entries_of(space), entries_of(obs)
    if spaces.keys() != given.keys():
        hint = f"must have the entries {', '.join(spaces)}" if "" not in spaces else "must be one array"
        raise config_error("obs", ", ".join(given), hint)
    counts = {jnp.shape(x)[:1] for x in given.values()}
    found = []
    for name, x in given.items():
        wanted, text = spaces[name], f"{jnp.result_type(x)}{list(jnp.shape(x))}"
        rounds = jnp.issubdtype(jnp.result_type(x), jnp.floating) and not jnp.issubdtype(wanted.dtype, jnp.floating)
        if len(counts) > 1 or rounds or jnp.shape(x)[1:] != tuple(wanted.shape) or () in counts:
            shape = ", ".join(["B", *map(str, wanted.shape)])
            hint = f"must be {np.dtype(wanted.dtype).name}[{shape}] for B environments; obs[None] is a batch of one"
            found.append(Problem(f"obs/{name}".rstrip("/"), text, hint))
        elif _overflows(x, wanted.dtype):
            limits = np.iinfo(wanted.dtype)
            hint = f"must be ints from {limits.min} to {limits.max}, the range of {np.dtype(wanted.dtype).name}"
            found.append(Problem(f"obs/{name}".rstrip("/"), text, hint))
    raise_if_any(found)
    leaves = [jnp.asarray(given[name], inside.dtype) for name, inside in spaces.items()]
    return jax.tree.unflatten(jax.tree.structure(space, is_leaf=is_index), leaves), counts.pop()[0]


def _overflows(x: Any, dtype: Any) -> bool:
    """Return True if an array has ints beyond the range of an int dtype. Traced numbers are unknown and count as inside."""
    if isinstance(x, Tracer) or not np.issubdtype(dtype, np.integer) or np.can_cast(x.dtype, dtype):
        return False
    values, limits = np.asarray(x), np.iinfo(dtype)
    return bool(values.size and (values.min() < limits.min or values.max() > limits.max))
