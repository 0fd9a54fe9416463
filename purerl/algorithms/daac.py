"""Decoupled Advantage Actor-Critic (Raileanu & Fergus 2021, arXiv:2102.10330): what it adds to PPO.

Two networks that share nothing, each with its own optimizer. The policy's also predicts the advantage of the action it took,

    L_policy = clipped surrogate - ent_coef * entropy + adv_coef * mean((A_theta(s, a) - A)^2)

with A the standardised advantage. The value network learns by itself, with more passes over a rollout, or from fewer rollouts.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from purerl.algorithms.ppo import phase_of, ppo, ppo_loss, surrogate, value_phase_loss
from purerl.config import DAACConfig
from purerl.optimizers import descent, direction, unsteered
from purerl.reductions import mean
from purerl.types import Algorithm, Clock, Environment, Network, Outputs, Phase, Sample


def daac(
    cfg: DAACConfig,
    env: Environment,
    network: Network,
    *,
    policy_loss: Callable[..., jax.Array] = surrogate,
    optimizer: Any = None,
    lr_schedule: Callable[[jax.Array], jax.Array] | None = None,
    **parts,
) -> Algorithm:
    """DAAC as two pure functions; the arguments are those of `ppo`. The network has the head `advantage`.

    A schedule in gradient steps counts those of the value's phase in every update, whether it is due or not.
    """
    optimizer = direction(cfg, optimizer)

    def phases(cfg: DAACConfig, network: Network, clock: Clock | None) -> list[Phase]:
        value = descent(unsteered(cfg), optimizer, lr_schedule, clock, cfg.e_v)
        policy = descent(cfg, optimizer, lr_schedule, clock, cfg.e_pi)
        loss = ppo_loss(cfg, network, policy_loss, advantage_term)
        more = {"group": ("value",), "every": cfg.value_freq, "prefix": "value/"}
        return [
            phase_of(cfg, network, "value", value_phase_loss(cfg, network), value, cfg.e_v, **more),
            phase_of(cfg, network, "policy", loss, policy, cfg.e_pi, group=("policy", "advantage")),
        ]

    return ppo(cfg, env, network, phases=phases, **parts)


def advantage_term(cfg: DAACConfig, params: Any, outputs: Outputs, old: Sample) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The advantage head's share of the policy's loss, and its metrics: the whole squared error, as in the paper."""
    predicted = outputs.heads["advantage"](outputs.policy.encoded(old.action))
    error = mean(jnp.square(predicted - old.advantage))
    return cfg.adv_coef * error, {"advantage_loss": error}
