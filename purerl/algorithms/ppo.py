"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347), whole on one page.

Collect a rollout; estimate how much better each action was than expected; take a few epochs of gradient steps on

    L = clipped surrogate + vf_coef * value loss - ent_coef * entropy

and start again. A memory, if the network has one, needs nothing here: minibatches are then whole environment columns.
"""

from collections.abc import Callable
from typing import Any

import jax

from purerl import losses
from purerl.advantages import estimate, standardize
from purerl.clock import clock_at, tick
from purerl.config import PPOConfig
from purerl.keys import stream
from purerl.metrics import explained_variance, mean_of
from purerl.normalize import Statistics, acting, merge_statistics, no_statistics, observing, scale_rewards, standardize_values
from purerl.optimizers import adam, learning_rate
from purerl.phases import init_phase, run_phase, sequences
from purerl.reductions import mean
from purerl.rollout import collect, start
from purerl.types import Advantages, Algorithm, Environment, Network, Phase, Sample, TrainState, Transition


def surrogate(log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, cfg: PPOConfig) -> jax.Array:
    """The policy loss of PPO, step by step; what `policy_loss` replaces."""
    return losses.clipped_surrogate(log_prob, old_log_prob, advantage, cfg.clip_eps)


def ppo(
    cfg: PPOConfig,
    env: Environment,
    network: Network,
    *,
    advantage: Callable[[Transition, PPOConfig], Advantages] = estimate,
    policy_loss: Callable[..., jax.Array] = surrogate,
) -> Algorithm:
    """PPO as two pure functions.

    Args:
        cfg: the config.
        env: environments.
        network: policy and value function.
        advantage: `(steps [T, B], cfg) -> Advantages [T, B]`.
        policy_loss: `(log_prob, old_log_prob, advantage, cfg) -> loss`, all `[L, N]`.
    """
    remembers = bool(jax.tree.leaves(network.initial_carry(1)))
    phase = Phase(
        name="ppo",
        loss=None,  # it sees the statistics of the update
        optimizer=adam(cfg.adam_eps),
        group=None,
        epochs=cfg.num_epochs,
        minibatches=cfg.num_minibatches,
        length=cfg.num_steps if remembers else 1,
    )

    def init(key: jax.Array) -> TrainState:
        actor = start(env, network, cfg.num_envs, stream(key, "start"))
        params = network.init(stream(key, "params"), jax.tree.map(lambda x: x[None], actor.obs))
        opt_state = {phase.name: init_phase(phase, params)}
        return TrainState(params, opt_state, actor, clock_at(0), key, no_statistics(cfg, actor.obs))

    def update(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        key = stream(state.key, "rollout", state.clock)
        actor, rollout, acted = collect(env, acting(network, state, cfg.obs_clip), state.params, state.actor, key, cfg.num_steps)
        statistics, steps = scale_rewards(cfg, state.statistics, rollout.steps)
        advantages = advantage(steps, cfg)
        if cfg.advantage_norm == "batch":
            advantages = advantages.replace(advantage=standardize(advantages.advantage))
        data = sequences(samples(steps, advantages, statistics), rollout.carry, phase.length)
        seeing = phase._replace(loss=ppo_loss(cfg, observing(network, statistics, cfg.obs_clip), policy_loss))
        lr = learning_rate(state.clock, cfg.num_updates, cfg.lr, cfg.lr_final, cfg.lr_schedule)
        params, opt_state, learnt = run_phase(
            seeing, state.clock, state.key, state.params, state.opt_state[phase.name], data, lr, cfg.max_grad_norm
        )
        explained = explained_variance(steps.value, advantages.target)
        metrics = {**acted, **learnt, "explained_variance": explained, "lr": mean_of(lr)}
        statistics = merge_statistics(cfg, statistics, steps.obs, advantages.target)
        return TrainState(params, {phase.name: opt_state}, actor, tick(state.clock), state.key, statistics), metrics

    return Algorithm(init, update)


def ppo_loss(cfg: PPOConfig, network: Network, policy_loss: Callable[..., jax.Array] = surrogate) -> Callable:
    """PPO's loss, as a function of all parameters and a minibatch of `Sample`."""

    def loss(params, batch):
        old = batch.steps
        outputs, _ = network.apply(params, batch.carry, old.obs, old.first)
        log_prob, entropy = outputs.policy.log_prob(old.action), mean(outputs.policy.entropy())
        advantage = standardize(old.advantage) if cfg.advantage_norm == "minibatch" else old.advantage
        policy = mean(policy_loss(log_prob, old.log_prob, advantage, cfg))
        value = mean(losses.value_loss(outputs.value, old.value, old.target, cfg.value_clip, cfg.value_clip_eps))
        total = policy + cfg.vf_coef * value - cfg.ent_coef * entropy
        return total, {
            "loss": total,
            "policy_loss": policy,
            "value_loss": value,
            "entropy": entropy,
            "approx_kl": mean(losses.approximate_kl(log_prob, old.log_prob)),
            "clip_fraction": mean(losses.clip_fraction(log_prob, old.log_prob, cfg.clip_eps)),
        }

    return loss


def samples(steps: Transition, advantages: Advantages, statistics: Statistics) -> Sample:
    """What the loss reads of a rollout and its advantages, `[T, B]`; values and targets in the units of the network."""
    kept = {name: getattr(steps, name) for name in ("obs", "first", "action", "log_prob")}
    value, target = (standardize_values(statistics, x) for x in (steps.value, advantages.target))
    return Sample(**kept, value=value, advantage=advantages.advantage, target=target)
