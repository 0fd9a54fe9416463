"""`Train`: a training run as pure functions, returned by `make_train`."""

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.acting.bootstrap import one_step
from purerl.acting.evaluate import Episodes, evaluate
from purerl.acting.policy import Policy
from purerl.acting.rollout import collect, local_pool
from purerl.acting.wrappers import with_statistics
from purerl.checks.check_environment import check_devices
from purerl.config.base import OnPolicyConfig
from purerl.core.auto_reset import draw_pool, has_slow_resets
from purerl.core.environment import Environment
from purerl.core.errors import Problem, config_error, is_count, raise_if_any, refuse_vmap, would_work
from purerl.core.keys import typed_key
from purerl.core.metrics import accumulate
from purerl.core.plan import PhasePlan, Plan, num_bytes
from purerl.core.platform import to_strong_dtypes, with_matmul_precision
from purerl.core.reductions import Axis, fold_in_device, local_batch, on_axis, shapes_on
from purerl.core.types import Network, TrainResult, TrainState
from purerl.learning.nonfinite import freeze
from purerl.learning.phases import Phase
from purerl.learning.update import Algorithm
from purerl.networks.gaussians import action_unit

SEED_AXES: dict[str, Any] = {"params": 0, "opt_state": 0, "actor": 0, "clock": None, "key": 0, "statistics": 0, "extra": 0}


class Train:
    """A training run as pure functions, returned by `make_train`.

    Attributes:
        cfg: the config, with its floats as float32.
        trained: the config that the algorithm trains with, which a custom algorithm may have changed.
        env: the environments.
        network: policy and value function.
        init: `(key) -> TrainState`, everything that persists between updates.
        update: `(TrainState) -> (TrainState, metrics)`, one iteration: collect a rollout and learn from it.
        given: a dict from argument name to custom object, as passed to `make_train`; `measure` is absent.
        axis: the mesh axis over which the environments are sharded, or None.
        seed_axes: `in_axes` (or `out_axes`) of a state under `vmap` over seeds. The update counter `clock` has no seed axis, so
          that `lax.cond` can still skip a phase that runs only in some updates.

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
        self.cfg, self.trained, self.given, self.axis = cfg, algorithm.cfg or cfg, given, axis
        self.env, self.network, self._algorithm, self._remake_env = env, algorithm.network or network, algorithm, remake_env
        update = freeze(algorithm.update, algorithm.skipped) if cfg.nonfinite == "freeze" else algorithm.update
        self._traced = lambda function: on_axis(with_matmul_precision(function, cfg.matmul_precision), axis)
        # Initial states of custom parts may be weakly typed, updated states not.
        init = lambda key: to_strong_dtypes(algorithm.init(key), "state")
        update = _with_one_clock(update) if any(phase.every > 1 for phase in algorithm.phases) else update
        update = functools.wraps(update)(lambda state, update=update: update(self._check_state(state, updates=True)))
        # `inline=True` lets shape queries and all compiled programs share one trace of each of these two functions.
        self._init, self.update = (jax.jit(self._traced(function), inline=True) for function in (init, update))

    def init(self, key: jax.Array) -> TrainState:
        """Return the state before the first update, from one random key (typed or raw)."""
        return self._init(typed_key(key))

    def __call__(self, key: jax.Array) -> TrainResult:
        """Run `init`, then `plan.num_updates` updates. The function is pure: wrap it in `jax.jit`, `jax.vmap` or both."""
        updates, every = self.trained.num_updates, self.cfg.metrics_every
        if updates // every >= 2**31:
            hint = f"would give more than 2**31 records of metrics; use fit, or metrics_every = {updates // 2**31 + 1} or more"
            raise config_error("total_timesteps", self.cfg.total_timesteps, hint)
        if every == 1:
            return TrainResult(*jax.lax.scan(lambda state, _: self.update(state), self.init(key), length=updates))
        rows = -(-updates // every)
        counts = jnp.full(rows, every, jnp.int32).at[-1].set(updates - (rows - 1) * every)
        return TrainResult(*jax.lax.scan(functools.partial(accumulate, self.update), self.init(key), counts))

    def on_axis(self, name: str, size: int) -> "Train":
        """Return this `Train` for one device of an axis, as `make_train(axis_name=name, axis_size=size)` would."""
        axis = make_axis(name, size)
        check_devices(self.cfg, self.env, self.network, size)
        return Train(self.cfg, self.env, self.network, self._algorithm, self._remake_env, self.given, axis)

    def restart(self, state: TrainState) -> TrainState:
        """Recompute the parts of a state that derive from its parameters and statistics, after a warm start replaced these."""
        return self._algorithm.restart(state)

    def policy(self, state: TrainState) -> Policy:
        """Return the policy of a single run's state, ready to act.

        Raises:
            ConfigError: `state` is not a state, has an axis of runs, or its running statistics are not those of this `Train`.
        """
        if self._check_state(state).key.ndim:
            hint = "select a single run (Run.select), or use jax.vmap(train.evaluate, in_axes=(train.seed_axes, 0))"
            raise config_error("state", ..., f"has {math.prod(state.key.shape)} runs; {hint}")
        network = with_statistics(self.trained, self.network, state)
        network = network._replace(apply=self._traced(network.apply))
        return Policy(network, state.params, self.env.action_space, self.env.observation_space, state.statistics)

    def evaluate(
        self,
        state: TrainState,
        key: jax.Array,
        num_episodes: int = 128,
        deterministic: bool = False,
        max_steps: int | None = None,
        env_params: dict[str, Any] | None = None,
        training_levels: bool = False,
        env: Any = None,
    ) -> Episodes:
        """Play whole episodes with the policy of a state, in fresh environments. The state is not changed.

        On an axis of devices, each device plays and returns an equal share of the episodes.

        Args:
            state: the state of a single run. For several runs, use `jax.vmap` with `in_axes=(train.seed_axes, 0)`.
            key: random key of the episodes; do not use it again.
            num_episodes: number of episodes, played in parallel; at least 1.
            deterministic: take the mode of the policy instead of a random action.
            max_steps: fixed number of steps in each environment; the environment's time limit if None.
            env_params: overrides of the environment's parameters, applied after the config's `env_params`; the factor of a
              parameter that `randomize` scales.
            training_levels: with `num_levels`, begin episodes in the training levels instead of other levels.
            env: another environment to play in: an id, or an object that `make_train` accepts, such as a game against another
              opponent. Its spaces must be those of the training environment. The config's `env_params` and `randomize` do not
              apply to it.

        Returns:
            `purerl.acting.evaluate.Episodes`: the `returns`, `lengths` and `finished` flags of the episodes, each
            `[num_episodes]`, and the entries of their info.

        Raises:
            ConfigError: the environment has no known time limit and `max_steps` is None, or an argument is invalid.
        """
        if not isinstance(env_params, dict | None):
            raise config_error("env_params", env_params, "must be a dict from parameter names to numbers, or None")
        levels = self.cfg.num_levels if training_levels else 0
        apart = env_params or levels != self.cfg.num_levels or env is not None
        env = self.make_env(env_params, levels, env) if apart else self._evaluation_env
        limit = env.max_steps if max_steps is None else max_steps
        if limit is None:
            raise config_error("max_steps", None, "the environment has no known time limit; set max_steps")
        counts = {"num_episodes": num_episodes, "max_steps": limit}
        raise_if_any([Problem(name, x, "must be an int of at least 1") for name, x in counts.items() if not is_count(x)])
        if self.axis is not None and num_episodes % self.axis.size:
            near = would_work([-(-num_episodes // self.axis.size) * self.axis.size])
            hint = f"must be divisible by the number of devices, {self.axis.size}{near}"
            raise config_error("num_episodes", num_episodes, hint)
        options = {"info": self.cfg.info, "episode_info": self.cfg.episode_info}

        def run(policy: Policy, key: jax.Array) -> Episodes:  # traced for one device
            return evaluate(env, policy, fold_in_device(key), local_batch(num_episodes), limit, deterministic, **options)

        return self._traced(run)(self.policy(state), typed_key(key))

    def make_env(self, env_params: dict[str, Any] | None = None, num_levels: int = 0, env: Any = None) -> Environment:
        """Return fresh training environments, or those of `env`, with overrides `env_params` and `num_levels` levels (0: any).

        Raises:
            ConfigError: the spaces of `env` differ from those of the training environment.
        """
        made = self._remake_env(env_params or {}, num_levels, env)
        if env is None:
            return made
        texts = lambda env: {"observations": str(env.observation_space), "actions": str(env.action_space)}
        with np.printoptions(threshold=sys.maxsize):  # NumPy would leave out the middle of large bounds
            here, there = texts(made), texts(self.env)
        hint = "has other {} than the training environment: {}, not {}"
        name = made.name or (env if isinstance(env, str) else type(env).__name__)
        raise_if_any([Problem("env", name, hint.format(x, here[x], there[x])) for x in here if here[x] != there[x]])
        return made

    def _check_state(self, state: Any, updates: bool = False) -> TrainState:
        """Return a state; raise a ConfigError for other objects, and for running statistics other than those of this `Train`.

        If `updates` is set, also check what only an update reads: the statistics of rewards, and the number of environments.
        """
        if not isinstance(state, TrainState):
            hint = "must be a TrainState, such as the attribute `state` of a result or a run"
            raise config_error("state", type(state).__name__, hint)
        # An update is traced on its axis of devices, if there is one; a policy is not.
        initial = (jax.eval_shape if updates else functools.partial(shapes_on, self.axis))(self._init, jax.random.key(0))
        has = lambda state, name: bool(jax.tree.leaves(getattr(state.statistics, name, ())))
        names = ("obs", "value", "reward") if updates else ("obs", "value")
        hint = "{0} running statistics, which normalize_{1}={2} {3}; use the train of its run, or normalize_{1}={4}"
        words = {True: ("has", False, "ignores", True), False: ("lacks", True, "needs", False)}
        wrong = [(name, *words[has(state, name)]) for name in names if has(state, name) != has(initial, name)]
        raise_if_any([Problem("state", ..., hint.format(verb, name, *rest)) for name, verb, *rest in wrong])
        of = lambda state: math.prod(getattr(getattr(state.actor, "first", None), "shape", ()))
        if updates and not state.key.ndim and of(state) != of(initial):
            place = " on each device" if self.axis else ""
            hint = f"has {of(state)} environments, but this train has {of(initial)}{place}; use the train of its run"
            raise config_error("state", ..., hint)
        return state

    @functools.cached_property
    def _evaluation_env(self) -> Environment:
        """Return the evaluation environments: the training environments, or a separate set if these are external (Python)."""
        return self.make_env() if self.env.host else self.env

    @functools.cached_property
    def action_unit(self) -> str:
        """Return the unit of actions in rollouts and losses: `environment`, `bounds` (-1 to 1), or `either` if both are equal."""
        state = shapes_on(self.axis, self.init, jax.random.key(0))
        of_actor = lambda params, actor: one_step(self.network, params, actor.carry, actor.obs, actor.first)[0].policy
        return action_unit(shapes_on(self.axis, of_actor, state.params, state.actor), self.env.action_space)

    @functools.cached_property
    def plan(self) -> Plan:
        """Return the size of the run, without compiling. Bytes are per device.

        Example:
            >>> plan = purerl.make_train(purerl.PPOConfig()).plan
            >>> plan.state_bytes + plan.rollout_bytes < plan.update_bytes  # `update_bytes` is reported by the compiler
            True
        """
        cfg = self.trained
        state = shapes_on(self.axis, self.init, jax.random.key(0))

        def rollout_and_pool(state):
            options = {"num_steps": cfg.num_steps, "length": cfg.training_length, "keep_next_obs": cfg.keeps_next_obs}
            rollout = collect(self.env, self.network, state.params, state.actor, state.key, **options)[1]
            pool = draw_pool(self.env.reset, state.key, local_pool(cfg)) if has_slow_resets(self.env.step) else ()
            return rollout, pool

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
            state_bytes=num_bytes(state),
            kept_bytes=num_bytes(state.extra),
            phases=phases,
            on_host=self.env.host is not None,
            trace_rollout=lambda: shapes_on(self.axis, rollout_and_pool, state),
            compile_update=self._compile_update,
        )

    def _compile_update(self) -> Any:
        if self.axis:
            hint = "the program of one device is not compiled alone; make the train without axis_name, and read "
            hint += "purerl.data_parallel(train, mesh).plan.update_bytes"
            raise config_error("axis_name", self.axis.name, hint)
        return jax.jit(self.update, donate_argnums=0).lower(jax.eval_shape(self.init, jax.random.key(0))).compile()


def _with_one_clock(update: Callable) -> Callable:
    """Return an update that refuses a batched update counter, for which `lax.cond` would run all phases in every update."""
    hint = "use jax.vmap(train.update, in_axes=(train.seed_axes,), out_axes=(train.seed_axes, 0))"
    one = refuse_vmap("state", f"has an update counter for each run, but runs must share one counter; {hint}")

    @functools.wraps(update)
    def update_with_one_clock(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        return update(state.replace(clock=one(state.clock)))

    return update_with_one_clock


def _phase_plan(phase: Phase, num_updates: int) -> PhasePlan:
    """Return the plan of a phase: it runs in every update whose number is a multiple of `every` and above `start`."""
    runs = max(0, num_updates // phase.every - phase.start // phase.every)
    left_over = num_updates - num_updates // phase.every * phase.every
    return PhasePlan(phase.name, runs, runs * phase.epochs * phase.minibatches, left_over)


def make_axis(name: str | None, size: int | None) -> Axis | None:
    """Return a mesh axis, or None if name and size are None.

    Raises:
        ConfigError: the name is not a string, or the size is not an int of at least 1.
    """
    if name is None and size is None:
        return None
    if not isinstance(name, str):
        raise config_error("axis_name", name, "must be the name of the axis with axis_size devices")
    if not is_count(size):
        raise config_error("axis_size", size, "must be the number of devices on the axis, an int of at least 1")
    return Axis(name, size)
