"""Loops that cost little on each platform: the only module that asks which it is, and arrays packed for loops.

The choice is made when a program is compiled, by the platform it is compiled for, and not by the machine that traces it: a
program may be compiled ahead of time, or exported. Both ways give the same numbers but for rounding, from the same parameters.
Kernels are of one update of 2048 CartPoles x 32 steps, counted for an H100 (`tests/benchmarks/programs.md`).

| part | on a CPU | on an accelerator | why |
|---|---|---|---|
| weights of many seeds | one seed after the other | batched | a CPU's batched QR may hang; on a GPU 1/97 of the time for 2048 |
| what few environments need: resets, values with a memory | a branch | computed always | a branch is a wait for the host |
| resets that are slow (Craftax's worlds) | one after the other | a sixteenth at a time | a wait is cheaper than worlds |
| a rollout's rows, and what a step passes on | an array each | one array of words | less than half of the kernels of a step |
| values without a memory | after the rollout | with the actions | a batch is 5 to 12 % faster on a CPU |
| policy and value of one shape | one after the other | batched products | 7 kernels of a minibatch; a CPU takes a tenth longer |
| convolutions | products of patches | cuDNN | 1/45 of the time of XLA's own on a CPU; a quarter less memory |
| a GRU's or LSTM's gradient | keeps what it needs | recomputes it | 13 kernels a step and not 21; a CPU takes a quarter longer |
| loops of small steps: estimators, shuffle | a step at a time | unrolled | few kernels for many steps |
| what several devices do before an epoch | metrics before the shuffle | the same; a TPU: before its data | a third less memory |

Dense layers of hidden units are flax's on both. Heads of up to 8 outputs are products with one column after the other on both: a
fifth of the time of one product on a CPU, and up to 5 kernels fewer, since XLA fuses them. The recurrent cells are ours on both:
a whole sequence's inputs are one product, which in flax's `RNN` is one for each step (purejaxrl's GRU has 2.7 times the kernels).
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.core.errors import ConfigError, Problem
from purerl.core.types import PyTree

LARGEST = 64  # numbers in a row that is packed; larger rows are worth an operation of their own


def by_platform(*args: PyTree, cpu: Callable, accelerator: Callable, tpu: Callable | None = None) -> PyTree:
    """Compute `cpu(*args)` in a program for a CPU, `accelerator(*args)` in one for a GPU or TPU; the shapes are alike.

    `tpu` is the way of a TPU where that has one of its own.
    """
    return jax.lax.platform_dependent(*args, cpu=cpu, default=accelerator, **({"tpu": tpu} if tpu else {}))


def with_matmul_precision(function: Callable, precision: str) -> Callable:
    """Return a function that multiplies matrices in this precision, its gradients too; `default` changes nothing."""
    if precision == "default":
        return function

    @functools.wraps(function)
    def precise(*args: Any, **kwargs: Any) -> Any:
        with jax.default_matmul_precision(precision):
            return function(*args, **kwargs)

    return precise


def scan(
    step: Callable, carry: PyTree, xs: PyTree, *, unroll: int = 1, reverse: bool = False, recomputes: bool = False
) -> tuple[PyTree, PyTree]:
    """Scan as `jax.lax.scan`, with two changes on an accelerator, where an iteration costs as much as its kernels.

    Args:
        step, carry, xs, reverse: as there.
        unroll: steps in an iteration, which become few kernels where a step has little to compute. On a CPU an iteration costs
          next to nothing, and longer ones take longer to compile.
        recomputes: the gradient keeps the step's matrix products alone and recomputes the rest. A GRU's step keeps two arrays
          and not ten: 13 kernels and not 21, forward and backward. On a CPU it takes a quarter longer.
    """

    def on_accelerator(carry, xs):
        policy = jax.checkpoint_policies.dots_saveable
        one = jax.checkpoint(step, prevent_cse=False, policy=policy) if recomputes else step
        return jax.lax.scan(one, carry, xs, reverse=reverse, unroll=unroll)

    return by_platform(
        carry, xs, cpu=lambda carry, xs: jax.lax.scan(step, carry, xs, reverse=reverse), accelerator=on_accelerator
    )


def where_any(flags: jax.Array, run: Callable, otherwise: PyTree) -> PyTree:
    """Return `run()` if a flag is set. If none is, an accelerator gives `run()`, a CPU `otherwise`: do not read it then.

    On a CPU a branch: what is seldom needed is seldom computed. On an accelerator it is always computed: a GPU's host would wait
    for the flags, which takes longer than a few small kernels, and of thousands of environments some nearly always need it.
    """
    branch = lambda: jax.lax.cond(flags.any(), run, lambda: otherwise)
    return by_platform(cpu=branch, accelerator=run)


# --- arrays in loops ---------------------------------------------------------------------------------------------------


def strong(tree: Any) -> Any:
    """Return arrays whose dtype no longer depends on what they meet: weakly typed leaves would drift in a scan's carry."""

    def one(path, x):
        try:
            x = jnp.asarray(x)
        except TypeError as error:
            hint = "is not an array, so the environment cannot be traced; use arrays alone in state, observation and signals"
            raise ConfigError([Problem(f"env: {jax.tree_util.keystr(path)}", x, hint)]) from error
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return x if is_key else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree_util.tree_map_with_path(one, tree)


class Packed(struct.PyTreeNode):
    """A tree of arrays `[*lead, ...]` whose rows are packed bit for bit.

    arrays: the words of all small rows side by side, `[*lead, words]`, float32 if all are, else int32; then the other leaves.
    structure: the tree.
    rows: the shape and dtype of a row of each leaf that is packed, None of the others.
    """

    arrays: list[jax.Array]
    structure: Any = struct.field(pytree_node=False)
    rows: tuple[jax.ShapeDtypeStruct | None, ...] = struct.field(pytree_node=False)


def pack(tree: PyTree, lead: tuple[int, ...] | None) -> Packed:
    """Pack the small arrays of a tree that have these leading axes; with None, pack nothing."""
    leaves, structure = jax.tree.flatten(tree)
    rows = tuple(_row(x, lead) for x in leaves)
    dtypes = {row.dtype for row in rows if row is not None}
    # Signed: of unsigned words XLA makes kernels for a GPU that Triton refuses (jaxlib 0.10.2).
    dtype = jnp.float32 if dtypes == {np.dtype(np.float32)} else jnp.int32
    words = [_words(x, dtype).reshape(*(lead or ()), -1) for x, row in zip(leaves, rows, strict=True) if row is not None]
    others = [x for x, row in zip(leaves, rows, strict=True) if row is None]
    return Packed(([jnp.concatenate(words, axis=-1)] if words else []) + others, structure, rows)


def unpack(packed: Packed) -> PyTree:
    """Return the tree that was packed, with the leading axes that it has now."""
    sizes = [math.prod(row.shape) for row in packed.rows if row is not None]
    words = iter(jnp.split(packed.arrays[0], np.cumsum(sizes)[:-1], axis=-1) if sizes else [])
    others = iter(packed.arrays[1:] if sizes else packed.arrays)
    leaves = [next(others) if row is None else _numbers(next(words), row) for row in packed.rows]
    return packed.structure.unflatten(leaves)


def _row(x: jax.Array, lead: tuple[int, ...] | None) -> jax.ShapeDtypeStruct | None:
    """Return the shape and dtype of a row that is packed, else None."""
    if lead is None:
        return None
    is_word = x.dtype == bool or (jnp.issubdtype(x.dtype, jnp.number) and x.dtype.itemsize == 4)
    shape = x.shape[len(lead) :]
    packs = is_word and x.shape[: len(lead)] == lead and math.prod(shape) <= LARGEST
    return jax.ShapeDtypeStruct(shape, x.dtype) if packs else None


def _words(x: jax.Array, dtype: Any) -> jax.Array:
    return x.astype(dtype) if x.dtype == bool else jax.lax.bitcast_convert_type(x, dtype)


def _numbers(words: jax.Array, row: jax.ShapeDtypeStruct) -> jax.Array:
    words = words.reshape(*words.shape[:-1], *row.shape)
    return words != 0 if row.dtype == bool else jax.lax.bitcast_convert_type(words, row.dtype)
