"""Rollouts of random actions, for checks of environments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import Environment
from purerl.core.keys import fold_in_name, split_keys
from purerl.core.masks import choices_of, is_empty, is_malformed
from purerl.core.spaces import Box, Discrete, Mixed, MultiDiscrete, entries_of, is_index, parts_of
from purerl.core.types import PyTree


def random_rollout(env: Environment, key: jax.Array, B: int, T: int) -> tuple[dict[str, jax.Array], PyTree]:
    """Collect a rollout of random actions in B environments for T steps, without storing observations.

    Returns:
        A dict of arrays `[T, B]`, or `[T]` if a value concerns all environments: `terminated`, `truncated` and `reward` of each
        step; `length`, the steps of the episode so far; `obs_sum`, the sum of each `obs`; `fresh`, True if an episode ended and
        `next_obs` equals `obs`; `varies`, True if `next_obs` differs from the first observation; `lowest` and `highest`,
        `[T, d]`, the least and the greatest value of each float number of observations, except images, in all environments; and,
        under each name in `conformance.FAULTS`, True if the fault occurred (mask faults only if there is a mask).
        The pair `(env_state, action)`, `[B, ...]`: each environment's last action that ended an episode, and the state before
        this action; `()` if environments share parts of the state.
    """
    env_state, first_obs = env.reset(jax.random.split(fold_in_name(key, "start"), B))
    by_row = all(x.shape[:1] == (B,) for x in jax.tree.leaves(env_state))

    def step(carry, index):
        env_state, obs, length, last = carry
        mask = obs[env.action_mask] if env.action_mask else None
        action = random_actions(env.action_space, fold_in_name(key, "action", index), B, mask)
        after = env.step(split_keys(fold_in_name(key, "environment", index), 2, B), env_state, action)
        done, length = after.terminated | after.truncated, length + 1
        last = jax.tree.map(lambda new, old: jax.vmap(jnp.where)(done, new, old), (env_state, action), last) if by_row else ()
        records = {
            "terminated": after.terminated,
            "truncated": after.truncated,
            "reward": after.reward,
            "length": length,
            "lowest": _numbers(after.obs).min(0),
            "highest": _numbers(after.obs).max(0),
            "obs_sum": sum(x.reshape(B, -1).astype(jnp.float32).sum(1) for x in jax.tree.leaves(after.obs)),
            "fresh": done & alike_rows(after.next_obs, after.obs, B),
            "varies": ~alike_rows(after.next_obs, first_obs, B),
            "nonfinite_obs": ~all_finite(env, (after.obs, after.next_obs)),
            "nonfinite_reward": ~jnp.isfinite(after.reward).all(),
            "out_of_range": ~within_space(env, after.next_obs),
            # If `obs` and `next_obs` are the same value, XLA may compute the value in two kernels, which round differently.
            "stale": ~done & ~alike_rows(after.next_obs, after.obs, B, ulps=8),
        }
        if mask is not None:
            records |= {"malformed_mask": is_malformed(mask), "empty_mask": is_empty(mask, env.action_space)}
        return (after.env_state, after.obs, jnp.where(done, 0, length), last), records

    last = (env_state, random_actions(env.action_space, key, B)) if by_row else ()
    start = env_state, first_obs, jnp.zeros(B, jnp.int32), last
    (*_, last), records = jax.lax.scan(step, start, jnp.arange(T, dtype=jnp.uint32))
    return records, last


def random_actions(space: Any, key: jax.Array, count: int, mask: jax.Array | None = None) -> PyTree:
    """Sample valid actions `[count, ...]`: uniform, or from a clipped normal in Box dimensions without two finite bounds."""
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
    if isinstance(space, Box):
        normal, share = jax.random.normal(key, shape), jax.random.uniform(key, shape)
        below, above = (jnp.broadcast_to(bound[None], shape) for bound in (space.low, space.high))
        bounded = jnp.isfinite(below) & jnp.isfinite(above)
        low, high = (jnp.where(bounded, bound, jnp.zeros_like(bound)) for bound in (below, above))
        return jnp.where(bounded, low + share * (high - low), jnp.clip(normal, below, above))
    if isinstance(space, Discrete | MultiDiscrete):
        return jax.random.randint(key, shape, 0, jnp.broadcast_to(jnp.array(space[0]), shape), jnp.int32)
    return jax.random.bernoulli(key, 0.5, shape).astype(jnp.int32)


def _numbers(obs: PyTree) -> jax.Array:
    """Return the float numbers of observations `[B, ...]`, except images, side by side: `[B, d]` float32."""
    floats = [x for x in jax.tree.leaves(obs) if jnp.issubdtype(x.dtype, jnp.floating) and x.ndim < 4]
    rows = [x.reshape(x.shape[0], -1).astype(jnp.float32) for x in floats]
    return jnp.concatenate(rows, 1) if rows else jnp.zeros((1, 0), jnp.float32)


def alike_rows(a: PyTree, b: PyTree, B: int, ulps: int = 0) -> jax.Array:
    """Return `[B]`, True where two trees `[B, ...]` agree within `ulps` rounding errors of the largest value. NaN equals NaN."""

    def equal(x, y):
        x, y = x.reshape(B, -1), y.reshape(B, -1)
        same = (x == y) | ((x != x) & (y != y))
        if ulps and jnp.issubdtype(x.dtype, jnp.floating):
            largest = jnp.abs(jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x))).max()
            same |= jnp.abs(x - y) <= ulps * jnp.finfo(x.dtype).eps * largest
        return same.all(1)

    return jnp.stack(jax.tree.leaves(jax.tree.map(equal, a, b))).all(0)


def all_finite(env: Environment, observations: tuple[PyTree, ...]) -> jax.Array:
    """Return True if all numbers of observations are finite. The action mask is ignored, since it is checked separately."""
    entries = [x | {env.action_mask: ()} if env.action_mask else x for x in observations]
    floats = [x for x in jax.tree.leaves(entries) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.stack([jnp.isfinite(x).all() for x in floats] or [jnp.bool_(True)]).all()


def within_space(env: Environment, obs: PyTree) -> jax.Array:
    """Return True if all categorical values of observations are in the ranges of the observation space."""
    pairs = zip(jax.tree.leaves(obs), entries_of(env.observation_space).values(), strict=True)
    sizes = lambda space, x: space.n if isinstance(space, Discrete) else np.broadcast_to(space.sizes, x.shape)
    found = [((x >= 0) & (x < sizes(space, x))).all() for x, space in pairs if is_index(space)]
    return jnp.stack(found or [jnp.bool_(True)]).all()
