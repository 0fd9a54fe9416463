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

import jax

from purerl.acting.rollout import collect_rollout
from purerl.config.base import OnPolicyConfig
from purerl.core.streams import sum_over_streams
from purerl.core.types import Environment, Network, Outputs, Sample, Sequences, TrainState
from purerl.learning.advantages import advantage_estimator, standardize
from purerl.learning.batch import make_batch
from purerl.learning.learner import Cfg, Components, Learner, Metrics
from purerl.learning.losses import approximate_kl, clip_fraction, clipped_surrogate, value_loss
from purerl.learning.phases import Groups, Loss, Phase, make_phase, run_phases
from purerl.learning.update import AfterLearning, Algorithm, finish_update, initial_state


def ppo_phases(learner: Learner[OnPolicyConfig]) -> list[Phase]:
    """Learn policy and value together."""
    return [make_phase(learner, "ppo", ppo_loss(learner, value_term), learner.cfg.policy_epochs)]


def ppo(
    cfg: Cfg,
    env: Environment,
    network: Network,
    parts: Components,
    phases: Callable[[Learner[Cfg]], list[Phase]] = ppo_phases,
    after_learning: AfterLearning | None = None,
) -> Algorithm:
    """Return PPO as two pure functions.

    Args:
        cfg, env, network: the config, environments, policy and value function.
        parts: estimator, losses, optimizer and rewards.
        phases: from the learner of an update to what is learnt, in this order. The policy's phase is the last.
        after_learning: `(state, rollout, advantages) -> (state, metrics)`, what an algorithm adds to an update.
    """
    learner, estimate = Learner(cfg, network, parts), advantage_estimator(cfg, parts.advantage)

    def init(key: jax.Array) -> TrainState:
        return initial_state(learner, env, phases(learner), key)

    def update(state: TrainState) -> tuple[TrainState, Metrics]:
        # Collect a rollout; shape and scale its rewards.
        state, rollout, metrics = collect_rollout(cfg, env, network, state)
        state, rollout, reward_metrics = parts.rewards(state, rollout)
        # Estimate advantages and value targets.
        advantages, value_metrics = estimate(rollout.steps)
        batch = make_batch(learner, state, rollout, advantages)
        # Learn, with the coefficients and statistics of this update.
        current = learner.at(state)
        state, metrics = run_phases(phases(current), state, batch, metrics | reward_metrics | value_metrics)
        return finish_update(current, state, rollout, advantages, batch, metrics, after_learning)

    return Algorithm(init, update, tuple(phases(learner)))


# --- the loss ---------------------------------------------------------------------------------------------------------


def surrogate(outputs: Outputs, old: Sample, advantage: jax.Array, cfg: OnPolicyConfig) -> jax.Array:
    """Compute PPO's policy loss of each step, `[L, N]`. A custom `policy_loss` takes its place."""
    return clipped_surrogate(outputs.policy.log_prob(old.action), old.log_prob, advantage, cfg.clip_eps)


def value_term(params: Groups, outputs: Outputs, old: Sample, cfg: OnPolicyConfig) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Compute the value's term of the loss, `vf_coef * value loss`, and its metric."""
    loss = value_loss(outputs.value, old.value, old.target, cfg.value_clip, cfg.value_clip_eps)
    value = sum_over_streams(loss, old.advantage).mean()
    return cfg.vf_coef * value, {"value_loss": value}


def ppo_loss(learner: Learner[OnPolicyConfig], *terms: Callable) -> Loss:
    """Return `(params, minibatch) -> (loss, metrics)`: the policy's loss, less the entropy bonus, and further terms.

    Each term is `(params, Outputs, Sample, cfg) -> (scalar, metrics)`. The learner's extra losses are added to them.
    """
    cfg, network, parts = learner

    def loss(params: Groups, minibatch: Sequences) -> tuple[jax.Array, dict[str, jax.Array]]:
        old = minibatch.steps
        outputs, _ = network.apply(params, minibatch.carry, old.obs, old.first)
        by_minibatch = cfg.advantage_norm == "minibatch"
        advantage = standardize(old.advantage, old.advantage_moments) if by_minibatch else old.advantage
        policy = parts.policy_loss(outputs, old, advantage, cfg).mean()
        log_prob, entropy = outputs.policy.log_prob(old.action), outputs.policy.entropy().mean()
        total, metrics = policy - cfg.ent_coef * entropy, {}
        for term in (*terms, *parts.extra_losses):
            added, term_metrics = term(params, outputs, old, cfg)
            total, metrics = total + added, metrics | term_metrics
        return total, metrics | {
            "loss": total,
            "policy_loss": policy,
            "entropy": entropy,
            "approx_kl": approximate_kl(log_prob, old.log_prob).mean(),
            "clip_fraction": clip_fraction(log_prob, old.log_prob, cfg.clip_eps).mean(),
        }

    return loss
