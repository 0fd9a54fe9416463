"""Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347), on one page.

Collect a rollout, estimate advantages, and take a few epochs of minibatch gradient steps on

    L = -mean(min(r * A, clip(r, 1 - clip_eps, 1 + clip_eps) * A)) + vf_coef * value loss - ent_coef * entropy
    r = pi(a | s) / pi_old(a | s),    A_t = sum_k (gamma * gae_lambda)^k * (R_{t+k} + gamma * V(s_{t+k+1}) - V(s_{t+k}))

Here R are rewards, and the sum ends with the episode or the rollout. **Where papers and implementations differ.** By default, a
truncated episode is bootstrapped with the value of its last observation, before the reset, and advantages are standardised over
each minibatch. The value loss is half a squared error; by default, the larger of the clipped and unclipped errors (OpenAI's
baselines). Every epoch shuffles the whole batch. **Other defaults**: as in "The 37 Implementation Details" (Huang et al. 2022)
for classic control. **When to choose it**: first. PPO is the fastest algorithm here, with the fewest hyperparameters; no other is
better on every environment measured (`tests/benchmarks/RESULTS.md`). **Metrics** (losses are means over an update's minibatches):

- `approx_kl`: how far the policy moved, in nats, usually 0.002 to 0.02. If more, lower `lr` or `num_epochs`, or set `target_kl`.
- `clip_fraction`: the fraction of ratios outside the clip. At 0 the clip does nothing; above 0.3 the steps are too large.
- `entropy`: the policy's mean entropy, in nats. If the entropy falls to 0 within a few updates, raise `ent_coef`.
- `explained_variance`: the fraction of the value targets' variance that the values predict: 1 if perfect, 0 for a constant.
- `episode_return`, `episode_length`: means over the episodes that ended in an update. If no episode ended, the means are NaN.
- `grad_norm`: the gradient's norm before clipping. `stopped`: the fraction of minibatches skipped because of `target_kl`. `lr`:
  the learning rate at the start of the update; with `kl_adaptive`, the rate after the update.
"""

from collections.abc import Callable

import jax

from purerl.acting.rollout import collect_rollout
from purerl.config.base import OnPolicyConfig
from purerl.core.environment import Environment
from purerl.core.streams import sum_over_streams
from purerl.core.types import Network, Outputs, Sample, Sequences, TrainState
from purerl.learning.advantages import advantage_estimator
from purerl.learning.learner import Cfg, Components, Learner, Metrics
from purerl.learning.losses import Term, approximate_kl, clip_fraction, clipped_surrogate, combine, value_loss
from purerl.learning.phases import Groups, Loss, Phase, make_phase, run_phases
from purerl.learning.update import AfterLearning, Algorithm, finish_update, initial_state, make_batch


def ppo_phases(learner: Learner[OnPolicyConfig]) -> list[Phase]:
    """Return one phase that trains policy and value together.

    Example:
        >>> twice = lambda learner: [phase._replace(epochs=2) for phase in purerl.ppo_phases(learner)]
    """
    return [make_phase(learner, "ppo", ppo_loss(learner, value_term), learner.cfg.policy_epochs)]


def ppo(
    cfg: Cfg,
    env: Environment,
    network: Network,
    parts: Components,
    phases: Callable[[Learner[Cfg]], list[Phase]] = ppo_phases,
    after_learning: AfterLearning | None = None,
) -> Algorithm:
    """Return PPO as an `Algorithm`: the pure functions `init` and `update`, and the phases of an update.

    Args:
        cfg, env, network: the config, the environments, and the policy and value function.
        parts: the replaceable parts: advantage estimator, losses, optimizer, rewards.
        phases: maps the learner of an update to the phases of this update, in order. The policy's phase must be the last.
        after_learning: `(state, rollout, advantages) -> (state, metrics)`, called after the phases and the update of the running
          statistics; None for no call. Metrics are scalars. With `advantage_norm="batch"`, the advantages are standardised.

    Example:
        >>> train = purerl.make_train(purerl.PPOConfig(), algorithm=purerl.ppo)  # the same as without `algorithm`
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
        # Learn, with this update's coefficients and the statistics that the rollout was collected with.
        current = learner.at(state)
        batch = make_batch(current, state, rollout, advantages)
        state, metrics = run_phases(phases(current), state, batch, metrics | reward_metrics | value_metrics)
        return finish_update(current, state, rollout, advantages, batch, metrics, after_learning)

    return Algorithm(init, update, tuple(phases(learner)), cfg=cfg, network=network)


# --- the loss ---------------------------------------------------------------------------------------------------------


def surrogate(outputs: Outputs, old: Sample, advantage: jax.Array, cfg: OnPolicyConfig) -> jax.Array:
    """Compute PPO's policy loss per step, `[L, N]`: the default of `parts.policy_loss`."""
    return clipped_surrogate(outputs.policy.log_prob(old.action), old.log_prob, advantage, cfg.clip_eps)


def value_term(outputs: Outputs, old: Sample, cfg: OnPolicyConfig) -> Term:
    """Return the value term of the loss."""
    per_stream = value_loss(outputs.value, old.value, old.target, cfg.value_clip, cfg.value_clip_eps)
    return Term("value_loss", cfg.vf_coef, sum_over_streams(per_stream, like=old.advantage))  # extrinsic and intrinsic


def ppo_loss(learner: Learner[OnPolicyConfig], *terms: Callable[..., Term]) -> Loss:
    """Return PPO's loss, `(params, minibatch) -> (loss, metrics)`: the policy loss minus the entropy bonus, plus further terms.

    A minibatch has N sequences of L steps, leaves `[L, N]`. Each of `terms` is `(Outputs, Sample, cfg) -> Term`. The learner's
    extra losses, `(params, Outputs, Sample, cfg) -> (scalar, metrics)`, are added after these terms.
    """
    cfg, network, parts = learner

    def loss(params: Groups, minibatch: Sequences) -> tuple[jax.Array, dict[str, jax.Array]]:
        old = minibatch.steps  # observations, actions and estimates from collection
        outputs, _ = network.apply(params, minibatch.carry, old.obs, old.first)
        policy_term = Term("policy_loss", 1.0, parts.policy_loss(outputs, old, old.advantage, cfg))
        entropy_term = Term("entropy", -cfg.ent_coef, outputs.policy.entropy())
        log_prob = outputs.policy.log_prob(old.action)
        total, metrics = combine(
            [policy_term, entropy_term, *(term(outputs, old, cfg) for term in terms)],
            approx_kl=approximate_kl(log_prob, old.log_prob),
            clip_fraction=clip_fraction(log_prob, old.log_prob, cfg.clip_eps),
        )
        for extra in parts.extra_losses:
            added, extra_metrics = extra(params, outputs, old, cfg)
            total, metrics = total + added, metrics | extra_metrics
        return total, metrics | {"loss": total}

    return loss
