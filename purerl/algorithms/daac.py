"""Decoupled Advantage Actor-Critic (Raileanu & Fergus 2021, arXiv:2102.10330): what DAAC adds to PPO.

Policy and value are two networks without shared parameters, each with its own optimizer. The policy network also predicts the
advantage of the action taken, A_theta:

    L_policy = clipped surrogate - ent_coef * entropy + adv_coef * mean((A_theta(s, a) - A)^2)

where A is the advantage, standardised by default. The value network is trained in a phase of its own.

**Where papers and implementations differ.** The squared error of the advantage has no factor of 1/2, as in the paper. The value
network learns only from the last of every `value_freq` rollouts; in the authors' code, only from the first.

**Defaults** are the paper's for Procgen: one policy epoch, nine value epochs, `adv_coef = 0.25`, a learning rate of 5e-4.

**When to choose it.** For procedurally generated levels, if there are few training levels. After training in 200 mazes, DAAC
solved 39 % of unseen mazes (95 % interval 36 to 42), PPO with two networks 34 % (31 to 38) and PPG 41 %. PPO solved more of the
200 training mazes. After 250,000 steps of MinAtar, DAAC was indistinguishable from PPO on Breakout and SpaceInvaders, and better
on Asterix (`tests/benchmarks/RESULTS.md`).

**Metrics** in addition to PPO's: `advantage_loss`, the squared error of the predicted advantage (with standardised advantages,
about 1 for a head that always predicts 0); `value/grad_norm`, the gradient norm in the value phase.
"""

import jax.numpy as jnp

from purerl.algorithms.ppg import value_phase
from purerl.algorithms.ppo import ppo, ppo_loss
from purerl.config.algorithms import DAACConfig
from purerl.core.environment import Environment
from purerl.core.types import Network, Outputs, Sample
from purerl.learning.learner import Components, Learner
from purerl.learning.losses import Term
from purerl.learning.phases import Phase, make_phase
from purerl.learning.update import Algorithm


def daac(cfg: DAACConfig, env: Environment, network: Network, parts: Components) -> Algorithm:
    """Return DAAC as an `Algorithm`; the arguments are the first four of `ppo`. The network must have the head `advantage`.

    In the value phase, a learning-rate schedule in gradient steps also counts the steps of updates without this phase.
    """
    return ppo(cfg, env, network, parts, daac_phases)


def daac_phases(learner: Learner[DAACConfig]) -> list[Phase]:
    """Return the value phase, for every `value_freq`-th update, and the policy phase, for every update."""
    cfg, loss = learner.cfg, ppo_loss(learner, advantage_term)
    return [
        value_phase(learner, groups=("value",), every=cfg.value_freq),
        make_phase(learner, "policy", loss, cfg.e_pi, groups=("policy", "advantage")),
    ]


def advantage_term(outputs: Outputs, old: Sample, cfg: DAACConfig) -> Term:
    """Return the advantage head's term of the loss, a squared error without a factor of 1/2, as in the paper."""
    predicted = outputs.heads["advantage"](outputs.policy.encode(old.action))
    return Term("advantage_loss", cfg.adv_coef, jnp.square(predicted - old.advantage))
