"""Simulated asynchronous PPO, with explicit staleness: what it adds to PPO.

    act with the parameters of `lag` updates ago; keep the rollout in a ring buffer
    once per update, for each rollout used: V with the newest parameters, log-probabilities of the target policy pi_T
    V-trace with rho = pi_T / pi_b  ->  A, targets
    a few epochs on PPO's loss with the ratio  min(pi_b / pi_T, clip) * pi / pi_b  =  pi / max(pi_T, pi_b / clip)
    now and then  target <- tau * parameters + (1 - tau) * target

V-trace is Espeholt et al. 2018 (arXiv:1802.01561). The ratio and the ring buffer are IMPACT's (Luo et al. 2020,
arXiv:1912.00167). Actors have their own, older copy of parameters and statistics. The target policy is older parameters with
the newest statistics.

**Decided where papers and codes differ.** Nothing runs asynchronously: how stale data is, is a setting (`lag`, `publish_every`,
`replay`), so runs are reproducible. Values are those of the newest parameters. The ratio's clip is 2 as in IMPACT
(`target_ratio_clip`; UniLab has 1). V-trace bootstraps at time limits as GAE does.

**Defaults**: two rollouts in the ring, a lag of one update, and a target that moves in every fourth update.

**When to choose it.** To study stale data, or to prepare a run whose actors will be elsewhere. With data of actors eight
updates behind, each rollout used four times, a target network that is copied every eight updates was as good as PPO on fresh
data on CartPole and Breakout; one that is copied in every update, or no correction, lost a third of the return on Breakout.
Without lag, four uses of each rollout were better than PPO's four epochs on Breakout (12.2 against 8.7 after 250,000 steps),
and no better on CartPole. An update takes longer than PPO's: by return a second PPO was ahead on CartPole
(`tests/benchmarks/RESULTS.md`).

**Metrics** beside PPO's:

- `data_age`: by how many updates the parameters that gathered the data are behind the newest, on average.
- `behaviour_kl`: how far the newest policy is from those that acted, in nats.
- `rho_clip_fraction`, `rho_p99`: the share of importance weights above their bound, and their 99th percentile.
- `effective_sample_size`: as a share of the steps. Below 0.5 most of the data hardly counts: lower `lag` or `replay`.
- `target_updates`: moves of the target network. `approx_kl` is measured from the ratio's denominator, and is above 0 from
  staleness alone.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.acting.final_obs import most_truncations
from purerl.acting.normalize import merge_statistics
from purerl.acting.rollout import collect_rollout
from purerl.acting.wrappers import with_obs_normalization, with_statistics
from purerl.algorithms.ppo import ppo, ppo_phases
from purerl.config.algorithms import APPOConfig
from purerl.core.arguments import accepted
from purerl.core.clock import increment, is_before, is_due, remainder, updates_since
from purerl.core.keys import named_key
from purerl.core.metrics import Sum, mean_of
from purerl.core.reductions import at_once, largest, num_devices, quantile, total
from purerl.core.streams import EPISODIC, extrinsic
from purerl.core.types import Actor, Advantages, Algorithm, Environment, Network, Rollout, TrainState, Transition
from purerl.learning import losses
from purerl.learning.advantages import advantage_estimator, estimate, value_metrics, vtrace
from purerl.learning.components import Components
from purerl.learning.kl_penalty import adapt_kl_coef
from purerl.learning.optimizers import scheduled_config
from purerl.learning.phases import run_phases
from purerl.learning.replay import (
    RingBatch,
    empty_ring,
    recompute_outputs,
    recompute_policy,
    ring_batch,
    ring_drop_newest,
    ring_push,
    ring_select,
    ring_take,
)
from purerl.learning.training_set import training_set

PyTree = Any


def appo(cfg: APPOConfig, env: Environment, network: Network, parts: Components) -> Algorithm:
    """APPO as two pure functions; the arguments are the first four of `ppo`. A user's estimator takes the place of V-trace."""
    base = ppo(cfg, env, network, parts)
    length = cfg.training_length if network.is_recurrent else cfg.num_steps
    count = most_truncations(env, cfg.num_steps)
    keeps_policy = cfg.correction == "none" and (cfg.measures_kl or parts.sees_old_policy)  # V-trace has the target's

    def act(state: TrainState, published: dict[str, PyTree]) -> tuple[TrainState, Rollout, dict[str, Any]]:
        """A rollout of the published policy."""
        behaviour, valued = state.replace(**published), cfg.correction == "none"
        state, rollout, rollout_metrics = collect_rollout(cfg, env, network, state, behaviour, valued=valued)
        if not keeps_policy:
            rollout = rollout.replace(steps=rollout.steps.replace(policy=()))
        state, rollout, reward_metrics = parts.rewards.process(state, rollout)
        return state, rollout, rollout_metrics | reward_metrics

    def kept(rollout: Rollout, after: Actor) -> RingBatch:
        """What the ring keeps of a rollout: intrinsic rewards are learnt from all observations that steps led to."""
        return ring_batch(rollout, after, count, keep_next_obs=cfg.streams > 1)

    def first_kept(state: TrainState, snapshot: dict[str, PyTree]) -> RingBatch:
        after, rollout, _ = act(state, snapshot)
        return kept(rollout, after.actor)

    def init(key: jax.Array) -> TrainState:
        state = base.init(key)
        snapshot = {"params": state.params, "statistics": state.statistics}
        extra = {
            "published": snapshots(cfg, snapshot),
            "ring": empty_ring(jax.eval_shape(first_kept, state, snapshot), cfg.replay),
            "target": jax.tree.map(jnp.copy, state.params),  # a copy, so that a state can be donated
        }
        return state.replace(extra=state.extra | extra)

    def update(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        cfg_now, target_params = scheduled_config(cfg, state), state.extra["target"]
        published, snapshot, behind = publish(cfg, state)
        state, newest, rollout_metrics = act(state, snapshot)

        ring = ring_push(state.extra["ring"], state.clock, kept(newest, state.actor), behind)
        learns = ~is_before(state.clock, cfg.skipped_updates)
        key = named_key(state.key, "replay", state.clock)
        ring, places = ring_select(ring, cfg.max_uses or cfg.replay, cfg.replay_order, key, learns)
        batch = ring_take(ring, places)
        batch = batch.replace(rollout=batch.rollout.replace(steps=parts.rewards.prepare(state, batch.rollout.steps)))

        steps, advantages, staleness_metrics = estimated(cfg, network, parts, state, batch, length)
        rollout = batch.rollout.replace(steps=steps)
        data = training_set(cfg, state.statistics, rollout, advantages, base.phases[0].length, parts.sees_old_policy)
        learner = with_obs_normalization(cfg, network, state.statistics)
        metrics = rollout_metrics | staleness_metrics | value_metrics(steps, advantages)
        metrics["value"] = mean_of(extrinsic(steps.value, steps.first))
        metrics, key, data = at_once(metrics, state.key, data)
        phases = ppo_phases(cfg_now, learner, parts.given(state), state.clock)
        state, train_metrics = run_phases(phases, state.replace(key=key), data)
        state, penalty_metrics = adapt_kl_coef(cfg_now, learner, state, data)

        moves = is_due(state.clock, cfg.target_update_freq)
        moved = lambda: moved_towards(target_params, state.params, cfg.tau)
        target_params = jax.lax.cond(moves, moved, lambda: target_params)
        target = advantages.target[:, : newest.steps.first.shape[1]]  # of the newest
        statistics = merge_statistics(cfg, state.statistics, newest.steps.obs, target)
        extra = {**state.extra, "published": published, "ring": ring, "target": target_params}
        state = state.replace(clock=increment(state.clock), statistics=statistics, extra=extra)
        metrics |= train_metrics | penalty_metrics
        metrics |= {
            "data_age": mean_of((ring.age + ring.lag)[places].astype(jnp.float32)),
            "target_updates": Sum(moves.astype(jnp.int32)),
        }
        return state, metrics | parts.measure(state, data, metrics)

    def restart(state: TrainState) -> TrainState:
        snapshot = {"params": state.params, "statistics": state.statistics}
        target = jax.tree.map(jnp.copy, state.params)  # as in `init`
        return state.replace(extra={**state.extra, "published": snapshots(cfg, snapshot), "target": target})

    def skipped(state: TrainState, after: TrainState) -> dict[str, PyTree]:
        """The rollout of an update that is not learnt from is dropped. Actors, and the ages of the other rollouts, advance."""
        ring = ring_drop_newest(after.extra["ring"], state.clock, state.extra["ring"])
        return {**state.extra, "published": after.extra["published"], "ring": ring}

    return Algorithm(init, update, base.phases, restart, skipped)


# --- actors -----------------------------------------------------------------------------------------------------------


def num_snapshots(cfg: APPOConfig) -> int:
    """How many snapshots of the parameters must be kept for actors that lag."""
    return -(-cfg.lag // cfg.publish_every) + 1


def snapshots(cfg: APPOConfig, snapshot: PyTree) -> PyTree:
    """One snapshot in the place of all."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_snapshots(cfg), *x.shape)), snapshot)


def publish(cfg: APPOConfig, state: TrainState) -> tuple[PyTree, PyTree, jax.Array]:
    """The snapshots with the newest if it is published now, the one that acts now, and how many updates that one is behind.

    A snapshot is the pair of parameters and statistics. In update i that of `j = max(i - lag, 0)`, rounded down to a multiple of
    `publish_every`, acts.
    """
    every, count = cfg.publish_every, num_snapshots(cfg)
    slot = lambda clock: (remainder(clock, every * count) // np.uint32(every)).astype(jnp.int32)
    newest, kept = {"params": state.params, "statistics": state.statistics}, state.extra["published"]
    write = lambda: jax.tree.map(lambda old, new: old.at[slot(state.clock)].set(new), kept, newest)
    kept = jax.lax.cond(remainder(state.clock, every) == 0, write, lambda: kept)
    source = updates_since(state.clock, cfg.lag)
    behind = jnp.where(is_before(state.clock, cfg.lag), state.clock.low, np.uint32(cfg.lag)) + remainder(source, every)
    return kept, jax.tree.map(lambda x: x[slot(source)], kept), behind.astype(jnp.int32)


def moved_towards(target: PyTree, params: PyTree, tau: jax.Array) -> PyTree:
    """`(1 - tau) * target + tau * params`; with tau = 1 exactly the parameters."""
    return jax.tree.map(lambda old, new: jnp.where(tau == 1, new, old + tau * (new - old)), target, params)


# --- off-policy correction --------------------------------------------------------------------------------------------


def estimated(
    cfg: APPOConfig, network: Network, parts: Components, state: TrainState, batch: RingBatch, length: int
) -> tuple[Transition, Advantages, dict[str, Any]]:
    """Steps and advantages to learn from, corrected for staleness if `correction` is on; metrics of staleness."""
    if cfg.correction == "none":
        steps = batch.rollout.steps
        return steps, advantage_estimator(cfg, parts.advantage)(steps, cfg), {}
    return corrected(cfg, with_statistics(cfg, network, state), state, batch, length, parts.advantage)


def corrected(
    cfg: APPOConfig,
    network: Network,
    state: TrainState,
    batch: RingBatch,
    length: int,
    advantage: Callable = estimate,
) -> tuple[Transition, Advantages, dict[str, Any]]:
    """Steps with the learner's values and the log-probabilities in the denominator of the ratio; advantages; metrics.

    Args:
        cfg: clips.
        network: gives values in units of reward.
        state: its parameters give values, its target log-probabilities.
        batch: the rollouts to learn from.
        length: steps of a training sequence.
        advantage: in place of V-trace, if it is not the default. If it has the parameter `log_ratio`, it is given that of the
          target policy to the one that acted, `[T, B]`.
    """
    outputs, next_value = recompute_outputs(network, state.params, batch, length, EPISODIC if cfg.streams > 1 else ())
    target = recompute_policy(network, state.extra["target"], batch, length)
    steps = batch.rollout.steps.replace(value=outputs.value, next_value=next_value)
    behaviour_log_prob, target_log_prob = steps.log_prob, target.log_prob(steps.action)
    log_ratio = target_log_prob - behaviour_log_prob
    if advantage is estimate:
        clips = (cfg.vtrace_rho_clip, cfg.vtrace_c_clip, cfg.vtrace_pg_clip)
        advantage = lambda steps, cfg: vtrace(steps, log_ratio, cfg.gamma, cfg.gae_lambda, *clips)
    advantage = functools.partial(advantage, **accepted(advantage, log_ratio=log_ratio))
    advantages = advantage_estimator(cfg, advantage)(steps, cfg)
    old_log_prob = jnp.maximum(target_log_prob, behaviour_log_prob - jnp.log(cfg.target_ratio_clip))
    rho, scaled = jnp.exp(log_ratio), jnp.exp(log_ratio - largest(log_ratio))  # sums of the latter cannot overflow
    effective = jnp.square(total(scaled)) / (rho.size * num_devices() * total(jnp.square(scaled)))
    staleness_metrics = {
        "rho_clip_fraction": mean_of((rho > cfg.vtrace_rho_clip).astype(jnp.float32)),
        "rho_p99": mean_of(jnp.exp(quantile(log_ratio, 0.99))),
        "behaviour_kl": mean_of(losses.approximate_kl(outputs.policy.log_prob(steps.action), behaviour_log_prob)),
        "effective_sample_size": mean_of(effective),
    }
    return steps.replace(log_prob=old_log_prob, policy=target), advantages, staleness_metrics
