"""The KL penalty of PPO's paper (Schulman et al. 2017, arXiv:1707.06347, section 4), with a fixed or adaptive coefficient."""

from typing import Any

import jax
import jax.numpy as jnp

from purerl.config.base import OnPolicyConfig
from purerl.core.metrics import mean_of
from purerl.core.reductions import mean
from purerl.core.types import Network, Outputs, PyTree, Sample, Scalar, Sequences, TrainState


def initial_kl_coef(cfg: OnPolicyConfig) -> dict[str, jax.Array]:
    """Return the initial coefficient of an adaptive penalty as an entry of `TrainState.extra`, or an empty dict without one."""
    return {"kl_coef": jnp.float32(cfg.kl_coef)} if cfg.kl_penalty == "adaptive" else {}


def kl_loss(params: PyTree, outputs: Outputs, batch: Sample, cfg: OnPolicyConfig) -> tuple[Scalar, dict[str, jax.Array]]:
    """Compute the loss term `kl_coef * KL(old || new)`, or 0 if the divergence is only measured; and the metric `kl`."""
    kl = batch.policy.kl(outputs.policy).mean()
    return 0.0 if cfg.kl_penalty == "none" else cfg.kl_coef * kl, {"kl": kl}


def adapt_kl_coef(cfg: OnPolicyConfig, network: Network, state: TrainState, data: Sequences) -> tuple[TrainState, dict[str, Any]]:
    """Return the state with the KL coefficient of the next update, and metrics.

    Args:
        cfg: the config of this update, see `Learner.at`.
        network: the network of this update, which standardises observations itself.
        state: the state after learning.
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
    """Return the KL coefficient after an update with divergence `kl`: raised if `kl` is too large, lowered if too small.

    The coefficient is clipped to [1e-10, 1e10], since a coefficient of 0 or infinity could never change again.
    """
    too_far, too_near = kl > cfg.desired_kl * cfg.kl_coef_tolerance, kl < cfg.desired_kl / cfg.kl_coef_tolerance
    factor = jnp.where(too_far, cfg.kl_coef_raise, jnp.where(too_near, cfg.kl_coef_lower, jnp.float32(1)))
    return jnp.clip(coef * factor, 1e-10, 1e10)
