"""`make_train`: from a config to a pure training function."""

import functools
import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.advantages import estimate
from purerl.algorithms.appo import appo
from purerl.algorithms.daac import daac
from purerl.algorithms.ppg import ppg
from purerl.algorithms.ppo import ppo, surrogate
from purerl.algorithms.rnd import of_pair, rnd
from purerl.config import algorithm_of
from purerl.envs import make_env
from purerl.envs.previous import with_previous
from purerl.errors import ConfigError, Problem
from purerl.evaluate import evaluate
from purerl.fields import is_off, not_scalar, problems, single_precision
from purerl.keys import typed_key
from purerl.metrics import accumulate
from purerl.networks import actor_critic, bounded
from purerl.nonfinite import freeze
from purerl.on_policy import OnPolicyConfig, RNDConfig
from purerl.optimizers import optimizer_problems
from purerl.plan import PhasePlan, Plan
from purerl.policy import Policy
from purerl.rollout import collect
from purerl.types import Algorithm, Discrete, Environment, Episodes, MultiDiscrete, Network, Phase, TrainResult, TrainState
from purerl.wrappers import acting, masking

PyTree = Any

MAKERS = {"ppo": ppo, "ppg": ppg, "daac": daac, "appo": appo}


def make_train(
    cfg: OnPolicyConfig,
    *,
    env: Any = None,
    env_params: Any = None,
    network: Network | None = None,
    advantage: Callable = estimate,
    policy_loss: Callable = surrogate,
    optimizer: Any = None,
    lr_schedule: Callable | None = None,
    reward_shaper: Callable | None = None,
    intrinsic: tuple[Callable, Callable] | None = None,
) -> "Train":
    """A training function for this config.

    Python only: it checks everything and compiles nothing. The floats of the config may be tracers, so that a config can be
    an argument of a jitted function (then a changed float does not recompile) or be swept:

        jax.jit(lambda cfg, key: make_train(cfg)(key))
        jax.vmap(lambda cfg, key: make_train(cfg)(key), in_axes=(0, None))

    Args:
        cfg: what to train and how.
        env: an environment object with gymnax 1.0's methods, in place of the config's `env`.
        env_params: its parameters; its `default_params` if None. The config's `env_params` override single ones.
        network: policy and value function, in place of the built-in ones.
        advantage: `(Transition [T, B], cfg) -> Advantages [T, B]`, in place of the config's `estimator`.
        policy_loss: `(log_prob, old_log_prob, advantage, cfg) -> loss`, all `[L, N]`, in place of the clipped surrogate.
        optimizer: an optax transformation that gives the direction of descent, such as `optax.scale_by_lion()`, in place of the
          config's `optimizer`; the config's learning rate scales it. It sees a dict from the name of a group to its parameters,
          in their own shapes, so that `optax.multi_transform` can treat groups apart.
        lr_schedule: any optax schedule, `(gradient steps so far, int32) -> learning rate`, in place of the config's.
        reward_shaper: `(reward [T, B], step [T, 1]) -> reward [T, B]`, what is learnt from in place of the environment's rewards;
          `step` is the number of environment steps before, float32. Reported returns stay the environment's.
        intrinsic: two functions that make a second stream of rewards, in place of random network distillation, with the
          coefficients and the discount of the config's `rnd`: `init(key, obs [B, ...]) -> state` and
          `reward(state, steps: Transition [T, B] with next_obs) -> (reward [T, B], state)`.

    Raises:
        ConfigError: with every problem found in the config, the environment and the network.
    """
    arguments = {"env": env, "env_params": env_params, "network": network, "optimizer": optimizer, "lr_schedule": lr_schedule}
    arguments |= {"reward_shaper": reward_shaper, "intrinsic": intrinsic}
    arguments |= {"advantage": advantage if advantage is not estimate else None}
    arguments |= {"policy_loss": policy_loss if policy_loss is not surrogate else None}
    given = {name: x for name, x in arguments.items() if x is not None}
    if intrinsic is not None and cfg.rnd is None:
        cfg = cfg.replace(rnd=RNDConfig())
    made = lambda overrides: make_env(cfg.env, cfg.env_kwargs, overrides, env, env_params, cfg.info)
    make = lambda overrides: with_previous(made(overrides), cfg.memory_inputs)
    found = problems(cfg) + not_scalar(cfg)
    if not any(problem.field.startswith(("env", "info", "memory")) for problem in found):
        try:
            environment = make(cfg.env_params)
        except ConfigError as error:
            found += error.problems
    if found:
        raise ConfigError(found)
    for doubt in cfg.doubts() + _doubts(cfg, environment, network):
        warnings.warn(str(doubt), stacklevel=2)
    cfg = single_precision(cfg).resolved()
    distils = cfg.rnd is not None and intrinsic is None
    if found := _observation_problems(cfg, environment, distils):
        raise ConfigError(found)
    network = network or actor_critic(cfg, environment.observation_space, environment.action_space)
    network = masking(network, cfg.action_mask) if cfg.action_mask else network
    if found := _size_problems(cfg, environment) + _network_problems(network, environment, cfg):
        raise ConfigError(found)
    if found := optimizer_problems(optimizer, _shapes_of(network, environment)[0]):
        raise ConfigError(found)
    parts = {"advantage": advantage, "policy_loss": policy_loss}
    parts |= {"optimizer": optimizer, "lr_schedule": lr_schedule, "reward_shaper": reward_shaper}
    if cfg.rnd is not None:
        parts["intrinsic"] = rnd(cfg, environment, network) if distils else of_pair(*intrinsic)
    remake = lambda overrides: make({**cfg.env_params, **overrides})
    train = Train(cfg, environment, network, MAKERS[algorithm_of(cfg)](cfg, environment, network, **parts), remake, given)
    if found := _kept_problems(cfg, train):
        raise ConfigError(found)
    return train


class Train:
    """A training run as pure functions; what `make_train` returns.

    Attributes:
        cfg: the config, its floats as float32.
        env: the environments.
        network: policy and value function.
        init: `(key) -> TrainState`, everything that persists.
        update: `(TrainState) -> (TrainState, metrics)`, one iteration: a rollout and what is learnt from it.
        given: the objects that `make_train` was given, by argument.
        seed_axes: `in_axes` (or `out_axes`) of a state under `vmap` over seeds. The clock has none, so that a phase which is
          due in some updates only stays a branch.
    """

    seed_axes = TrainState(params=0, opt_state=0, actor=0, clock=None, key=0, statistics=0, extra=0)

    def __init__(
        self,
        cfg: OnPolicyConfig,
        env: Environment,
        network: Network,
        algorithm: Algorithm,
        remake_env: Callable,
        given: dict[str, Any],
    ):
        self.cfg, self.given = cfg, given
        self.env, self.network, self._algorithm, self._remake_env = env, network, algorithm, remake_env
        self.update = freeze(algorithm.update, algorithm.skipped) if cfg.nonfinite == "freeze" else algorithm.update

    def init(self, key: jax.Array) -> TrainState:
        """The state before the first update. `key`: one key, typed or raw."""
        return self._algorithm.init(typed_key(key))

    def __call__(self, key: jax.Array) -> TrainResult:
        """The whole run: `init`, then `plan.num_updates` times `update`. Pure: wrap it in `jax.jit`, `jax.vmap` or both."""
        updates, every = self.cfg.num_updates, self.cfg.metrics_every
        if updates // every >= 2**31:
            hint = f"more than 2**31 rows of metrics; use fit, or metrics_every = {updates // 2**31 + 1} or more"
            raise ConfigError([Problem("total_timesteps", self.cfg.total_timesteps, hint)])
        if every == 1:
            return TrainResult(*jax.lax.scan(lambda state, _: self.update(state), self.init(key), length=updates))
        rows = -(-updates // every)
        counts = jnp.full(rows, every, jnp.int32).at[-1].set(updates - (rows - 1) * every)
        return TrainResult(*jax.lax.scan(functools.partial(accumulate, self.update), self.init(key), counts))

    def restart(self, state: TrainState) -> TrainState:
        """A state that parameters and statistics of another run were put into, with all that follows from them."""
        return self._algorithm.restart(state)

    def policy(self, state: TrainState) -> Policy:
        """The policy of a state, ready to act."""
        return Policy(acting(self.cfg, self.network, state), state.params, self.env.action_space)

    def evaluate(
        self,
        state: TrainState,
        key: jax.Array,
        num_episodes: int = 128,
        deterministic: bool = False,
        max_steps: int | None = None,
        env_params: dict[str, Any] | None = None,
    ) -> Episodes:
        """Whole episodes of a state's policy in fresh environments. Pure, and changes nothing of the state.

        Args:
            state: of one run; under `vmap`, `in_axes=(train.seed_axes, 0)`.
            key: consumed.
            num_episodes: how many, all at once.
            deterministic: the most likely action instead of a random one.
            max_steps: the fixed number of steps taken; the environment's time limit if None.
            env_params: overrides of the environment's parameters, on top of the config's.

        Raises:
            ConfigError: the environment has no known time limit and `max_steps` is None.
        """
        env = self._remake_env(env_params) if env_params else self.env
        limit = env.max_steps if max_steps is None else max_steps
        if limit is None:
            raise ConfigError([Problem("max_steps", None, "the environment has no known time limit; say how many steps to take")])
        return evaluate(env, self.policy(state), typed_key(key), num_episodes, limit, deterministic)

    @functools.cached_property
    def plan(self) -> Plan:
        """What the run will do, before anything is compiled."""
        cfg = self.cfg
        state = jax.eval_shape(self.init, jax.random.key(0))
        rollout = jax.eval_shape(
            lambda state: collect(
                self.env, self.network, state.params, state.actor, state.key, cfg.num_steps, length=cfg.training_length
            )[1],
            state,
        )
        env_steps = cfg.num_updates * cfg.batch_size
        phases = tuple(_phase_plan(phase, cfg.num_updates) for phase in self._algorithm.phases)
        return Plan(
            num_updates=cfg.num_updates,
            env_steps=env_steps,
            extra_steps=env_steps - int(cfg.total_timesteps),
            batch_size=cfg.batch_size,
            minibatch_size=cfg.minibatch_size,
            gradient_steps=sum(phase.gradient_steps for phase in phases),
            parameters=sum(x.size for x in jax.tree.leaves(state.params)),
            rollout_bytes=_bytes(rollout),
            state_bytes=_bytes(state),
            kept_bytes=_bytes(state.extra),
            phases=phases,
        )


def _phase_plan(phase: Phase, num_updates: int) -> PhasePlan:
    """A phase is due in the last of each `every` updates, counted from the first of the run, once `start` are over."""
    runs = max(0, num_updates // phase.every - phase.start // phase.every)
    left_over = num_updates - num_updates // phase.every * phase.every
    return PhasePlan(phase.name, runs, runs * phase.epochs * phase.minibatches, left_over)


def _bytes(tree: PyTree) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _size_problems(cfg: OnPolicyConfig, env: Environment) -> list[Problem]:
    """A rollout whose observations alone are more than all memory. Nothing is allocated to find out."""
    each = sum(math.prod(space.shape) * space.dtype.itemsize for space in _entries(env.observation_space))
    needed, there = 2 * each * cfg.batch_size, _memory()  # those acted on, and those before a reset
    if there is None or needed <= there:
        return []
    hint = f"times {cfg.num_steps} steps: the observations of one rollout need {needed / 1e9:,.0f} GB of {there / 1e9:,.0f}"
    return [Problem("num_envs", cfg.num_envs, hint)]


def _kept_problems(cfg: OnPolicyConfig, train: "Train") -> list[Problem]:
    """What an algorithm keeps from update to update is more than all memory, by the field that is most to blame."""
    there = _memory()
    if not cfg.keeps or there is None:
        return []
    kept = jax.eval_shape(train.init, jax.random.key(0)).extra
    sizes = {field: _bytes(kept[name]) for field, name in cfg.keeps.items()}
    if sum(sizes.values()) <= there:
        return []
    field = max(sizes, key=sizes.get)
    hint = f"{sizes[field] / 1e9:,.1f} GB are kept for it, of {there / 1e9:,.0f} GB of memory"
    return [Problem(field, getattr(cfg, field), hint)]


def _entries(space: PyTree) -> list[Any]:
    """The spaces of the entries of an observation."""
    return jax.tree.leaves(space, is_leaf=lambda x: isinstance(x, Discrete))


def _observation_problems(cfg: OnPolicyConfig, env: Environment, distils: bool) -> list[Problem]:
    """Entries that the config names and the environment does not have, and random actions where there can be none."""
    found, space = [], env.observation_space
    if cfg.normalize_obs and all(isinstance(entry, Discrete) for entry in _entries(space)):
        found.append(Problem("normalize_obs", True, "the environment's observation is an index, which is no quantity"))
    there = space if isinstance(space, dict) else {}
    for field in ("action_mask", "critic_obs"):
        name = getattr(cfg, field)
        if name and name not in there:
            has = f"has {', '.join(map(repr, there))}" if there else "is no dict"
            found.append(Problem(field, name, f"no entry of the environment's observation, which {has}"))
    if not found and cfg.action_mask:
        found += _mask_problems(cfg, there[cfg.action_mask], env.action_space)
    asked = {"warmup_steps": cfg.warmup_steps} | ({"rnd.init_steps": cfg.rnd.init_steps} if distils else {})
    for field, steps in asked.items():
        if steps and not bounded(env.action_space):
            found.append(Problem(field, steps, "actions without bounds cannot all be drawn alike; use 0"))
    return found


def _mask_problems(cfg: OnPolicyConfig, mask: Any, actions: Any) -> list[Problem]:
    if not isinstance(actions, Discrete | MultiDiscrete):
        hint = f"only choices can be masked, and the action space is {type(actions).__name__}"
        return [Problem("action_mask", cfg.action_mask, hint)]
    size = sum(actions.sizes) if isinstance(actions, MultiDiscrete) else actions.n
    if mask.shape == (size,):
        return []
    return [Problem("action_mask", cfg.action_mask, f"must be one flag for each of {size} actions, not {list(mask.shape)}")]


def _memory() -> int | None:
    """Bytes of memory of the device that trains; None where they cannot be told."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    return (device.memory_stats() or {}).get("bytes_limit")


def _doubts(cfg: OnPolicyConfig, env: Environment, network: Network | None) -> list[Problem]:
    found = []
    if not env.terminates and not isinstance(cfg.gamma, jax.core.Tracer) and cfg.gamma == 1:
        found.append(Problem("gamma", cfg.gamma, "the environment has no terminal state, so its values have no bound"))
    hints = {"float64": "cast to float32", "uint8": "cast to float32, not scaled, since they are no image"}
    for space in _entries(env.observation_space) if network is None else []:
        if space.dtype.name in hints and not (space.dtype == np.uint8 and len(space.shape) == 3):
            found.append(Problem("env", f"observations of {space.dtype.name}", hints[space.dtype.name]))
    return found


def _network_problems(network: Network, env: Environment, cfg: OnPolicyConfig) -> list[Problem]:
    """Where a network does not fit the environment or the config. Nothing is compiled."""
    key, num_envs = jax.random.key(0), 2
    params, obs = _shapes_of(network, env, num_envs)
    first = jax.ShapeDtypeStruct((1, num_envs), bool)
    carry = jax.eval_shape(lambda: network.initial_carry(num_envs))
    outputs, carry_after = jax.eval_shape(network.apply, params, carry, obs, first)
    space = env.action_space

    def act(policy):
        action = policy.sample(policy.noise(key))
        return policy.env_action(action, space), policy.log_prob(action)

    found = []
    if not isinstance(params, dict):
        found.append(Problem("network", type(params).__name__, "init must return a dict from a group's name to its parameters"))
    elif "value" not in params and not is_off(cfg.critic_lr_scale, 1):
        hint = f"no group of the network's parameters is called 'value', so nothing would learn at it; there are {sorted(params)}"
        found.append(Problem("critic_lr_scale", cfg.critic_lr_scale, hint))
    for name in cfg.heads:
        if name not in outputs.heads:
            hint = f"{algorithm_of(cfg)} needs the outputs' heads to have the entry {name!r}"
            found.append(Problem("network", sorted(outputs.heads), hint))
    if carry_after != carry:
        found.append(Problem("network", carry_after, f"apply must return a carry like the one it was given: {carry}"))
    streams = (cfg.streams,) if cfg.streams > 1 else ()
    if outputs.value.shape != (1, num_envs, *streams):
        axis = f"with an axis for {cfg.streams} streams of rewards" if streams else "without an axis for the output"
        hint = f"the value of {num_envs} observations must be {[1, num_envs, *streams]}, {axis}"
        found.append(Problem("network", list(outputs.value.shape), hint))
    action, log_prob = jax.eval_shape(act, outputs.policy)
    expected = (1, num_envs, *space.shape)
    if action.shape != expected or log_prob.shape != (1, num_envs):
        found.append(
            Problem("network", list(action.shape), f"actions must be {list(expected)}, and have one log-probability each")
        )
    logits = getattr(outputs.policy, "logits", None)
    if isinstance(space, Discrete) and logits is not None and logits.shape[-1] != space.n:
        found.append(Problem("network", logits.shape[-1], f"the environment has {space.n} actions; as many logits are needed"))
    if jax.tree.leaves(carry):
        found += _sequence_problems(cfg)
    elif cfg.sequence_length:
        found.append(Problem("sequence_length", cfg.sequence_length, "the network has no memory; see the config's `memory`"))
    return found


def _shapes_of(network: Network, env: Environment, num_envs: int = 1) -> tuple[PyTree, PyTree]:
    """The shapes of a network's parameters, and of the observations `[1, num_envs, ...]` it is made for."""
    key = jax.random.key(0)
    _, obs = jax.eval_shape(env.reset, jax.random.split(key, num_envs))
    obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape), x.dtype), obs)
    return jax.eval_shape(network.init, key, obs), obs


def _sequence_problems(cfg: OnPolicyConfig) -> list[Problem]:
    """Where minibatches would tear the sequences of a network with a memory."""
    if cfg.minibatches in ("flat", "time"):
        hint = "the network has a memory, so the steps of an environment must stay in order; use 'auto'"
        return [Problem("minibatches", cfg.minibatches, hint)]
    if cfg.minibatches == "env" and cfg.training_length != cfg.num_steps:
        return [Problem("minibatches", cfg.minibatches, f"cannot be cut into sequences of {cfg.sequence_length}; use 'auto'")]
    sequences = cfg.training_size // cfg.training_length
    if sequences % cfg.num_minibatches:
        hint = f"the network has a memory, so a minibatch is whole sequences: it must divide their number, {sequences}"
        return [Problem("num_minibatches", cfg.num_minibatches, hint)]
    return []
