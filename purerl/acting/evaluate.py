"""Evaluation: whole episodes of a fixed policy."""

import jax
import jax.numpy as jnp

from purerl.acting.policy import Policy
from purerl.core.finite import any_of
from purerl.core.keys import named_key, split_keys
from purerl.core.types import Environment, Episodes


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

    The program has a fixed length: it takes `max_steps` steps, and ignores steps after the end of an episode. All randomness
    comes from `key`, and the policy is not changed.

    Args:
        env: environments.
        policy: the acting policy.
        key: consumed.
        num_episodes: number of episodes.
        max_steps: longer episodes are cut, and not `finished`.
        deterministic: take the mode of the policy instead of a random action.
        info: entries of the environment's info to sum over each episode.
        episode_info: entries of the environment's info to read at the last step of each episode.
    """
    env_state, obs = env.reset(jax.random.split(named_key(key, "evaluation/start"), num_episodes))
    shapes = env.step_shapes(num_episodes).info
    nothing = lambda names: {name: jnp.zeros(shapes[name].shape, jnp.float32) for name in names}
    returns, lengths, finished = (jnp.zeros(num_episodes, dtype) for dtype in (jnp.float32, jnp.int32, bool))
    episodes = Episodes(returns, lengths, finished, nothing(info), nothing(episode_info))
    flags = jnp.ones(num_episodes, bool)
    initial = (env_state, obs, flags, policy.initial_carry(num_episodes), flags, episodes)

    def step(state, index):
        env_state, obs, first, carry, running, episodes = state
        action, carry = policy(carry, obs, first, named_key(key, "action", index), deterministic)
        keys = split_keys(named_key(key, "environment", index), 2, num_episodes)
        after = env.step(keys, env_state, action)
        done, whole = after.terminated | after.truncated, ~any_of(after.nonfinite) if after.nonfinite else True
        add = lambda total, x: total + jnp.where(running, x, jnp.float32(0))
        known = lambda x: jnp.where(jnp.isfinite(x), x, jnp.float32(0)) if after.nonfinite else x
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
