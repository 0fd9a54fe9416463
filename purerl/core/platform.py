"""Platform-dependent loops, and arrays packed for loops: the only caller of `jax.lax.platform_dependent`.

Programs choose between two variants by the platform that they are compiled for, not by the machine that traces them, since they
can be compiled ahead of time, or exported. Both variants compute the same numbers up to rounding, from the same parameters.
Most kernel counts are for one update of 2048 CartPoles x 32 steps on an H100 (`tests/benchmarks/programs.md`).

| part | on a CPU | on an accelerator | reason |
|---|---|---|---|
| initial weights | one seed after the other | batched | batched QR can hang on a CPU; 1/97 of the time for 2048 seeds on a GPU |
| work that few environments need: resets, bootstrap values | a branch | always computed | a branch waits for the host |
| slow resets (Craftax's worlds) in rollouts | when needed, one after the other | all at once, before the loop | no wait |
| slow resets elsewhere | one after the other | 1/16 of the environments at a time | waiting costs less than generating worlds |
| rollout rows and loop state | one array per leaf | one packed array | less than half the kernels of a step |
| values of feed-forward networks | after the rollout | with the actions | a batch is 5 to 12 % faster on a CPU |
| policy and value of equal shape | separate | batched products | 8 kernels fewer per minibatch; a tenth slower on a CPU |
| dense layers, if `kernels="fused"` | separate | one kernel forward, one backward, on a GPU | 13 kernels per minibatch, not 30 |
| means of a loss, norms of gradients | one reduction each | one reduction for all | 5 kernels fewer per minibatch |
| gradient of a narrow head | one column after the other | one product | 3 kernels fewer per minibatch |
| convolutions | products of patches | cuDNN | 1/45 of the time of XLA's convolution on a CPU; a quarter less memory on a GPU |
| gradient of GRU and LSTM | stores intermediates | recomputes them | 13 kernels per step, not 21; a quarter slower on a CPU |
| linear recurrences: LRU, minimal GRU | one step at a time | blocks of steps at once | 4 kernels for 1024 steps |
| loops of small steps: estimators, shuffle | one step at a time | unrolled | few kernels for many steps |
| several devices: metrics | reduced before the shuffle | the same; a TPU's batch waits for them | a third less memory on a TPU |

Other parts are the same on all platforms. Hidden dense layers are flax's by default. Heads of up to 8 outputs multiply one
column after the other, which takes a fifth of the time of one product on a CPU, and saves up to 5 kernels on a GPU, since XLA
fuses the products. Recurrent cells are custom: one product covers the inputs of a whole sequence, where flax's `RNN` needs a
product for each step (purejaxrl's GRU has 2.8 times the kernels).
"""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.core.errors import config_error
from purerl.core.types import PyTree

FEW = 8  # maximum number of outputs that are computed one column after the other
LARGEST = 64  # maximum size of a packed row; larger rows are worth a separate operation


_only_cpu = contextvars.ContextVar("only_cpu", default=False)


@contextlib.contextmanager
def for_cpu_alone() -> Iterator[None]:
    """Trace programs for a CPU only, for converters to formats that cannot choose by platform."""
    token = _only_cpu.set(True)
    try:
        yield
    finally:
        _only_cpu.reset(token)


def by_platform(*args: PyTree, cpu: Callable, accelerator: Callable, tpu: Callable | None = None) -> PyTree:
    """Compute `cpu(*args)` in a program for a CPU, and `accelerator(*args)` in a program for a GPU or TPU.

    If `tpu` is given, a program for a TPU computes `tpu(*args)` instead. All functions return the same shapes.
    """
    if _only_cpu.get():
        return cpu(*args)
    return jax.lax.platform_dependent(*args, cpu=cpu, default=accelerator, **({"tpu": tpu} if tpu else {}))


def with_matmul_precision(function: Callable, precision: str) -> Callable:
    """Return a function whose matrix products, also in gradients, have this precision; `default` changes nothing."""
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
    """Scan like `jax.lax.scan`, with two options for accelerators, where the cost of an iteration is its number of kernels.

    Args:
        step, carry, xs, reverse: the arguments `f`, `init`, `xs` and `reverse` of `jax.lax.scan`.
        unroll: steps per iteration on an accelerator, so that steps with little computation become few kernels. A CPU does not
          unroll: iterations cost next to nothing there, and longer iterations take longer to compile.
        recomputes: if True, an accelerator stores only the step's matrix products for the gradient, and recomputes the rest. A
          GRU's step then stores two arrays instead of ten, and needs 13 kernels instead of 21, forward and backward. A CPU does
          not recompute, since it would take a quarter longer.
    """

    def on_accelerator(carry, xs):
        policy = jax.checkpoint_policies.dots_saveable
        one = jax.checkpoint(step, prevent_cse=False, policy=policy) if recomputes else step
        return jax.lax.scan(one, carry, xs, reverse=reverse, unroll=unroll)

    return by_platform(
        carry, xs, cpu=lambda carry, xs: jax.lax.scan(step, carry, xs, reverse=reverse), accelerator=on_accelerator
    )


def where_any(flags: jax.Array, run: Callable, otherwise: PyTree) -> PyTree:
    """Return `run()` if any flag is set. If none is, return `otherwise` on a CPU and `run()` on an accelerator.

    If no flag is set, the two must be equal, or unread. Without `vmap`, a CPU skips this seldom needed work. An accelerator
    always computes `run()`: a GPU's host would wait for the flags, which takes longer than a few small kernels, and among
    thousands of environments, some nearly always need `run()`.
    """
    branch = lambda: jax.lax.cond(flags.any(), run, lambda: otherwise)
    return by_platform(cpu=branch, accelerator=run)


def _sums_at_once(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    add = lambda xs, ys: tuple(x + y for x, y in zip(xs, ys, strict=True))
    zeros = tuple(jnp.zeros((), x.dtype) for x in arrays)
    return tuple(jax.lax.reduce(arrays, zeros, add, tuple(range(arrays[0].ndim))))


@jax.custom_jvp
def sums(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Return the sum of each of several arrays of equal shape. On an accelerator, one kernel computes all sums."""
    return by_platform(arrays, cpu=lambda arrays: tuple(x.sum() for x in arrays), accelerator=_sums_at_once)


@sums.defjvp
def _sums_jvp(primals: tuple, tangents: tuple) -> tuple:
    return sums(*primals), tuple(x.sum() for x in tangents[0])


def means(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return a dict from name to the mean of an array, computed by `sums`. All arrays have one shape."""
    totals = sums(tuple(arrays.values()))
    return {name: total / np.float32(x.size) for (name, x), total in zip(arrays.items(), totals, strict=True)}


# --- arrays in loops ---------------------------------------------------------------------------------------------------


def to_strong_dtypes(tree: Any, name: str = "env") -> Any:
    """Return arrays with strong dtypes: weak dtypes would change in a scan's carry. Raise a ConfigError if a leaf is no array."""

    def one(path, x):
        try:
            x = jnp.asarray(x)
        except TypeError as error:
            hint = "is not an array, so JAX cannot trace the function that returned it; return only arrays"
            raise config_error(f"{name}: {jax.tree_util.keystr(path)}", x, hint) from error
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return x if is_key else jax.lax.convert_element_type(x, x.dtype)

    return jax.tree_util.tree_map_with_path(one, tree)


class Packed(struct.PyTreeNode):
    """A tree of arrays `[*lead, *row]`. Arrays with small rows are packed into one array, bit for bit.

    Attributes:
        arrays: one array `[*lead, words]` of all packed rows side by side, if there are any, then the leaves that are not packed.
          The first is float32 if all packed rows are float32, else int32.
        structure: the tree structure.
        rows: for each leaf, the shape and dtype of its row, or None if the leaf is not packed.
    """

    arrays: list[jax.Array]
    structure: Any = struct.field(pytree_node=False)
    rows: tuple[jax.ShapeDtypeStruct | None, ...] = struct.field(pytree_node=False)


def pack(tree: PyTree, lead: tuple[int, ...] | None) -> Packed:
    """Pack the small arrays of a tree whose leading axes are `lead`. If `lead` is None, pack nothing."""
    leaves, structure = jax.tree.flatten(tree)
    rows = tuple(_row(x, lead) for x in leaves)
    dtypes = {row.dtype for row in rows if row is not None}
    # Signed words: for unsigned words XLA generates GPU kernels that Triton refuses (jaxlib 0.10.2).
    dtype = jnp.float32 if dtypes == {np.dtype(np.float32)} else jnp.int32
    words = [_words(x, dtype).reshape(*(lead or ()), -1) for x, row in zip(leaves, rows, strict=True) if row is not None]
    others = [x for x, row in zip(leaves, rows, strict=True) if row is None]
    return Packed(([jnp.concatenate(words, axis=-1)] if words else []) + others, structure, rows)


def unpack(packed: Packed) -> PyTree:
    """Return the tree that was packed. Its leading axes are those of `packed.arrays`, which may have changed since `pack`."""
    sizes = [math.prod(row.shape) for row in packed.rows if row is not None]
    words = iter(jnp.split(packed.arrays[0], np.cumsum(sizes)[:-1], axis=-1) if sizes else [])
    others = iter(packed.arrays[1:] if sizes else packed.arrays)
    leaves = [next(others) if row is None else _numbers(next(words), row) for row in packed.rows]
    return packed.structure.unflatten(leaves)


def _row(x: jax.Array, lead: tuple[int, ...] | None) -> jax.ShapeDtypeStruct | None:
    """Return the shape and dtype of a leaf's row if `pack` packs the leaf, else None."""
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
