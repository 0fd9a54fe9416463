"""The parts of an algorithm that a user can replace."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from purerl.core.arguments import accepted
from purerl.core.types import Advantages, TrainState, Transition
from purerl.learning.optimizers import BaseOptimizer
from purerl.learning.rewards import RewardStage


class Components(NamedTuple):
    """What an algorithm is made of besides its own update.

    advantage: `(steps [T, B], cfg) -> Advantages [T, B]`.
    policy_loss: `(log_prob, old_log_prob, advantage, cfg) -> loss`, all `[L, N]`. If it has the parameters `policy` or
      `old_policy`, it is given the distributions.
    extra_losses: each `(params, Outputs, Sample, cfg) -> (scalar, metrics)`, added to the policy's loss.
    base_optimizer: from gradients to steps, without the learning rate.
    lr_schedule: `(gradient steps so far) -> learning rate`; None for the config's.
    rewards: shaping, scaling and intrinsic rewards.
    measure: `(state, batch, metrics) -> metrics`, called at the end of an update with the state after it, its training set as
      `Sequences` of `Sample`, and its metrics.
    """

    advantage: Callable[[Transition, object], Advantages]
    policy_loss: Callable[..., jax.Array]
    extra_losses: tuple[Callable, ...]
    base_optimizer: BaseOptimizer
    lr_schedule: Callable[[jax.Array], jax.Array] | None
    rewards: RewardStage
    measure: Callable[..., dict] = lambda state, batch, metrics: {}

    def given(self, state: TrainState) -> "Components":
        """With the loss of an intrinsic reward among the extra losses; it reads this state."""
        return self._replace(extra_losses=(*self.extra_losses, *self.rewards.losses(state)))

    @property
    def sees_old_policy(self) -> bool:
        """Whether the policy's loss reads the distributions that actions were drawn from."""
        return bool(accepted(self.policy_loss, old_policy=None))
