"""Action and observation spaces, and properties derived from their shapes."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Discrete(NamedTuple):
    """The integers `0 .. n - 1`.

    Example:
        >>> purerl.Discrete(4).dtype
        dtype('int32')
    """

    n: int
    dtype = np.dtype(np.int32)

    @property
    def shape(self) -> tuple[int, ...]:
        return ()


class MultiDiscrete(NamedTuple):
    """Several discrete values: `[len(sizes)]` int32, the i-th value in `0 .. sizes[i] - 1`.

    Example:
        >>> purerl.MultiDiscrete((3, 2)).shape
        (2,)
    """

    sizes: tuple[int, ...]
    dtype = np.dtype(np.int32)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)


class MultiBinary(NamedTuple):
    """Several binary values: `[n]` int32 of 0 and 1.

    Example:
        >>> purerl.MultiBinary(5).shape
        (5,)
    """

    n: int
    dtype = np.dtype(np.int32)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n,)


class Indices(NamedTuple):
    """An observation array of categorical values, such as tiles of a map or pieces on a board. Networks see a one-hot encoding.

    Attributes:
        sizes: number of categories. An int applies to the whole array, and the one-hot vectors form a new last axis. A tuple has
          one number for each position on the last axis, and the one-hot vectors are concatenated along this axis.
        shape: shape of the array.

    Example:
        >>> tiles = purerl.Indices((13, 12), shape=(7, 7, 2), dtype=np.dtype(np.uint8))  # what is there, and its colour
        >>> tiles.encoded_shape
        (7, 7, 25)
    """

    sizes: int | tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype = np.dtype(np.int32)

    @property
    def encoded_shape(self) -> tuple[int, ...]:
        """Return the shape of the one-hot encoded array."""
        return (*self.shape[:-1], sum(self.sizes)) if isinstance(self.sizes, tuple) else (*self.shape, self.sizes)


class Box(NamedTuple):
    """Real arrays between two bounds.

    Attributes:
        low, high: `[*shape]` float32, in the environment's units; may be infinite.

    Example:
        >>> purerl.Box(low=-np.ones(3, np.float32), high=np.ones(3, np.float32)).shape
        (3,)
    """

    low: np.ndarray | jax.Array
    high: np.ndarray | jax.Array
    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape


class Mixed(NamedTuple):
    """Actions of several parts, such as a choice of a tool and a force: a dict or a tuple of spaces.

    `Policy` returns, and the environment's `step` receives, an action in the structure of `parts`. A policy's distribution and
    `Transition.action` hold one array `[..., d]`, the numbers of all parts as float32, in the order in which `parts` declares
    them. An action mask has the flags of all discrete parts, in the same order.

    Attributes:
        parts: a dict or a tuple of `Discrete`, `MultiDiscrete`, `MultiBinary` and `Box` spaces.

    Example:
        >>> space = purerl.Mixed({"force": purerl.Box(-np.ones(2), np.ones(2)), "tool": purerl.Discrete(3)})
        >>> space.shape
        (3,)
        >>> space.separate(jnp.array([0.5, -0.5, 2.0]))["tool"]
        Array(2, dtype=int32)
    """

    parts: Any
    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(math.prod(part.shape) for part in parts_of(self)),)

    def separate(self, action: Any) -> Any:
        """Return the parts of actions `[..., d]`, each `[..., *part.shape]` in the dtype of its space."""
        ends = itertools.accumulate(math.prod(part.shape) for part in parts_of(self))
        pairs = [(part, action[..., end - math.prod(part.shape) : end]) for part, end in zip(parts_of(self), ends, strict=True)]
        return self.build([x.reshape(*action.shape[:-1], *part.shape).astype(part.dtype) for part, x in pairs])

    def join(self, action: Any) -> jax.Array:
        """Return actions in the structure of `parts` as one array `[..., d]`."""
        flat = lambda x, part: x.reshape(*x.shape[: x.ndim - len(part.shape)], -1).astype(jnp.float32)
        return jnp.concatenate(list(map(flat, _in_order(self.parts, action), parts_of(self))), axis=-1)

    def build(self, values: Iterable[Any]) -> Any:
        """Return values, one for each space in `parts_of(self)`, in the structure of `parts`."""
        return _build(self.parts, iter(values))


Space = Discrete | MultiDiscrete | MultiBinary | Box | Mixed


def is_part(space: Any) -> bool:
    """Return True for a space that is not composed of other spaces."""
    return isinstance(space, Discrete | MultiDiscrete | MultiBinary | Box)


def parts_of(space: Space) -> list[Any]:
    """Return the parts of a `Mixed` space, in the order of their declaration. For any other space, return the space alone."""
    return _in_order(space.parts, space.parts) if isinstance(space, Mixed) else [space]


def values_of(space: Space, action: Any) -> list[Any]:
    """Return the values of an action, one for each space in `parts_of(space)`."""
    return _in_order(space.parts, action) if isinstance(space, Mixed) else [action]


# JAX sorts the entries of a dict by name. Actions and masks have the order of the declaration instead.
def _in_order(spaces: Any, tree: Any) -> list[Any]:
    """Return the leaves of a tree with the structure of `spaces`, in the order of the declaration."""
    if is_part(spaces):
        return [tree]
    names = spaces if isinstance(spaces, dict) else range(len(spaces))
    return [leaf for name in names for leaf in _in_order(spaces[name], tree[name])]


def _build(spaces: Any, values: Iterator[Any]) -> Any:
    if is_part(spaces):
        return next(values)
    if isinstance(spaces, dict):
        return {name: _build(inner, values) for name, inner in spaces.items()}
    return tuple(_build(inner, values) for inner in spaces)


def action_shapes(space: Space, *lead: int) -> Any:
    """Return the shapes and dtypes of actions `[*lead, ...]` as an environment receives them."""
    shape = lambda part: jax.ShapeDtypeStruct((*lead, *part.shape), part.dtype)
    return jax.tree.map(shape, space.parts if isinstance(space, Mixed) else space, is_leaf=is_part)


def has_box(space: Space) -> bool:
    """Return True if an action, or a part of it, is continuous."""
    return any(isinstance(part, Box) for part in parts_of(space))


def flat_bounds(space: Space) -> tuple[jax.Array, ...]:
    """Return the lowest and the highest action of a space with continuous parts, each `[d]`; () for other spaces.

    The bounds of discrete parts are set to 0, and nothing reads them.
    """
    if not has_box(space):
        return ()
    bound = lambda part, name: getattr(part, name, jnp.zeros(part.shape, jnp.float32)).reshape(-1)
    return tuple(jnp.concatenate([bound(part, name) for part in parts_of(space)]) for name in ("low", "high"))


def is_index(space: Any) -> bool:
    """Return True for categorical spaces: `Discrete` or `Indices`."""
    return isinstance(space, Discrete | Indices)


def encoded_shape(space: Any) -> tuple[int, ...]:
    """Return the shape of an observation entry after one-hot encoding, as a network reads it."""
    if isinstance(space, Discrete):
        return (space.n,)
    return space.encoded_shape if isinstance(space, Indices) else space.shape


def entries_of(space: Any) -> dict[str, Any]:
    """Return a dict from the name of each entry of an observation to the entry's space. A single array has the name ""."""
    leaves = jax.tree_util.tree_leaves_with_path(space, is_leaf=is_index)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}


WIDEST = 1e6  # a half width of at least this size stands for a missing bound, not for the scale of an action


def have_scale(low: np.ndarray | jax.Array, high: np.ndarray | jax.Array) -> Any:
    """Return True for each action dimension whose bounds are a scale: two finite bounds, and a half width below 1e6."""
    return 0.5 * high - 0.5 * low < WIDEST  # infinite if a bound is


def bounds_map(low: np.ndarray | jax.Array, high: np.ndarray | jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return centre and half width of each action dimension: `action = centre + half_width * x` for x from -1 to 1.

    A dimension without a scale (see `have_scale`) has centre 0 and half width 1, so that `x` is in the environment's unit.

    Args:
        low, high: the bounds, `[...]` float32.
    """
    is_scale = have_scale(low, high)
    low, high = jnp.where(is_scale, low, -jnp.ones_like(low)), jnp.where(is_scale, high, jnp.ones_like(high))
    return 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low  # halved first: the sum of two bounds may overflow
