"""The parts of an update that all algorithms share: the initial state, the training batch, and the end of an update."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from purerl.acting.normalize import initial_statistics, merge_statistics, standardize_values
from purerl.acting.rollout import reset_actor
from purerl.config.base import OnPolicyConfig
from purerl.core.environment import Environment
from purerl.core.errors import Problem, config_error, guard, raise_if_any
from purerl.core.keys import clock_at, fold_in_name
from purerl.core.metrics import NUMBERS, is_metric, mean_of
from purerl.core.reductions import mean
from purerl.core.types import Advantages, Network, Outputs, PyTree, Rollout, Sample, Scalar, Sequences, TrainState
from purerl.learning.learner import Learner, Metrics
from purerl.learning.phases import Phase, init_phase, refuse_taken, sequence_length

AfterLearning = Callable[[TrainState, Rollout, Advantages], tuple[TrainState, Metrics]]


class Algorithm(NamedTuple):
    """A training algorithm as pure functions.

    Attributes:
        init: `(key) -> TrainState`.
        update: `(TrainState) -> (TrainState, metrics)`.
        phases: the phases of an update, in order.
        restart: `(TrainState) -> TrainState`, recomputes the derived parts of a state after its parameters and statistics were
          replaced.
        skipped: `(before, after) -> extra`, the auxiliary state after an update that `nonfinite="freeze"` skips.
        cfg, network: the config and the network that evaluations and plans use; None for those that the algorithm received.

    Example:
        >>> def with_decay(cfg, env, network, parts):
        ...     base = purerl.ppo(cfg, env, network, parts)
        ...     def update(state):
        ...         state, metrics = base.update(state)
        ...         return state.replace(params=jax.tree.map(lambda x: 0.999 * x, state.params)), metrics
        ...     return base._replace(update=update)
        >>> train = purerl.make_train(purerl.PPOConfig(), algorithm=with_decay)
    """

    init: Callable[[jax.Array], TrainState]
    update: Callable[[TrainState], tuple[TrainState, Metrics]]
    phases: tuple[Phase, ...]
    restart: Callable[[TrainState], TrainState] = lambda state: state
    skipped: Callable[[TrainState, TrainState], dict[str, PyTree]] = lambda before, after: before.extra
    cfg: OnPolicyConfig | None = None
    network: Network | None = None


def initial_state(learner: Learner[OnPolicyConfig], env: Environment, phases: list[Phase], key: jax.Array) -> TrainState:
    """Return the state before the first update: environments at an episode start, initial parameters and optimizer states."""
    cfg, network, parts = learner
    if isinstance(phases, Phase):
        raise config_error("phases", phases.name, "must be a list of phases, such as [phase]")
    actor = reset_actor(env, network, cfg.num_envs, key)
    params = network.init(fold_in_name(key, "params"), jax.tree.map(lambda x: x[None], actor.obs))
    reward_params, reward_state = parts.rewards.init(key, actor.obs)
    coef = {"kl_coef": jnp.float32(cfg.kl_coef)} if cfg.kl_penalty == "adaptive" else {}
    params, extra = params | reward_params, coef | reward_state
    opt_state = {phase.name: init_phase(phase, params) for phase in phases}
    return TrainState(params, opt_state, actor, clock_at(0), key, initial_statistics(cfg, env.observation_space), extra)


def make_batch(learner: Learner[OnPolicyConfig], state: TrainState, rollout: Rollout, advantages: Advantages) -> Sequences:
    """Return the training batch of a rollout and its advantages, as `Sequences` of `Sample`.

    Values and targets are in the units of the network's outputs. `Sample.policy` is `()` unless `reads_old_policy` is True.

    Args:
        learner: config, network and losses.
        state: its statistics standardise values; its parameters give the shapes for tracing the losses.
        rollout: T steps of B environments, `[T, B]`.
        advantages: the advantages of these steps, `[T, B]`.
    """
    steps = rollout.steps
    kept = {name: getattr(steps, name) for name in ("obs", "first", "action", "log_prob", "intrinsic")}
    policy = steps.policy if reads_old_policy(learner, state, rollout) else ()
    value, target = (standardize_values(state.statistics, x) for x in (steps.value, advantages.target))
    samples = Sample(**kept, policy=policy, value=value, advantage=advantages.advantage, target=target)
    return sequences(samples, rollout.carry, sequence_length(learner.cfg, learner.network))


def sequences(steps: PyTree, carry: PyTree, length: int) -> Sequences:
    """Cut a rollout into training sequences.

    Args:
        steps: T steps of B environments, leaves `[T, B, ...]`.
        carry: leaves `[T / L, B, ...]`, the hidden state before each sequence.
        length: L, a divisor of T.

    Returns:
        `N = T * B / L` sequences of L contiguous steps, as `Sequences`.
    """

    def cut(x):  # [T, B, ...] -> [T/L, L, B, ...] -> [L, T/L, B, ...] -> [L, N, ...]
        return x.reshape(-1, length, *x.shape[1:]).swapaxes(0, 1).reshape(length, -1, *x.shape[2:])

    return Sequences(jax.tree.map(cut, steps), jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), carry))


def reads_old_policy(learner: Learner[OnPolicyConfig], state: TrainState, rollout: Rollout) -> bool:
    """Return True if the KL divergence is measured, or if the policy loss or an extra loss reads `old.policy`.

    To find out, these losses are traced for one time step. Unlike in `inputs_read`, a result that is not used counts, too.
    """
    if learner.cfg.measures_kl:
        return True
    cfg, network, parts = learner
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), rollout.steps)
    carry = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rollout.carry)
    number = jax.ShapeDtypeStruct(row.first.shape, jnp.float32)

    def loss(policy, outputs, number, params, row):
        old = Sample(row.obs, row.first, row.action, number, outputs.value, number, outputs.value, policy, row.intrinsic)
        return parts.policy_loss(outputs, old, number, cfg), [extra(params, outputs, old, cfg) for extra in parts.extra_losses]

    outputs = jax.eval_shape(lambda *args: network.apply(*args)[0], state.params, carry, row.obs, row.first)
    traced = jax.make_jaxpr(loss)(row.policy, outputs, number, state.params, row).jaxpr
    read = {x for equation in traced.eqns for x in equation.invars if not isinstance(x, Literal)}
    return not read.isdisjoint(traced.invars[: len(jax.tree.leaves(row.policy))])


def finish_update(
    learner: Learner[OnPolicyConfig],
    state: TrainState,
    rollout: Rollout,
    advantages: Advantages,
    batch: Sequences,
    metrics: Metrics,
    after_learning: AfterLearning | None = None,
) -> tuple[TrainState, Metrics]:
    """Adapt the KL penalty, merge running statistics, count the update, and call `measure`.

    Args:
        learner: the learner of this update.
        state: the state after learning.
        rollout: the newest rollout, whose observations are not yet in the statistics.
        advantages: the advantages of that rollout.
        batch: the batch that was learnt from.
        metrics: metrics of this update so far.
        after_learning: `(state, rollout, advantages) -> (state, metrics)`, called with the new statistics, before the update is
          counted; or None.
    """
    state, penalty_metrics = adapt_kl_coef(learner.cfg, learner.network, state, batch)
    statistics = merge_statistics(learner.cfg, state.statistics, rollout.steps.obs, advantages.target)
    state, more_metrics = state.replace(statistics=statistics), {}
    if after_learning is not None:
        call = guard("after_learning", after_learning)
        state, more_metrics = state_and_metrics("after_learning", call(state, rollout, advantages))
        refuse_taken(metrics, more_metrics)
    state = state.replace(clock=state.clock + 1)
    metrics = metrics | penalty_metrics | more_metrics
    return state, metrics | learner.parts.measure(state, batch, metrics)


def state_and_metrics(field: str, found: Any) -> tuple[TrainState, dict[str, Any]]:
    """Return the result of a custom function as a pair: the state, and a dict of metrics, of which numbers become means.

    Raises:
        ConfigError: the result is something else.
    """
    is_pair = isinstance(found, tuple | list) and len(found) == 2
    if not (is_pair and isinstance(found[0], TrainState) and isinstance(found[1], Mapping)):
        raise config_error(field, type(found), "must return a pair: the state and a dict of metrics")
    hint = "must be a number or a metric, such as those of purerl.ppo"
    raise_if_any([Problem(field, name, hint) for name, x in found[1].items() if not (is_metric(x) or isinstance(x, NUMBERS))])
    return found[0], {name: x if is_metric(x) else mean_of(x) for name, x in found[1].items()}


def kl_loss(params: PyTree, outputs: Outputs, batch: Sample, cfg: OnPolicyConfig) -> tuple[Scalar, dict[str, jax.Array]]:
    """Compute the loss term `kl_coef * KL(old || new)` and the metric `kl`. Without a KL penalty, the term is 0.

    The penalty, with a fixed or an adaptive coefficient, is that of Schulman et al. 2017, arXiv:1707.06347, section 4.
    """
    kl = batch.policy.kl(outputs.policy).mean()
    return 0.0 if cfg.kl_penalty == "none" else cfg.kl_coef * kl, {"kl": kl}


def adapt_kl_coef(cfg: OnPolicyConfig, network: Network, state: TrainState, data: Sequences) -> tuple[TrainState, dict[str, Any]]:
    """Return the state with the KL coefficient of the next update, and metrics.

    Args:
        cfg: the config of this update, with this update's `kl_coef`.
        network: the network of this update, which standardises observations itself.
        state: the state after learning.
        data: the batch of the update.
    """
    if cfg.kl_penalty != "adaptive":
        return state, {}
    outputs, _ = network.apply(state.params, data.carry, data.steps.obs, data.steps.first)
    kl = mean(data.steps.policy.kl(outputs.policy))
    coef = jnp.where(state.clock < cfg.skipped_updates, cfg.kl_coef, next_kl_coef(cfg, cfg.kl_coef, kl))
    metrics = {"kl_coef": mean_of(jnp.float32(cfg.kl_coef)), "kl_after": mean_of(kl)}
    return state.replace(extra={**state.extra, "kl_coef": coef}), metrics


def next_kl_coef(cfg: OnPolicyConfig, coef: Scalar, kl: jax.Array) -> jax.Array:
    """Return the KL coefficient after an update with divergence `kl`: raised if `kl` is too large, lowered if too small.

    The coefficient is clipped to [1e-10, 1e10], since a coefficient of 0 or infinity could never change again.
    """
    too_far, too_near = kl > cfg.desired_kl * cfg.kl_coef_tolerance, kl < cfg.desired_kl / cfg.kl_coef_tolerance
    factor = jnp.where(too_far, cfg.kl_coef_raise, jnp.where(too_near, cfg.kl_coef_lower, jnp.float32(1)))
    return jnp.clip(coef * factor, 1e-10, 1e10)
