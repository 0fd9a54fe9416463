"""Observations that stack the latest frames, for games whose motion a single image does not show."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.core.auto_reset import after_step, change_step
from purerl.core.environment import Environment
from purerl.core.errors import Problem, config_error, warn
from purerl.core.spaces import Indices, entries_of, is_index
from purerl.core.types import PyTree


class Stacked(struct.PyTreeNode):
    """The state of environments with stacked frames.

    Attributes:
        env_state: the state of the environments.
        frames: the stacked entries of the current observation by name, `[B, ...]` each for B environments; a single array has the
          name "".
    """

    env_state: PyTree
    frames: dict[str, jax.Array]


def with_frames(env: Environment, count: int) -> Environment:
    """Return environments whose observations stack the latest `count` frames along the last axis, the newest last.

    `[height, width, channels]` becomes `[height, width, count * channels]`, and `[height, width]` becomes
    `[height, width, count]`. An episode begins with copies of its first frame. In a dict, entries with at least two axes are
    stacked; a single array needs one axis. Categorical arrays are stacked only if each channel has its own number of
    categories (`Indices.sizes`).

    Args:
        env: environments that are pure functions.
        count: number of frames; 1 returns the environment unchanged.

    Raises:
        ConfigError: the environments are external (Python), or no entry of the observation can be stacked.
    """
    if count == 1:
        return env
    space, is_dict = env.observation_space, isinstance(env.observation_space, dict)
    entries = lambda obs: obs if is_dict else {"": obs}
    names = [name for name, x in entries(space).items() if _can_stack(x, at_least=2 if is_dict else 1)]
    if env.host or not names:
        hint = "must be 1 for external (Python) environments; stack frames by gymnasium.wrappers.FrameStackObservation"
        raise config_error("frame_stack", count, hint if env.host else "no entry of the observation has frames; use 1")
    if nested := [name for name, x in entries_of(space).items() if name not in names and _can_stack(x, at_least=2)]:
        hint = f"stacks entries of the observation's top level alone, and leaves {', '.join(nested)} as they are"
        warn(str(Problem("frame_stack", count, hint)))
    for name in names:
        if (x := entries(space)[name]).dtype == np.uint8 and len(x.shape) == 2 and not is_index(x):
            hint = f"makes images of the uint8 observations {name}{list(x.shape)}, which built-in networks divide by 255"
            warn(str(Problem("frame_stack", count, f"{hint}; return float32 if they are not images")))
    join = lambda obs, frames: obs | frames if is_dict else frames[""]
    copies = lambda obs: {name: jnp.concatenate([_frame(entries(obs)[name])] * count, axis=-1) for name in names}

    def newer(frames, obs):
        latest = {name: _frame(entries(obs)[name]) for name in names}
        return {name: jnp.concatenate([frames[name][..., x.shape[-1] :], x], axis=-1) for name, x in latest.items()}

    def reset(keys):
        env_state, obs = env.reset(keys)
        frames = copies(obs)
        return Stacked(env_state, frames), join(obs, frames)

    def stack(state, _, after):
        done, following = after.terminated | after.truncated, newer(state.frames, after.next_obs)
        frames = jax.tree.map(lambda first, x: jax.vmap(jnp.where)(done, first, x), copies(after.obs), following)
        next_obs = join(after.next_obs, following)
        return after.replace(env_state=Stacked(after.env_state, frames), obs=join(after.obs, frames), next_obs=next_obs)

    drawn = env.draw
    draw = drawn and (lambda states, *rest: drawn([state.env_state for state in states], *rest))
    spaces = join(space, {name: _stacked_space(entries(space)[name], count) for name in names})
    step = change_step(env.step, reset, after_step(stack, lambda state: state.env_state))
    return env._replace(reset=reset, step=step, observation_space=spaces, draw=draw)


def _can_stack(space: Any, at_least: int) -> bool:
    """Return True for a space with at least `at_least` axes, of numbers or of categories with a size for each channel.

    A categorical array with exactly two axes cannot be stacked: its numbers of categories belong to its last axis, and a stack of
    such arrays has a new last axis.
    """
    if not hasattr(space, "shape"):
        return False
    if is_index(space):
        return len(space.shape) >= at_least and len(space.shape) != 2 and isinstance(space.sizes, tuple)
    return len(space.shape) >= at_least


def _frame(x: jax.Array) -> jax.Array:
    """Return frames `[B, height, width, channels]` or `[B, n]`; an axis of channels is added to `[B, height, width]`."""
    return x[..., None] if x.ndim == 3 else x


def _stacked_space(space: Any, count: int) -> Any:
    *lead, channels = (*space.shape, 1) if len(space.shape) == 2 else space.shape
    shape = (*lead, count * channels)
    if isinstance(space, Indices):
        return space._replace(sizes=space.sizes * count, shape=shape)
    return jax.ShapeDtypeStruct(shape, space.dtype)
