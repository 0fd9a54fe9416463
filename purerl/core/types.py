"""The shared types, and the shapes of their arrays.

In the shape descriptions `T` is the number of steps of a rollout, `B` the number of environments, `K` the number of reward
streams (usually absent), and a batch holds `N` sequences of `L` steps each. Arrays are time-major: `[T, B, ...]`. A
seed axis is never written: it is only ever added by `jax.vmap`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import struct

from purerl.core.keys import Clock
from purerl.core.spaces import Space

PyTree = Any
Scalar = float | jax.Array  # a hyperparameter: of a config, or traced


# --- environments -----------------------------------------------------------------------------------------------------


class TimeStep(struct.PyTreeNode):
    """The output of one step of `B` auto-resetting environments.

    env_state: the environments' own state, after the reset where an episode ended.
    obs: `[B, ...]` the observation to act on next; a new episode's first one where an episode ended.
    next_obs: `[B, ...]` the observation this step led to, before any reset.
    reward: `[B]` float32.
    terminated: `[B]` bool, the episode ended in a terminal state: nothing follows, its value is 0.
    truncated: `[B]` bool, the episode was cut short by a time limit: its continuation is worth `V(next_obs)`. Both flags can
      be set; then `terminated` wins.
    info: `[B, ...]` each, what else there is by name.
    nonfinite: `[B]` bool each, the steps whose observation or reward was not finite, by the name of the entry: `reward`,
      `observation`, or `observation/x` for its entry `x`. Empty where nothing is checked; purerl sets it.

    Example:
        >>> obs, done = jnp.zeros((4, 2)), jnp.zeros(4, bool)
        >>> after = purerl.TimeStep(obs, obs, obs, reward=jnp.ones(4), terminated=done, truncated=done)
    """

    env_state: PyTree
    obs: PyTree
    next_obs: PyTree
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    info: dict[str, jax.Array] = struct.field(default_factory=dict)
    nonfinite: dict[str, jax.Array] = struct.field(default_factory=dict)


NEVER = 2**31 - 1  # steps after which an episode is truncated


class Environment(NamedTuple):
    """A batch of auto-resetting environments as pure functions.

    reset: `(keys [B]) -> (env_state, obs)`.
    step: `(keys [2, B], env_state, action) -> TimeStep`; the first row of keys moves the environments, the second resets them.
    observation_space: the shape and dtype of one observation, as a `jax.ShapeDtypeStruct`, or `Discrete` for an index and
      `Indices` for an array of them; a PyTree of them if an observation is one.
    action_space: what `action` must be.
    max_steps: the time limit in steps, or None where the environment does not say.
    truncates_after: every truncated episode has at least so many steps: `max_steps`, where nothing but the time limit truncates;
      `2**31 - 1`, where nothing does, or the limit is a part of the task and terminates. None if that is not known; then a
      rollout takes the memory of its observations twice.
    info: names of what `TimeStep.info` holds.
    draw: `(env_states, returns, path)` draws single environments' states, a frame each, into a file; None where nothing can.
    name: what it is called in messages and records.
    action_mask: the entry of a dict of observations that marks the legal actions; "" for none.
    critic_obs: the entry of a dict of observations that is meant for the value network alone; "" for none.
    host: what opens and closes environments that live outside of `env_state`; None for pure ones. See `purerl.envs.host`.
    resets_itself: whether its resets have random numbers of their own, and not the second row of keys.

    Example:
        >>> def reset(keys):
        ...     at = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys)
        ...     return at, at
        >>> def step(keys, at, action):
        ...     moved = at + 0.1 * action
        ...     reward, far = -jnp.abs(moved).sum(-1), (jnp.abs(moved) > 2).any(-1)
        ...     fresh, _ = reset(keys[1])
        ...     following = jnp.where(far[:, None], fresh, moved)
        ...     return purerl.TimeStep(following, following, moved, reward, far, jnp.zeros_like(far))
        >>> bounds = purerl.Box(-np.ones(2, np.float32), np.ones(2, np.float32))
        >>> env = purerl.Environment(reset, step, jax.ShapeDtypeStruct((2,), jnp.float32), bounds, max_steps=None)
        >>> train = purerl.make_train(purerl.PPOConfig(), env=env)
    """

    reset: Callable
    step: Callable
    observation_space: PyTree
    action_space: Space
    max_steps: int | None
    info: tuple[str, ...] = ()
    draw: Callable | None = None
    name: str = ""
    truncates_after: int | None = None
    action_mask: str = ""
    critic_obs: str = ""
    host: Any = None
    resets_itself: bool = False

    def step_shapes(self, count: int) -> TimeStep:
        """Return the shapes of the output of `step` for `count` environments."""
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (2, count)))
        env_state, _ = jax.eval_shape(self.reset, jax.ShapeDtypeStruct((count,), keys.dtype))
        action = jax.ShapeDtypeStruct((count, *self.action_space.shape), self.action_space.dtype)
        return jax.eval_shape(self.step, keys, env_state, action)


# --- networks ---------------------------------------------------------------------------------------------------------


class Outputs(NamedTuple):
    """The outputs of a network for `[L, N]` steps.

    policy: a distribution over actions (`purerl.distributions`) of batch shape `[L, N]`.
    value: `[L, N]` float32, or `[L, N, K]` with several reward streams.
    heads: what else an algorithm asks for, by name: `aux_value`, shaped like `value`, for PPG; for DAAC `advantage`, a PyTree
      that maps an encoded action `[L, N, d]` to `[L, N]`.

    Example:
        >>> policy = purerl.distributions.Categorical(jnp.zeros((128, 4, 2)))
        >>> outputs = purerl.Outputs(policy, value=jnp.zeros((128, 4)))
    """

    policy: Any
    value: jax.Array
    heads: Any = ()


class Network(NamedTuple):
    """A policy and a value function, as pure functions of their parameters.

    init: `(key, obs [L, N, ...]) -> params`, a dict from the name of a group ("policy", "value", ...) to its parameters; a
      phase of training moves whole groups.
    apply: `(params, carry, obs [L, N, ...], first [L, N]) -> (Outputs, carry)`. Where `first` is set the network forgets
      its memory, and then reads the observation. The returned carry is the memory after the last of the `L` steps.
    initial_carry: `(num_envs) -> carry`, leaves `[num_envs, ...]`; the empty tuple for a network without memory.
    prepare: `(params) -> params`, with what `apply` would otherwise compute from the parameters alone in every step. Called once
      for each rollout on an accelerator; `apply` takes parameters with and without it.

    Example:
        >>> def init(key, obs):
        ...     return {"policy": jax.random.normal(key, (4, 2)), "value": jnp.zeros(4)}
        >>> def apply(params, carry, obs, first):
        ...     policy = purerl.distributions.Categorical(obs @ params["policy"])
        ...     return purerl.Outputs(policy, obs @ params["value"]), carry
        >>> train = purerl.make_train(purerl.PPOConfig(), network=purerl.Network(init, apply))
        >>> train.plan.parameters
        12
    """

    init: Callable
    apply: Callable
    initial_carry: Callable = lambda num_envs: ()
    prepare: Callable = lambda params: params

    @property
    def is_recurrent(self) -> bool:
        """Return True if the network has a hidden state."""
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.initial_carry(1))))


# --- experience -------------------------------------------------------------------------------------------------------


class Transition(struct.PyTreeNode):
    """Everything about one step t, and about no other: estimators never shift an array. Leaves `[T, B, ...]`.

    obs: the observation that `action` was chosen for.
    first: bool, `obs` opens an episode: reset the memory before reading it.
    action: the policy's sample, in the unit of its distribution. The environment received
      `policy.env_action(action, space)`: of a Box in its own unit, and clipped.
    log_prob: float32, of `action` under the policy that acted.
    value: float32 `[T, B(, K)]`, of `obs`.
    reward: float32 `[T, B(, K)]`.
    terminated, truncated: bool, as in `TimeStep`. There is no `done`.
    next_value: float32 `[T, B(, K)]`, of the observation this step led to, *before* any reset. Not masked: its reader
      must let `terminated` win.
    policy: the distribution that `action` was drawn from.
    next_obs: the observation this step led to, before any reset; `()` unless asked for.
    intrinsic: what the loss of intrinsic rewards reads; `()` without them.

    Example:
        >>> no = jnp.zeros((3, 1), bool)
        >>> values = {"value": jnp.zeros((3, 1)), "next_value": jnp.zeros((3, 1)), "reward": jnp.ones((3, 1))}
        >>> ends = {"first": no.at[0].set(True), "terminated": no.at[2].set(True), "truncated": no}
        >>> steps = purerl.Transition(obs=(), action=(), log_prob=(), **values, **ends)
        >>> purerl.advantages.gae(steps, gamma=0.5, gae_lambda=1.0).target[:, 0].tolist()
        [1.75, 1.5, 1.0]
    """

    obs: PyTree
    first: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_value: jax.Array
    policy: Any = ()
    next_obs: PyTree = ()
    intrinsic: Any = ()


class Rollout(struct.PyTreeNode):
    """One rollout of every environment.

    steps: `Transition`, leaves `[T, B, ...]`.
    carry: leaves `[T / L, B, ...]`, the memory from before the first step of every sequence of `L` steps.
    """

    steps: Transition
    carry: PyTree


class Advantages(struct.PyTreeNode):
    """Advantages and value targets of each step, gradient-free.

    advantage: `[T, B(, K)]` float32.
    target: `[T, B(, K)]` float32, the target of the value function.

    Example:
        >>> def monte_carlo(steps, cfg):
        ...     target = purerl.advantages.n_step(steps, cfg.gamma, n=0).target
        ...     return purerl.Advantages(advantage=target - steps.value, target=target)
        >>> train = purerl.make_train(purerl.PPOConfig(), advantage=monte_carlo)
    """

    advantage: jax.Array
    target: jax.Array


class Sample(struct.PyTreeNode):
    """The part of a step that PPO's loss reads; the names are those of `Transition` and `Advantages`.

    policy: `()` where the loss does not ask for it.
    intrinsic: what the loss of intrinsic rewards reads; `()` without them.
    advantage_moments: of a minibatch, mean and variance of its advantages where they are known beforehand, else `()`.
    """

    obs: PyTree
    first: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    policy: Any = ()
    intrinsic: Any = ()
    advantage_moments: Any = ()


class Sequences(struct.PyTreeNode):
    """A batch, or a minibatch of one: `N` sequences of `L` steps.

    steps: leaves `[L, N, ...]`.
    carry: leaves `[N, ...]`, the memory from before the first step of each sequence.
    """

    steps: PyTree
    carry: PyTree


class Intrinsic(NamedTuple):
    """A second stream of rewards, made of what is seen and not given by the environment.

    init: `(key, obs [B, ...]) -> (groups of parameters, state)`; the groups are trained by whatever learns.
    reward: `(params, state, Transition [T, B] with next_obs) -> (reward [T, B], state, metrics)`.
    training: `(state, Transition [T, B], key) -> what its loss reads of each step`, leaves `[T, B, ...]`; None without a loss.
    loss: `(params, state, that of a minibatch [L, N, ...]) -> (scalar, metrics)`.
    """

    init: Callable
    reward: Callable
    training: Callable | None = None
    loss: Callable | None = None


# --- training ---------------------------------------------------------------------------------------------------------


class Actor(struct.PyTreeNode):
    """The state of the interaction with environments, which outlives a rollout. Leaves `[B, ...]`."""

    env_state: PyTree
    obs: PyTree
    first: jax.Array
    carry: PyTree
    episode_return: jax.Array
    episode_length: jax.Array


class TrainState(struct.PyTreeNode):
    """Everything that persists from one update to the next; arrays only.

    params: a dict from group to parameters.
    opt_state: a dict from phase to optimizer state.
    actor: the environments and where they stand.
    clock: finished updates. Never batched under `vmap` over seeds: see `Train.seed_axes`.
    key: the root of all random keys. It never changes; the clock does.
    statistics: running statistics, see `purerl.acting.normalize`.
    extra: what an algorithm keeps besides, by name.
    """

    params: PyTree
    opt_state: PyTree
    actor: Actor
    clock: Clock
    key: jax.Array
    statistics: PyTree
    extra: dict[str, PyTree] = struct.field(default_factory=dict)


class TrainResult(struct.PyTreeNode):
    """The result of a whole run.

    state: the `TrainState` after the last update.
    metrics: a dict of `purerl.core.metrics`, leaves `[num_updates]`, or one row for each `metrics_every` of them.
    """

    state: TrainState
    metrics: dict[str, Any]


class Episodes(struct.PyTreeNode):
    """The outcome of an evaluation, leaves `[num_episodes]`.

    returns: float32, undiscounted sum of rewards.
    lengths: int32, steps.
    finished: bool; where False the episode was still running when the evaluation stopped, or met a number that is not finite
      (with `nonfinite="reset"`), and the others are partial.
    info: float32 each, the sum over the episode of the entries of `info` that the config names.
    episode_info: float32 `[num_episodes, ...]` each, at the last step, of those that the config's `episode_info` names.
    """

    returns: jax.Array
    lengths: jax.Array
    finished: jax.Array
    info: dict[str, jax.Array] = struct.field(default_factory=dict)
    episode_info: dict[str, jax.Array] = struct.field(default_factory=dict)
