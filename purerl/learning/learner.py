"""The learner of an update: config, network and the replaceable parts."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import jax

from purerl.acting.wrappers import with_obs_normalization
from purerl.config.base import OnPolicyConfig
from purerl.core.types import Advantages, Network, TrainState, Transition
from purerl.learning.optimizers import Optimizer
from purerl.learning.rewards import RewardStage

Metrics = dict[str, Any]
Cfg = TypeVar("Cfg", bound=OnPolicyConfig, covariant=True)


class Components(NamedTuple):
    """The replaceable parts of an algorithm, for rollouts of T steps of B environments and minibatches of N sequences of L steps.

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
    """The config, the network and the parts that phases are made of. `at` returns the learner for one update.

    Attributes:
        cfg: the config; `at` replaces scheduled and KL-adaptive coefficients by their values in the update.
        network: policy and value function; `at` adds the standardisation of observations, if `normalize_obs` is set.
        parts: the replaceable parts; `at` adds the loss of intrinsic rewards, if there is one.
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
