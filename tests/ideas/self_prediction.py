"""An auxiliary phase: the policy's logits and the action predict the logits of the next step."""

import jax
import jax.numpy as jnp

from purerl.algorithms.ppo import ppo, ppo_phases
from purerl.learning.optimizers import phase_optimizer, without_kl_control
from purerl.learning.phases import make_phase


def phases(cfg, network, parts, clock):
    def loss(params, batch):
        policy = network.apply(params, batch.carry, batch.steps.obs, batch.steps.first)[0].policy
        known = jnp.concatenate([policy.logits, policy.encoded(batch.steps.action)], -1)[:-1]
        target = jax.lax.stop_gradient(policy.logits[1:])
        error = jnp.square(known @ params["predictor"] - target).sum(-1)
        error = jnp.where(batch.steps.first[1:], 0.0, error).mean()
        return 0.1 * error, {"self_prediction/error": error}

    own = without_kl_control(cfg)
    optimizer = phase_optimizer(own, parts.base_optimizer, parts.lr_schedule, clock, 1)
    options = {"groups": ("policy", "predictor"), "prefix": "self_prediction/"}
    aux = make_phase(cfg, network, "self_prediction", loss, optimizer, 1, **options)
    return [aux._replace(length=cfg.num_steps), *ppo_phases(cfg, network, parts, clock)]


def self_prediction(cfg, env, network, parts):
    n = env.action_space.n
    init = lambda key, obs: network.init(key, obs) | {"predictor": jnp.zeros((2 * n, n))}
    return ppo(cfg, env, network._replace(init=init), parts, phases)
