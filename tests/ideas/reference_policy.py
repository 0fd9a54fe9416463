"""A KL penalty towards a reference policy, whose parameters are an exponential moving average of the policy's."""

import jax

import purerl


@purerl.configclass
class ReferenceConfig(purerl.PPOConfig):
    """PPO near a reference policy.

    Policy loss:
        reference_kl: Weight of KL(reference || policy).
        reference_rate: Step size of the moving average, in each update.
    """

    reference_kl: float = purerl.leaf(0.3)
    reference_rate: float = purerl.leaf(0.05)


def near_reference(cfg, env, network, parts):
    def init(key, obs):
        params = network.init(key, obs)
        return params | {"reference": params["policy"]}

    def apply(params, carry, obs, first):
        outputs, after = network.apply(params, carry, obs, first)
        reference = jax.lax.stop_gradient(params["reference"])
        copy = network.apply(params | {"policy": reference}, carry, obs, first)[0]
        return outputs._replace(heads={"reference": copy.policy}), after

    def penalty(params, outputs, batch, cfg):
        kl = outputs.heads["reference"].kl(outputs.policy).mean()
        return cfg.reference_kl * kl, {"reference_kl": kl}

    parts = parts._replace(extra_losses=(*parts.extra_losses, penalty))
    base = purerl.ppo(cfg, env, network._replace(init=init, apply=apply), parts)

    def update(state):
        state, metrics = base.update(state)
        nearer = lambda old, new: old + cfg.reference_rate * (new - old)
        moved = jax.tree.map(nearer, state.params["reference"], state.params["policy"])
        return state.replace(params=state.params | {"reference": moved}), metrics

    return base._replace(update=update)
