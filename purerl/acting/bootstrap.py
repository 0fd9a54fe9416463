"""Bootstrap values: the value that follows each row of a rollout.

A step is followed by the value of the next row's observation. If a time limit ended the episode, the value of the observation
before the reset follows instead. If an environment declares the least length of its truncated episodes, each environment has at
most C observations before resets in a rollout, in most cases one. They are stored as C rows, `[C, B, ...]`, and not as a
second array of the size of all observations.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import Environment, TimeStep
from purerl.core.platform import where_any
from purerl.core.types import Actor, Network, Outputs, PyTree

CHUNK = 2**22  # maximum number of observation scalars in one call of the network, unless a single row has more


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
    """The method by which a rollout computes the value that follows each row.

    Attributes:
        network: policy and value function.
        truncation: see `collect`.
        count: C, see `most_truncations`.
        recurrent: True if the value depends on the hidden state. The value is then computed in the loop over time.
        apart: True if the loop stores the C observations before resets, instead of a `next_obs` in every row.
        episodic: see `next_values`.
    """

    network: Network
    truncation: str
    count: int
    recurrent: bool
    apart: bool
    episodic: tuple[bool, ...]

    def begin(self, actor: Actor) -> PyTree:
        """Return the loop's storage before the first step: C observations and a counter if `apart`, else ()."""
        return (no_final_obs(actor.obs, self.count), jnp.zeros_like(actor.episode_length)) if self.apart else ()

    def after_step(self, params: PyTree, kept: PyTree, carry: PyTree, after: TimeStep, value: Any) -> tuple[PyTree, Any]:
        """Return the loop's storage after a step, and the values of observations before resets; `()` if computed later."""
        if self.recurrent and self.truncation == "final_obs":
            no = jnp.zeros_like(after.truncated)
            final_value = lambda: one_step(self.network, params, carry, after.next_obs, no)[0].value
            return kept, where_any(after.truncated, final_value, jnp.zeros_like(value))
        if self.apart:
            final_obs, so_far = kept
            write = lambda: with_final_obs(final_obs, so_far, after.next_obs, after.truncated)
            kept = where_any(after.truncated, write, final_obs), so_far + after.truncated
        return kept, ()

    def following(self, params: PyTree, kept: PyTree, last: Actor, steps: LoopStep, next_obs: PyTree) -> jax.Array:
        """Return the value that follows each row, `[T, B(, K)]`.

        Args:
            params: parameters of the network.
            kept: the loop's storage after the last step.
            last: the actor after the last step.
            steps: the rows, `[T, B, ...]`, with `final_value` from `after_step`.
            next_obs: the observations after each step, `[T, B, ...]`; not read if `apart`.
        """
        value, final_value, flags = steps.value, steps.final_value, steps.after
        if self.truncation != "final_obs":
            final_value = value if self.truncation == "current_obs" else jnp.zeros_like(value)
        if self.recurrent or self.truncation != "final_obs":
            last_value = one_step(self.network, params, last.carry, last.obs, last.first)[0].value
        else:
            final_obs = kept[0] if self.apart else final_obs_of(next_obs, flags.truncated, self.count)
            final_value, last_value = edge_values(self.network, params, final_obs, last.obs, last.first)
            final_value = at_truncations(final_value, flags.truncated)
        truncated = jnp.zeros_like(flags.truncated) if self.truncation == "ignore" else flags.truncated
        return next_values(value, truncated, final_value, last_value, self.episodic)


def one_step(network: Network, params: PyTree, carry: PyTree, obs: PyTree, first: jax.Array) -> tuple[Outputs, PyTree]:
    """Apply the network to one step of `B` environments: `obs [B, ...]`, `first [B]`. Return outputs `[B, ...]` and the carry."""
    outputs, carry = network.apply(params, carry, jax.tree.map(lambda x: x[None], obs), first[None])
    return jax.tree.map(lambda x: x[0], outputs), carry


def next_values(
    value: jax.Array, truncated: jax.Array, final_value: jax.Array, last_value: jax.Array, episodic: tuple[bool, ...] = ()
) -> jax.Array:
    """Return `Transition.next_value`: the value of the next row, or, after a time limit, of the observation before the reset.

    Args:
        value: `[T, B(, K)]`, the values of the rows' observations.
        truncated: `[T, B]`.
        final_value: `[T, B(, K)]`, the values of the observations before resets; read where `truncated`.
        last_value: `[B(, K)]`, the value of the observation after the last step.
        episodic: for each of K reward streams, True if the stream ends with an episode. Other streams take the next row's value.
    """
    truncated = truncated.reshape(truncated.shape + (1,) * (value.ndim - truncated.ndim))
    truncated = truncated & np.array(episodic).reshape((1,) * (value.ndim - 1) + (-1,)) if episodic else truncated
    return jnp.where(truncated, final_value, jnp.concatenate([value[1:], last_value[None]]))


def edge_values(
    network: Network, params: PyTree, final_obs: PyTree, last_obs: PyTree, first: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Compute the values before resets and after the last step, for a network without hidden state.

    Args:
        network: the value function.
        params: parameters of the network.
        final_obs: `[C, B, ...]`, observations before the resets that time limits caused.
        last_obs: `[B, ...]`, observations after the last step.
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
    """Compute the values `[T, B(, K)]` of all observations `[T, B, ...]` of a rollout, for a network without hidden state.

    Large observations go through the network in chunks of rows, so that activations take no more memory than the rollout.
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
    """Return C: at least 1, and at least the number of truncated episodes of any environment in `num_steps` steps."""
    return 1 + (num_steps - 1) // (env.truncates_after or 1)


def no_final_obs(obs: PyTree, count: int) -> PyTree:
    """Return zeros `[C, B, ...]` for observations `[B, ...]`."""
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), obs)


def with_final_obs(kept: PyTree, so_far: jax.Array, obs: PyTree, truncated: jax.Array) -> PyTree:
    """Store the observations `[B, ...]` of environments that are truncated now; `so_far [B]` counts earlier truncations."""
    count = jax.tree.leaves(kept)[0].shape[0]
    here = truncated[None] & (so_far[None] == jnp.arange(count)[:, None])
    write = lambda old, new: jnp.where(here.reshape(here.shape + (1,) * (new.ndim - 1)), new[None], old)
    return jax.tree.map(write, kept, obs)


def final_obs_of(next_obs: PyTree, truncated: jax.Array, count: int) -> PyTree:
    """Select the rows `[C, B, ...]` of truncated steps from all rows `[T, B, ...]`."""
    if count == truncated.shape[0]:
        return next_obs
    nth = jnp.cumsum(truncated, axis=0, dtype=jnp.int32) - 1
    here = truncated[None] & (nth[None] == jnp.arange(count)[:, None, None])
    step = jnp.argmax(here, axis=1)  # [C, B]
    return jax.tree.map(lambda x: x[step, jnp.arange(x.shape[1])[None]], next_obs)


def at_truncations(x: jax.Array, truncated: jax.Array) -> jax.Array:
    """Copy the C stored rows, `[C, B, ...]`, to their truncated steps, `[T, B, ...]`. Other steps have arbitrary values."""
    if x.shape[0] == truncated.shape[0]:
        return x
    if x.shape[0] == 1:
        return jnp.broadcast_to(x, (*truncated.shape, *x.shape[2:]))
    return x[rows_of_truncations(truncated, x.shape[0]), jnp.arange(x.shape[1])[None]]


def rows_of_truncations(truncated: jax.Array, count: int) -> jax.Array:
    """Return the index of each truncated step among the C stored rows, `[T, B]` int32. Other steps have arbitrary indices."""
    if count == truncated.shape[0]:
        return jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32)[:, None], truncated.shape)
    return jnp.maximum(jnp.cumsum(truncated, axis=0, dtype=jnp.int32) - 1, 0)
