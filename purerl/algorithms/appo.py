"""APPO: PPO with simulated asynchronous actors and explicit staleness.

    act with the parameters of `lag` updates ago (behaviour policy pi_b); store the rollout in a ring buffer
    for the rollouts taken from the ring:  V of the newest parameters, log-probabilities of the target policy pi_T
    V-trace with rho = pi_T / pi_b  ->  A, targets
    a few epochs on PPO's loss with the ratio  min(pi_b / pi_T, c) * pi / pi_b  =  pi / max(pi_T, pi_b / c)
    every `target_update_freq` updates:  target <- tau * parameters + (1 - tau) * target

Here pi is the trained policy, and c is `target_ratio_clip`. V-trace is from Espeholt et al. 2018 (arXiv:1802.01561). The ratio
and the ring buffer are from IMPACT (Luo et al. 2020, arXiv:1912.00167). Actors have an older copy of the parameters and
observation statistics. The target policy has older parameters, but the newest statistics. With `correction="none"`, the
estimator and the ratio are PPO's, with the values and log-probabilities of pi_b.

**Unlike in the papers**, nothing runs asynchronously. Hyperparameters set the staleness (`lag`, `publish_every`, `replay`), so
that runs are reproducible. V-trace uses values of the newest parameters, and bootstraps at time limits as GAE does.

**Defaults**: two rollouts in the ring, a lag of one update, c = 2 as in IMPACT, and a target update in every fourth update.

**When to choose it.** To study stale data, or to prepare a run with remote actors. With actors eight updates behind and each
rollout used four times, APPO with a target network copied every eight updates scored like PPO on CartPole and Breakout. On
Breakout, with a target copied in every update or without correction, the score was a third lower than with the copy every eight
updates. Without lag, using each rollout in four updates was better than PPO's four epochs on Breakout (12.2 against 8.7 after
250,000 steps), and no better on CartPole. An update takes longer than an update of PPO. The final return divided by the seconds
of the run was higher for PPO on CartPole, and for APPO without lag on Breakout (`tests/benchmarks/RESULTS.md`).

**Metrics** in addition to PPO's (with `correction="none"`, only `data_age` and `target_updates`):

- `data_age`: mean number of updates by which the parameters that collected the data are behind the newest parameters.
- `behaviour_kl`: estimate of KL(behaviour policy || newest policy), in nats.
- `rho_clip_fraction`, `rho_p99`: fraction of importance weights above `vtrace_rho_clip`, and the 99th percentile of the weights.
- `effective_sample_size`: effective number of steps after importance weighting, as a fraction of all steps. Below 0.5, most of
  the data hardly counts: lower `lag` or `replay`.
- `target_updates`: number of updates of the target network.
- `approx_kl`: PPO's estimate, with the ratio's denominator as the old policy: `max(pi_T, pi_b / c)`, or pi_b with
  `correction="none"`. Staleness alone makes this KL divergence positive.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from purerl.acting.bootstrap import most_truncations
from purerl.acting.rollout import collect_rollout
from purerl.acting.wrappers import with_statistics
from purerl.algorithms.ppo import ppo, ppo_phases
from purerl.config.algorithms import APPOConfig
from purerl.core.environment import Environment
from purerl.core.keys import fold_in_name
from purerl.core.metrics import Sum, mean_of
from purerl.core.reductions import num_devices, pmax, quantile, total
from purerl.core.streams import extrinsic
from purerl.core.types import Advantages, Network, PyTree, Rollout, Scalar, TrainState, Transition
from purerl.learning import losses, replay
from purerl.learning.advantages import advantage_estimator, estimate, vtrace
from purerl.learning.custom import select_accepted
from purerl.learning.learner import Components, Learner, Metrics
from purerl.learning.phases import run_phases
from purerl.learning.update import Algorithm, finish_update, make_batch, reads_old_policy


def appo(cfg: APPOConfig, env: Environment, network: Network, parts: Components) -> Algorithm:
    """Return APPO as an `Algorithm`; the arguments are the first four of `ppo`. A custom estimator replaces V-trace."""
    base, learner = ppo(cfg, env, network, parts), Learner(cfg, network, parts)
    length = cfg.training_length if network.is_recurrent else cfg.num_steps
    count = most_truncations(env, cfg.num_steps)

    def act(state: TrainState, published: dict[str, PyTree]) -> tuple[TrainState, Rollout, replay.RingBatch, Metrics]:
        """Collect a rollout with a published snapshot; return the state, the rollout, the rollout as a `RingBatch`, and metrics.

        With intrinsic rewards, the `RingBatch` includes all next observations.
        """
        behaviour, valued = state.replace(**published), cfg.correction == "none"
        state, rollout, rollout_metrics = collect_rollout(cfg, env, network, state, behaviour, valued=valued)
        # Drop the stored policies if nothing reads them. With V-trace, losses read the target network's policies instead.
        if cfg.correction != "none" or not reads_old_policy(learner, state, rollout):
            rollout = rollout.replace(steps=rollout.steps.replace(policy=()))
        state, rollout, reward_metrics = parts.rewards.process(state, rollout)
        record = replay.ring_batch(rollout, state.actor, count, keep_next_obs=cfg.streams > 1)
        return state, rollout, record, rollout_metrics | reward_metrics

    def init(key: jax.Array) -> TrainState:
        state = base.init(key)
        record = jax.eval_shape(lambda state: act(state, snapshot_of(state))[2], state)
        return restart(state.replace(extra=state.extra | {"ring": replay.empty_ring(record, cfg.replay)}))

    def update(state: TrainState) -> tuple[TrainState, Metrics]:
        # Collect with older parameters, and store the rollout.
        published, snapshot, behind = publish(cfg, state)
        state, newest, record, metrics = act(state, snapshot)
        ring = replay.ring_push(state.extra["ring"], state.clock, record, behind)
        # Take rollouts from the ring.
        learns, key = ~(state.clock < cfg.skipped_updates), fold_in_name(state.key, "replay", state.clock)
        ring, places = replay.ring_select(ring, cfg.max_uses or cfg.replay, cfg.replay_order, key, learns)
        taken = replay.ring_take(ring, places)
        taken = taken.replace(rollout=taken.rollout.replace(steps=parts.rewards.prepare(state, taken.rollout.steps)))
        # Estimate advantages and value targets, corrected for staleness.
        if cfg.correction == "none":
            steps = taken.rollout.steps
            advantages, value_metrics = advantage_estimator(cfg, parts.advantage)(steps)
        else:
            valued = with_statistics(cfg, network, state)
            steps, advantages, value_metrics = correct(cfg, valued, state, taken, length, parts.advantage)
        batch = make_batch(learner, state, taken.rollout.replace(steps=steps), advantages)
        metrics |= value_metrics | {"value": mean_of(extrinsic(steps.value, steps.first))}
        # Learn, and update the target network.
        current, target_params = learner.at(state), state.extra["target"]
        state, metrics = run_phases(ppo_phases(current), state, batch, metrics)
        moves = state.clock.is_due(cfg.target_update_freq)
        moved = lambda: move_towards(target_params, state.params, cfg.tau)
        target_params = jax.lax.cond(moves, moved, lambda: target_params)
        state = state.replace(extra={**state.extra, "published": published, "ring": ring, "target": target_params})
        metrics["data_age"] = mean_of((ring.age + ring.lag)[places].astype(jnp.float32))
        metrics["target_updates"] = Sum(moves.astype(jnp.int32))
        of_newest = jax.tree.map(lambda x: x[:, : newest.steps.first.shape[1]], advantages)
        return finish_update(current, state, newest, of_newest, batch, metrics)

    def restart(state: TrainState) -> TrainState:
        published = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_snapshots(cfg), *x.shape)), snapshot_of(state))
        target = jax.tree.map(jnp.copy, state.params)  # a copy: a donated state must not hold a buffer twice
        return state.replace(extra={**state.extra, "published": published, "target": target})

    def skipped(state: TrainState, after: TrainState) -> dict[str, PyTree]:
        """Drop the rollout of an update that `nonfinite="freeze"` undoes; publish the snapshot, and age the other rollouts."""
        ring = replay.ring_drop_newest(after.extra["ring"], state.clock, state.extra["ring"])
        return {**state.extra, "published": after.extra["published"], "ring": ring}

    return Algorithm(init, update, base.phases, restart, skipped, cfg, network)


# --- actors -----------------------------------------------------------------------------------------------------------


def num_snapshots(cfg: APPOConfig) -> int:
    """Return the number of parameter snapshots that lagging actors need."""
    return -(-cfg.lag // cfg.publish_every) + 1


def snapshot_of(state: TrainState) -> dict[str, PyTree]:
    """Return the parts of a state that actors need."""
    return {"params": state.params, "statistics": state.statistics}


def publish(cfg: APPOConfig, state: TrainState) -> tuple[PyTree, PyTree, jax.Array]:
    """Publish the newest snapshot if scheduled; return all snapshots, the snapshot to act with, and its lag in updates.

    The actors of update i use the snapshot of update `max(i - lag, 0)`, rounded down to a multiple of `publish_every`.
    """
    every, count = cfg.publish_every, num_snapshots(cfg)
    slot = lambda clock: (clock % (every * count) // np.uint32(every)).astype(jnp.int32)
    newest, stored = snapshot_of(state), state.extra["published"]
    write = lambda: jax.tree.map(lambda old, new: old.at[slot(state.clock)].set(new), stored, newest)
    stored = jax.lax.cond(state.clock % every == 0, write, lambda: stored)
    source = state.clock - cfg.lag
    behind = jnp.where(state.clock < cfg.lag, state.clock.low, np.uint32(cfg.lag)) + source % every
    return stored, jax.tree.map(lambda x: x[slot(source)], stored), behind.astype(jnp.int32)


def move_towards(target: PyTree, params: PyTree, tau: Scalar) -> PyTree:
    """Return `(1 - tau) * target + tau * params`. If `tau` is 1, return exactly `params`."""
    return jax.tree.map(lambda old, new: jnp.where(tau == 1, new, old + tau * (new - old)), target, params)


# --- off-policy correction --------------------------------------------------------------------------------------------


def correct(
    cfg: APPOConfig,
    network: Network,
    state: TrainState,
    batch: replay.RingBatch,
    length: int,
    advantage: Callable = estimate,
) -> tuple[Transition, Advantages, Metrics]:
    """Return the steps to learn from, their advantages, and metrics, corrected for staleness.

    In the steps, `value` is from the newest parameters, `log_prob` is the logarithm of the ratio's denominator,
    `max(pi_T, pi_b / target_ratio_clip)`, and `policy` is the target policy.

    Args:
        cfg: the config.
        network: the network with the running statistics applied, so that values are in units of reward.
        state: values are computed with `state.params`, and target log-probabilities with `state.extra["target"]`.
        batch: the rollouts to learn from.
        length: steps of a training sequence.
        advantage: a custom estimator, or `estimate` for V-trace. An estimator with the parameter `log_ratio` receives the
          log-ratio of the target to the behaviour policy, `[T, B]`.
    """
    outputs, next_value = replay.recompute_outputs(network, state.params, batch, length)
    target = replay.recompute_policy(network, state.extra["target"], batch, length)
    steps = batch.rollout.steps.replace(value=outputs.value, next_value=next_value)
    behaviour_log_prob, target_log_prob = steps.log_prob, target.log_prob(steps.action)
    log_ratio = target_log_prob - behaviour_log_prob
    if advantage is estimate:
        clips = (cfg.vtrace_rho_clip, cfg.vtrace_c_clip, cfg.vtrace_pg_clip)
        advantage = lambda steps, cfg: vtrace(steps, log_ratio, cfg.gamma, cfg.gae_lambda, *clips)
    advantage = functools.partial(advantage, **select_accepted(advantage, log_ratio=log_ratio))
    advantages, value_metrics = advantage_estimator(cfg, advantage)(steps)
    old_log_prob = jnp.maximum(target_log_prob, behaviour_log_prob - jnp.log(cfg.target_ratio_clip))
    rho, scaled = jnp.exp(log_ratio), jnp.exp(log_ratio - pmax(log_ratio))  # sums of `scaled` cannot overflow
    effective = jnp.square(total(scaled)) / (rho.size * num_devices() * total(jnp.square(scaled)))
    staleness_metrics = {
        "rho_clip_fraction": mean_of((rho > cfg.vtrace_rho_clip).astype(jnp.float32)),
        "rho_p99": mean_of(jnp.exp(quantile(log_ratio, 0.99))),
        "behaviour_kl": mean_of(losses.approximate_kl(outputs.policy.log_prob(steps.action), behaviour_log_prob)),
        "effective_sample_size": mean_of(effective),
    }
    return steps.replace(log_prob=old_log_prob, policy=target), advantages, staleness_metrics | value_metrics
