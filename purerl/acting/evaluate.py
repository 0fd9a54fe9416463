"""Evaluation: whole episodes of a fixed policy."""

import jax
import jax.numpy as jnp
from flax import struct
from jax.core import Tracer

from purerl.acting.policy import Policy
from purerl.core.auto_reset import has_slow_resets
from purerl.core.environment import Environment
from purerl.core.finite import any_of, is_finite
from purerl.core.keys import fold_in_name, split_keys


class Episodes(struct.PyTreeNode):
    """The results of an evaluation, leaves `[num_episodes]`.

    Attributes:
        returns: float32, undiscounted sum of rewards.
        lengths: int32, steps.
        finished: bool. False if the episode was still running when the evaluation stopped, or met a nonfinite number (with
          `nonfinite="reset"`); the other fields are then partial.
        info: a dict from each entry in the config's `info` to its sum over the episode, float32.
        episode_info: a dict from each entry in the config's `episode_info` to its value at the episode's last step, float32
          `[num_episodes, ...]`.
    """

    returns: jax.Array
    lengths: jax.Array
    finished: jax.Array
    info: dict[str, jax.Array] = struct.field(default_factory=dict)
    episode_info: dict[str, jax.Array] = struct.field(default_factory=dict)

    def __repr__(self) -> str:
        """Describe the means, without arrays."""
        shape = self.returns.shape
        if isinstance(self.returns, Tracer) or self.returns.size == 0:
            return f"Episodes of shape {shape}"
        means = {"return": self.returns, "length": self.lengths, **self.named_info()}
        found = ", ".join(f"{name} {x.mean():.4g}" for name, x in means.items())
        return f"Episodes of shape {shape}: {found}; {self.finished.sum():,} of {self.finished.size:,} finished"

    def named_info(self) -> dict[str, jax.Array]:
        """Return a dict of the entries with one number per episode, with the keys `info/name` and `episode_info/name`."""
        entries = {"info": self.info, "episode_info": self.episode_info}
        named = {f"{group}/{name}": x for group, found in entries.items() for name, x in found.items()}
        return {name: x for name, x in named.items() if x.shape == self.returns.shape}


def evaluate(
    env: Environment,
    policy: Policy,
    key: jax.Array,
    num_episodes: int,
    max_steps: int,
    deterministic: bool,
    info: tuple[str, ...] = (),
    episode_info: tuple[str, ...] = (),
) -> Episodes:
    """Play the first episode of each of `num_episodes` fresh environments.

    The loop always runs for `max_steps` steps, and ignores an environment's steps after its first episode. Environments with slow
    resets are not reset after that episode. All randomness comes from `key`, and the policy is not changed.

    Args:
        env: environments.
        policy: the acting policy.
        key: consumed.
        num_episodes: number of episodes.
        max_steps: number of steps. Longer episodes are cut short, and their `finished` is False.
        deterministic: take the mode of the policy instead of a random action.
        info: entries of the environment's info to sum over each episode.
        episode_info: entries of the environment's info to read at the last step of each episode.
    """
    env_state, obs = env.reset(jax.random.split(fold_in_name(key, "evaluation/start"), num_episodes))
    shapes = env.step_shapes(num_episodes).info
    nothing = lambda names: {name: jnp.zeros(shapes[name].shape, jnp.float32) for name in names}
    returns, lengths, finished = (jnp.zeros(num_episodes, dtype) for dtype in (jnp.float32, jnp.int32, bool))
    episodes = Episodes(returns, lengths, finished, nothing(info), nothing(episode_info))
    flags = jnp.ones(num_episodes, bool)
    initial = (env_state, obs, flags, policy.initial_carry(num_episodes), flags, episodes)

    def step(state, index):
        env_state, obs, first, carry, running, episodes = state
        action, carry = policy(carry, obs, first, fold_in_name(key, "action", index), deterministic)
        keys = split_keys(fold_in_name(key, "environment", index), 2, num_episodes)
        after = env.step.advance(keys[0], env_state, action) if has_slow_resets(env.step) else env.step(keys, env_state, action)
        done, whole = after.terminated | after.truncated, ~any_of(after.nonfinite) if after.nonfinite else True
        add = lambda total, x: total + jnp.where(running, x, jnp.float32(0))
        known = lambda x: jnp.where(is_finite(x), x, jnp.float32(0)) if after.nonfinite else x
        newer = lambda name, x: jax.vmap(jnp.where)(running, after.info[name], x)
        episodes = Episodes(
            returns=add(episodes.returns, after.reward),
            lengths=episodes.lengths + running.astype(jnp.int32),
            finished=episodes.finished | (running & done & whole),
            info={name: add(x, known(after.info[name])) for name, x in episodes.info.items()},
            episode_info={name: newer(name, x) for name, x in episodes.episode_info.items()},
        )
        return (after.env_state, after.obs, done, carry, running & ~done, episodes), None

    (*_, episodes), _ = jax.lax.scan(step, initial, jnp.arange(max_steps, dtype=jnp.uint32))
    return episodes
