"""The reward stage: shaping, scaling and intrinsic rewards, before advantages are estimated."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from purerl.acting.normalize import merge_rewards, scaled_rewards
from purerl.acting.rollout import step_counts
from purerl.config.base import OnPolicyConfig
from purerl.core.keys import named_key
from purerl.core.reductions import local_key
from purerl.core.types import Intrinsic, PyTree, Rollout, TrainState, Transition

Shaper = Callable[[jax.Array, jax.Array], jax.Array]


class RewardStage(NamedTuple):
    """The reward stage as pure functions.

    Attributes:
        init: `(key, obs [B, ...]) -> (parameter groups, entries of TrainState.extra)`.
        process: `(state, rollout) -> (state, rollout, metrics)`, called once per rollout: shaping, statistics, intrinsic rewards.
        prepare: `(state, steps) -> steps`, called each time before steps are learnt from: scaling, and the inputs of the
          intrinsic loss.
        losses: `(state) -> extra losses`: the intrinsic loss, if there is one.
    """

    init: Callable
    process: Callable
    prepare: Callable
    losses: Callable

    def __call__(self, state: TrainState, rollout: Rollout) -> tuple[TrainState, Rollout, dict[str, Any]]:
        """Process a rollout, and prepare its steps for learning."""
        state, rollout, metrics = self.process(state, rollout)
        return state, rollout.replace(steps=self.prepare(state, rollout.steps)), metrics


def reward_stage(cfg: OnPolicyConfig, shaper: Shaper | None = None, intrinsic: Intrinsic | None = None) -> RewardStage:
    """Return the reward stage of a config.

    Args:
        cfg: `normalize_reward` and `reward_clip` are read.
        shaper: `(reward [T, B], environment steps before each row [T, 1]) -> reward [T, B]`, or None.
        intrinsic: a second reward stream, or None.
    """

    def init(key: jax.Array, obs: PyTree) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
        if intrinsic is None:
            return {}, {}
        groups, intrinsic_state = intrinsic.init(named_key(key, "intrinsic"), obs)
        return groups, {"intrinsic": intrinsic_state}

    def process(state: TrainState, rollout: Rollout) -> tuple[TrainState, Rollout, dict[str, Any]]:
        steps, metrics = rollout.steps, {}
        if shaper is not None:
            shaped = shaper(steps.reward, step_counts(state.clock, cfg.num_steps, cfg.num_envs))
            steps = steps.replace(reward=shaped.astype(jnp.float32))
        state = state.replace(statistics=merge_rewards(cfg, state.statistics, steps))
        if intrinsic is not None:
            reward, intrinsic_state, metrics = intrinsic.reward(state.params, state.extra["intrinsic"], steps)
            steps = steps.replace(reward=jnp.stack([steps.reward, jax.lax.stop_gradient(reward)], axis=-1))
            state = state.replace(extra={**state.extra, "intrinsic": intrinsic_state})
        return state, rollout.replace(steps=steps), metrics

    def prepare(state: TrainState, steps: Transition) -> Transition:
        steps = steps.replace(reward=scaled_rewards(cfg, state.statistics, steps.reward))
        if intrinsic is None or intrinsic.training is None:
            return steps
        key = local_key(state.key, "intrinsic/training", state.clock)
        return steps.replace(intrinsic=intrinsic.training(state.extra["intrinsic"], steps, key))

    def losses(state: TrainState) -> tuple[Callable, ...]:
        loss = None if intrinsic is None else intrinsic.loss
        if loss is None:
            return ()
        return (lambda params, outputs, batch, cfg: loss(params, state.extra["intrinsic"], batch.intrinsic),)

    return RewardStage(init, process, prepare, losses)
