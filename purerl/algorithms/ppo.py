"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347), whole on one page.

Collect a rollout, estimate advantages, and take a few epochs of minibatch gradient steps on

    L = -mean(min(r * A, clip(r, 1 - clip_eps, 1 + clip_eps) * A)) + vf_coef * value loss - ent_coef * entropy
    r = pi(a | s) / pi_old(a | s),    A = sum_k (gamma * gae_lambda)^k * (r_{t+k} + gamma * V(s_{t+k+1}) - V(s_{t+k}))

**Decided where papers and codes differ.** An episode that a time limit ends is bootstrapped with the value of the observation
before the reset. Advantages are standardised over each minibatch. The value loss is half a squared error, and its clip takes the
larger of the clipped and unclipped errors (OpenAI's baselines). Every epoch shuffles the whole batch. **Defaults** are those of
"The 37 Implementation Details" (Huang et al. 2022) for classic control. **When to choose it**: first. It is the fastest algorithm
here, with the fewest settings; no other here is better on all environments measured (`tests/benchmarks/RESULTS.md`). **Metrics**:

- `approx_kl`: how far the policy moved, in nats; 0.002 to 0.02 is usual. Above: lower `lr` or `num_epochs`, or set `target_kl`.
- `clip_fraction`: the share of ratios outside the clip. 0: the clip does nothing. Above 0.3: the steps are too large.
- `entropy`: of the policy, in nats. If it falls to 0 within a few updates, the policy does not explore: raise `ent_coef`.
- `explained_variance`: of the value targets. 1 is perfect, 0 no better than a constant; below 0 the value function misleads.
- `episode_return`, `episode_length`: means over the episodes that ended in an update, NaN where none did.
- `grad_norm`: before the clip. `stopped`: the share of minibatches that `target_kl` left out. `lr`: at the start of the update,
  that of `kl_adaptive` after it.
"""

from collections.abc import Callable
from typing import Any

import jax

from purerl.acting.normalize import initial_statistics, merge_statistics
from purerl.acting.rollout import collect_rollout, start
from purerl.acting.wrappers import with_obs_normalization
from purerl.config.base import OnPolicyConfig
from purerl.core.arguments import accepted
from purerl.core.clock import clock_at, increment
from purerl.core.keys import named_key
from purerl.core.reductions import at_once, key_here, share
from purerl.core.streams import sum_over_streams
from purerl.core.types import Advantages, Algorithm, Clock, Environment, Network, Outputs, Phase, Rollout, Sample, TrainState
from purerl.learning import losses
from purerl.learning.advantages import advantage_estimator, standardize, value_metrics
from purerl.learning.components import Components
from purerl.learning.kl_penalty import adapt_kl_coef, initial_kl_coef
from purerl.learning.optimizers import phase_optimizer, scheduled_config
from purerl.learning.phases import init_phase, make_phase, run_phases
from purerl.learning.training_set import training_set

Metrics = dict[str, Any]


def ppo_phases(cfg: OnPolicyConfig, network: Network, parts: Components, clock: Clock | None) -> list[Phase]:
    """What an update of PPO learns: policy and value in one loss. The clock is None where only the shapes are wanted."""
    optimizer = phase_optimizer(cfg, parts.base_optimizer, parts.lr_schedule, clock, cfg.policy_epochs)
    loss = ppo_loss(cfg, network, parts.policy_loss, (value_term, *parts.extra_losses))
    return [make_phase(cfg, network, "ppo", loss, optimizer, cfg.policy_epochs)]


def nothing_more(state: TrainState, rollout: Rollout, advantages: Advantages) -> tuple[TrainState, Metrics]:
    """PPO does nothing more with a rollout."""
    return state, {}


def ppo(
    cfg: OnPolicyConfig,
    env: Environment,
    network: Network,
    parts: Components,
    phases: Callable[[OnPolicyConfig, Network, Components, Clock | None], list[Phase]] = ppo_phases,
    after_learning: Callable[[TrainState, Rollout, Advantages], tuple[TrainState, Metrics]] = nothing_more,
) -> Algorithm:
    """PPO as two pure functions.

    Args:
        cfg, env, network: the config, environments, policy and value function.
        parts: estimator, losses, optimizer and reward stage.
        phases: what an update learns from its rollout, in this order. The policy's phase is the last.
        after_learning: `(state, rollout, advantages) -> (state, metrics)`, what an algorithm adds to an update, after the
          statistics were updated and before the clock is.
    """
    templates = tuple(phases(cfg, network, parts, None))
    advantage = advantage_estimator(cfg, parts.advantage)

    def init(key: jax.Array) -> TrainState:
        actor = start(env, network, share(cfg.num_envs), key_here(named_key(key, "start")))
        params = network.init(named_key(key, "params"), jax.tree.map(lambda x: x[None], actor.obs))
        reward_params, reward_state = parts.rewards.init(key, actor.obs)
        params, extra = params | reward_params, initial_kl_coef(cfg) | reward_state
        opt_state = {phase.name: init_phase(phase, params) for phase in templates}
        return TrainState(params, opt_state, actor, clock_at(0), key, initial_statistics(cfg, env.observation_space), extra)

    def update(state: TrainState) -> tuple[TrainState, Metrics]:
        cfg_now = scheduled_config(cfg, state)
        state, rollout, rollout_metrics = collect_rollout(cfg, env, network, state)
        state, rollout, reward_metrics = parts.rewards.process(state, rollout)
        rollout = rollout.replace(steps=parts.rewards.prepare(state, rollout.steps))
        advantages = advantage(rollout.steps, cfg)
        data = training_set(cfg, state.statistics, rollout, advantages, templates[0].length, parts.sees_old_policy)
        learner = with_obs_normalization(cfg, network, state.statistics)
        metrics = rollout_metrics | reward_metrics | value_metrics(rollout.steps, advantages)
        metrics, key, data = at_once(metrics, state.key, data)
        state, train_metrics = run_phases(phases(cfg_now, learner, parts.given(state), state.clock), state.replace(key=key), data)
        state, penalty_metrics = adapt_kl_coef(cfg_now, learner, state, data)
        state = state.replace(statistics=merge_statistics(cfg, state.statistics, rollout.steps.obs, advantages.target))
        state, more_metrics = after_learning(state, rollout, advantages)
        state = state.replace(clock=increment(state.clock))
        metrics |= train_metrics | penalty_metrics | more_metrics
        return state, metrics | parts.measure(state, data, metrics)

    return Algorithm(init, update, templates)


# --- the loss ---------------------------------------------------------------------------------------------------------


def value_term(params: Any, outputs: Outputs, old: Sample, cfg: OnPolicyConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The value's share of PPO's loss, `vf_coef * value loss`, and its metric."""
    loss = losses.value_loss(outputs.value, old.value, old.target, cfg.value_clip, cfg.value_clip_eps)
    value = sum_over_streams(loss, old.advantage).mean()
    return cfg.vf_coef * value, {"value_loss": value}


def ppo_loss(
    cfg: OnPolicyConfig, network: Network, policy_loss: Callable = losses.surrogate, terms: tuple[Callable, ...] = (value_term,)
) -> Callable:
    """`(params, minibatch) -> (loss, metrics)`, means over this device's share of it; see `run_phase`.

    Args:
        cfg: its coefficients.
        network: as learning sees it.
        policy_loss: of each step.
        terms: each `(params, Outputs, Sample, cfg) -> (scalar, metrics)`, added to the policy's loss.
    """

    def loss(params, batch):
        old = batch.steps
        outputs, _ = network.apply(params, batch.carry, old.obs, old.first)
        log_prob, entropy = outputs.policy.log_prob(old.action), outputs.policy.entropy().mean()
        by_minibatch = cfg.advantage_norm == "minibatch"
        advantage = standardize(old.advantage, old.advantage_moments) if by_minibatch else old.advantage
        seen = accepted(policy_loss, policy=outputs.policy, old_policy=old.policy)
        policy = policy_loss(log_prob, old.log_prob, advantage, cfg, **seen).mean()
        total, metrics = policy - cfg.ent_coef * entropy, {}
        for term in terms:
            added, term_metrics = term(params, outputs, old, cfg)
            total, metrics = total + added, metrics | term_metrics
        return total, metrics | {
            "loss": total,
            "policy_loss": policy,
            "entropy": entropy,
            "approx_kl": losses.approximate_kl(log_prob, old.log_prob).mean(),
            "clip_fraction": losses.clip_fraction(log_prob, old.log_prob, cfg.clip_eps).mean(),
        }

    return loss
