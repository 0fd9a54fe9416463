"""V-MPO's policy step (Song et al. 2019, arXiv:1909.12238): the better half of the batch
weighted by exp(A / eta), and a KL penalty."""

import jax
import jax.numpy as jnp

import purerl


@purerl.configclass
class VMPOConfig(purerl.PPOConfig):
    """V-MPO with a fixed temperature and penalty.

    Policy loss:
        eta: Temperature of the weights.
        alpha: Weight of KL(old || new).
    """

    eta: float = purerl.leaf(1.0)
    alpha: float = purerl.leaf(1.0)


def vmpo_loss(outputs, old, advantage, cfg):
    better = advantage >= jnp.median(advantage)
    weight = jax.nn.softmax(jnp.where(better, advantage / cfg.eta, -jnp.inf), axis=(0, 1))
    log_prob = outputs.policy.log_prob(old.action)
    return -weight * weight.size * log_prob + cfg.alpha * old.policy.kl(outputs.policy)


def vmpo(cfg, env, network, parts):
    return purerl.ppo(cfg, env, network, parts._replace(policy_loss=vmpo_loss))
