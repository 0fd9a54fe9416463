"""Rollouts of random actions, for checks of environments."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import Environment
from purerl.core.keys import named_key, split_keys
from purerl.core.masks import choices_of, is_empty, is_malformed
from purerl.core.spaces import Box, Discrete, Mixed, MultiDiscrete, entries_of, is_index, parts_of
from purerl.core.types import PyTree


class RandomRollout(NamedTuple):
    """Records of a rollout of random actions, `[T, B]` unless noted.

    Attributes:
        terminated, truncated, reward: as in `TimeStep`. length: steps of the episode so far. obs_sum: the sum of each `obs`.
        stale: `next_obs` differs from `obs` within an episode. fresh: `next_obs` equals `obs` at the end of an episode.
        varies: `next_obs` differs from the first observation. obs_finite, reward_finite, in_range: `[T]`, over all environments.
        malformed_mask, empty_mask: faults of the action mask; `()` if there is no mask.
        last_state, last_action: `[B, ...]`, of the last step that ended an episode; no state if environments share state.
        ended: `[B]`, True if an episode ended. state: the state after the last step.
    """

    terminated: Any
    truncated: Any
    length: Any
    stale: Any
    fresh: Any
    varies: Any
    obs_finite: Any
    reward_finite: Any
    in_range: Any
    malformed_mask: Any
    empty_mask: Any
    last_state: PyTree
    last_action: Any
    ended: Any
    state: PyTree
    reward: Any
    obs_sum: Any


def random_rollout(env: Environment, key: jax.Array, B: int, T: int) -> RandomRollout:
    """Collect a rollout of random actions in B environments for T steps, without storing observations."""
    env_state, obs = env.reset(jax.random.split(named_key(key, "start"), B))
    first_obs, no = obs, jnp.zeros(B, bool)
    by_row = all(x.shape[:1] == (B,) for x in jax.tree.leaves(env_state))

    def step(carry, index):
        env_state, obs, length, last_state, last_action, ended = carry
        mask = obs[env.action_mask] if env.action_mask else None
        action = random_actions(env.action_space, named_key(key, "action", index), B, mask)
        after = env.step(split_keys(named_key(key, "environment", index), 2, B), env_state, action)
        done, length = after.terminated | after.truncated, length + 1
        keep = functools.partial(jax.tree.map, lambda new, old: jax.vmap(jnp.where)(done, new, old))
        row = env_state if by_row else None
        same = alike_rows(after.next_obs, after.obs, B)
        seen = {
            "terminated": after.terminated,
            "truncated": after.truncated,
            "length": length,
            # If a value is returned twice, XLA may compute it in two kernels, which round differently.
            "stale": ~done & ~alike_rows(after.next_obs, after.obs, B, ulps=8),
            "fresh": done & same,
            "varies": ~alike_rows(after.next_obs, first_obs, B),
            "obs_finite": all_finite(quantities(env, (after.obs, after.next_obs))),
            "reward_finite": jnp.isfinite(after.reward).all(),
            "in_range": within_space(env, after.next_obs),
            "malformed_mask": () if mask is None else is_malformed(mask),
            "empty_mask": () if mask is None else is_empty(mask, env.action_space),
            "reward": after.reward,
            "obs_sum": _sums(after.obs, B),
        }
        last = keep(row, last_state), keep(action, last_action)
        return (after.env_state, after.obs, jnp.where(done, 0, length), *last, ended | done), seen

    start = env_state, obs, jnp.zeros(B, jnp.int32), env_state if by_row else None, random_actions(env.action_space, key, B), no
    (env_state, *_, last_state, last_action, ended), seen = jax.lax.scan(step, start, jnp.arange(T, dtype=jnp.uint32))
    data = lambda tree: jax.tree.map(readable, tree)
    return RandomRollout(**seen, last_state=data(last_state), last_action=last_action, ended=ended, state=data(env_state))


def random_actions(space: Any, key: jax.Array, count: int, mask: jax.Array | None = None) -> PyTree:
    """Draw valid actions `[count, ...]`: uniform, or normal and clipped in Box dimensions without two finite bounds."""
    shape = (count, *space.shape)
    if isinstance(space, Mixed):
        parts, keys = parts_of(space), jax.random.split(key, len(parts_of(space)))
        sizes = [sum(choices_of(part)) for part in parts]
        masks = [None] * len(parts) if mask is None else jnp.split(mask, np.cumsum(sizes)[:-1], axis=-1)
        drawn = [random_actions(parts[i], keys[i], count, masks[i] if n else None) for i, n in enumerate(sizes)]
        return space.build(drawn)
    if mask is not None:
        scores = jax.random.uniform(key, mask.shape) + mask.astype(bool)
        chosen = [x.argmax(-1) for x in jnp.split(scores, np.cumsum(choices_of(space))[:-1], axis=-1)]
        return jnp.stack(chosen, -1).astype(jnp.int32).reshape(shape)
    if isinstance(space, Discrete):
        return jax.random.randint(key, shape, 0, space.n, jnp.int32)
    if isinstance(space, MultiDiscrete):
        return jax.random.randint(key, shape, 0, jnp.broadcast_to(jnp.array(space.sizes), shape), jnp.int32)
    if isinstance(space, Box):
        normal, share = jax.random.normal(key, shape), jax.random.uniform(key, shape)
        below, above = (jnp.broadcast_to(bound[None], shape) for bound in (space.low, space.high))
        bounded = jnp.isfinite(below) & jnp.isfinite(above)
        low, high = (jnp.where(bounded, bound, jnp.zeros_like(bound)) for bound in (below, above))
        return jnp.where(bounded, low + share * (high - low), jnp.clip(normal, below, above))
    return jax.random.bernoulli(key, 0.5, shape).astype(jnp.int32)


def readable(x: jax.Array) -> jax.Array:
    """Return an array that NumPy can read. Typed keys become their words."""
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def alike_rows(a: PyTree, b: PyTree, B: int, ulps: int = 0) -> jax.Array:
    """Return True for each row that is equal, up to `ulps` units of rounding, in two trees `[B, ...]`. NaN equals NaN."""

    def equal(x, y):
        x, y = x.reshape(B, -1), y.reshape(B, -1)
        same = (x == y) | ((x != x) & (y != y))
        if ulps and jnp.issubdtype(x.dtype, jnp.floating):
            largest = jnp.abs(jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x))).max()
            same |= jnp.abs(x - y) <= ulps * jnp.finfo(x.dtype).eps * largest
        return same.all(1)

    return jnp.stack(jax.tree.leaves(jax.tree.map(equal, a, b))).all(0)


def _sums(tree: PyTree, B: int) -> jax.Array:
    """Return the sum of all numbers in each row of a tree `[B, ...]`, as `[B]`."""
    rows: list[jax.Array] = [x.reshape(B, -1).astype(jnp.float32).sum(1) for x in jax.tree.leaves(tree)]
    return jnp.asarray(sum(rows))


def quantities(env: Environment, obs: PyTree) -> PyTree:
    """Return observations without the action mask, which is checked separately."""
    is_dict = lambda x: isinstance(x, dict)
    inside = lambda x: {name: y for name, y in x.items() if name != env.action_mask} if is_dict(x) else x
    return jax.tree.map(inside, obs, is_leaf=is_dict)


def all_finite(tree: PyTree) -> jax.Array:
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in floats] or [jnp.bool_(True)]).all()


def within_space(env: Environment, obs: PyTree) -> jax.Array:
    """Return True if all categorical values of observations are in the ranges of the observation space."""
    pairs = zip(jax.tree.leaves(obs), entries_of(env.observation_space).values(), strict=True)
    sizes = lambda space, x: space.n if isinstance(space, Discrete) else np.broadcast_to(space.sizes, x.shape)
    found = [((x >= 0) & (x < sizes(space, x))).all() for x, space in pairs if is_index(space)]
    return jnp.stack(found or [jnp.bool_(True)]).all()
