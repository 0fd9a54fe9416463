"""The reward stage: shaping, scaling and intrinsic rewards, before advantages are estimated."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from purerl.acting.normalize import merge_rewards, scale_rewards
from purerl.acting.rollout import step_counts
from purerl.config.base import OnPolicyConfig
from purerl.core.keys import fold_in_name
from purerl.core.reductions import local_key
from purerl.core.types import Intrinsic, PyTree, Rollout, TrainState, Transition

Shaper = Callable[[jax.Array, jax.Array], jax.Array]


class RewardStage(NamedTuple):
    """The reward stage of a config, for rollouts of T steps of B environments.

    Attributes:
        cfg: `normalize_reward` and `reward_clip` are read.
        shaper: `(reward [T, B], environment steps before each time step [T, 1]) -> reward [T, B]`, or None.
        intrinsic: a second reward stream, or None.
    """

    cfg: OnPolicyConfig
    shaper: Shaper | None = None
    intrinsic: Intrinsic | None = None

    def __call__(self, state: TrainState, rollout: Rollout) -> tuple[TrainState, Rollout, dict[str, Any]]:
        """Process a rollout, and prepare its steps for learning."""
        state, rollout, metrics = self.process(state, rollout)
        return state, rollout.replace(steps=self.prepare(state, rollout.steps)), metrics

    def init(self, key: jax.Array, obs: PyTree) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
        """Return parameter groups, and entries of `TrainState.extra`, for observations `[B, ...]`."""
        if self.intrinsic is None:
            return {}, {}
        groups, intrinsic_state = self.intrinsic.init(fold_in_name(key, "intrinsic"), obs)
        return groups, {"intrinsic": intrinsic_state}

    def process(self, state: TrainState, rollout: Rollout) -> tuple[TrainState, Rollout, dict[str, Any]]:
        """Shape rewards, merge reward statistics and compute intrinsic rewards, once per rollout."""
        steps, metrics = rollout.steps, {}
        if self.shaper is not None:
            shaped = self.shaper(steps.reward, step_counts(state.clock, self.cfg.num_steps, self.cfg.num_envs))
            steps = steps.replace(reward=shaped.astype(jnp.float32))
        state = state.replace(statistics=merge_rewards(self.cfg, state.statistics, steps))
        if self.intrinsic is not None:
            reward, intrinsic_state, metrics = self.intrinsic.reward(state.params, state.extra["intrinsic"], steps)
            steps = steps.replace(reward=jnp.stack([steps.reward, jax.lax.stop_gradient(reward)], axis=-1))
            state = state.replace(extra={**state.extra, "intrinsic": intrinsic_state})
        return state, rollout.replace(steps=steps), metrics

    def prepare(self, state: TrainState, steps: Transition) -> Transition:
        """Scale rewards, and add the inputs of the intrinsic loss. Called whenever the steps are about to be learnt from."""
        steps = steps.replace(reward=scale_rewards(self.cfg, state.statistics, steps.reward))
        if self.intrinsic is None or self.intrinsic.training is None:
            return steps
        key = local_key(state.key, "intrinsic/training", state.clock)
        return steps.replace(intrinsic=self.intrinsic.training(state.extra["intrinsic"], steps, key))

    def losses(self, state: TrainState) -> tuple[Callable, ...]:
        """Return the extra losses: the intrinsic loss, if there is one."""
        loss = None if self.intrinsic is None else self.intrinsic.loss
        if loss is None:
            return ()
        return (lambda params, outputs, batch, cfg: loss(params, state.extra["intrinsic"], batch.intrinsic),)
