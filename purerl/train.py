"""`make_train`: from a config to a pure training function."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from purerl.acting.bootstrap import one_step
from purerl.acting.evaluate import evaluate
from purerl.acting.policy import Policy
from purerl.acting.rollout import collect
from purerl.acting.wrappers import with_action_mask, with_statistics
from purerl.algorithms.ppo import surrogate
from purerl.algorithms.registry import MAKERS
from purerl.algorithms.rnd import intrinsic_of_pair, rnd
from purerl.checks import (
    algorithm_made,
    check_config,
    check_devices,
    check_network,
    check_parts,
    check_policy_loss,
    check_spaces,
    check_state_size,
    check_type,
    has_own_carry,
    num_bytes,
    warn_about,
    warn_of_idle_groups,
    warn_of_unsuited_unit,
)
from purerl.config.algorithms import algorithm_of
from purerl.config.base import OnPolicyConfig, RNDConfig
from purerl.config.fields import single_precision
from purerl.core.errors import ConfigError, Problem, guarded, would_work
from purerl.core.keys import Clock, typed_key
from purerl.core.metrics import accumulate
from purerl.core.numbers import is_count
from purerl.core.plan import PhasePlan, Plan
from purerl.core.platform import strong, with_matmul_precision
from purerl.core.reductions import Axis, fold_in_device, local_batch, on_axis, shapes_on
from purerl.core.spaces import Box
from purerl.core.types import Environment, Episodes, Network, TrainResult, TrainState
from purerl.envs import make_env
from purerl.envs.levels import with_levels
from purerl.envs.previous import with_previous
from purerl.learning.advantages import estimate
from purerl.learning.custom import checked_advantage, checked_loss, extra_term, measurement
from purerl.learning.kl_penalty import kl_loss
from purerl.learning.learner import Components, Learner
from purerl.learning.nonfinite import freeze
from purerl.learning.optimizers import base_optimizer
from purerl.learning.phases import Phase
from purerl.learning.rewards import reward_stage
from purerl.learning.update import Algorithm
from purerl.networks.actor_critic import actor_critic
from purerl.networks.distributions import action_unit
from purerl.networks.modules import with_finite_logits, with_float32_outputs


def make_train(
    cfg: OnPolicyConfig,
    *,
    env: Any = None,
    env_params: Any = None,
    network: Network | None = None,
    torso: Any = None,
    memory: Any = None,
    algorithm: Callable | None = None,
    advantage: Callable = estimate,
    policy_loss: Callable = surrogate,
    extra_loss: Callable | None = None,
    optimizer: Any = None,
    lr_schedule: Callable | None = None,
    reward_shaper: Callable | None = None,
    intrinsic: tuple[Callable, Callable] | None = None,
    measure: Callable | None = None,
    axis_name: str | None = None,
    axis_size: int | None = None,
) -> "Train":
    """Return a training function for this config.

    It checks the config against environment and network, and compiles nothing. The floats of the config may be tracers. So a
    config can be an argument of a jitted function, where a changed float does not recompile, and it can be swept by `jax.vmap`.

    Args:
        cfg: the config.
        env: in place of the config's `env`: a `purerl.Environment`, which `purerl.wrap_env` makes of a bare one; or an object
          with gymnax 1.0's methods (`reset_env`, `step_env`, `is_truncated`, `action_space`, ...).
        env_params: its parameters; its `default_params` if None. The config's `env_params` override single ones.
        network: policy and value function, in place of the built-in ones; `purerl.from_linen` and `purerl.from_nnx` make one
          of a module.
        torso: in place of the built-in torso alone: a flax linen module or its class, `x [N, ...] -> features [N, size]`, or a
          pair of functions `(init(key, x) -> params, apply(params, x) -> features)`. Policy and value have one each, unless
          `arch` says otherwise. The kernels of a module's dense layers and convolutions begin as the config's `init` says; all
          other parameters, and those of a pair, as they are made. `x` is the encoded observation, in the config's
          `compute_dtype` (flax layers compute in it if they are given `dtype=x.dtype`); one with an image among several entries
          is a dict of them. A dict replaces the encoders of single entries: `torso={"image": MyCNN()}`.
        memory: in place of the built-in memory: a flax linen module with a method `initial_carry(num_envs) -> carry`, called as
          `memory(carry, x [L, N, F], first [L, N]) -> (y [L, N, size], carry)`. Where `first` is set it must forget its carry
          before it reads `x`.
        algorithm: `(cfg, env, network, parts) -> Algorithm`, in place of that of the config's class, such as
          `purerl.algorithms.ppo.ppo` with other phases. `cfg` may be of a class of your own: see `purerl.configclass`.
        advantage: `(Transition [T, B], cfg) -> Advantages [T, B]`, in place of the config's `estimator`. In APPO it may have the
          parameter `log_ratio`: that of the target policy to the one that acted, `[T, B]`.
        policy_loss: `(outputs: Outputs, old: Sample, advantage, cfg) -> loss`, all `[L, N]`, in place of the clipped surrogate,
          which is `purerl.losses.clipped_surrogate(outputs.policy.log_prob(old.action), old.log_prob, advantage, cfg.clip_eps)`.
          `advantage` is standardised as configured. `old.policy` is the distribution that acted, kept if the loss reads it;
          under `warmup_steps` it has nothing but `log_prob` and `kl`.
        extra_loss: `(params, outputs: Outputs, batch: Sample [L, N], cfg) -> (scalar, metrics)`, added to the loss of the
          policy's phase. Only the groups of parameters that this phase trains move. `params` are those of all groups. The
          metrics, a dict of scalars, are recorded as `extra_loss/name`.
        optimizer: an optax transformation without a learning rate, such as `optax.scale_by_lion()`, in place of the config's
          `optimizer`. The config's learning rate scales its steps. The optimizer sees a dict from the name of a group to its
          parameters, in their own shapes, so that `optax.multi_transform` can treat groups differently.
        lr_schedule: any optax schedule, `(gradient steps so far, int32) -> learning rate`, in place of the config's.
        reward_shaper: `(reward [T, B], step [T, 1]) -> reward [T, B]`, the rewards to learn from. `step` is the number of
          environment steps before, float32. Reported returns stay the environment's.
        intrinsic: two functions that make a second stream of rewards, in place of random network distillation, with the
          coefficients and the discount of the config's `rnd`: `init(key, obs [B, ...]) -> state` and
          `reward(state, steps: Transition [T, B] with next_obs) -> (reward [T, B], state)`.
        measure: `(state) -> {name: scalar}`, added to the metrics of each update, of the state after it. It may have the
          parameters `batch`, the batch as `Sequences` of `Sample [L, N]`, and `metrics`, a dict of scalars.
        axis_name, axis_size: a mesh axis, and its number of devices, that the environments of one agent are spread over. The
          functions are then one device's share, for a `jax.shard_map` with `check_vma=False`, or a `jax.vmap` with this
          `axis_name`; `purerl.data_parallel` writes the former. The config's numbers of environments and steps count those of
          all devices. Parameters and statistics are equal on all. Your own functions see this device's share: where they
          reduce over environments, `purerl.core.reductions` does so over all devices; a loss need not.

    Raises:
        ConfigError: a wrong config, environment, network or function; each problem with its field, value and what would work.

    Example:
        >>> train = purerl.make_train(purerl.PPOConfig(env="CartPole-v1", total_timesteps=1024))
        >>> train.plan.num_updates
        2
        >>> result = jax.jit(train)(jax.random.key(0))
        >>> purerl.summarize(result.metrics)["loss"].shape
        (2,)
        >>> run = lambda cfg, key: purerl.make_train(cfg)(key).metrics["steps"].total
        >>> sweep = jax.vmap(lambda lr: train.cfg.replace(lr=lr))(jnp.array([1e-4, 1e-3, 1e-2]))
        >>> jax.eval_shape(jax.vmap(run, in_axes=(0, None)), sweep, jax.random.key(0)).shape
        (3, 2)
    """
    check_type(cfg)
    arguments = {"env": env, "env_params": env_params, "network": network, "torso": torso, "memory": memory}
    arguments |= {"algorithm": algorithm, "advantage": advantage, "policy_loss": policy_loss, "extra_loss": extra_loss}
    arguments |= {"optimizer": optimizer, "lr_schedule": lr_schedule, "reward_shaper": reward_shaper, "intrinsic": intrinsic}
    given = {name: x for name, x in arguments.items() if not (x is None or x is estimate or x is surrogate)}
    axis = _axis(axis_name, axis_size)
    if intrinsic is not None and cfg.rnd is None:
        cfg = cfg.replace(rnd=RNDConfig())
    distils = cfg.rnd is not None and intrinsic is None
    make_environment = functools.partial(_environment, cfg, env, env_params)

    # Check.
    environment = check_config(cfg, make_environment, recurrent=memory is not None or has_own_carry(network))
    asked, cfg = cfg, cfg.resolved(environment)
    warn_about(asked, cfg, environment, given)
    cfg = single_precision(cfg)
    check_parts(given | ({} if measure is None else {"measure": measure}))
    check_spaces(cfg, environment, network, distils)

    # Build.
    environment = with_levels(environment, cfg.num_levels)
    network = network or actor_critic(cfg, environment.observation_space, environment.action_space, torso, memory)
    network = with_action_mask(network, cfg.action_mask) if cfg.action_mask else network
    check_network(cfg, environment, network, optimizer, axis.size if axis else 1)
    network = with_float32_outputs(network)
    network = with_finite_logits(network) if "network" in given else network
    if axis is not None:
        check_devices(cfg, environment, network, axis.size)
    stream = rnd(cfg, environment, network) if distils else None
    if intrinsic is not None:
        stream = intrinsic_of_pair(*(guarded("intrinsic", function) for function in intrinsic))

    # Compose.
    parts = Components(
        advantage=advantage if advantage is estimate else checked_advantage(advantage),
        policy_loss=policy_loss if policy_loss is surrogate else checked_loss(policy_loss),
        extra_losses=_extra_losses(cfg, extra_loss),
        optimizer=base_optimizer(cfg, optimizer),
        lr_schedule=lr_schedule,
        rewards=reward_stage(cfg, reward_shaper, stream),
        **({} if measure is None else {"measure": measurement(measure)}),
    )
    if "policy_loss" in given:
        check_policy_loss(Learner(cfg, network, parts), environment)
    made = algorithm_made(algorithm or MAKERS[algorithm_of(cfg)], cfg, environment, network, parts)
    check_state_size(cfg, made.init, axis)
    if "network" in given:
        warn_of_idle_groups(cfg, network, environment, made.phases)
    remake = lambda overrides, levels: with_levels(make_environment({**cfg.env_params, **overrides}), levels)
    train = Train(cfg, environment, network, made, remake, given, axis)
    if "network" in given and isinstance(environment.action_space, Box):
        warn_of_unsuited_unit(train.action_unit, environment.action_space)
    return train


def _axis(name: str | None, size: int | None) -> Axis | None:
    if name is None and size is None:
        return None
    if not isinstance(name, str):
        raise ConfigError([Problem("axis_name", name, "must be the name of the axis that has axis_size devices")])
    if not is_count(size):
        raise ConfigError([Problem("axis_size", size, "must be the number of devices on the axis, an int of at least 1")])
    return Axis(name, size)


def _environment(cfg: OnPolicyConfig, env: Any, env_params: Any, overrides: dict[str, Any]) -> Environment:
    """Return the environment of a config, with these overrides of its parameters."""
    names = tuple(dict.fromkeys((*cfg.info, *cfg.episode_info)))
    finite = cfg.nonfinite == "reset"
    made = make_env(cfg.env, cfg.env_kwargs, overrides, env, env_params, names, cfg.num_envs, finite)
    return with_previous(made, cfg.memory_inputs)


def _extra_losses(cfg: OnPolicyConfig, extra_loss: Callable | None) -> tuple[Callable, ...]:
    """Return the losses that a config and the user add to the policy's loss."""
    losses = (kl_loss,) if cfg.measures_kl else ()
    return losses if extra_loss is None else (*losses, extra_term(extra_loss))


SEED_AXES: dict[str, Any] = {"params": 0, "opt_state": 0, "actor": 0, "clock": None, "key": 0, "statistics": 0, "extra": 0}


class Train:
    """A training run as pure functions; what `make_train` returns.

    Attributes:
        cfg: the config, its floats as float32.
        env: the environments.
        network: policy and value function.
        init: `(key) -> TrainState`, everything that persists.
        update: `(TrainState) -> (TrainState, metrics)`, one iteration: a rollout and what is learnt from it.
        given: the objects that `make_train` was given, by argument.
        axis: the mesh axis that the environments are spread over, or None.
        seed_axes: `in_axes` (or `out_axes`) of a state under `vmap` over seeds. The clock has none, so that a phase which is
          due in some updates only stays a branch.

    Example:
        >>> train = purerl.make_train(purerl.PPOConfig(env="CartPole-v1"))
        >>> state, metrics = jax.jit(train.update)(train.init(jax.random.key(0)))
        >>> policy = train.policy(state)
        >>> obs, first = jnp.zeros((1, 4)), jnp.ones(1, bool)
        >>> action, carry = policy(policy.initial_carry(1), obs, first, jax.random.key(1))
        >>> action.shape
        (1,)
    """

    seed_axes = TrainState(**SEED_AXES)

    def __init__(
        self,
        cfg: OnPolicyConfig,
        env: Environment,
        network: Network,
        algorithm: Algorithm,
        remake_env: Callable,
        given: dict[str, Any],
        axis: Axis | None = None,
    ):
        self.cfg, self.given, self.axis = cfg, given, axis
        self.env, self.network, self._algorithm, self._remake_env = env, network, algorithm, remake_env
        update = freeze(algorithm.update, algorithm.skipped) if cfg.nonfinite == "freeze" else algorithm.update
        # Traced once, however often: what asks for shapes, and every program that the two become a part of.
        self._traced = lambda function: on_axis(with_matmul_precision(function, cfg.matmul_precision), axis)
        init = lambda key: strong(algorithm.init(key))  # a user's part of a state may be weakly typed, and its update is not
        update = _with_one_clock(update) if any(phase.every > 1 for phase in algorithm.phases) else update
        self._init, self.update = (jax.jit(self._traced(function), inline=True) for function in (init, update))

    def init(self, key: jax.Array) -> TrainState:
        """Return the state before the first update. `key`: one key, typed or raw."""
        return self._init(typed_key(key))

    def __call__(self, key: jax.Array) -> TrainResult:
        """Train: `init`, then `plan.num_updates` times `update`. Pure: wrap it in `jax.jit`, `jax.vmap` or both."""
        updates, every = self.cfg.num_updates, self.cfg.metrics_every
        if updates // every >= 2**31:
            hint = f"more than 2**31 rows of metrics; use fit, or metrics_every = {updates // 2**31 + 1} or more"
            raise ConfigError([Problem("total_timesteps", self.cfg.total_timesteps, hint)])
        if every == 1:
            return TrainResult(*jax.lax.scan(lambda state, _: self.update(state), self.init(key), length=updates))
        rows = -(-updates // every)
        counts = jnp.full(rows, every, jnp.int32).at[-1].set(updates - (rows - 1) * every)
        return TrainResult(*jax.lax.scan(functools.partial(accumulate, self.update), self.init(key), counts))

    def on_axis(self, name: str, size: int) -> "Train":
        """One device's share of this training, as `make_train` gives it for an `axis_name` and an `axis_size`."""
        axis = _axis(name, size)
        check_devices(self.cfg, self.env, self.network, size)
        return Train(self.cfg, self.env, self.network, self._algorithm, self._remake_env, self.given, axis)

    def restart(self, state: TrainState) -> TrainState:
        """Return a state with the parameters and statistics of another run, made consistent."""
        return self._algorithm.restart(state)

    def policy(self, state: TrainState) -> Policy:
        """Return the policy of a state of one run, ready to act.

        Raises:
            ConfigError: the state is of several runs.
        """
        if state.key.ndim:
            hint = "take one of several runs (Run.select), or jax.vmap with in_axes=(train.seed_axes, 0)"
            raise ConfigError([Problem("state", f"of {math.prod(state.key.shape)} runs", hint)])
        network = with_statistics(self.cfg, self.network, state)
        return Policy(network._replace(apply=self._traced(network.apply)), state.params, self.env.action_space)

    def evaluate(
        self,
        state: TrainState,
        key: jax.Array,
        num_episodes: int = 128,
        deterministic: bool = False,
        max_steps: int | None = None,
        env_params: dict[str, Any] | None = None,
        training_levels: bool = False,
    ) -> Episodes:
        """Whole episodes of a state's policy in fresh environments. Pure, and changes nothing of the state.

        On an axis of devices each has an equal share of the episodes, and returns that.

        Args:
            state: of one run; under `vmap`, `in_axes=(train.seed_axes, 0)`.
            key: consumed.
            num_episodes: how many, all at once; at least 1.
            deterministic: the mode of the policy instead of a random action.
            max_steps: the fixed number of steps taken; the environment's time limit if None.
            env_params: overrides of the environment's parameters, on top of the config's.
            training_levels: with `num_levels`, begin episodes in the levels of training, and not in others.

        Raises:
            ConfigError: the environment has no known time limit and `max_steps` is None.
        """
        if not is_count(num_episodes):
            raise ConfigError([Problem("num_episodes", num_episodes, "must be an int of at least 1")])
        if self.axis is not None and num_episodes % self.axis.size:
            near = would_work([-(-num_episodes // self.axis.size) * self.axis.size])
            hint = f"must be divisible by the number of devices, {self.axis.size}{near}"
            raise ConfigError([Problem("num_episodes", num_episodes, hint)])
        if not isinstance(env_params, dict | None):
            raise ConfigError([Problem("env_params", env_params, "must be a dict from names to numbers, or None")])
        levels = self.cfg.num_levels if training_levels else 0
        apart = env_params or levels != self.cfg.num_levels
        env = self.environments_apart(env_params, levels) if apart else self._evaluated
        limit = env.max_steps if max_steps is None else max_steps
        if limit is None:
            raise ConfigError([Problem("max_steps", None, "the environment has no known time limit; say how many steps to take")])
        if not is_count(limit):
            raise ConfigError([Problem("max_steps", limit, "must be an int of at least 1")])
        options = {"info": self.cfg.info, "episode_info": self.cfg.episode_info}

        def run(policy: Policy, key: jax.Array) -> Episodes:  # traced as one device's share
            return evaluate(env, policy, fold_in_device(key), local_batch(num_episodes), limit, deterministic, **options)

        return self._traced(run)(self.policy(state), typed_key(key))

    def environments_apart(self, env_params: dict[str, Any] | None = None, num_levels: int = 0) -> Environment:
        """Return the environments made anew, with these overrides of their parameters on top of the config's."""
        return self._remake_env(env_params or {}, num_levels)

    @functools.cached_property
    def _evaluated(self) -> Environment:
        """Return the environments of evaluations: on the host others than those of training, and the same each time."""
        return self.environments_apart() if self.env.host else self.env

    @functools.cached_property
    def action_unit(self) -> str:
        """Return the unit of actions in rollouts and losses: `bounds`, `environment` or `either`, see `purerl.distributions`."""
        state = shapes_on(self.axis, self.init, jax.random.key(0))
        of_actor = lambda params, actor: one_step(self.network, params, actor.carry, actor.obs, actor.first)[0].policy
        return action_unit(shapes_on(self.axis, of_actor, state.params, state.actor), self.env.action_space)

    @functools.cached_property
    def plan(self) -> Plan:
        """Return the size of the run, before anything is compiled. Its bytes are those of one device.

        Example:
            >>> plan = purerl.make_train(purerl.PPOConfig()).plan
            >>> plan.state_bytes + plan.rollout_bytes < plan.update_bytes  # the last is the compiler's count
            True
        """
        cfg = self.cfg
        state = shapes_on(self.axis, self.init, jax.random.key(0))

        options = {"num_steps": cfg.num_steps, "length": cfg.training_length, "keep_next_obs": cfg.keeps_next_obs}
        rollout_of = lambda state: collect(self.env, self.network, state.params, state.actor, state.key, **options)[1]
        rollout = shapes_on(self.axis, rollout_of, state)
        env_steps = cfg.num_updates * cfg.batch_size
        phases = tuple(_phase_plan(phase, cfg.num_updates) for phase in self._algorithm.phases)
        return Plan(
            devices=self.axis.size if self.axis else 1,
            num_updates=cfg.num_updates,
            env_steps=env_steps,
            extra_steps=env_steps - int(cfg.total_timesteps),
            batch_size=cfg.batch_size,
            minibatch_size=cfg.minibatch_size,
            gradient_steps=sum(phase.gradient_steps for phase in phases),
            parameters=sum(x.size for x in jax.tree.leaves(state.params)),
            rollout_bytes=num_bytes(rollout),
            state_bytes=num_bytes(state),
            kept_bytes=num_bytes(state.extra),
            phases=phases,
            on_host=self.env.host is not None,
            compile_update=self._compile_update,
        )

    def _compile_update(self) -> Any:
        if self.axis:
            hint = "needs to know the devices: purerl.data_parallel(train, mesh).plan.update_bytes, of a train without an axis"
            raise ConfigError([Problem("axis_name", self.axis.name, hint)])
        return jax.jit(self.update, donate_argnums=0).lower(jax.eval_shape(self.init, jax.random.key(0))).compile()


def _with_one_clock(update: Callable) -> Callable:
    """Return an update that refuses a clock with an axis: a phase due in some updates would be computed in all of them."""

    @jax.custom_batching.custom_vmap
    def one(clock: Clock) -> Clock:
        return clock

    @one.def_vmap
    def refuse(axis_size: int, is_batched: list[Clock], clock: Clock) -> Any:
        """Refuse an axis. Only `vmap` over a clock that has one calls this, also through `jit` and loops."""
        hint = "all runs share one: jax.vmap(train.update, in_axes=(train.seed_axes,), out_axes=(train.seed_axes, 0))"
        raise ConfigError([Problem("state", "its clock has an axis of runs", hint)])

    @functools.wraps(update)
    def checked(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        return update(state.replace(clock=one(state.clock)))

    return checked


def _phase_plan(phase: Phase, num_updates: int) -> PhasePlan:
    """Plan a phase that is due in the last of each `every` updates of a run, once `start` updates are over."""
    runs = max(0, num_updates // phase.every - phase.start // phase.every)
    left_over = num_updates - num_updates // phase.every * phase.every
    return PhasePlan(phase.name, runs, runs * phase.epochs * phase.minibatches, left_over)
