"""Shared types, and the shapes of their arrays.

In shapes, `T` is the number of steps of a rollout, `B` the number of environments, and `K` the number of reward streams (usually
absent). A batch holds `N` sequences of `L` steps each. Arrays are time-major: `[T, B, ...]`. Shapes omit the seed axis, since
only `jax.vmap` adds it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from purerl.core.keys import Clock

PyTree = Any
Scalar = float | jax.Array  # a hyperparameter, concrete or traced


# --- networks ---------------------------------------------------------------------------------------------------------


class Outputs(NamedTuple):
    """The outputs of a network for `[L, N]` steps.

    Attributes:
        policy: a distribution over actions (`purerl.distributions`) of batch shape `[L, N]`.
        value: `[L, N]` float32, or `[L, N, K]` with several reward streams.
        heads: a dict from name to further output, or `()`. PPG needs `aux_value`, shaped like `value`. DAAC needs `advantage`, a
          callable PyTree that maps an encoded action `[L, N, d]` to `[L, N]`.

    Example:
        >>> policy = purerl.distributions.Categorical(jnp.zeros((128, 4, 2)))
        >>> outputs = purerl.Outputs(policy, value=jnp.zeros((128, 4)))
    """

    policy: Any
    value: jax.Array
    heads: Any = ()


class Network(NamedTuple):
    """A policy and a value function, as pure functions of their parameters.

    Attributes:
        init: `(key, obs [L, N, ...]) -> params`, a dict from group name ("policy", "value", ...) to the parameters of the group.
          A training phase updates whole groups.
        apply: `(params, carry, obs [L, N, ...], first [L, N]) -> (Outputs, carry)`. Where `first` is set, the network resets its
          hidden state before it reads the observation. The returned carry is the hidden state after the last of the `L` steps.
        initial_carry: `(num_envs) -> carry`, leaves `[num_envs, ...]`; the empty tuple for a network without hidden state.
        prepare: `(params) -> params`, adds arrays that `apply` would otherwise compute from the parameters in every step. An
          accelerator calls it once per rollout; `apply` accepts prepared and unprepared parameters.

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
    """All data of a step, without data of other steps, so that estimators never shift an array. Leaves `[T, B, ...]`.

    Attributes:
        obs: the observation that `action` was chosen for.
        first: bool, True if `obs` is the first of its episode. Networks reset their hidden state before they read `obs`.
        action: the sampled action, in the unit of its distribution. The environment received `policy.env_action(action, space)`:
          a continuous action is converted to the environment's unit and clipped.
        log_prob: float32, log-probability of `action` under the acting policy.
        value: float32 `[T, B(, K)]`, the value of `obs`.
        reward: float32 `[T, B(, K)]`.
        terminated, truncated: bool, the episode ended in a terminal state, or a time limit cut it short. There is no `done`.
        next_value: float32 `[T, B(, K)]`, the value of the observation after this step; where `truncated` is set, of the
          observation *before* the reset, or as the config's `truncation` chooses. Readers must use 0 where `terminated` is set.
        policy: the distribution that `action` was sampled from.
        next_obs: the observation after this step, before any reset; `obs` if a number of the step was not finite, with
          `nonfinite="reset"`; `()` unless requested.
        intrinsic: input of the intrinsic reward's loss; `()` if there is no such loss.
        info: a dict of the entries of the environment's info that the config names in `info` and `episode_info`, `[T, B, ...]`
          each; empty in batches of APPO, whose ring buffer does not store info. Entries may be nonfinite.

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
    info: dict[str, jax.Array] = struct.field(default_factory=dict)


class Rollout(struct.PyTreeNode):
    """One rollout of every environment.

    Attributes:
        steps: `Transition`, leaves `[T, B, ...]`.
        carry: leaves `[T / L, B, ...]`, the hidden state before the first step of every sequence of `L` steps.
    """

    steps: Transition
    carry: PyTree


class Advantages(struct.PyTreeNode):
    """Advantages and value targets of each step, without gradients.

    Attributes:
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
    """The part of a step that PPO's loss reads. Fields are named as in `Transition` and `Advantages`.

    Attributes:
        obs: the observation as the environment returned it; networks apply the statistics of `normalize_obs` themselves.
        policy: the distribution that `action` was sampled from; `()` if neither the policy loss nor an extra loss reads the
          distribution, and the config does not measure the KL divergence.
        intrinsic: input of the intrinsic reward's loss; `()` if there is no such loss.

    Example:
        >>> def behaviour_cloning(params, outputs, old: purerl.Sample, cfg):
        ...     return -outputs.policy.log_prob(old.action).mean(), {}
        >>> train = purerl.make_train(purerl.PPOConfig(), extra_loss=behaviour_cloning)
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


class Sequences(struct.PyTreeNode):
    """A batch or minibatch: `N` sequences of `L` steps.

    Attributes:
        steps: leaves `[L, N, ...]`.
        carry: leaves `[N, ...]`, the hidden state before the first step of each sequence.
    """

    steps: PyTree
    carry: PyTree


class Intrinsic(NamedTuple):
    """A second reward stream, computed from observations instead of given by the environment.

    Attributes:
        init: `(key, obs [B, ...]) -> (parameter groups, state)`; the groups join the trained parameters.
        reward: `(params, state, Transition [T, B] with next_obs) -> (reward [T, B], state, metrics)`.
        training: `(state, Transition [T, B], key) -> input of the loss for each step`, leaves `[T, B, ...]`; None without a loss.
        loss: `(params, state, loss input of a minibatch [L, N, ...]) -> (scalar, metrics)`.
    """

    init: Callable
    reward: Callable
    training: Callable | None = None
    loss: Callable | None = None


# --- training ---------------------------------------------------------------------------------------------------------


class Actor(struct.PyTreeNode):
    """The state of the interaction with the environments, kept between rollouts. Leaves `[B, ...]`."""

    env_state: PyTree
    obs: PyTree
    first: jax.Array
    carry: PyTree
    episode_return: jax.Array
    episode_length: jax.Array


class TrainState(struct.PyTreeNode):
    """Everything that persists from one update to the next. All leaves are arrays.

    Attributes:
        params: a dict from group to parameters.
        opt_state: a dict from phase to optimizer state.
        actor: the state of the environments and the episodes in progress.
        clock: the update counter. Never batched under `vmap` over seeds: see `Train.seed_axes`.
        key: the root of all random keys. The root is constant; the keys derived from it vary with the update counter.
        statistics: running statistics, see `purerl.acting.normalize`.
        extra: auxiliary state of the algorithm, a dict from name to PyTree.

    Example:
        >>> state = purerl.make_train(purerl.PPOConfig()).init(jax.random.key(0))
        >>> isinstance(state, purerl.TrainState), sorted(state.params), int(state.clock)
        (True, ['policy', 'value'], 0)
    """

    params: PyTree
    opt_state: PyTree
    actor: Actor
    clock: Clock
    key: jax.Array
    statistics: PyTree
    extra: dict[str, PyTree] = struct.field(default_factory=dict)

    def __repr__(self) -> str:
        """Describe the parameters, without arrays."""
        runs = max(1, getattr(self.key, "size", 1))
        numbers = sum(getattr(x, "size", 1) for x in jax.tree.leaves(self.params)) // runs
        groups = f" in {', '.join(map(str, self.params))}" if isinstance(self.params, dict) else ""
        return f"TrainState with {numbers:,} parameters{groups}" + (f", {runs:,} runs" if runs > 1 else "")


class TrainResult(struct.PyTreeNode):
    """The result of a whole run.

    Attributes:
        state: the `TrainState` after the last update.
        metrics: a dict of metrics (`purerl.core.metrics`), leaves `[num_updates / metrics_every]`, rounded up.
    """

    state: TrainState
    metrics: dict[str, Any]

    def __repr__(self) -> str:
        """Describe the metrics, without arrays."""
        shape = jnp.shape(jax.tree.leaves(self.metrics)[0])
        return f"TrainResult: {len(self.metrics)} metrics of shape {shape}; purerl.summarize(result.metrics) returns means"
