"""The protocol of environments: a batch of environments as pure functions, and the output of a step.

`B` is the number of environments.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import struct

from purerl.core.spaces import Space, action_shapes
from purerl.core.types import PyTree


class TimeStep(struct.PyTreeNode):
    """The output of one step of `B` auto-resetting environments.

    Attributes:
        env_state: the state of the environments. If an episode ended, the state after the reset.
        obs: `[B, ...]` the observation to act on next. If an episode ended, the first observation of the new episode.
        next_obs: `[B, ...]` the observation after this step, before any reset.
        reward: `[B]` float32.
        terminated: `[B]` bool, the episode ended in a terminal state, whose value is 0.
        truncated: `[B]` bool, a time limit cut the episode short; the continuation is worth `V(next_obs)`. If both flags are set,
          `terminated` wins.
        info: a dict from name to further output, `[B, ...]` each.
        nonfinite: a dict from `reward` and `observation` (or `observation/x` for each entry `x` of an observation) to `[B]`
          bool, True if a number of this step was not finite. Set by purerl; empty unless the config has `nonfinite="reset"`.

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


NEVER = 2**31 - 1  # `truncates_after` of environments that never truncate


class Environment(NamedTuple):
    """A batch of auto-resetting environments as pure functions.

    Attributes:
        reset: `(keys [B]) -> (env_state, obs)`.
        step: `(keys [2, B], env_state, action) -> TimeStep`; the first row of keys is for the step, the second row for resets.
          If `step` is a `purerl.core.auto_reset.AutoReset`, an accelerator computes the slow resets of a rollout in one batch.
        observation_space: the shape and dtype of one observation: a `jax.ShapeDtypeStruct`, `Discrete` for a categorical value,
          `Indices` for an array of categorical values, or a PyTree of these.
        action_space: the space of an action of one environment.
        max_steps: the time limit in steps, or None if unknown.
        truncates_after: the least length of a truncated episode: `max_steps` if only the time limit truncates; `2**31 - 1` if
          nothing truncates, or if the time limit is part of the task and terminates. If None (unknown), rollouts store
          observations twice. If `step` is a function and there is a `name`, it is dropped, since the step may replace another.
        info: names of the entries of `TimeStep.info`.
        draw: `(env_states, returns, path)`, a function that renders states of one environment into a file, one frame per state;
          None if unsupported.
        name: the name of the environment in messages.
        action_mask: name of the observation entry that marks valid actions; "" for none.
        critic_obs: name of the observation entry that only the value network sees; "" for none.
        host: the `purerl.envs.external.host.Host` that runs external (Python) environments; None for environments in JAX.
        masks: a message about each likely action mask that nothing reads, such as an entry of `info`.
        resets_itself: True if `step` resets with its own random numbers and ignores the second row of keys.

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
    masks: tuple[str, ...] = ()
    resets_itself: bool = False

    def step_shapes(self, count: int) -> TimeStep:
        """Return the shapes of the output of `step` for `count` environments."""
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), (2, count)))
        env_state, _ = jax.eval_shape(self.reset, jax.ShapeDtypeStruct((count,), keys.dtype))
        return jax.eval_shape(self.step, keys, env_state, action_shapes(self.action_space, count))
