"""The config class of each algorithm: the fields that it adds to those of `purerl.config.base`."""

import math
from typing import Any, ClassVar, Self

from jax.core import Tracer

from purerl.config.base import OnPolicyConfig
from purerl.config.fields import Config, configclass, leaf, static
from purerl.config.rules import SWITCH, above, at_least, between, finite, is_above, may_hold, one_of, or_auto, when
from purerl.core.environment import Environment
from purerl.core.errors import Problem, divisors, neighbours, would_work


@configclass
class PPOConfig(OnPolicyConfig):
    """Proximal Policy Optimization (Schulman et al. 2017, arXiv:1707.06347).

    Example:
        >>> cfg = purerl.PPOConfig(env="Pendulum-v1", lr=1e-3, normalize_obs=True)
        >>> cfg.replace(gamma=0.9).gamma
        0.9
        >>> sweep = jax.vmap(lambda lr: cfg.replace(lr=lr))(jnp.array([1e-4, 1e-3]))
        >>> sweep.lr.shape
        (2,)

    Optimisation:
        num_epochs: Epochs over the rollout in each update.

    Network:
        arch: Architecture: `separate` torsos for policy and value, a `shared` torso, or a shared torso that receives no gradient
          of the value loss (`detach`).
    """

    num_epochs: int = static(4, between(1, 2**16))
    arch: str = static("separate", one_of("separate", "shared", "detach"))

    @property
    def policy_epochs(self) -> int:
        return self.num_epochs


VTRACE = when(correction="vtrace")
AUX = is_above("e_aux", 0)


@configclass
class APPOConfig(PPOConfig):
    """Simulated asynchronous PPO: old data, V-trace and a target network (IMPACT, Luo et al. 2020, arXiv:1912.00167).

    Training is synchronous, and staleness is a hyperparameter: actors act with older parameters, and a ring
    buffer stores the rollouts of several updates. With V-trace, `approx_kl` (see `target_kl`) compares the policy with the
    denominator of the ratio, `max(pi_target, pi_behaviour / target_ratio_clip)`. Staleness alone makes this divergence positive.

    Example:
        >>> cfg = purerl.APPOConfig(lag=4, replay=4, target_update_freq=8)
        >>> train = purerl.make_train(cfg)

    Rollout:
        replay: Number of rollouts in the ring buffer, and in the batch of each update. If fewer rollouts are usable, they are
          repeated.
        max_uses: Maximum number of updates that learn from a rollout. 0 means no limit while the rollout is in the ring buffer.
        replay_order: Selection of the rollouts of an update. `newest`: every usable rollout, newest first, as evenly as possible.
          `random`: the newest rollout, and others sampled with replacement from the usable rollouts.
        lag: Number of updates by which the acting parameters lag behind the newest parameters.
        publish_every: Actors receive new parameters every `publish_every` updates. In between, their lag grows.

    Policy loss:
        target_ratio_clip: Upper bound of the ratio of the acting to the target policy in the surrogate: 2 in IMPACT, 1 in UniLab.
        tau: Step size of the target network towards the newest parameters.
        target_update_freq: The target network moves every `target_update_freq` updates. If this value and `tau` are 1, the target
          network is a copy of the newest policy, and does not limit how far stale data can move the policy.

    Value:
        correction: Off-policy correction: `vtrace`, or `none`, which uses PPO's estimator and ratio with the values and
          log-probabilities of the acting parameters.
        vtrace_rho_clip: Upper bound of the importance weight of a temporal difference.
        vtrace_c_clip: Upper bound of the importance weight of a trace.
        vtrace_pg_clip: Upper bound of the importance weight of an advantage.
    """

    replay: int = static(2, between(1, 2**16))
    max_uses: int = static(0, between(0, 2**16), is_above("replay", 1))
    replay_order: str = static("newest", one_of("newest", "random"), is_above("replay", 1))
    lag: int = static(1, between(0, 2**14))
    publish_every: int = static(1, between(1, 2**14))
    vtrace_rho_clip: float = leaf(1.0, above(0), VTRACE)
    vtrace_c_clip: float = leaf(1.0, above(0), VTRACE)
    vtrace_pg_clip: float = leaf(1.0, above(0), VTRACE)
    target_ratio_clip: float = leaf(2.0, above(0), VTRACE)
    correction: str = static("vtrace", one_of("vtrace", "none"))
    tau: float = leaf(1.0, between(0, 1), VTRACE)
    target_update_freq: int = static(4, between(1, 2**16), VTRACE)

    num_minibatches: int = static(8, at_least(1))  # minibatches as large as PPO's, since the batch is twice as large

    @property
    def columns(self) -> int:
        return self.replay * self.num_envs

    keeps: ClassVar = {"replay": "ring", "lag": "published"}

    @property
    def keeps_next_obs(self) -> bool:
        return True

    @property
    def learns_from_others(self) -> Any:
        corrected = self.correction == "vtrace"
        always = self.lag > 0 or self.publish_every > 1 or self.replay > 1 or (corrected and self.target_update_freq > 1)
        if always or not corrected:
            return always
        return self.tau != 1 if isinstance(self.tau, Tracer) else may_hold(self.tau, lambda x: x != 1)

    def cross_field_errors(self) -> list[Problem]:
        found = super().cross_field_errors()
        for name, only in (("estimator", "gae"), ("truncation", "final_obs")):
            if self.correction == "vtrace" and getattr(self, name) != only:
                found.append(Problem(name, getattr(self, name), f"must be {only!r} with correction='vtrace'"))
        return found


@configclass
class PPGConfig(OnPolicyConfig):
    """Phasic Policy Gradient (Cobbe et al. 2021, arXiv:2009.04416), with the paper's names for its fields.

    After each policy phase of `n_pi` PPO updates, an auxiliary phase trains the policy network to predict values on all
    observations of the policy phase. Meanwhile, a KL term against a clone of the network preserves the policy.

    Example:
        >>> cfg = purerl.PPGConfig(n_pi=16, e_aux=6)
        >>> train = purerl.make_train(cfg)
        >>> [phase.name for phase in train.plan.phases]
        ['ppo', 'aux']

    Optimisation:
        n_pi: Number of updates in a policy phase. If fewer than `n_pi` updates remain at the end of a run, no auxiliary phase
          follows them.
        e_pi: Policy epochs over each rollout.
        e_v: Value epochs over each rollout. If `e_v` equals `e_pi`, one joint loss trains policy and value.
        e_aux: Epochs of the auxiliary phase over all rollouts of the policy phase. 0: the phase trains nothing.
        aux_lr: Learning rate of the auxiliary phase. If `lr_schedule` is `linear` or `polynomial`, `aux_lr` is the initial rate,
          and each auxiliary phase has the scheduled rate of the first update of its policy phase.
        aux_optimizer: Optimizer of the auxiliary phase: a `separate` optimizer, or the `shared` optimizer of the policy phase.
        aux_columns: Number of columns in each auxiliary minibatch; a column is one environment's part of one rollout. 0 means
          the largest valid divisor up to a sixteenth of `num_envs` (the paper's 16 minibatches per rollout), at least 1.
        aux_accumulation: Number of auxiliary minibatches whose gradients are averaged for one gradient step.

    Policy loss:
        beta_clone: Weight of KL(policy before the auxiliary phase || policy during the auxiliary phase).

    Network:
        arch: `dual`: one torso for the policy, with an auxiliary value head, and one torso for the value. `shared`: a single
          torso that value gradients reach. `detach`: a single torso that value gradients reach through the auxiliary head only.
    """

    n_pi: int = static(32, between(1, 2**16), AUX)
    e_pi: int = static(1, between(1, 2**16))
    e_v: int = static(1, between(1, 2**16))
    e_aux: int = static(6, between(0, 2**16))
    beta_clone: float = leaf(1.0, finite(0), AUX)
    aux_lr: float = leaf(5e-4, finite(0), AUX)
    aux_optimizer: str = static("separate", one_of("separate", "shared"), AUX)
    aux_columns: int = static(0, at_least(0), AUX)
    aux_accumulation: int = static(1, at_least(1), AUX)
    arch: str = static("dual", one_of("dual", "shared", "detach"))

    num_minibatches: int = static(8, at_least(1))
    lr: float = leaf(5e-4, finite(0))
    lr_schedule: str = static("constant", one_of("linear", "constant", "polynomial", "kl_adaptive"))
    gamma: float = leaf(0.999, between(0, 1))
    vf_coef: float = leaf(1.0, finite(0))
    max_grad_norm: float = leaf(math.inf, above(0))
    value_clip: str = static("none", one_of("max", "replace", "none"))
    advantage_norm: str = static("batch", one_of("minibatch", "batch", "none"))
    normalize_reward: bool | str = static(True, SWITCH)
    reward_clip: float = leaf(10.0, or_auto(above(0)), when(normalize_reward=True))

    @property
    def policy_epochs(self) -> int:
        return self.e_pi

    def resolve(self, env: Environment) -> Self:
        return super().resolve(env).replace(aux_columns=self.aux_columns or self._default_aux_columns)

    @property
    def _default_aux_columns(self) -> int:
        """Return the largest valid `aux_columns` up to a sixteenth of the environments, at least 1."""
        columns = self.n_pi * self.num_envs
        divides = lambda n: columns % n == 0 and columns // n % self.aux_accumulation == 0
        return next(filter(divides, range(self.num_envs // 16, 0, -1)), 1)

    keeps: ClassVar = {"n_pi": "buffer"}

    heads: ClassVar = ("aux_value",)

    def cross_field_errors(self) -> list[Problem]:
        found, columns = super().cross_field_errors(), self.n_pi * self.num_envs
        if columns * self.num_steps >= 2**31:
            most = (2**31 - 1) // self.batch_size
            hint = f"a policy phase must have fewer than 2**31 steps; one rollout has {self.batch_size}"
            found.append(Problem("n_pi", self.n_pi, hint + (f"; at most {most} would work" if most else "")))
        elif columns % self.aux_accumulation:
            each = self.aux_columns if self.aux_columns and columns % self.aux_columns == 0 else 1
            choices = neighbours(self.aux_accumulation, divisors(columns // each))
            hint = f"must divide n_pi * num_envs = {columns}{would_work(choices)}"
            found.append(Problem("aux_accumulation", self.aux_accumulation, hint))
        elif (columns // self.aux_accumulation) % (each := self.aux_columns or self._default_aux_columns):
            choices = neighbours(each, divisors(columns // self.aux_accumulation))
            hint = f"must divide n_pi * num_envs / aux_accumulation = {columns // self.aux_accumulation}"
            found.append(Problem("aux_columns", each, hint + would_work(choices)))
        if self.aux_optimizer == "shared" and self.e_pi != self.e_v:
            hint = f"needs e_pi = e_v, but e_pi is {self.e_pi} and e_v is {self.e_v}; use 'separate', or equal epochs"
            found.append(Problem("aux_optimizer", self.aux_optimizer, hint))
        if self.aux_optimizer == "shared" and self.lr_schedule == "kl_adaptive":
            hint = "does not support lr_schedule='kl_adaptive'; use 'separate'"
            found.append(Problem("aux_optimizer", self.aux_optimizer, hint))
        return found


@configclass
class DAACConfig(OnPolicyConfig):
    """Decoupled Advantage Actor-Critic (Raileanu & Fergus 2021, arXiv:2102.10330).

    Policy and value are two networks without shared parameters. The policy network has a head that predicts the advantage of the
    taken action. Like a value loss, this prediction shapes the policy's features. Unlike a value loss, it does not add features
    that only a value function needs.

    Example:
        >>> cfg = purerl.DAACConfig(e_v=9, adv_coef=0.25)
        >>> train = purerl.make_train(cfg)
        >>> [phase.name for phase in train.plan.phases]
        ['value', 'policy']

    Optimisation:
        e_pi: Policy epochs over each rollout.
        e_v: Value epochs over each rollout that the value network learns from.
        value_freq: The value network learns from one of every `value_freq` rollouts.

    Policy loss:
        adv_coef: Weight of the squared error of the predicted advantage.

    Value:
        vf_coef: Weight of the value loss (half the squared error), in the phase of the value network.
    """

    e_pi: int = static(1, between(1, 2**16))
    e_v: int = static(9, between(1, 2**16))
    value_freq: int = static(1, between(1, 2**16))
    adv_coef: float = leaf(0.25, finite(0))
    vf_coef: float = leaf(1.0, finite(0))

    num_minibatches: int = static(8, at_least(1))
    lr: float = leaf(5e-4, finite(0))
    lr_schedule: str = static("constant", one_of("linear", "constant", "polynomial", "kl_adaptive"))
    gamma: float = leaf(0.999, between(0, 1))
    advantage_norm: str = static("batch", one_of("batch", "none"))
    normalize_reward: bool | str = static(True, SWITCH)
    reward_clip: float = leaf(10.0, or_auto(above(0)), when(normalize_reward=True))

    @property
    def arch(self) -> str:
        """Return the network architecture: `separate`."""
        return "separate"

    def cross_field_errors(self) -> list[Problem]:
        hint = "DAAC does not support intrinsic rewards; use ppo, ppg or appo"
        return super().cross_field_errors() + ([] if self.rnd is None else [Problem("rnd", self.rnd, hint)])

    @property
    def policy_epochs(self) -> int:
        return self.e_pi

    heads: ClassVar = ("advantage",)


ALGORITHMS: dict[str, type[OnPolicyConfig]] = {"ppo": PPOConfig, "ppg": PPGConfig, "daac": DAACConfig, "appo": APPOConfig}


def algorithm_of(cfg: Config) -> str:
    """Return the command line's name of a config's algorithm; a custom subclass has the name of its base."""
    names = {cls: name for name, cls in ALGORITHMS.items()}
    return next(names[cls] for cls in type(cfg).__mro__ if cls in names)
