"""`make_train`: from a config to a pure training function."""

import functools
from collections.abc import Callable
from typing import Any

from purerl.acting.wrappers import with_action_mask
from purerl.algorithms.appo import appo
from purerl.algorithms.daac import daac
from purerl.algorithms.ppg import ppg
from purerl.algorithms.ppo import ppo, surrogate
from purerl.algorithms.rnd import intrinsic_of_pair, rnd
from purerl.checks import check_arguments as check
from purerl.checks.cautions import warn_about, warn_of_unreached_phases, warn_of_unsuited_unit
from purerl.checks.check_environment import check_devices, check_spaces, check_state_size
from purerl.checks.check_network import check_groups, check_network, warn_of_mixed_rows
from purerl.config.algorithms import algorithm_of
from purerl.config.base import OnPolicyConfig
from purerl.config.curiosity import RNDConfig
from purerl.config.fields import single_precision
from purerl.config.randomization import Distribution
from purerl.core.environment import Environment
from purerl.core.errors import ConfigError, guard
from purerl.core.spaces import Box, parts_of
from purerl.core.types import Intrinsic, Network
from purerl.envs import make_env
from purerl.envs.frames import with_frames
from purerl.envs.levels import with_levels
from purerl.envs.previous import with_previous
from purerl.learning.advantages import estimate
from purerl.learning.custom import extra_term, guard_advantage_shape, guard_loss_shape, measurement
from purerl.learning.learner import Components
from purerl.learning.optimizers import base_optimizer
from purerl.learning.rewards import RewardStage
from purerl.learning.update import kl_loss
from purerl.networks.actor_critic import actor_critic
from purerl.networks.foreign import with_safe_outputs
from purerl.pure import Train, make_axis

MAKERS = {"ppo": ppo, "ppg": ppg, "daac": daac, "appo": appo}  # to add an algorithm: .github/CONTRIBUTING.md


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
) -> Train:
    """Return the training function of a config.

    The config is checked against the environment and the network. Only a trial of two steps of a custom network,
    torso or memory is compiled. The floats of the config may be tracers. A config can therefore be an argument of a jitted
    function, which does not recompile if a float changes, and `jax.vmap` can sweep the floats.

    Args:
        cfg: the config.
        env: custom environment, in place of the config's `env`: a `purerl.Environment` (`purerl.wrap_env` makes one from a
          single environment), or an object with gymnax 1.0's methods (`reset`, `step`, `action_space`, ...).
        env_params: parameters of `env`; its `default_params` if None. The config's `env_params` override individual parameters.
        network: custom `purerl.Network` in place of the built-in policy and value networks; `purerl.from_linen` and
          `purerl.from_nnx` make one from a module.
        torso: custom torso of the built-in networks: a flax linen module or its class, `x [N, ...] -> features [N, size]`, or a
          pair of functions `(init(key, x) -> params, apply(params, x) -> features)`. Policy and value have one torso each, unless
          `arch` says otherwise. The config's `init` initialises the kernels of a module's dense layers and convolutions; all
          other parameters, and the parameters of a pair, keep their own initialisation. `x` is the encoded observation, in the
          config's `compute_dtype` (flax layers compute in this dtype if given `dtype=x.dtype`). If an observation has an image
          among several entries, `x` is a dict of the entries. A dict of torsos, such as `torso={"image": MyCNN()}`, replaces the
          encoders of these entries only.
        memory: custom recurrent layer in place of the config's `memory`: a flax linen module with a method
          `initial_carry(num_envs) -> carry`, called as `memory(carry, x [L, N, F], first [L, N]) -> (y [L, N, size], carry)`.
          Where `first` marks an episode start, the module must reset its carry before it reads `x`.
        algorithm: `(cfg, env, network, parts) -> Algorithm`, in place of the algorithm of the config's class: for example, a
          variant of `purerl.algorithms.ppo.ppo` with other phases. `cfg` may be of a custom class: see `purerl.configclass`.
          With `normalize_obs`, `network` is called with standardised observations, unlike `batch.obs` in losses.
          Recipes: `notebooks/07_your_own_algorithm.ipynb`, `notebooks/13_distillation.ipynb`.
        advantage: `(Transition [T, B], cfg) -> Advantages [T, B]`, in place of the config's `estimator`. In APPO the function may
          have a parameter `log_ratio`: the log-ratio of the target policy to the behaviour policy, `[T, B]`.
        policy_loss: `(outputs: Outputs, old: Sample, advantage, cfg) -> loss`, all `[L, N]`, in place of the clipped surrogate,
          which is `purerl.losses.clipped_surrogate(outputs.policy.log_prob(old.action), old.log_prob, advantage, cfg.clip_eps)`.
          `advantage` is standardised according to `advantage_norm`. `old.policy` is the behaviour policy (with V-trace, the
          target policy), stored only if the loss reads it; with `warmup_steps`, only its `log_prob` and `kl` are available.
        extra_loss: `(params, outputs: Outputs, batch: Sample [L, N], cfg) -> (scalar, metrics)`, added to the loss of the
          policy's phase. `params` has all parameter groups, but only the groups of this phase are trained. The metrics, a dict of
          scalars, are recorded as `extra_loss/name`.
        optimizer: an optax transformation without a learning rate, such as `optax.scale_by_lion()`, in place of the config's
          `optimizer`. The config's learning rate scales the optimizer's steps. The optimizer receives a dict from group names to
          the parameters of each group, in their own shapes, so that `optax.multi_transform` can treat groups differently.
        lr_schedule: any optax schedule, `(gradient steps of the phase so far, int32) -> learning rate`, in place of the
          config's, except in the auxiliary phase of PPG.
        reward_shaper: `(reward [T, B], step [T, 1]) -> reward [T, B]`, the rewards to learn from. `step` is the number of
          environment steps of the run before each time step, as float32. Metrics report the environment's own returns.
        intrinsic: two functions for a second reward stream, in place of random network distillation:
          `init(key, obs [B, ...]) -> state` and
          `reward(state, steps: Transition [T, B] with next_obs) -> (reward [T, B], state)`. The coefficients and the discount are
          those of the config's `rnd`, or the defaults of `RNDConfig` if `rnd` is None.
        measure: `(state) -> {name: scalar}`, additional metrics of the state after each update. The function may have the
          parameters `batch`, the batch as `Sequences` of `Sample [L, N]`, and `metrics`, a dict of scalars.
        axis_name, axis_size: a mesh axis and its number of devices, over which the environments of one agent are sharded. The
          returned functions then compute one device's share, for a `jax.shard_map` with `check_vma=False`, or a `jax.vmap` with
          this `axis_name`; `purerl.data_parallel` adds the `shard_map`. The config's numbers of environments and steps are
          totals over all devices. Parameters and statistics are equal on all devices. Custom functions receive one device's
          share. To reduce over the environments of all devices, use `purerl.reductions`; a loss needs no such reduction.

    Raises:
        ConfigError: the config, environment, network or a function is invalid; the error lists fields, values and remedies.

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
    check.check_type(cfg)
    arguments = {"env": env, "env_params": env_params, "network": network, "torso": torso, "memory": memory}
    arguments |= {"algorithm": algorithm, "advantage": advantage, "policy_loss": policy_loss, "extra_loss": extra_loss}
    arguments |= {"optimizer": optimizer, "lr_schedule": lr_schedule, "reward_shaper": reward_shaper, "intrinsic": intrinsic}
    given = {name: x for name, x in arguments.items() if not (x is None or x is estimate or x is surrogate)}
    axis = make_axis(axis_name, axis_size)
    if intrinsic is not None and cfg.rnd is None:
        cfg = cfg.replace(rnd=RNDConfig())
    make_environment = functools.partial(_environment, cfg)

    # Check.
    environment = check.check_config(
        cfg, functools.partial(make_environment, env, env_params), recurrent=memory is not None or check.has_custom_carry(network)
    )
    asked, cfg = cfg, cfg.resolve(environment)
    warn_about(asked, cfg, environment, given)
    cfg = single_precision(cfg)
    check.check_parts(given | ({} if measure is None else {"measure": measure}))
    distils = cfg.rnd is not None and intrinsic is None
    check_spaces(cfg, environment, network, distils, axis.size if axis else 1)

    # Build.
    environment = with_levels(environment, cfg.num_levels, cfg.num_envs)
    network = _network(cfg, environment, network, torso, memory, optimizer, distils)
    if axis is not None:
        check_devices(cfg, environment, network, axis.size)
    stream = _stream(cfg, environment, network, intrinsic)

    # Compose.
    parts = _components(cfg, given, stream, measure)
    made = check.make_algorithm(algorithm or MAKERS[algorithm_of(cfg)], cfg, environment, network, parts)
    check.check_changed_config(cfg, made.cfg or cfg)
    check_state_size(cfg, made.init, axis)
    if measure is not None or given.keys() & {"algorithm", "advantage", "policy_loss", "extra_loss", "intrinsic"}:
        check.check_update(made, axis)
    warn_of_unreached_phases(made.cfg or cfg, made.phases)
    if lr_schedule is not None:
        check.check_schedule(lr_schedule, made.cfg or cfg, made.phases)
    if "network" in given:
        check_groups(cfg, network, environment, made.phases)

    def remake(overrides: dict[str, Any], levels: int, other: Any) -> Environment:
        """Return fresh training environments, or those of `other`, with parameter `overrides` and `levels` levels."""
        if other is not None:
            own, given = (cfg.replace(env=other), None) if isinstance(other, str) else (cfg, other)
            bare = _environment(own.replace(env_kwargs=()), given, None, overrides, {})
        else:
            bare = make_environment(env, env_params, {**cfg.env_params, **overrides}, cfg.randomize)
        return with_levels(bare, levels, cfg.num_envs)

    train = Train(cfg, environment, network, made, remake, given, axis)
    for part in parts_of(environment.action_space) if "network" in given else ():
        if isinstance(part, Box):
            warn_of_unsuited_unit(train.action_unit, part)
    return train


def _environment(
    cfg: OnPolicyConfig, env: Any, env_params: Any, overrides: dict[str, Any], randomize: dict[str, Distribution]
) -> Environment:
    """Return the environment of a config. `overrides` sets parameters; those in `randomize` are sampled."""
    names = tuple(dict.fromkeys((*cfg.info, *cfg.episode_info)))
    finite, once = cfg.nonfinite == "reset", cfg.randomize_each == "environment"
    try:
        made = make_env(cfg.env, cfg.env_kwargs, overrides, env, env_params, names, cfg.num_envs, finite, randomize, once)
    except ConfigError as error:
        fields = {name: "info" if name in cfg.info else "episode_info" for name in names}
        rename = lambda x: x._replace(field=fields.get(x.value, x.field)) if x.field == "info" else x
        raise ConfigError([rename(problem) for problem in error.problems]) from error.__cause__
    return with_previous(with_frames(made, cfg.frame_stack), cfg.memory_inputs)


def _network(
    cfg: OnPolicyConfig, env: Environment, network: Network | None, torso: Any, memory: Any, optimizer: Any, distils: bool
) -> Network:
    """Return the custom or the built-in network, after checks; a custom network is wrapped by `with_safe_outputs`."""
    built = network or actor_critic(cfg, env.observation_space, env.action_space, torso, memory)
    built = with_action_mask(built, cfg.action_mask) if cfg.action_mask else built
    check_network(cfg, env, built, optimizer, distils)
    parts = {name: x for name, x in {"network": network, "torso": torso, "memory": memory}.items() if x is not None}
    if parts:
        warn_of_mixed_rows(cfg, built, env, parts)
    return built if network is None else with_safe_outputs(built)


def _components(cfg: OnPolicyConfig, given: dict[str, Any], stream: Intrinsic | None, measure: Callable | None) -> Components:
    """Return the replaceable parts: the given functions, wrapped in checks, or the config's defaults."""
    losses = (kl_loss,) if cfg.measures_kl else ()
    return Components(
        advantage=guard_advantage_shape(given["advantage"]) if "advantage" in given else estimate,
        policy_loss=guard_loss_shape(given["policy_loss"]) if "policy_loss" in given else surrogate,
        extra_losses=(*losses, extra_term(given["extra_loss"])) if "extra_loss" in given else losses,
        optimizer=base_optimizer(cfg, given.get("optimizer")),
        lr_schedule=given.get("lr_schedule"),
        rewards=RewardStage(cfg, given.get("reward_shaper"), stream),
        **({} if measure is None else {"measure": measurement(measure)}),
    )


def _stream(
    cfg: OnPolicyConfig, env: Environment, network: Network, intrinsic: tuple[Callable, Callable] | None
) -> Intrinsic | None:
    """Return the intrinsic reward stream: a custom stream, random network distillation, or None."""
    if intrinsic is not None:
        return intrinsic_of_pair(*(guard("intrinsic", function) for function in intrinsic))
    return None if cfg.rnd is None else rnd(cfg, env, network)
