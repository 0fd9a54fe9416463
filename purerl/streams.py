"""Two streams of rewards, the environment's and an intrinsic one, as the trailing axis of what estimators and losses take.

The intrinsic stream has no ends of episodes: what is new stays new across a reset, and an end costs what was still to be found
(Burda et al. 2019, arXiv:1810.12894, section 2.3). So its next value is that of the observation acted on next.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from purerl.keys import stream
from purerl.types import Advantages, Intrinsic, Sample, TrainState, Transition

EPISODIC = (True, False)  # the environment's stream, the intrinsic one


def kept(intrinsic: Intrinsic | None) -> dict[str, Any]:
    """What `collect` must keep for them."""
    return {} if intrinsic is None else {"keep_next_obs": True, "episodic": EPISODIC}


def rewarded(
    intrinsic: Intrinsic | None, state: TrainState, steps: Transition
) -> tuple[dict[str, Any], Transition, dict[str, Any]]:
    """What an intrinsic reward keeps, as an entry of `state.extra`; steps with rewards `[T, B, 2]`; metrics."""
    if intrinsic is None:
        return {}, steps, {}
    paid, after, metrics = intrinsic.reward(state.params, state.extra["intrinsic"], steps)
    paid = jax.lax.stop_gradient(paid)
    return {"intrinsic": after}, steps.replace(reward=jnp.stack([steps.reward, paid], axis=-1)), metrics


def training(intrinsic: Intrinsic | None, curious: dict[str, Any], steps: Transition, state: TrainState) -> Any:
    """What the loss of intrinsic rewards reads of each step, `[T, B, ...]`."""
    if intrinsic is None or intrinsic.training is None:
        return ()
    return intrinsic.training(curious["intrinsic"], steps, stream(state.key, "intrinsic/training", state.clock))


def with_ends(steps: Transition) -> Transition:
    """Steps whose flags `[T, B, 2]` end the environment's stream only."""
    never = jnp.zeros_like(steps.terminated)
    flags = (jnp.stack([flag, never], axis=-1) for flag in (steps.terminated, steps.truncated))
    return steps.replace(**dict(zip(("terminated", "truncated"), flags, strict=True)))


def discounts(cfg: Any) -> Any:
    """The config with a discount for each stream, `[2]`."""
    return cfg.replace(gamma=jnp.stack([jnp.float32(cfg.gamma), jnp.float32(cfg.rnd.gamma_int)]))


def combined(cfg: Any, advantages: Advantages) -> Advantages:
    """One advantage for the policy, `ext_coef * A_ext + int_coef * A_int`; the targets stay apart."""
    ext, intrinsic = advantages.advantage[..., 0], advantages.advantage[..., 1]
    return advantages.replace(advantage=cfg.rnd.ext_coef * ext + cfg.rnd.int_coef * intrinsic)


def estimating(advantage: Callable[[Transition, Any], Advantages]) -> Callable[[Transition, Any], Advantages]:
    """An estimator of one stream as one of both: each its own discount, the flags for the environment's only, one advantage."""
    return lambda steps, cfg: combined(cfg, advantage(with_ends(steps), discounts(cfg)))


def with_loss(term: Callable, intrinsic: Intrinsic | None) -> Callable:
    """A term of a loss, `(cfg, params, Outputs, Sample) -> (scalar, metrics)`, with the loss of intrinsic rewards added."""
    if intrinsic is None or intrinsic.loss is None:
        return term

    def both(cfg: Any, params: Any, outputs: Any, old: Sample) -> tuple[jax.Array, dict[str, jax.Array]]:
        (beside, metrics), (more, its) = term(cfg, params, outputs, old), intrinsic.loss(params, old.intrinsic)
        return beside + more, metrics | its

    return both


def summed(loss: jax.Array, like: jax.Array) -> jax.Array:
    """The loss of each step, `[L, N]` as `like`, of one stream or the sum of several."""
    return loss if loss.ndim == like.ndim else loss.sum(-1)


def of_environment(x: jax.Array, like: jax.Array) -> jax.Array:
    """Of several streams, that of the environment's rewards: `[T, B]` as `like`."""
    return x if x.ndim == like.ndim else x[..., 0]
