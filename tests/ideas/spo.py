"""Simple Policy Optimization (Xie et al. 2024, arXiv:2401.16025): a squared penalty.

loss = -(r * A - |A| / (2 * eps) * (r - 1)^2)
"""

import jax.numpy as jnp

import purerl


@purerl.configclass
class SPOConfig(purerl.PPOConfig):
    """Simple Policy Optimization.

    Policy loss:
        spo_eps: The loss has its minimum at a ratio of 1 + spo_eps, or 1 - spo_eps for negative advantages.
    """

    spo_eps: float = purerl.leaf(0.2)


def spo_loss(outputs, old, advantage, cfg):
    ratio = purerl.losses.probability_ratio(outputs.policy.log_prob(old.action), old.log_prob)
    return -(ratio * advantage - jnp.abs(advantage) / (2 * cfg.spo_eps) * jnp.square(ratio - 1))


def spo(cfg, env, network, parts):
    return purerl.ppo(cfg, env, network, parts._replace(policy_loss=spo_loss))
