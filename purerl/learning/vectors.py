"""Parameters as a few vectors: clipping and an elementwise optimizer are then a few operations, not several for each array."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from purerl.core.types import PyTree
from purerl.learning.optimizers import Groups, Optimizer

ALL = "all groups"  # the name of their one vector
SMALL = 2**14  # numbers that are one vector


class Vectors(NamedTuple):
    """The parameter groups that a phase moves, as one vector each, or all as one.

    One vector each saves 5 % of a gradient step of two 64-64 networks on 128 samples, on a CPU. Small groups that are treated
    alike are one vector, which takes two more kernels from each gradient step on a GPU; with the 79,000 numbers of a GRU it takes
    a fifth longer on a CPU.

    restore: by group, from its vector to its parameters.
    ends: where the groups end in one vector for all; None for a vector each.
    as_trees: the optimizer sees the groups' parameters in their own shapes.
    """

    restore: dict[str, Callable[[jax.Array], PyTree]]
    ends: list[int] | None
    as_trees: bool

    def flatten(self, params: Groups) -> Groups:
        """Return parameters as vectors."""
        return self.join({group: ravel_pytree(tree)[0] for group, tree in params.items()})

    def unflatten(self, vectors: Groups) -> Groups:
        """Return vectors as parameters."""
        vectors = self.split(vectors)
        return {group: restore(vectors[group]) for group, restore in self.restore.items()}

    def join(self, by_group: Groups) -> Groups:
        """Return the vectors of one vector for each group."""
        return by_group if self.ends is None else {ALL: jnp.concatenate([by_group[group] for group in self.restore])}

    def split(self, vectors: Groups) -> Groups:
        """Return one vector for each group."""
        return vectors if self.ends is None else dict(zip(self.restore, jnp.split(vectors[ALL], self.ends), strict=True))

    def join_state(self, opt_state: PyTree) -> PyTree:
        """Return an optimizer state with every dict of groups joined."""
        return opt_state if self.ends is None else _replace_dicts(opt_state, self.restore.keys(), self.join)

    def split_state(self, opt_state: PyTree) -> PyTree:
        """Return an optimizer state with a vector for each group."""
        return opt_state if self.ends is None else _replace_dicts(opt_state, {ALL}, self.split)

    def show(self, vectors: Groups) -> Groups:
        """Return vectors as the optimizer sees them."""
        return self.unflatten(vectors) if self.as_trees else vectors

    def hide(self, shown: Groups) -> Groups:
        """Return what the optimizer gives as vectors."""
        return self.flatten(shown) if self.as_trees else shown


def vectors_of(groups: Groups, optimizer: Optimizer) -> Vectors:
    """Return how an optimizer's phase keeps these groups of parameters."""
    sizes = [sum(x.size for x in jax.tree.leaves(tree)) for tree in groups.values()]
    joined = optimizer.is_uniform and sum(sizes) <= SMALL
    restore = {group: ravel_pytree(tree)[1] for group, tree in groups.items()}
    return Vectors(restore, list(np.cumsum(sizes)[:-1]) if joined else None, not optimizer.elementwise)


def _replace_dicts(tree: PyTree, keys: object, function: Callable[[Groups], Groups]) -> PyTree:
    """Apply a function to the dicts of a tree that have these keys."""
    fits = lambda x: isinstance(x, dict) and x.keys() == keys
    return jax.tree.map(lambda x: function(x) if fits(x) else x, tree, is_leaf=fits)
