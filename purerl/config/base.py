"""Config fields shared by all algorithms. `purerl.config.fields` explains how configs work."""

import dataclasses
import math
from typing import Any, ClassVar, Self

from purerl.config import rules
from purerl.config.batches import Batches
from purerl.config.curiosity import RNDConfig
from purerl.config.fields import Config, configclass, count, leaf, nested, or_default, static
from purerl.config.randomization import Distribution
from purerl.core.environment import Environment
from purerl.core.errors import Problem
from purerl.core.spaces import entries_of, has_box, is_index

KL_ADAPTIVE = rules.when(lr_schedule="kl_adaptive")
MEMORY = rules.when(memory=("gru", "lstm", "min_gru", "lru"))


@configclass
class OnPolicyConfig(Config, Batches):
    """Config fields of all algorithms: environments, rollouts, advantages, losses, optimizers, networks.

    Defaults are those of "The 37 Implementation Details of PPO" (Huang et al. 2022) for classic control, except `truncation`.
    If the right value depends on the action space, the default is `auto`: one value for continuous actions (a Box), another for
    discrete actions. `jax.vmap` can sweep the numbers in `env_params` and `randomize`, and all floats except counts of steps.

    Environment:
        env: Environment id. gymnax: CartPole-v1, Pendulum-v1, Breakout-MinAtar, DeepSea-bsuite, ... Other suites: brax/ant,
          craftax/Craftax-Classic-Symbolic-v1, gymnasium/HalfCheetah-v5, jumanji/Snake-v1, navix/Navix-DoorKey-5x5-v0,
          pgx/minatar-breakout, playground/CartpoleBalance, xminigrid/MiniGrid-DoorKey-5x5.
        env_kwargs: Arguments of the environment's constructor, as pairs (name, value): `(("size", 12),)` for DeepSea-bsuite.
        env_params: New values of environment parameters: `{"max_steps_in_episode": 200}`. The values can be swept.
        randomize: Distributions of parameters of gymnax, brax and Playground: `Uniform(low, high)`, `Normal(mean, std)`, or
          `Scale(least, most)` for arrays. An evaluation's `env_params` take precedence. Metrics show those that `info` names.
        randomize_each: Parameters are sampled for each `episode`, or once for each `environment`, in evaluations too.
        action_mask: Entry of a dict observation that is 1 or True for valid actions and 0 for invalid actions; "" for none.
          `auto`: the entry that the suite defines; for a custom environment, the entry named "action_mask", if there is one.
        frame_stack: Number of latest frames in an observation, stacked along the last axis; at first, copies of the first frame.
          Of several entries, images and other entries with two or more axes are stacked.
        num_levels: Number of levels (initial states, with layouts, maps and randomized parameters) in which training episodes
          begin; 0: no limit. Evaluation episodes begin in other levels by default; the difference in scores measures
          generalisation.
        reset_pool: Number of first states that each update samples for new episodes, if the environment has slow resets; 0
          means `num_envs`. If more episodes begin, first states are used again, in a fraction `resets_reused` of the episodes.
        critic_obs: Entry of a dict observation that only the value network sees; "" if the policy sees all entries. `auto`: the
          entry that the suite defines, if any, such as `privileged_state` in MuJoCo Playground.
        info: Numeric entries of the environment's info. Metrics average each over all steps, evaluations sum it over an episode.
        episode_info: Names of entries of the environment's info, numbers or vectors, to read at the last step of each episode,
          such as success. Metrics average entries over episodes, vectors elementwise. In gymnasium, a missing entry counts as 0.

    Rollout:
        total_timesteps: Environment steps over all environments, rounded up to whole updates; `Train.plan` shows the added steps.
        num_envs: Number of parallel environments.
        num_steps: Steps of each environment per update.
        truncation: Bootstrap value of an episode that a time limit cuts short. `final_obs`: the value of the observation before
          the reset, correct if the limit is not part of the task (Stable-Baselines3). `zero`: 0, correct if the limit is part
          of the task and the observation shows the remaining time; CleanRL, purejaxrl, rejax and rlib (not RLlib) always use 0.
          `current_obs`: the value of the step's observation (rsl_rl, skrl 1.4). `ignore`: the value after the reset (skrl 2.0).
        warmup_steps: Environment steps with uniformly random actions at the start of training, rounded up to whole updates.
        learning_starts: Environment steps before the first gradient step, rounded up to whole updates. Linear schedules count
          these updates too; a `polynomial` schedule begins with the first gradient step.

    Optimisation:
        num_minibatches: Number of minibatches, and so of gradient steps, in each epoch. Must divide the number of units that
          `minibatches` shuffles in a batch, usually single steps.
        minibatches: Unit that is shuffled into minibatches. `flat`: single steps. `env`: the whole rollout of an environment.
          `time`: one time step of all environments. `auto`: whole sequences for recurrent networks, else `flat`.
        lr: Learning rate at the first update.
        lr_final: Final learning rate of a `linear` or `polynomial` schedule.
        lr_schedule: Schedule of the learning rate. `constant`: always `lr`. `linear` in updates: `lr + (lr_final - lr) * i / n`
          at update i of n, counted from 0. `polynomial` in gradient steps:
          `(lr - lr_final) * (1 - s / decay_steps)**lr_power + lr_final` at step s. `kl_adaptive`: starts at `lr`, and is
          divided by `lr_kl_factor` if the policy moved too far, or multiplied by this factor if the policy moved too little.
        lr_power: Exponent of the polynomial schedule; with 0 the rate is constant.
        decay_steps: Gradient steps of each phase until the polynomial schedule reaches `lr_final`. 0 means the whole run.
        desired_kl: Target of KL(old policy || new policy), in nats, for `kl_adaptive` and for an adaptive `kl_penalty`.
        lr_kl_tolerance: `kl_adaptive` lowers the rate if the KL divergence is above `desired_kl * lr_kl_tolerance`, and raises
          the rate if the divergence is below `desired_kl / lr_kl_tolerance`.
        lr_kl_factor: Factor by which `kl_adaptive` changes the learning rate.
        lr_kl_every: Interval at which `kl_adaptive` changes the rate. `minibatch`: before each gradient step, by the KL
          divergence on its minibatch (rsl_rl, UniLab). `epoch`: after each epoch, by its mean KL divergence (skrl).
        lr_min: Lowest learning rate of `kl_adaptive`.
        lr_max: Highest learning rate of `kl_adaptive`.
        critic_lr_scale: Factor of the learning rate for the value network, or for the value head on a shared torso.
        optimizer: `adam`, `adamw`, `muon`, `rmsprop` or `sgd`. `muon` (`optax.contrib`) orthogonalises the steps of all matrices
          except built-in heads, and trains all other parameters by adam with Nesterov momentum.
        adam_eps: Epsilon of adam, adamw, muon and rmsprop. In rmsprop (decay 0.99), epsilon is added inside the square root, as
          in TensorFlow: 1e-5 inside the root acts like 3e-3 outside.
        weight_decay: Weight decay of adamw.
        max_grad_norm: Maximum norm of gradients; larger gradients are scaled down. inf disables clipping.
        grad_clip: Gradients are clipped by their norm over all groups (`joint`), or over each, such as `policy` (`per_network`).

    Policy loss:
        clip_eps: The ratio of new to old probability is clipped to `1 +- clip_eps`. inf disables clipping.
        clip_eps_final: Final value of a `linear` schedule of `clip_eps`.
        clip_schedule: Schedule of `clip_eps`: `constant`, or `linear` in the number of updates.
        advantage_norm: Advantages are standardised over each `minibatch`, over the `batch`, or not at all (`none`).
        ent_coef: Weight of the entropy bonus. `auto`: 0 for continuous actions, 0.01 for discrete actions.
        ent_coef_final: Final value of a `linear` schedule of `ent_coef`.
        ent_schedule: Schedule of `ent_coef`: `constant`, or `linear` in the number of updates.
        target_kl: Learning stops at a minibatch whose `approx_kl` is above this; a `kl_adaptive` rate still adapts. inf: no stop.
        kl_stop: Length of the stop at `target_kl`: the rest of the `update`, with all its epochs, or of the `epoch` (skrl).
        kl_penalty: Penalty of `kl_coef` times KL(old policy || new policy) in the loss: `none`, `fixed` or `adaptive`. After an
          update, an adaptive `kl_coef` is multiplied by `kl_coef_raise` if the divergence is above
          `desired_kl * kl_coef_tolerance`, and by `kl_coef_lower` if the divergence is below `desired_kl / kl_coef_tolerance`.
          In section 4 of the PPO paper, the adaptive penalty replaces the clip (`clip_eps = inf`).
        kl_coef: Weight of the KL penalty; the initial weight if `kl_penalty` is `adaptive`.
        kl_coef_tolerance: Tolerance factor of an adaptive penalty around `desired_kl`: 1.5 in the PPO paper, 2 in RLlib.
        kl_coef_raise: Factor of an adaptive `kl_coef` after a too large change of the policy: 2 in the PPO paper, 1.5 in RLlib.
        kl_coef_lower: Factor of an adaptive `kl_coef` after a too small change of the policy.

    Value:
        gamma: Discount factor.
        gae_lambda: Lambda of `gae` and `td_lambda`: 0 has the most bias, 1 the most variance.
        estimator: Estimator of advantages and value targets: `gae`, `n_step` or `td_lambda`.
        return_steps: Number of rewards in each return of `n_step`. 0 means all to the end of the episode or the rollout.
        vf_coef: Weight of the value loss (half the squared error).
        value_clip: Error in the value loss: clipped (`replace`), unclipped (`none`), or the larger of these two errors (`max`).
        value_clip_eps: Range of the value clip, in the units of the network's values (standardised by `normalize_value`).

    Statistics:
        normalize_obs: Running statistics standardise observations. `auto`: True for continuous actions and numeric entries. The
          statistics forget nothing: after a single 1e12, all usual numbers look alike. If a simulator may return such numbers,
          clip them in the environment.
        normalize_entries: Entries of a dict observation to standardise. () means all numeric entries except the action mask.
        obs_clip: Bound on the absolute value of standardised observations.
        normalize_reward: Rewards are divided by the deviation of discounted returns. `auto`: True for continuous actions.
        reward_clip: Bound on the absolute value of scaled rewards; inf: no clip. `auto`: 10 for continuous actions, else inf.
        normalize_value: The value network predicts values that are standardised by running statistics of the value targets.

    Network:
        torso: Network before the recurrent layers and heads: `mlp`, `cnn` (for MinAtar-sized images), `nature_cnn` (for 84 x 84
          images, with `hidden=(512,)` in the original), or `auto`. For images (height, width, channels), `auto` is `nature_cnn`
          from 36 x 36, and `cnn` below; for other observations, `auto` is `mlp`.
        hidden: Widths of the hidden layers; for images, widths of the layers after the convolutions.
        critic_hidden: Widths of the value network's hidden layers. () means the widths in `hidden`.
        activation: Activation function: `tanh`, `relu`, `swish`, `gelu` or `elu`.
        init: Weight initialisation: `orthogonal`, `xavier_uniform`, `xavier_normal` or `lecun`.
        compute_dtype: Dtype of computations in torsos and recurrent layers, `float32` or `bfloat16`. All else is float32.
        matmul_precision: Precision of float32 matrix products, including the environment's: `default` (JAX's default; on a recent
          GPU TF32, with 10 bits of mantissa), `high`, or `highest` (float32). Simulated physics may need `highest`.
        kernels: Kernels of dense layers on a GPU: `xla`, layer by layer; `fused`, one kernel forward and one kernel backward;
          or `auto`, at present the same as `xla`. A CPU and a TPU always compute layer by layer.
        action_distribution: Distribution of continuous actions: `gaussian`, whose samples are clipped to the bounds; `tanh`, a
          Gaussian squashed between the bounds; or `beta`, which has no mass outside the bounds. `auto` is `gaussian`.
        std: Standard deviation of a Gaussian policy: a learnt `parameter` for each dimension of an action, an output of the
          policy network for each `state`, or `fixed` at its initial value.
        log_std_init: Logarithm of the initial standard deviation of a Gaussian policy, in the unit in which the bounds of an
          action are -1 and 1. A dimension without two finite bounds has the environment's unit. `tanh`: deviation before tanh.
        log_std_min: Lower bound of the logarithm of the standard deviation. Beyond a bound, the logarithm has no gradient.
        log_std_max: Upper bound of the logarithm of the standard deviation.

    Memory:
        memory: Recurrent layers behind the torso: `gru`, `lstm`, `min_gru`, `lru` or `none`. `min_gru` and `lru` are linear
          recurrences, which need few kernels on a GPU. Depending on `arch`, policy and value share the recurrent layers.
        memory_size: Width of the recurrent layers.
        memory_layers: Number of recurrent layers.
        memory_inputs: Further inputs of the recurrent layers: `("action", "reward")` of the previous step, or one of the two, as
          the entries `previous_action` and `previous_reward` of observations. They start at 0, and discrete actions at -1.
        sequence_length: Steps of a training sequence of a recurrent network; must divide `num_steps`. 0 means `num_steps`.

    Curiosity:
        rnd: Intrinsic rewards by random network distillation: an `RNDConfig`, or None to disable them.

    Run:
        nonfinite: Handling of NaN and infinite numbers. `ignore`: training continues with them. `reset`: an environment is
          reset after a step whose observation or reward is not finite, or beyond 1e18. This step becomes terminal, with a
          reward of 0. Entries of info that are not finite are left out of their mean. The metrics `nonfinite_resets` and
          `nonfinite/...` count these steps. `freeze`: an update that would make learnt numbers (parameters, optimizer states,
          statistics) NaN or infinite is skipped and counted, for each seed separately.
        metrics_every: Number of updates that each entry of the metrics combines. Larger values save memory in very long runs.
    """

    env: str = static("CartPole-v1")
    env_kwargs: tuple = static((), rules.PAIRS)
    env_params: dict = dataclasses.field(default_factory=dict, metadata={"rule": rules.ANY})
    randomize: dict[str, Distribution] = dataclasses.field(default_factory=dict, metadata={"rule": rules.ANY})
    randomize_each: str = static("episode", rules.one_of("episode", "environment"), rules.RANDOMIZED)

    total_timesteps: float = count(500_000, rules.up_to(2**62, rules.at_least(1)))
    num_envs: int = static(4, rules.at_least(1))
    num_steps: int = static(128, rules.at_least(1))
    num_minibatches: int = static(4, rules.at_least(1))
    minibatches: str = static("auto", rules.one_of("auto", "flat", "env", "time"))

    lr: float = leaf(2.5e-4, rules.finite(0))
    lr_final: float = leaf(0.0, rules.finite(0), rules.when(lr_schedule=("linear", "polynomial")))
    lr_schedule: str = static("linear", rules.one_of("linear", "constant", "polynomial", "kl_adaptive"))
    lr_power: float = leaf(1.0, rules.finite(0), rules.when(lr_schedule="polynomial"))
    decay_steps: float = count(0, rules.between(0, 2**31 - 1), rules.when(lr_schedule="polynomial"))
    desired_kl: float = leaf(0.01, rules.finite(0), rules.either(KL_ADAPTIVE, rules.when(kl_penalty="adaptive")))
    lr_kl_tolerance: float = leaf(2.0, rules.finite(1), KL_ADAPTIVE)
    lr_kl_factor: float = leaf(1.5, rules.finite(1), KL_ADAPTIVE)
    lr_kl_every: str = static("minibatch", rules.one_of("minibatch", "epoch"), KL_ADAPTIVE)
    lr_min: float = leaf(1e-6, rules.finite(0), KL_ADAPTIVE)
    lr_max: float = leaf(1e-2, rules.finite(0), KL_ADAPTIVE)
    critic_lr_scale: float = leaf(1.0, rules.finite(0))
    optimizer: str = static("adam", rules.one_of("adam", "adamw", "muon", "rmsprop", "sgd"))
    adam_eps: float = leaf(1e-5, rules.finite(0), rules.when(optimizer=("adam", "adamw", "muon", "rmsprop")))
    weight_decay: float = leaf(0.01, rules.finite(0), rules.when(optimizer="adamw"))

    gamma: float = leaf(0.99, rules.between(0, 1))
    gae_lambda: float = leaf(0.95, rules.between(0, 1), rules.when(estimator=("gae", "td_lambda")))
    estimator: str = static("gae", rules.one_of("gae", "n_step", "td_lambda"))
    return_steps: int = static(0, rules.between(0, 2**31 - 1), rules.when(estimator="n_step"))
    truncation: str = static("final_obs", rules.one_of("final_obs", "current_obs", "zero", "ignore"))

    clip_eps: float = leaf(0.2, rules.above(0))
    clip_eps_final: float = leaf(0.0, rules.finite(0), rules.when(clip_schedule="linear"))
    clip_schedule: str = static("constant", rules.one_of("constant", "linear"))
    kl_penalty: str = static("none", rules.one_of("none", "fixed", "adaptive"))
    kl_coef: float = leaf(1.0, rules.finite(0), rules.when(kl_penalty=("fixed", "adaptive")))
    kl_coef_tolerance: float = leaf(1.5, rules.finite(1), rules.when(kl_penalty="adaptive"))
    kl_coef_raise: float = leaf(2.0, rules.finite(1), rules.when(kl_penalty="adaptive"))
    kl_coef_lower: float = leaf(0.5, rules.between(0, 1), rules.when(kl_penalty="adaptive"))
    vf_coef: float = leaf(0.5, rules.finite(0))
    ent_coef: float = leaf(rules.AUTO, rules.or_auto(rules.finite(0)))
    ent_coef_final: float = leaf(0.0, rules.finite(0), rules.when(ent_schedule="linear"))
    ent_schedule: str = static("constant", rules.one_of("constant", "linear"))
    value_clip: str = static("max", rules.one_of("max", "replace", "none"))
    value_clip_eps: float = leaf(0.2, rules.above(0), rules.when(value_clip=("max", "replace")))
    advantage_norm: str = static("minibatch", rules.one_of("minibatch", "batch", "none"))
    max_grad_norm: float = leaf(0.5, rules.above(0))
    grad_clip: str = static("joint", rules.one_of("joint", "per_network"), rules.is_finite("max_grad_norm"))
    target_kl: float = leaf(math.inf, rules.above(0))
    kl_stop: str = static("update", rules.one_of("update", "epoch"), rules.is_finite("target_kl"))

    normalize_obs: bool | str = static("auto", rules.SWITCH)
    normalize_entries: tuple = static((), rules.NAMES, rules.when(normalize_obs=True))
    obs_clip: float = leaf(10.0, rules.above(0), rules.when(normalize_obs=True))
    normalize_reward: bool | str = static("auto", rules.SWITCH)
    reward_clip: float = leaf(rules.AUTO, rules.or_auto(rules.above(0)), rules.when(normalize_reward=True))
    normalize_value: bool = static(False)

    torso: str = static("auto", rules.one_of("auto", "mlp", "cnn", "nature_cnn"))
    hidden: tuple = static((64, 64), rules.each(rules.between(1, 2**16)))
    critic_hidden: tuple = static((), rules.each(rules.between(1, 2**16)), rules.when(arch=("separate", "dual")))
    activation: str = static("tanh", rules.one_of("tanh", "relu", "swish", "gelu", "elu"))
    init: str = static("orthogonal", rules.one_of("orthogonal", "xavier_uniform", "xavier_normal", "lecun"))
    compute_dtype: str = static("float32", rules.one_of("float32", "bfloat16"))
    matmul_precision: str = static("default", rules.one_of("default", "high", "highest"))
    kernels: str = static("auto", rules.one_of("auto", "xla", "fused"))
    memory: str = static("none", rules.one_of("none", "gru", "lstm", "min_gru", "lru"))
    memory_size: int = static(128, rules.between(1, 2**16), MEMORY)
    memory_layers: int = static(1, rules.between(1, 64), MEMORY)
    memory_inputs: tuple = static((), rules.some_of("action", "reward"), MEMORY)
    sequence_length: int = static(0, rules.at_least(0))
    action_distribution: str = static("auto", rules.one_of("auto", "gaussian", "tanh", "beta"), rules.BOX)
    std: str = static("parameter", rules.one_of("parameter", "state", "fixed"), rules.GAUSSIAN)
    log_std_init: float = leaf(0.0, rules.between(-20, 20), rules.GAUSSIAN)  # the range in which `DiagGaussian` has a gradient
    log_std_min: float = leaf(-20.0, rules.between(-20, 20), rules.GAUSSIAN)
    log_std_max: float = leaf(20.0, rules.between(-20, 20), rules.GAUSSIAN)
    action_mask: str = static("auto")
    frame_stack: int = static(1, rules.at_least(1))
    num_levels: int = static(0, rules.between(0, 2**31 - 1))
    reset_pool: int = static(0, rules.between(0, 2**31 - 1))
    critic_obs: str = static("auto")

    info: tuple = static((), rules.NAMES)
    episode_info: tuple = static((), rules.NAMES)
    warmup_steps: float = count(0, rules.up_to(2**62, rules.at_least(0)))
    learning_starts: float = count(0, rules.up_to(2**62, rules.at_least(0)))
    nonfinite: str = static("ignore", rules.one_of("ignore", "reset", "freeze"))
    metrics_every: int = static(1, rules.at_least(1))
    rnd: RNDConfig | None = nested(RNDConfig)

    # A dict of large entries of `TrainState.extra`: from the field that sets the size of an entry to the name of the entry.
    keeps: ClassVar[dict[str, str]] = {}
    heads: ClassVar[tuple[str, ...]] = ()  # additional heads on the policy's features

    @property
    def intrinsic(self) -> RNDConfig:
        """Return the config of intrinsic rewards; raise a ValueError if there is none."""
        if self.rnd is None:
            raise ValueError("the config has no intrinsic rewards: rnd is None")
        return self.rnd

    @property
    def arch(self) -> str:
        """Return the network architecture, which each algorithm's config defines as a field or a property."""
        raise NotImplementedError

    @property
    def policy_epochs(self) -> int:
        """Return the number of policy epochs over a rollout, which each algorithm's config defines."""
        raise NotImplementedError

    @property
    def streams(self) -> int:
        """Return the number of reward streams. Each stream has its own value."""
        return 1 if self.rnd is None else 2

    @property
    def keeps_next_obs(self) -> bool:
        """Return True if a rollout stores the observation after each step."""
        return self.streams > 1

    def cross_field_errors(self) -> list[Problem]:
        found = self.batch_problems()
        if self.clip_schedule == "linear" and rules.surely_holds(self.clip_eps, lambda x: x == math.inf):
            found.append(Problem("clip_schedule", self.clip_schedule, "a linear schedule needs a finite clip_eps"))
        if not rules.in_order(self.log_std_min, self.log_std_init, self.log_std_max):
            found.append(Problem("log_std_init", self.log_std_init, "must lie between log_std_min and log_std_max"))
        if self.lr_schedule == "kl_adaptive" and not rules.in_order(self.lr_min, self.lr, self.lr_max):
            found.append(Problem("lr", self.lr, "must lie between lr_min and lr_max with lr_schedule='kl_adaptive'"))
        return found

    def resolve(self, env: Environment) -> Self:
        """Resolve `auto` in statistics, masks, `ent_coef`, `critic_obs` and `kernels` for an environment."""
        box = has_box(env.action_space)
        entries = entries_of(env.observation_space).values()
        quantities = not all(map(is_index, entries))  # nothing can be normalised if all observations are categorical
        auto = {"normalize_obs": box and quantities, "normalize_reward": box}
        auto |= {"action_mask": env.action_mask, "critic_obs": env.critic_obs, "kernels": "xla"}
        static = {name: value for name, value in auto.items() if getattr(self, name) == "auto"}
        ent_coef = or_default(self.ent_coef, 0.0 if box else 0.01)
        reward_clip = or_default(self.reward_clip, 10.0 if box else math.inf)
        return self.replace(**static, ent_coef=ent_coef, reward_clip=reward_clip)

    @property
    def learns_from_others(self) -> Any:
        """Return True if an update may learn from data of an older policy. The result is traced if a traced float decides it."""
        return False

    @property
    def measures_kl(self) -> bool:
        """Return True if the exact KL(old || new) of the policies is computed."""
        return self.lr_schedule == "kl_adaptive" or self.kl_penalty != "none"
