"""Advantages of two reward streams, the environment's and an intrinsic one.

The intrinsic stream does not end with an episode: a novel observation stays novel across a reset, and ending an episode costs the
novelty still ahead (Burda et al. 2019, arXiv:1810.12894, section 2.3). The next value of the intrinsic stream is therefore the
value of the next observation to act on.
"""

from collections.abc import Callable

import jax.numpy as jnp

from purerl.config.base import OnPolicyConfig
from purerl.core.types import Advantages, Transition

Estimator = Callable[[Transition, OnPolicyConfig], Advantages]


def with_flags_per_stream(steps: Transition) -> Transition:
    """Return steps with flags `[T, B, 2]` that end only the environment's stream."""
    never = jnp.zeros_like(steps.terminated)
    flags = (jnp.stack([flag, never], axis=-1) for flag in (steps.terminated, steps.truncated))
    return steps.replace(**dict(zip(("terminated", "truncated"), flags, strict=True)))


def with_gamma_per_stream(cfg: OnPolicyConfig) -> OnPolicyConfig:
    """Return the config with a discount for each stream, `[2]`."""
    return cfg.replace(gamma=jnp.stack([jnp.float32(cfg.gamma), jnp.float32(cfg.intrinsic.gamma_int)]))


def combined(cfg: OnPolicyConfig, advantages: Advantages) -> Advantages:
    """Combine the advantages for the policy, `ext_coef * A_ext + int_coef * A_int`. The targets stay separate."""
    ext, intrinsic = advantages.advantage[..., 0], advantages.advantage[..., 1]
    return advantages.replace(advantage=cfg.intrinsic.ext_coef * ext + cfg.intrinsic.int_coef * intrinsic)


def over_streams(estimate: Estimator) -> Estimator:
    """Turn an estimator of a single stream into an estimator of both streams, with one combined advantage."""
    return lambda steps, cfg: combined(cfg, estimate(with_flags_per_stream(steps), with_gamma_per_stream(cfg)))
