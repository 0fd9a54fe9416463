"""Names and shapes that every part shares; no logic.

In the shape descriptions `T` is the number of steps of a rollout, `B` the number of environments, `K` the number of reward
streams (usually absent), and a training set holds `N` sequences of `L` steps each. Arrays are time-major: `[T, B, ...]`. A
seed axis is never written: it is only ever added by `jax.vmap`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

PyTree = Any


# --- spaces -----------------------------------------------------------------------------------------------------------


class Discrete(NamedTuple):
    """The integers `0 .. n - 1`."""

    n: int


class Box(NamedTuple):
    """Real arrays between two bounds.

    low, high: `[*shape]` float32, in the environment's own units; may be infinite.
    """

    low: np.ndarray
    high: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape


Space = Discrete | Box


# --- environments -----------------------------------------------------------------------------------------------------


@struct.dataclass
class TimeStep:
    """What one step of `B` auto-resetting environments gives.

    env_state: the environments' own state, after the reset where an episode ended.
    obs: `[B, ...]` the observation to act on next; a new episode's first one where an episode ended.
    next_obs: `[B, ...]` the observation this step led to, before any reset.
    reward: `[B]` float32.
    terminated: `[B]` bool, the episode ended in a terminal state: nothing follows, its value is 0.
    truncated: `[B]` bool, the episode was cut short by a time limit: its continuation is worth `V(next_obs)`. Both flags can
      be set; then `terminated` wins.
    """

    env_state: PyTree
    obs: PyTree
    next_obs: PyTree
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array


class Environment(NamedTuple):
    """A batch of auto-resetting environments as pure functions.

    reset: `(keys [B]) -> (env_state, obs)`.
    step: `(keys [2, B], env_state, action) -> TimeStep`; the first row of keys moves the environments, the second resets them.
    observation_space: the shape and dtype of one observation, as a `jax.ShapeDtypeStruct`, or `Discrete` for an index.
    action_space: what `action` must be.
    max_steps: the time limit in steps, or None where the environment does not say.
    terminates: False where no state is terminal, whatever happens.
    draw: `(env_states, returns, path)` draws single environments' states, a frame each, into a file; None where nothing can.
    """

    reset: Callable
    step: Callable
    observation_space: jax.ShapeDtypeStruct | Discrete
    action_space: Space
    max_steps: int | None
    terminates: bool = True
    draw: Callable | None = None


# --- networks ---------------------------------------------------------------------------------------------------------


class Outputs(NamedTuple):
    """What a network says of `[L, N]` steps.

    policy: a distribution over actions (`purerl.distributions`) of batch shape `[L, N]`.
    value: `[L, N]` float32, or `[L, N, K]` with several reward streams.
    """

    policy: Any
    value: jax.Array


class Network(NamedTuple):
    """A policy and a value function, as pure functions of their parameters.

    init: `(key, obs [L, N, ...]) -> params`, a dict from the name of a group ("policy", "value", ...) to its parameters; a
      phase of training moves whole groups.
    apply: `(params, carry, obs [L, N, ...], first [L, N]) -> (Outputs, carry)`. Where `first` is set the network forgets
      its memory, and then reads the observation. The returned carry is the memory after the last of the `L` steps.
    initial_carry: `(num_envs) -> carry`, leaves `[num_envs, ...]`; the empty tuple for a network without memory.
    """

    init: Callable
    apply: Callable
    initial_carry: Callable = lambda num_envs: ()


# --- experience -------------------------------------------------------------------------------------------------------


@struct.dataclass
class Transition:
    """Everything about one step t, and about no other: estimators never shift an array. Leaves `[T, B, ...]`.

    obs: what was acted on.
    first: bool, `obs` opens an episode: reset the memory before reading it.
    action: as the distribution drew it; the environment may have received a clipped one.
    log_prob: float32, of `action` under the policy that acted.
    value: float32 `[T, B(, K)]`, of `obs`.
    reward: float32 `[T, B(, K)]`.
    terminated, truncated: bool, as in `TimeStep`. There is no `done`.
    next_value: float32 `[T, B(, K)]`, of the observation this step led to, *before* any reset. Not masked: whoever reads
      it must let `terminated` win.
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


@struct.dataclass
class Rollout:
    """One rollout of every environment.

    steps: `Transition`, leaves `[T, B, ...]`.
    carry: leaves `[T / L, B, ...]`, the memory from before the first step of every sequence of `L` steps.
    """

    steps: Transition
    carry: PyTree


@struct.dataclass
class Advantages:
    """What an estimator gives for each step, gradient-free.

    advantage: `[T, B(, K)]` float32.
    target: `[T, B(, K)]` float32, what the value function should have said.
    """

    advantage: jax.Array
    target: jax.Array


@struct.dataclass
class Sample:
    """What PPO's loss reads of one step; the names are those of `Transition` and `Advantages`."""

    obs: PyTree
    first: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


@struct.dataclass
class Sequences:
    """A training set, or a minibatch of one: `N` sequences of `L` steps.

    steps: leaves `[L, N, ...]`.
    carry: leaves `[N, ...]`, the memory from before the first step of each sequence.
    """

    steps: PyTree
    carry: PyTree


# --- training ---------------------------------------------------------------------------------------------------------


class Phase(NamedTuple):
    """One way of moving parameters: a loss, what it moves, how often.

    name: prefix of its random stream and its metrics.
    loss: `(params, Sequences) -> (scalar, dict of scalar metrics)`.
    optimizer: an optax transformation of the gradient's direction; its step is scaled by the learning rate.
    group: the names of the parameter groups that move; None for all.
    epochs, minibatches: passes over the data, and gradient steps in each pass.
    length: steps of a training sequence. 1 gives minibatches of single steps, T of whole environment columns.
    every: run it in every k-th update only.
    """

    name: str
    loss: Callable
    optimizer: Any
    group: tuple[str, ...] | None
    epochs: int
    minibatches: int
    length: int = 1
    every: int = 1


@struct.dataclass
class Actor:
    """What interacts with the environments and outlives a rollout. Leaves `[B, ...]`."""

    env_state: PyTree
    obs: PyTree
    first: jax.Array
    carry: PyTree
    episode_return: jax.Array
    episode_length: jax.Array


@struct.dataclass
class Clock:
    """Finished updates, `high * 2**32 + low`: two uint32 words, exact to 2**64 without 64-bit JAX."""

    high: jax.Array
    low: jax.Array


@struct.dataclass
class TrainState:
    """Everything that persists from one update to the next; arrays only.

    params: a dict from group to parameters.
    opt_state: a dict from phase to optimizer state.
    actor: the environments and where they stand.
    clock: finished updates. Never batched under `vmap` over seeds: see `Train.seed_axes`.
    key: the root of every random stream. It never changes; the clock does.
    statistics: running statistics, see `purerl.normalize`.
    """

    params: PyTree
    opt_state: PyTree
    actor: Actor
    clock: Clock
    key: jax.Array
    statistics: PyTree


class Algorithm(NamedTuple):
    """A training algorithm as two pure functions.

    init: `(key) -> TrainState`.
    update: `(TrainState) -> (TrainState, metrics)`.
    """

    init: Callable
    update: Callable


@struct.dataclass
class TrainResult:
    """What a whole run gives.

    state: the `TrainState` after the last update.
    metrics: a dict of `purerl.metrics`, leaves `[num_updates]`, or one row for each `metrics_every` of them.
    """

    state: TrainState
    metrics: dict[str, Any]


@struct.dataclass
class Episodes:
    """The outcome of an evaluation, leaves `[num_episodes]`.

    returns: float32, undiscounted sum of rewards.
    lengths: int32, steps.
    finished: bool; where False the episode was still running when the evaluation stopped, and the others are partial.
    """

    returns: jax.Array
    lengths: jax.Array
    finished: jax.Array
