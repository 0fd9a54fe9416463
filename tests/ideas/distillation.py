"""Distillation: a student that observes less than its teacher learns the teacher's policy on the student's rollouts."""

import jax

import purerl


def distilled(teacher, state):
    """Return PPO with the policy loss KL(teacher || student). Both must be trained without normalised observations."""
    sees_all = teacher.policy(state)

    def algorithm(cfg, env, network, parts):
        def apply(params, carry, obs, first):
            outputs, after = network.apply(params, carry, obs, first)
            target = sees_all.network.apply(sees_all.params, (), obs, first)[0].policy
            return outputs._replace(heads={"teacher": jax.lax.stop_gradient(target)}), after

        def imitation(outputs, old, advantage, cfg):
            return outputs.heads["teacher"].kl(outputs.policy)

        return purerl.ppo(cfg, env, network._replace(apply=apply), parts._replace(policy_loss=imitation))

    return algorithm
