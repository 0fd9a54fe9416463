"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347), whole on one page.

Collect a rollout; estimate how much better each action was than expected; take a few epochs of gradient steps on

    L = clipped surrogate + vf_coef * value loss - ent_coef * entropy

and start again. A memory, if the network has one, changes what a minibatch is made of: whole sequences of steps.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from purerl import losses, streams
from purerl.advantages import estimate, standardize
from purerl.clock import before, clock_at, tick
from purerl.keys import stream
from purerl.metrics import Mean, explained_variance, mean_of
from purerl.normalize import Statistics, merge_statistics, no_statistics, scale_rewards, standardize_values
from purerl.on_policy import OnPolicyConfig
from purerl.optimizers import Direction, adapted_coefficient, coefficients, descent, direction
from purerl.phases import init_phase, run_phase, sequences
from purerl.reductions import mean
from purerl.rollout import collect, start, step_counts
from purerl.streams import estimating, of_environment
from purerl.types import (
    Actor,
    Advantages,
    Algorithm,
    Clock,
    Descent,
    Environment,
    Intrinsic,
    Network,
    Outputs,
    Phase,
    Rollout,
    Sample,
    Sequences,
    TrainState,
    Transition,
)
from purerl.wrappers import acting, observing, warming


def surrogate(log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, cfg: OnPolicyConfig) -> jax.Array:
    """The policy loss of PPO, step by step; what `policy_loss` replaces."""
    return losses.clipped_surrogate(log_prob, old_log_prob, advantage, cfg.clip_eps)


def ppo(
    cfg: OnPolicyConfig,
    env: Environment,
    network: Network,
    *,
    phases: Callable[[OnPolicyConfig, Network, Clock | None], list[Phase]] | None = None,
    keep: Callable[..., dict[str, Any]] = lambda state, rollout, advantages: {},
    advantage: Callable[[Transition, OnPolicyConfig], Advantages] = estimate,
    policy_loss: Callable[..., jax.Array] = surrogate,
    optimizer: Any = None,
    lr_schedule: Callable[[jax.Array], jax.Array] | None = None,
    reward_shaper: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    intrinsic: Intrinsic | None = None,
) -> Algorithm:
    """PPO as two pure functions.

    Args:
        cfg: the config.
        env: environments.
        network: policy and value function.
        phases: `(cfg, network, clock) -> phases`, what an update learns from its rollout, in this order, the last one the policy;
          None for PPO's one phase.
        keep: `(state, rollout, advantages) -> entries of state.extra` that change with each rollout.
        advantage: `(steps [T, B], cfg) -> Advantages [T, B]`.
        policy_loss: `(log_prob, old_log_prob, advantage, cfg) -> loss`, all `[L, N]`.
        optimizer: an optax transformation that gives the direction of descent, without a learning rate; None for the config's.
        lr_schedule: `(gradient steps so far) -> learning rate`; None for the config's.
        reward_shaper: `(reward [T, B], environment steps before each row [T, 1]) -> reward [T, B]`.
        intrinsic: a second stream of rewards; the network then has two values.
    """
    remembers = bool(jax.tree.leaves(network.initial_carry(1)))
    phases = phases or ppo_phases(policy_loss, direction(cfg, optimizer), lr_schedule, intrinsic)
    advantage = advantage if intrinsic is None else estimating(advantage)
    resting = tuple(phases(cfg, network, None))
    length = resting[0].length

    def init(key: jax.Array) -> TrainState:
        actor = start(env, network, cfg.num_envs, stream(key, "start"))
        params = network.init(stream(key, "params"), jax.tree.map(lambda x: x[None], actor.obs))
        extra = {"kl_coef": jnp.float32(cfg.kl_coef)} if cfg.kl_penalty == "adaptive" else {}
        if intrinsic is not None:
            groups, extra["intrinsic"] = intrinsic.init(stream(key, "intrinsic"), actor.obs)
            params = params | groups
        opt_state = {phase.name: init_phase(phase, params) for phase in resting}
        return TrainState(params, opt_state, actor, clock_at(0), key, no_statistics(cfg, env.observation_space), extra)

    def update(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        now = coefficients(cfg, state)
        options = {"length": length if remembers else cfg.num_steps, **streams.kept(intrinsic)}
        actor, rollout, acted = experience(cfg, env, network, state, state, reward_shaper, **options)
        statistics, steps = scale_rewards(cfg, state.statistics, rollout.steps)
        curious, steps, paid = streams.rewarded(intrinsic, state, steps)
        advantages = advantage(steps, cfg)
        if cfg.advantage_norm == "batch":
            advantages = advantages.replace(advantage=standardize(advantages.advantage))
        seen = streams.training(intrinsic, curious, steps, state)
        data = sequences(samples(cfg, steps, advantages, statistics, seen), rollout.carry, length)
        learner, learnt = learn(now, observing(cfg, network, statistics), phases, state, data)
        extra = {**learner.extra, **curious, **keep(state, rollout.replace(steps=steps), advantages)}
        statistics = merge_statistics(cfg, statistics, steps.obs, advantages.target)
        after = learner.replace(actor=actor, clock=tick(state.clock), statistics=statistics, extra=extra)
        explained = explained_variance(*(of_environment(x, steps.first) for x in (steps.value, advantages.target)))
        return after, {**acted, **paid, **learnt, "explained_variance": explained}

    return Algorithm(init, update, resting)


def experience(
    cfg: OnPolicyConfig,
    env: Environment,
    network: Network,
    state: TrainState,
    actors: TrainState,
    reward_shaper: Callable[[jax.Array, jax.Array], jax.Array] | None,
    **options,
) -> tuple[Actor, Rollout, dict[str, Any]]:
    """The next rollout, its rewards shaped: what `collect` gives, with these options of it.

    Args:
        cfg: the config.
        env: environments.
        network: policy and value function.
        state: where the environments and the clock stand.
        actors: whose parameters and statistics act.
        reward_shaper: as `ppo` takes it.
    """
    behaviour = warming(cfg, acting(cfg, network, actors), state, env.action_space)
    key = stream(state.key, "rollout", state.clock)
    after = collect(env, behaviour, actors.params, state.actor, key, cfg.num_steps, cfg.truncation, **options)
    if reward_shaper is None:
        return after
    actor, rollout, acted = after
    reward = reward_shaper(rollout.steps.reward, step_counts(state.clock, *rollout.steps.reward.shape))
    return actor, rollout.replace(steps=rollout.steps.replace(reward=reward)), acted


def learn(
    cfg: OnPolicyConfig, network: Network, phases: Callable, state: TrainState, data: Sequences
) -> tuple[TrainState, dict[str, Any]]:
    """The state with what an update's phases make of its training set: parameters, optimizers, the weight of a penalty.

    Args:
        cfg: the config of this update, see `coefficients`.
        network: as learning sees it, see `observing`.
        phases: as `ppo` takes them.
        state: before.
        data: of `Sample`.
    """
    params, opt_state, metrics = state.params, dict(state.opt_state), {}
    for phase in phases(cfg, network, state.clock):
        params, opt_state[phase.name], learnt = run_phase(phase, state.clock, state.key, params, opt_state[phase.name], data)
        metrics |= learnt
    stopped = Mean(jnp.float32(0), metrics["loss"].count)  # where nothing stops a phase
    metrics = {"stopped": stopped, **metrics, "lr": mean_of(phase.descent.lr(opt_state[phase.name]))}
    penalty, moved = adapted_penalty(cfg, network, params, data, state.clock)
    return state.replace(params=params, opt_state=opt_state, extra=state.extra | penalty), metrics | moved


# --- phases -----------------------------------------------------------------------------------------------------------


def phase_of(cfg: OnPolicyConfig, network: Network, name: str, loss: Callable, descent: Descent, epochs: int, **more) -> Phase:
    """A phase that learns from one rollout, as the config says."""
    whole = cfg.training_length if jax.tree.leaves(network.initial_carry(1)) else 1
    return Phase(
        name=name,
        loss=loss,
        descent=descent,
        epochs=epochs,
        minibatches=cfg.num_minibatches,
        max_grad_norm=cfg.max_grad_norm,
        joint=cfg.grad_clip == "joint",
        length=cfg.num_steps if cfg.minibatches == "env" else whole,
        block=cfg.columns if cfg.minibatches == "time" else 1,
        start=cfg.skipped_updates,
        **{"group": None, **more},
    )


def ppo_phases(
    policy_loss: Callable[..., jax.Array], optimizer: Direction, lr_schedule: Callable | None, intrinsic: Intrinsic | None
) -> Callable:
    """The one phase of PPO, with policy and value in one loss; as `ppo` takes it."""
    term = streams.with_loss(value_term, intrinsic)

    def phases(cfg, network, clock):
        moving = descent(cfg, optimizer, lr_schedule, clock, cfg.policy_epochs)
        return [phase_of(cfg, network, "ppo", ppo_loss(cfg, network, policy_loss, term), moving, cfg.policy_epochs)]

    return phases


# --- losses -----------------------------------------------------------------------------------------------------------


def value_term(cfg: OnPolicyConfig, params: Any, outputs: Outputs, old: Sample) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The value's share of PPO's loss, and its metrics; of several reward streams the sum."""
    loss = losses.value_loss(outputs.value, old.value, old.target, cfg.value_clip, cfg.value_clip_eps)
    value = mean(streams.summed(loss, old.advantage))
    return cfg.vf_coef * value, {"value_loss": value}


def ppo_loss(
    cfg: OnPolicyConfig, network: Network, policy_loss: Callable[..., jax.Array] = surrogate, term: Callable = value_term
) -> Callable:
    """A policy's loss, as a function of all parameters and a minibatch of `Sample`.

    Args:
        cfg: its coefficients.
        network: what sees the minibatch.
        policy_loss: step by step.
        term: `(cfg, params, Outputs, Sample) -> (scalar, metrics)`, what the loss has beside the policy's own terms.
    """

    def loss(params, batch):
        old = batch.steps
        outputs, _ = network.apply(params, batch.carry, old.obs, old.first)
        log_prob, entropy = outputs.policy.log_prob(old.action), mean(outputs.policy.entropy())
        advantage = standardize(old.advantage) if cfg.advantage_norm == "minibatch" else old.advantage
        policy = mean(policy_loss(log_prob, old.log_prob, advantage, cfg))
        beside, metrics = term(cfg, params, outputs, old)
        total = policy + beside - cfg.ent_coef * entropy
        kl = {"kl": mean(old.policy.kl(outputs.policy))} if cfg.measures_kl else {}
        if cfg.kl_penalty != "none":
            total = total + cfg.kl_coef * kl["kl"]
        return total, metrics | kl | {
            "loss": total,
            "policy_loss": policy,
            "entropy": entropy,
            "approx_kl": mean(losses.approximate_kl(log_prob, old.log_prob)),
            "clip_fraction": mean(losses.clip_fraction(log_prob, old.log_prob, cfg.clip_eps)),
        }

    return loss


def value_phase_loss(cfg: OnPolicyConfig, network: Network) -> Callable:
    """The loss of a value function that learns by itself, as a function of all parameters and a minibatch of `Sample`."""

    def loss(params, batch):
        outputs, _ = network.apply(params, batch.carry, batch.steps.obs, batch.steps.first)
        return value_term(cfg, params, outputs, batch.steps)

    return loss


def adapted_penalty(
    cfg: OnPolicyConfig, network: Network, params: Any, data: Sequences, clock: Clock
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """The weight of an adaptive KL penalty for the next update, after this one moved the policy, if it did; and its metrics."""
    if cfg.kl_penalty != "adaptive":
        return {}, {}
    outputs, _ = network.apply(params, data.carry, data.steps.obs, data.steps.first)
    kl = mean(data.steps.policy.kl(outputs.policy))
    coef = jnp.where(before(clock, cfg.skipped_updates), cfg.kl_coef, adapted_coefficient(cfg, cfg.kl_coef, kl))
    return {"kl_coef": coef}, {"kl_coef": mean_of(cfg.kl_coef), "kl_after": mean_of(kl)}


def samples(
    cfg: OnPolicyConfig, steps: Transition, advantages: Advantages, statistics: Statistics, intrinsic: Any = ()
) -> Sample:
    """What the loss reads of a rollout and its advantages, `[T, B]`; values and targets in the units of the network."""
    names = ("obs", "first", "action", "log_prob", *(("policy",) if cfg.measures_kl else ()))
    kept = {name: getattr(steps, name) for name in names}
    value, target = (standardize_values(statistics, x) for x in (steps.value, advantages.target))
    return Sample(**kept, value=value, advantage=advantages.advantage, target=target, intrinsic=intrinsic)
