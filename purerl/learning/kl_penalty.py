"""The KL penalty of PPO's paper (Schulman et al. 2017, arXiv:1707.06347, section 4), with a fixed or an adaptive coefficient."""

from typing import Any

import jax
import jax.numpy as jnp

from purerl.config.base import OnPolicyConfig
from purerl.core.metrics import mean_of
from purerl.core.reductions import mean
from purerl.core.types import Network, Outputs, PyTree, Sample, Scalar, Sequences, TrainState


def initial_kl_coef(cfg: OnPolicyConfig) -> dict[str, jax.Array]:
    """Return the entry of `TrainState.extra` that an adaptive penalty starts from."""
    return {"kl_coef": jnp.float32(cfg.kl_coef)} if cfg.kl_penalty == "adaptive" else {}


def kl_loss(params: PyTree, outputs: Outputs, batch: Sample, cfg: OnPolicyConfig) -> tuple[Scalar, dict[str, jax.Array]]:
    """Compute `kl_coef * KL(old || new)`, or 0 if the divergence is only measured, with the metric `kl`."""
    kl = batch.policy.kl(outputs.policy).mean()
    return 0.0 if cfg.kl_penalty == "none" else cfg.kl_coef * kl, {"kl": kl}


def adapt_kl_coef(cfg: OnPolicyConfig, network: Network, state: TrainState, data: Sequences) -> tuple[TrainState, dict[str, Any]]:
    """Return the state with the coefficient of the next update, after this one moved the policy; and metrics.

    Args:
        cfg: the config of this update, see `Learner.at`.
        network: as learning sees it.
        state: after learning.
        data: the batch of the update.
    """
    if cfg.kl_penalty != "adaptive":
        return state, {}
    outputs, _ = network.apply(state.params, data.carry, data.steps.obs, data.steps.first)
    kl = mean(data.steps.policy.kl(outputs.policy))
    coef = jnp.where(state.clock < cfg.skipped_updates, cfg.kl_coef, adapted_kl_coef(cfg, cfg.kl_coef, kl))
    metrics = {"kl_coef": mean_of(jnp.float32(cfg.kl_coef)), "kl_after": mean_of(kl)}
    return state.replace(extra={**state.extra, "kl_coef": coef}), metrics


def adapted_kl_coef(cfg: OnPolicyConfig, coef: Scalar, kl: jax.Array) -> jax.Array:
    """Return the coefficient after an update that moved the policy by `kl`: raised if too far, lowered if too little.

    It stays within 1e-10 and 1e10. A coefficient of 0 or infinity could never change again.
    """
    too_far, too_near = kl > cfg.desired_kl * cfg.kl_coef_tolerance, kl < cfg.desired_kl / cfg.kl_coef_tolerance
    factor = jnp.where(too_far, cfg.kl_coef_raise, jnp.where(too_near, cfg.kl_coef_lower, jnp.float32(1)))
    return jnp.clip(coef * factor, 1e-10, 1e10)
