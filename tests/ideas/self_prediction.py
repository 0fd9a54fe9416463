"""An auxiliary phase that predicts the policy's next logits from its present logits and the action."""

import jax
import jax.numpy as jnp

from purerl import make_phase, ppo, ppo_phases


def phases(learner):
    def loss(params, batch):
        steps = batch.steps
        policy = learner.network.apply(params, batch.carry, steps.obs, steps.first)[0].policy
        known = jnp.concatenate([policy.logits, policy.encode(steps.action)], -1)[:-1]
        target = jax.lax.stop_gradient(policy.logits[1:])
        error = jnp.square(known @ params["predictor"] - target).sum(-1)
        error = jnp.where(steps.first[1:], 0.0, error).mean()
        return 0.1 * error, {"self_prediction/error": error}

    options = {"groups": ("policy", "predictor"), "prefix": "self_prediction/"}
    aux = make_phase(learner, "self_prediction", loss, 1, follows_kl=False, **options)
    return [aux, *ppo_phases(learner)]


def self_prediction(cfg, env, network, parts):
    n = env.action_space.n
    init = lambda key, obs: network.init(key, obs) | {"predictor": jnp.zeros((2 * n, n))}
    whole = cfg.replace(minibatches="env")
    return ppo(whole, env, network._replace(init=init), parts, phases)
