"""Metrics of a rollout."""

from typing import Any

import jax
import jax.numpy as jnp

from purerl.acting.bootstrap import LoopStep
from purerl.core.environment import TimeStep
from purerl.core.finite import any_of
from purerl.core.metrics import Max, Mean, Sum, mean_of, mean_where
from purerl.core.reductions import num_devices, pmax, total
from purerl.core.streams import extrinsic
from purerl.core.types import Transition


def rollout_metrics(
    transition: Transition, steps: LoopStep, info: tuple[str, ...], episode_info: tuple[str, ...]
) -> dict[str, Any]:
    """Measure the steps, rewards and finished episodes of a rollout.

    Args:
        transition: the steps of the rollout, `[T, B, ...]`.
        steps: the outputs of the loop over time, `[T, B, ...]`.
        info: entries of the environment's info to average over all steps.
        episode_info: entries of the environment's info to average over the last steps of episodes.
    """
    after, done = steps.after, steps.after.terminated | steps.after.truncated
    return {
        "steps": Sum(jnp.int32(done.size * num_devices())),
        "episodes": Sum(total(done.astype(jnp.int32))),
        "episode_return": mean_where(steps.episode_return, done),
        "episode_length": mean_where(steps.episode_length, done),
        "reward": mean_of(transition.reward),
        "reward_max": Max(pmax(transition.reward)),
        "log_prob": mean_of(transition.log_prob),
        **({"value": mean_of(extrinsic(transition.value, done))} if isinstance(transition.value, jax.Array) else {}),
        **transition.policy.metrics(),
        **_info_metrics(after, info, episode_info),
        **_nonfinite_metrics(after, info, episode_info),
    }


def reuse_metrics(resets: jax.Array, size: int) -> dict[str, Mean]:
    """Measure the fraction of a rollout's resets whose first state an earlier reset of the same rollout had already used."""
    return {"resets_reused": Mean(total(jnp.maximum(resets - size, 0).astype(jnp.float32)), total(resets))}


def _info_metrics(after: TimeStep, info: tuple[str, ...], episode_info: tuple[str, ...]) -> dict[str, Any]:
    """Average entries of the environment's info over all steps, and over the last steps of episodes."""
    done = after.terminated | after.truncated

    def mean(x, where=None):
        if after.nonfinite:  # a mean leaves out nonfinite numbers
            where = jnp.isfinite(x) if where is None else where & jnp.isfinite(x)
        return mean_of(x) if where is None else mean_where(x, where)

    metrics = {f"info/{name}": mean(after.info[name]) for name in info}
    for name in episode_info:
        x = after.info[name]  # [T, B], or [T, B, n]
        parts = {name: x} if x.ndim == done.ndim else {f"{name}/{i}": x[..., i] for i in range(x.shape[-1])}
        metrics |= {f"episode_info/{part}": mean(x, done) for part, x in parts.items()}
    return metrics


def _nonfinite_metrics(after: TimeStep, info: tuple[str, ...], episode_info: tuple[str, ...]) -> dict[str, Any]:
    """Count the nonfinite steps for each checked entry. If no entry is checked, return no metrics."""
    if not after.nonfinite:
        return {}
    bad = lambda name: ~jnp.isfinite(after.info[name]).reshape(*after.reward.shape, -1).all(-1)
    of_ends = {name: bad(name) & (after.terminated | after.truncated) for name in episode_info}
    entries = after.nonfinite | {f"info/{name}": rows for name, rows in (of_ends | {name: bad(name) for name in info}).items()}
    count = lambda rows: Sum(total(rows.astype(jnp.int32)))
    return {"nonfinite_resets": count(any_of(after.nonfinite)), **{f"nonfinite/{name}": count(x) for name, x in entries.items()}}
