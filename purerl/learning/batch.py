"""Batches: a rollout with its advantages, cut into training sequences."""

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from purerl.acting.normalize import standardize_values
from purerl.config.base import OnPolicyConfig
from purerl.core.types import Advantages, PyTree, Rollout, Sample, Sequences, TrainState
from purerl.learning.learner import Learner
from purerl.learning.phases import sequence_length


def make_batch(learner: Learner[OnPolicyConfig], state: TrainState, rollout: Rollout, advantages: Advantages) -> Sequences:
    """Return the training batch of a rollout and its advantages, as `Sequences` of `Sample`.

    Values and targets are in the units of the network's outputs. The batch has the behaviour policy only if a loss reads it.

    Args:
        learner: config, network and losses.
        state: its statistics standardise values; its parameters give the shapes for tracing the losses.
        rollout: `[T, B]`.
        advantages: `[T, B]`.
    """
    steps = rollout.steps
    kept = {name: getattr(steps, name) for name in ("obs", "first", "action", "log_prob", "intrinsic")}
    policy = steps.policy if reads_old_policy(learner, state, rollout) else ()
    value, target = (standardize_values(state.statistics, x) for x in (steps.value, advantages.target))
    samples = Sample(**kept, policy=policy, value=value, advantage=advantages.advantage, target=target)
    return sequences(samples, rollout.carry, sequence_length(learner.cfg, learner.network))


def sequences(steps: PyTree, carry: PyTree, length: int) -> Sequences:
    """Cut a rollout into training sequences.

    Args:
        steps: leaves `[T, B, ...]`.
        carry: leaves `[T / L, B, ...]`, the hidden state before each sequence.
        length: L, a divisor of T.

    Returns:
        `N = T * B / L` sequences of L contiguous steps, as `Sequences`.
    """

    def cut(x):  # [T, B, ...] -> [T/L, L, B, ...] -> [L, T/L, B, ...] -> [L, N, ...]
        return x.reshape(-1, length, *x.shape[1:]).swapaxes(0, 1).reshape(length, -1, *x.shape[2:])

    return Sequences(jax.tree.map(cut, steps), jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), carry))


def reads_old_policy(learner: Learner[OnPolicyConfig], state: TrainState, rollout: Rollout) -> bool:
    """Return True if a loss reads `old.policy`. The policy loss is traced with the shapes of one row of a rollout."""
    if learner.cfg.measures_kl:
        return True
    cfg, network, parts = learner
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), rollout.steps)
    carry = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rollout.carry)
    number = jax.ShapeDtypeStruct(row.first.shape, jnp.float32)

    def loss(policy, outputs, obs, first, action, number):
        old = Sample(obs, first, action, number, outputs.value, number, outputs.value, policy=policy)
        return parts.policy_loss(outputs, old, number, cfg)

    outputs = jax.eval_shape(lambda *args: network.apply(*args)[0], state.params, carry, row.obs, row.first)
    traced = jax.make_jaxpr(loss)(row.policy, outputs, row.obs, row.first, row.action, number).jaxpr
    read = {x for equation in traced.eqns for x in equation.invars if not isinstance(x, Literal)}
    return not read.isdisjoint(traced.invars[: len(jax.tree.leaves(row.policy))])
