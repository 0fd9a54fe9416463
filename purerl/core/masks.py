"""Action masks: finding the mask among the entries of an observation, and checking the values of the mask."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import Environment
from purerl.core.metrics import Sum
from purerl.core.reductions import total
from purerl.core.spaces import Discrete, MultiDiscrete, Space, parts_of

ENTRY = "action_mask"
LIKELY = re.compile(r"(?!_|is_|has_|n_|num_).*(action_?mask|(?<![a-z])(legal|valid|avail\w*)_?(action|moves))")  # names of masks
INVERTED = re.compile(r".*(invalid|illegal|forbidden)")  # names of masks that mark the actions to avoid
VALUES = "an action mask must be 1 (or True) for valid actions and 0 for invalid actions, not logits such as 0 and -inf"


def choices_of(space: Space) -> tuple[int, ...]:
    """Return the number of values of each discrete action, or () if the actions cannot be masked."""
    found = [(x.n,) if isinstance(x, Discrete) else x.sizes if isinstance(x, MultiDiscrete) else () for x in parts_of(space)]
    return sum(found, ())


def with_named_mask(env: Environment) -> Environment:
    """Use the observation entry `action_mask` of a custom environment as its action mask, if the shape of the entry fits."""
    space = env.observation_space
    entry = space.get(ENTRY) if isinstance(space, dict) and not env.action_mask else None
    sizes = choices_of(env.action_space)
    return env._replace(action_mask=ENTRY) if sizes and getattr(entry, "shape", None) == (sum(sizes),) else env


def is_empty(mask: jax.Array, space: Space) -> jax.Array:
    """Return, for each row of a mask `[..., n]`, True if a discrete action has no valid value."""
    parts = jnp.split(mask.astype(bool), np.cumsum(choices_of(space))[:-1], axis=-1)
    return ~jnp.stack([part.any(-1) for part in parts]).all(0)


def is_malformed(mask: jax.Array) -> jax.Array:
    """Return, for each row of a mask `[..., n]`, True if the row has values other than 0 and 1."""
    return (mask != mask.astype(bool).astype(mask.dtype)).any(-1)


def mask_metrics(mask: jax.Array, space: Space) -> dict[str, Any]:
    """Count the empty and the malformed masks, `[T, B, n]`, in a rollout of T steps of B environments."""
    count = lambda rows: Sum(total(rows.astype(jnp.int32)))
    return {"empty_masks": count(is_empty(mask, space)), "malformed_masks": count(is_malformed(mask))}
