"""The initial state and the end of an update, shared by all algorithms."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from purerl.acting.normalize import initial_statistics, merge_statistics
from purerl.acting.rollout import reset_actor
from purerl.config.base import OnPolicyConfig
from purerl.core.keys import clock_at, named_key
from purerl.core.types import Advantages, Environment, PyTree, Rollout, Sequences, TrainState
from purerl.learning.kl_penalty import adapt_kl_coef, initial_kl_coef
from purerl.learning.learner import Learner, Metrics
from purerl.learning.phases import Phase, init_phase

AfterLearning = Callable[[TrainState, Rollout, Advantages], tuple[TrainState, Metrics]]


class Algorithm(NamedTuple):
    """A training algorithm as pure functions.

    init: `(key) -> TrainState`.
    update: `(TrainState) -> (TrainState, metrics)`.
    phases: the phases of an update, in order.
    restart: `(TrainState) -> TrainState`, recomputes the derived parts of a state after its parameters and statistics were
      replaced.
    skipped: `(before, after) -> extra`, the auxiliary state after an update that `nonfinite="freeze"` skips.

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


def initial_state(learner: Learner[OnPolicyConfig], env: Environment, phases: list[Phase], key: jax.Array) -> TrainState:
    """Return the state before the first update: environments at an episode start, initial parameters and optimizer states."""
    cfg, network, parts = learner
    actor = reset_actor(env, network, cfg.num_envs, key)
    params = network.init(named_key(key, "params"), jax.tree.map(lambda x: x[None], actor.obs))
    reward_params, reward_state = parts.rewards.init(key, actor.obs)
    params, extra = params | reward_params, initial_kl_coef(cfg) | reward_state
    opt_state = {phase.name: init_phase(phase, params) for phase in phases}
    return TrainState(params, opt_state, actor, clock_at(0), key, initial_statistics(cfg, env.observation_space), extra)


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
        state, more_metrics = after_learning(state, rollout, advantages)
    state = state.replace(clock=state.clock + 1)
    metrics = metrics | penalty_metrics | more_metrics
    return state, metrics | learner.parts.measure(state, batch, metrics)
