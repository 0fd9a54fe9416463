"""Asynchronous PPO, its staleness made explicit: what it adds to PPO.

    act with the parameters of `lag` updates ago; keep the rollout in a ring
    for the rollouts to learn from, once: values V of the parameters, log-probabilities of the target policy pi_T
    V-trace with rho = pi_T / pi_b  ->  A, targets
    a few epochs on PPO's loss with the ratio  min(pi_b / pi_T, clip) * pi / pi_b  =  pi / max(pi_T, pi_b / clip)
    now and then  target <- tau * parameters + (1 - tau) * target

V-trace is Espeholt et al. 2018 (arXiv:1802.01561), the ratio and the ring IMPACT (Luo et al. 2020, arXiv:1912.00167). What an
actor needs (parameters and statistics, as published) and what the learner has are apart: they could be on different devices.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl import losses, streams
from purerl.advantages import estimate, standardize, vtrace
from purerl.algorithms.ppo import experience, learn, ppo, ppo_phases, samples, surrogate
from purerl.clock import before, due, remainder, since, tick
from purerl.config import APPOConfig
from purerl.keys import stream
from purerl.metrics import Sum, explained_variance, mean_of
from purerl.normalize import merge_rewards, merge_statistics, scaled_rewards
from purerl.optimizers import coefficients, direction
from purerl.phases import sequences
from purerl.reductions import quantile, total
from purerl.replay import Kept, choose, empty_ring, kept, pushed, reread, reread_policy, taken, without_newest
from purerl.types import Advantages, Algorithm, Environment, Intrinsic, Network, TrainState, Transition
from purerl.wrappers import acting, observing

PyTree = Any


def appo(
    cfg: APPOConfig,
    env: Environment,
    network: Network,
    *,
    advantage: Callable[[Transition, APPOConfig], Advantages] = estimate,
    policy_loss: Callable[..., jax.Array] = surrogate,
    optimizer: Any = None,
    lr_schedule: Callable[[jax.Array], jax.Array] | None = None,
    reward_shaper: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
    intrinsic: Intrinsic | None = None,
) -> Algorithm:
    """APPO as two pure functions; the arguments are those of `ppo`. An estimator of one's own takes the place of V-trace."""
    phases = ppo_phases(policy_loss, direction(cfg, optimizer), lr_schedule, intrinsic)
    base = ppo(cfg, env, network, phases=phases, intrinsic=intrinsic)
    length = base.phases[0].length if jax.tree.leaves(network.initial_carry(1)) else cfg.num_steps

    def act(state: TrainState, published: dict[str, PyTree]) -> tuple:
        """A rollout of the published policy, its rewards shaped."""
        actors = state.replace(params=published["params"], statistics=published["statistics"])
        options = {**streams.kept(intrinsic), "length": length, "keep_next_obs": True, "valued": cfg.correction == "none"}
        actor, rollout, acted = experience(cfg, env, network, state, actors, reward_shaper, **options)
        steps = rollout.steps if cfg.keeps_policy else rollout.steps.replace(policy=())
        statistics = merge_rewards(cfg, state.statistics, steps)
        curious, steps, paid = streams.rewarded(intrinsic, state, steps)
        return actor, rollout.replace(steps=steps), {**acted, **paid}, statistics, curious

    def init(key: jax.Array) -> TrainState:
        state = base.init(key)
        pair = {"params": state.params, "statistics": state.statistics}
        actor, rollout, *_ = jax.eval_shape(act, state, pair)
        extra = {
            "published": versions(cfg, pair),
            "ring": empty_ring(kept(rollout, actor), cfg.replay),
            "target": jax.tree.map(jnp.copy, state.params),  # apart, so that a state can be donated
        }
        return state.replace(extra=state.extra | extra)

    def update(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        published, pair, behind = publish(cfg, state)
        actor, rollout, acted, statistics, curious = act(state, pair)

        ring = pushed(state.extra["ring"], state.clock, kept(rollout, actor), behind)
        max_uses = cfg.max_uses or cfg.replay
        learns = ~before(state.clock, cfg.skipped_updates)
        ring, places = choose(ring, max_uses, cfg.replay_order, stream(state.key, "replay", state.clock), learns)
        data = taken(ring, places)
        steps = data.rollout.steps.replace(reward=scaled_rewards(cfg, statistics, data.rollout.steps.reward))
        data = data.replace(rollout=data.rollout.replace(steps=steps))

        valuing = acting(cfg, network, state.replace(statistics=statistics))
        if cfg.correction == "vtrace":
            steps, advantages, staleness = corrected(cfg, valuing, state, data, length, advantage)
        else:
            estimator = advantage if intrinsic is None else streams.estimating(advantage)
            advantages, staleness = estimator(steps, cfg), {}
        if cfg.advantage_norm == "batch":
            advantages = advantages.replace(advantage=standardize(advantages.advantage))
        seen = streams.training(intrinsic, curious, steps, state)
        training = sequences(samples(cfg, steps, advantages, statistics, seen), data.rollout.carry, base.phases[0].length)
        learner, learnt = learn(coefficients(cfg, state), observing(cfg, network, statistics), phases, state, training)

        is_due = due(state.clock, cfg.target_update_freq)
        old = state.extra["target"]
        target = jax.lax.cond(is_due, lambda: moved_towards(old, learner.params, cfg.tau), lambda: old)
        newest = advantages.target[:, : cfg.num_envs]
        statistics = merge_statistics(cfg, statistics, rollout.steps.obs, newest)
        extra = {**learner.extra, **curious, "published": published, "ring": ring, "target": target}
        after = learner.replace(actor=actor, clock=tick(state.clock), statistics=statistics, extra=extra)
        return after, {
            **acted,
            **learnt,
            **staleness,
            "value": mean_of(streams.of_environment(steps.value, steps.first)),
            "explained_variance": explained_variance(
                *(streams.of_environment(x, steps.first) for x in (steps.value, advantages.target))
            ),
            "data_age": mean_of((ring.age + ring.lag)[places].astype(jnp.float32)),
            "target_updates": Sum(is_due.astype(jnp.int32)),
        }

    def restart(state: TrainState) -> TrainState:
        pair = {"params": state.params, "statistics": state.statistics}
        return state.replace(extra={**state.extra, "published": versions(cfg, pair), "target": state.params})

    def skipped(state: TrainState, after: TrainState) -> dict[str, PyTree]:
        """The rollout of an update that is not learnt from is lost; actors and the ages of the others go on."""
        ring = without_newest(after.extra["ring"], state.clock, state.extra["ring"])
        return {**state.extra, "published": after.extra["published"], "ring": ring}

    return Algorithm(init, update, base.phases, restart, skipped)


# --- actors -----------------------------------------------------------------------------------------------------------


def snapshots(cfg: APPOConfig) -> int:
    """How many versions of the parameters must be kept for actors that lag."""
    return -(-cfg.lag // cfg.publish_every) + 1


def versions(cfg: APPOConfig, pair: PyTree) -> PyTree:
    """One version in the place of all."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (snapshots(cfg), *x.shape)), pair)


def publish(cfg: APPOConfig, state: TrainState) -> tuple[PyTree, PyTree, jax.Array]:
    """The kept versions with the newest if it is its turn, the one that acts now, and how many updates that one is behind.

    A version is the pair of parameters and statistics. In update i that of `j = max(i - lag, 0)`, rounded down to a multiple of
    `publish_every`, acts.
    """
    every, count = cfg.publish_every, snapshots(cfg)
    slot = lambda clock: (remainder(clock, every * count) // np.uint32(every)).astype(jnp.int32)
    newest, kept = {"params": state.params, "statistics": state.statistics}, state.extra["published"]
    write = lambda: jax.tree.map(lambda old, new: old.at[slot(state.clock)].set(new), kept, newest)
    kept = jax.lax.cond(remainder(state.clock, every) == 0, write, lambda: kept)
    source = since(state.clock, cfg.lag)
    behind = jnp.where(before(state.clock, cfg.lag), state.clock.low, np.uint32(cfg.lag)) + remainder(source, every)
    return kept, jax.tree.map(lambda x: x[slot(source)], kept), behind.astype(jnp.int32)


def moved_towards(target: PyTree, params: PyTree, tau: jax.Array) -> PyTree:
    """`(1 - tau) * target + tau * params`; with tau = 1 the parameters to the bit."""
    return jax.tree.map(lambda old, new: jnp.where(tau == 1, new, old + tau * (new - old)), target, params)


# --- correction -------------------------------------------------------------------------------------------------------


def corrected(
    cfg: APPOConfig, network: Network, state: TrainState, data: Kept, length: int, advantage: Callable = estimate
) -> tuple[Transition, Advantages, dict[str, Any]]:
    """Steps with the learner's values and the log-probabilities that the ratio is over; advantages; metrics of staleness.

    Args:
        cfg: clips.
        network: gives values in units of reward.
        state: its parameters give values, its target log-probabilities.
        data: the rollouts to learn from.
        length: steps of a training sequence.
        advantage: in place of V-trace, if it is not the default.
    """
    outputs, next_value = reread(network, state.params, data, length, streams.EPISODIC if cfg.streams > 1 else ())
    target = reread_policy(network, state.extra["target"], data, length)
    steps = data.rollout.steps.replace(value=outputs.value, next_value=next_value)
    acted_log_prob, target_log_prob = steps.log_prob, target.log_prob(steps.action)
    log_ratio = target_log_prob - acted_log_prob
    if advantage is estimate:
        clips = (cfg.vtrace_rho_clip, cfg.vtrace_c_clip, cfg.vtrace_pg_clip)
        advantage = lambda steps, cfg: vtrace(steps, log_ratio, cfg.gamma, cfg.gae_lambda, *clips)
    advantages = (streams.estimating(advantage) if cfg.streams > 1 else advantage)(steps, cfg)
    old_log_prob = jnp.maximum(target_log_prob, acted_log_prob - jnp.log(cfg.target_ratio_clip))
    rho = jnp.exp(log_ratio)
    share = jnp.square(total(rho)) / (rho.size * total(jnp.square(rho)))
    staleness = {
        "rho_clip_fraction": mean_of((rho > cfg.vtrace_rho_clip).astype(jnp.float32)),
        "rho_p99": mean_of(jnp.exp(quantile(log_ratio, 0.99))),
        "behaviour_kl": mean_of(losses.approximate_kl(outputs.policy.log_prob(steps.action), acted_log_prob)),
        "effective_sample_size": mean_of(share),
    }
    return steps.replace(log_prob=old_log_prob, policy=target), advantages, staleness
