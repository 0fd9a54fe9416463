"""The KL penalty of PPO's paper (Schulman et al. 2017, arXiv:1707.06347, section 4), with a fixed or an adaptive coefficient."""

from typing import Any

import jax
import jax.numpy as jnp

from purerl.core.clock import is_before
from purerl.core.metrics import mean_of
from purerl.core.reductions import mean
from purerl.core.types import Network, Outputs, Sample, Sequences, TrainState


def initial_kl_coef(cfg: Any) -> dict[str, jax.Array]:
    """The entry of `TrainState.extra` that an adaptive penalty starts from."""
    return {"kl_coef": jnp.float32(cfg.kl_coef)} if cfg.kl_penalty == "adaptive" else {}


def kl_loss(params: Any, outputs: Outputs, batch: Sample, cfg: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`kl_coef * KL(old || new)`, or 0 where the divergence is only measured, with the metric `kl`."""
    kl = batch.policy.kl(outputs.policy).mean()
    return 0.0 if cfg.kl_penalty == "none" else cfg.kl_coef * kl, {"kl": kl}


def adapt_kl_coef(cfg: Any, network: Network, state: TrainState, data: Sequences) -> tuple[TrainState, dict[str, Any]]:
    """The state with the coefficient for the next update, after this one moved the policy; and metrics.

    Args:
        cfg: the config of this update, see `scheduled_config`.
        network: as learning sees it.
        state: after learning.
        data: the training set of the update.
    """
    if cfg.kl_penalty != "adaptive":
        return state, {}
    outputs, _ = network.apply(state.params, data.carry, data.steps.obs, data.steps.first)
    kl = mean(data.steps.policy.kl(outputs.policy))
    coef = jnp.where(is_before(state.clock, cfg.skipped_updates), cfg.kl_coef, adapted_kl_coef(cfg, cfg.kl_coef, kl))
    metrics = {"kl_coef": mean_of(cfg.kl_coef), "kl_after": mean_of(kl)}
    return state.replace(extra={**state.extra, "kl_coef": coef}), metrics


def adapted_kl_coef(cfg: Any, coef: jax.Array, kl: jax.Array) -> jax.Array:
    """The coefficient after an update that moved the policy by `kl`: raised if it moved too far, lowered if too little.

    It stays within 1e-10 and 1e10. A coefficient of 0 or infinity could never change again.
    """
    too_far, too_near = kl > cfg.desired_kl * cfg.kl_coef_tolerance, kl < cfg.desired_kl / cfg.kl_coef_tolerance
    factor = jnp.where(too_far, cfg.kl_coef_raise, jnp.where(too_near, cfg.kl_coef_lower, jnp.float32(1)))
    return jnp.clip(coef * factor, 1e-10, 1e10)
