"""Computations that differ between a CPU and an accelerator: the only module that asks which it is.

The choice is made when a program is compiled, by the platform it is compiled for, and not by the machine that traces it: a
program may be compiled ahead of time, or exported. Both ways give the same numbers but for rounding, from the same parameters.
Kernels are of one update of 2048 CartPoles x 32 steps, counted for an H100 (`tests/benchmarks/programs.md`).

| part | on a CPU | on an accelerator | why |
|---|---|---|---|
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
from collections.abc import Callable
from typing import Any

import jax

from purerl.core.types import PyTree


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
