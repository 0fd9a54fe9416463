"""The learner of an update: config, network and the replaceable parts, such as shaping, scaling and intrinsic rewards."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from purerl.acting.normalize import merge_rewards, scaled_rewards
from purerl.acting.rollout import step_counts
from purerl.acting.wrappers import with_obs_normalization
from purerl.config.base import OnPolicyConfig
from purerl.core.keys import named_key
from purerl.core.reductions import local_key
from purerl.core.types import Advantages, Intrinsic, Network, PyTree, Rollout, TrainState, Transition
from purerl.learning.optimizers import Optimizer

Metrics = dict[str, Any]
Cfg = TypeVar("Cfg", bound=OnPolicyConfig, covariant=True)
Shaper = Callable[[jax.Array, jax.Array], jax.Array]


class RewardStage(NamedTuple):
    """The reward stage of a config.

    Attributes:
        cfg: `normalize_reward` and `reward_clip` are read.
        shaper: `(reward [T, B], environment steps before each row [T, 1]) -> reward [T, B]`, or None.
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
        groups, intrinsic_state = self.intrinsic.init(named_key(key, "intrinsic"), obs)
        return groups, {"intrinsic": intrinsic_state}

    def process(self, state: TrainState, rollout: Rollout) -> tuple[TrainState, Rollout, dict[str, Any]]:
        """Shape rewards, merge statistics and compute intrinsic rewards, once per rollout."""
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
        """Scale rewards, and add the inputs of the intrinsic loss, each time before steps are learnt from."""
        steps = steps.replace(reward=scaled_rewards(self.cfg, state.statistics, steps.reward))
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


class Components(NamedTuple):
    """The replaceable parts of an algorithm.

    Attributes:
        advantage: `(steps [T, B], cfg) -> Advantages [T, B]`.
        policy_loss: `(Outputs, Sample, advantage, cfg) -> loss [L, N]`.
        extra_losses: each `(params, Outputs, Sample, cfg) -> (scalar, metrics)`, added to the policy's loss.
        optimizer: maps gradients to update directions, without a learning rate.
        lr_schedule: `(gradient steps so far) -> learning rate`; None to use the config's schedule.
        rewards: shaping, scaling and intrinsic rewards.
        measure: `(state, batch, metrics) -> metrics`, called at the end of an update with the new state, the batch as `Sequences`
          of `Sample`, and the metrics of the update.
    """

    advantage: Callable[[Transition, OnPolicyConfig], Advantages]
    policy_loss: Callable[..., jax.Array]
    extra_losses: tuple[Callable, ...]
    optimizer: Optimizer
    lr_schedule: Callable[[jax.Array], jax.Array] | None
    rewards: RewardStage
    measure: Callable[..., Metrics] = lambda state, batch, metrics: {}


class Learner(NamedTuple, Generic[Cfg]):
    """The config, the network and the parts that phases are made of. `at` returns the learner of one update.

    Attributes:
        cfg: the config; for one update, with the scheduled coefficients of that update.
        network: policy and value function; for one update, wrapped so that the network standardises observations.
        parts: the replaceable parts; for one update, with the loss of intrinsic rewards.
    """

    cfg: Cfg
    network: Network
    parts: Components

    def at(self, state: TrainState) -> "Learner[Cfg]":
        """Return the learner for the next update of a state."""
        losses = (*self.parts.extra_losses, *self.parts.rewards.losses(state))
        network = with_obs_normalization(self.cfg, self.network, state.statistics)
        return Learner(scheduled_config(self.cfg, state), network, self.parts._replace(extra_losses=losses))


def scheduled_config(cfg: Cfg, state: TrainState) -> Cfg:
    """Return the config with scheduled and KL-adaptive coefficients at their values for the next update."""
    at = lambda start, end: start + (end - start) * state.clock.progress(cfg.num_updates)
    changes = {"clip_eps": at(cfg.clip_eps, cfg.clip_eps_final)} if cfg.clip_schedule == "linear" else {}
    changes |= {"ent_coef": at(cfg.ent_coef, cfg.ent_coef_final)} if cfg.ent_schedule == "linear" else {}
    changes |= {"kl_coef": state.extra["kl_coef"]} if cfg.kl_penalty == "adaptive" else {}
    return cfg.replace(**changes)
