"""Training sets: a rollout with its advantages, cut into training sequences."""

from typing import Any

import jax

from purerl.acting.normalize import Statistics, standardize_values
from purerl.core.types import Advantages, Rollout, Sample, Sequences

PyTree = Any


def training_set(
    cfg: Any, statistics: Statistics, rollout: Rollout, advantages: Advantages, length: int, keep_policy: bool = False
) -> Sequences:
    """What the loss reads of a rollout and its advantages, as `Sequences` of `Sample`.

    Args:
        cfg: whether the loss needs the old policy.
        statistics: values and targets are standardised by them, as the network's outputs are.
        rollout: `[T, B]`.
        advantages: `[T, B]`.
        length: L, steps of a training sequence.
        keep_policy: the loss reads the old policy, also where the config does not say so.
    """
    steps = rollout.steps
    kept = {name: getattr(steps, name) for name in ("obs", "first", "action", "log_prob", "intrinsic")}
    policy = steps.policy if cfg.measures_kl or keep_policy else ()
    value, target = (standardize_values(statistics, x) for x in (steps.value, advantages.target))
    samples = Sample(**kept, policy=policy, value=value, advantage=advantages.advantage, target=target)
    return sequences(samples, rollout.carry, length)


def sequences(steps: PyTree, carry: PyTree, length: int) -> Sequences:
    """A rollout cut into training sequences.

    Args:
        steps: leaves `[T, B, ...]`.
        carry: leaves `[T / L, B, ...]`, the memory from before each sequence.
        length: L, a divisor of T.

    Returns:
        `Sequences` of L contiguous steps each, `N = T * B / L` of them.
    """

    def cut(x):  # [T, B, ...] -> [T/L, L, B, ...] -> [L, T/L, B, ...] -> [L, N, ...]
        return x.reshape(-1, length, *x.shape[1:]).swapaxes(0, 1).reshape(length, -1, *x.shape[2:])

    return Sequences(jax.tree.map(cut, steps), jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), carry))
