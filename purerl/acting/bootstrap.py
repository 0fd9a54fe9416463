"""Bootstrap values: `Transition.next_value` of each step in a rollout of T steps in B environments.

The bootstrap value of a step is the value of the next step's observation. After a time limit, the default is instead the value
of the observation before the reset. At most C episodes of each environment are truncated in a rollout (see `most_truncations`).

If C < min(T, 5), the network is feed-forward, and nothing else needs `Transition.next_obs`, then the loop over time stores only
the observations before resets, `[C, B, ...]`. Otherwise, this default stores all next observations, `[T, B, ...]`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import Environment, TimeStep
from purerl.core.platform import where_any
from purerl.core.streams import EPISODIC
from purerl.core.types import Actor, Network, Outputs, PyTree

CHUNK = 2**22  # maximum number of observation scalars in one call of the network, unless a single time step has more


class LoopStep(NamedTuple):
    """The outputs of each step of the loop over time, `[T, B, ...]`."""

    obs: PyTree
    first: jax.Array
    policy: Any
    action: jax.Array
    after: TimeStep
    episode_return: jax.Array
    episode_length: jax.Array
    value: Any
    final_value: Any


class Bootstrap(NamedTuple):
    """The computation of the bootstrap values of a rollout.

    Attributes:
        network: policy and value function.
        truncation: the bootstrap value of truncated steps: `final_obs`, `current_obs`, `zero` or `ignore`, as in `collect`.
        count: C, the maximum number of truncated episodes of one environment.
        recurrent: True if a network with hidden state computes values; it does so in the loop over time.
        apart: True if the loop stores only the observations before resets, `[C, B, ...]`, instead of all next observations.
    """

    network: Network
    truncation: str
    count: int
    recurrent: bool
    apart: bool

    def begin(self, actor: Actor) -> PyTree:
        """Return an empty buffer of observations before resets, and truncation counts `[B]`, if `apart`; else `()`."""
        return (no_final_obs(actor.obs, self.count), jnp.zeros_like(actor.episode_length)) if self.apart else ()

    def after_step(self, params: PyTree, kept: PyTree, carry: PyTree, after: TimeStep, value: Any) -> tuple[PyTree, Any]:
        """Return the updated buffer and counts of `begin`, and the values of observations before resets.

        The values are `()` if the loop over time does not compute them.

        Args:
            params: parameters of the network.
            kept: the result of `begin`, or of this method in the previous step.
            carry: the hidden state after this step.
            after: the output of the environments' step.
            value: `[B(, K)]`, the value of the observation before this step.
        """
        if self.recurrent and self.truncation == "final_obs":
            no = jnp.zeros_like(after.truncated)
            final_value = lambda: one_step(self.network, params, carry, after.next_obs, no)[0].value
            return kept, where_any(after.truncated, final_value, jnp.zeros_like(value))
        if self.apart:
            final_obs, so_far = kept
            write = lambda: with_final_obs(final_obs, so_far, after.next_obs, after.truncated)
            kept = where_any(after.truncated, write, final_obs), so_far + after.truncated
        return kept, ()

    def bootstrap_values(self, params: PyTree, kept: PyTree, last: Actor, steps: LoopStep, next_obs: PyTree) -> jax.Array:
        """Return the bootstrap value of each step, `[T, B(, K)]`.

        Args:
            params: parameters of the network.
            kept: the first output of `after_step` for the last step.
            last: the actor after the last step.
            steps: the outputs of all steps, `[T, B, ...]`, with `final_value` from `after_step`.
            next_obs: the observation after each step, before any reset, `[T, B, ...]`; not read if `apart`.
        """
        value, final_value, flags = steps.value, steps.final_value, steps.after
        if self.truncation != "final_obs":
            final_value = value if self.truncation == "current_obs" else jnp.zeros_like(value)
        if self.recurrent or self.truncation != "final_obs":
            last_value = one_step(self.network, params, last.carry, last.obs, last.first)[0].value
        else:
            final_obs = kept[0] if self.apart else final_obs_of(next_obs, flags.truncated, self.count)
            final_value, last_value = edge_values(self.network, params, final_obs, last.obs, last.first)
            final_value = copy_to_truncations(final_value, flags.truncated)
        truncated = jnp.zeros_like(flags.truncated) if self.truncation == "ignore" else flags.truncated
        return next_values(value, truncated, final_value, last_value)


def one_step(network: Network, params: PyTree, carry: PyTree, obs: PyTree, first: jax.Array) -> tuple[Outputs, PyTree]:
    """Apply the network to one step of `B` environments: `obs [B, ...]`, `first [B]`. Return outputs `[B, ...]` and the carry."""
    outputs, carry = network.apply(params, carry, jax.tree.map(lambda x: x[None], obs), first[None])
    return jax.tree.map(lambda x: x[0], outputs), carry


def next_values(value: jax.Array, truncated: jax.Array, final_value: jax.Array, last_value: jax.Array) -> jax.Array:
    """Return `Transition.next_value`: the `value` of the next step, or `final_value` where `truncated`.

    The intrinsic return does not end with the episode, so the intrinsic stream has the `value` of the next step everywhere.

    Args:
        value: `[T, B(, K)]`, the value of the observation of each step.
        truncated: `[T, B]`.
        final_value: `[T, B(, K)]`, the bootstrap values of truncated steps; read where `truncated`.
        last_value: `[B(, K)]`, the value of the observation after the last step and any reset.
    """
    if value.ndim > truncated.ndim:
        truncated = truncated[..., None] & np.array(EPISODIC).reshape((1,) * truncated.ndim + (-1,))
    return jnp.where(truncated, final_value, jnp.concatenate([value[1:], last_value[None]]))


def edge_values(
    network: Network, params: PyTree, final_obs: PyTree, last_obs: PyTree, first: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute the values of observations before resets and after the last step, for a feed-forward network.

    Args:
        network: the value function.
        params: parameters of the network.
        final_obs: `[C, B, ...]`, observations before the resets that time limits caused.
        last_obs: `[B, ...]`, observations after the last step and any reset.
        first: `[B]`, True where `last_obs` is the first of its episode.

    Returns:
        The values of `final_obs`, `[C, B(, K)]`, and the values of `last_obs`, `[B(, K)]`.
    """
    obs = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), final_obs, last_obs)
    count = jax.tree.leaves(obs)[0].shape[0]
    flags = jnp.concatenate([jnp.zeros((count - 1, *first.shape), bool), first[None]])
    value = values_of(network, params, obs, flags)
    return value[:-1], value[-1]


def values_of(network: Network, params: PyTree, obs: PyTree, first: jax.Array) -> jax.Array:
    """Compute the values `[T, B(, K)]` of all observations `[T, B, ...]` of a rollout, for a feed-forward network.

    To limit the memory of activations, each call of the network evaluates at most `CHUNK` observation scalars, but at least one
    time step.
    """
    T = first.shape[0]
    row = sum(x[0].size for x in jax.tree.leaves(obs))
    count = next(n for n in range(1, T + 1) if T % n == 0 and (n == T or row * (T // n) <= CHUNK))
    one = lambda chunk: network.apply(params, (), *chunk)[0].value
    if count == 1:
        return one((obs, first))
    values = jax.lax.map(one, jax.tree.map(lambda x: x.reshape(count, T // count, *x.shape[1:]), (obs, first)))
    return values.reshape(T, *values.shape[2:])


# --- observations before resets ----------------------------------------------------------------------------------------


def most_truncations(env: Environment, num_steps: int) -> int:
    """Return C, an upper bound of the number of truncated episodes of one environment in `num_steps` steps; at least 1."""
    return 1 + (num_steps - 1) // (env.truncates_after or 1)


def no_final_obs(obs: PyTree, count: int) -> PyTree:
    """Return zeros `[C, B, ...]` for observations `[B, ...]`."""
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), obs)


def with_final_obs(kept: PyTree, so_far: jax.Array, obs: PyTree, truncated: jax.Array) -> PyTree:
    """Store the observations `[B, ...]` of the environments `truncated` in this step; `so_far [B]` counts earlier truncations."""
    count = jax.tree.leaves(kept)[0].shape[0]
    here = truncated[None] & (so_far[None] == jnp.arange(count)[:, None])
    write = lambda old, new: jnp.where(here.reshape(here.shape + (1,) * (new.ndim - 1)), new[None], old)
    return jax.tree.map(write, kept, obs)


def final_obs_of(next_obs: PyTree, truncated: jax.Array, count: int) -> PyTree:
    """Select the observations before resets, `[C, B, ...]`, from the next observations of all steps, `[T, B, ...]`."""
    if count == truncated.shape[0]:
        return next_obs
    nth = jnp.cumsum(truncated, axis=0, dtype=jnp.int32) - 1
    here = truncated[None] & (nth[None] == jnp.arange(count)[:, None, None])
    step = jnp.argmax(here, axis=1)  # [C, B]
    return jax.tree.map(lambda x: x[step, jnp.arange(x.shape[1])[None]], next_obs)


def copy_to_truncations(x: jax.Array, truncated: jax.Array) -> jax.Array:
    """Copy values of observations before resets, `[C, B, ...]`, to the truncated steps, `[T, B, ...]`. Others are arbitrary."""
    if x.shape[0] == truncated.shape[0]:
        return x
    if x.shape[0] == 1:
        return jnp.broadcast_to(x, (*truncated.shape, *x.shape[2:]))
    return x[rows_of_truncations(truncated, x.shape[0]), jnp.arange(x.shape[1])[None]]


def rows_of_truncations(truncated: jax.Array, count: int) -> jax.Array:
    """Return `[T, B]` int32: each truncated step's row in the buffer `[C, B, ...]`. Others are arbitrary."""
    if count == truncated.shape[0]:
        return jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32)[:, None], truncated.shape)
    return jnp.maximum(jnp.cumsum(truncated, axis=0, dtype=jnp.int32) - 1, 0)
