"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347), whole on one page.

Collect a rollout; estimate how much better each action was than expected; take a few epochs of gradient steps on

    L = clipped surrogate + vf_coef * value loss - ent_coef * entropy

and start again. A memory, if the network has one, changes what a minibatch is made of: whole sequences of steps.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from purerl import losses
from purerl.advantages import estimate, standardize
from purerl.clock import before, clock_at, tick
from purerl.config import PPOConfig
from purerl.keys import stream
from purerl.metrics import Mean, explained_variance, mean_of
from purerl.normalize import Statistics, merge_statistics, no_statistics, scale_rewards, standardize_values
from purerl.optimizers import adapted_coefficient, coefficients, descent, direction
from purerl.phases import init_phase, run_phase, sequences
from purerl.reductions import mean
from purerl.rollout import collect, start, step_counts
from purerl.types import Advantages, Algorithm, Clock, Environment, Network, Phase, Sample, Sequences, TrainState, Transition
from purerl.wrappers import acting, observing, warming


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
    optimizer: Any = None,
    lr_schedule: Callable[[jax.Array], jax.Array] | None = None,
    reward_shaper: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
) -> Algorithm:
    """PPO as two pure functions.

    Args:
        cfg: the config.
        env: environments.
        network: policy and value function.
        advantage: `(steps [T, B], cfg) -> Advantages [T, B]`.
        policy_loss: `(log_prob, old_log_prob, advantage, cfg) -> loss`, all `[L, N]`.
        optimizer: an optax transformation that gives the direction of descent, without a learning rate; None for the config's.
        lr_schedule: `(gradient steps so far) -> learning rate`; None for the config's.
        reward_shaper: `(reward [T, B], environment steps before each row [T, 1]) -> reward [T, B]`.
    """
    remembers = bool(jax.tree.leaves(network.initial_carry(1)))
    optimizer = optimizer or direction(cfg)
    length = cfg.training_length if remembers else cfg.num_steps if cfg.minibatches == "env" else 1

    def phase_at(clock, loss=None):
        return Phase(
            name="ppo",
            loss=loss,
            descent=descent(cfg, optimizer, lr_schedule, clock),
            group=None,
            epochs=cfg.num_epochs,
            minibatches=cfg.num_minibatches,
            max_grad_norm=cfg.max_grad_norm,
            joint=cfg.grad_clip == "joint",
            length=length,
            block=cfg.num_envs if cfg.minibatches == "time" else 1,
            start=cfg.skipped_updates,
        )

    def init(key: jax.Array) -> TrainState:
        actor = start(env, network, cfg.num_envs, stream(key, "start"))
        params = network.init(stream(key, "params"), jax.tree.map(lambda x: x[None], actor.obs))
        opt_state = {"ppo": init_phase(phase_at(None), params)}
        extra = {"kl_coef": jnp.float32(cfg.kl_coef)} if cfg.kl_penalty == "adaptive" else {}
        return TrainState(params, opt_state, actor, clock_at(0), key, no_statistics(cfg, env.observation_space), extra)

    def update(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        now = coefficients(cfg, state)
        behaviour = warming(cfg, acting(cfg, network, state), state, env.action_space)
        key = stream(state.key, "rollout", state.clock)
        parts = (cfg.num_steps, cfg.truncation, length if remembers else cfg.num_steps)
        actor, rollout, acted = collect(env, behaviour, state.params, state.actor, key, *parts)
        steps = rollout.steps
        if reward_shaper is not None:
            steps = steps.replace(reward=reward_shaper(steps.reward, step_counts(state.clock, *steps.reward.shape)))
        statistics, steps = scale_rewards(cfg, state.statistics, steps)
        advantages = advantage(steps, cfg)
        if cfg.advantage_norm == "batch":
            advantages = advantages.replace(advantage=standardize(advantages.advantage))
        data = sequences(samples(cfg, steps, advantages, statistics), rollout.carry, length)
        seeing = observing(cfg, network, statistics)
        phase = phase_at(state.clock, ppo_loss(now, seeing, policy_loss))
        params, opt_state, learnt = run_phase(phase, state.clock, state.key, state.params, state.opt_state["ppo"], data)
        stopped = Mean(jnp.float32(0), learnt["loss"].count)  # where nothing stops a phase
        metrics = {**acted, "stopped": stopped, **learnt, "lr": mean_of(phase.descent.lr(opt_state))}
        extra, moved = adapted_penalty(now, seeing, params, data, state.clock)
        statistics = merge_statistics(cfg, statistics, steps.obs, advantages.target)
        after = TrainState(params, {"ppo": opt_state}, actor, tick(state.clock), state.key, statistics, extra)
        return after, {**metrics, **moved, "explained_variance": explained_variance(steps.value, advantages.target)}

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
        kl = {"kl": mean(old.policy.kl(outputs.policy))} if cfg.measures_kl else {}
        if cfg.kl_penalty != "none":
            total = total + cfg.kl_coef * kl["kl"]
        return total, kl | {
            "loss": total,
            "policy_loss": policy,
            "value_loss": value,
            "entropy": entropy,
            "approx_kl": mean(losses.approximate_kl(log_prob, old.log_prob)),
            "clip_fraction": mean(losses.clip_fraction(log_prob, old.log_prob, cfg.clip_eps)),
        }

    return loss


def adapted_penalty(
    cfg: PPOConfig, network: Network, params: Any, data: Sequences, clock: Clock
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """The weight of an adaptive KL penalty for the next update, after this one moved the policy, if it did; and its metrics."""
    if cfg.kl_penalty != "adaptive":
        return {}, {}
    outputs, _ = network.apply(params, data.carry, data.steps.obs, data.steps.first)
    kl = mean(data.steps.policy.kl(outputs.policy))
    coef = jnp.where(before(clock, cfg.skipped_updates), cfg.kl_coef, adapted_coefficient(cfg, cfg.kl_coef, kl))
    return {"kl_coef": coef}, {"kl_coef": mean_of(cfg.kl_coef), "kl_after": mean_of(kl)}


def samples(cfg: PPOConfig, steps: Transition, advantages: Advantages, statistics: Statistics) -> Sample:
    """What the loss reads of a rollout and its advantages, `[T, B]`; values and targets in the units of the network."""
    names = ("obs", "first", "action", "log_prob", *(("policy",) if cfg.measures_kl else ()))
    kept = {name: getattr(steps, name) for name in names}
    value, target = (standardize_values(statistics, x) for x in (steps.value, advantages.target))
    return Sample(**kept, value=value, advantage=advantages.advantage, target=target)
