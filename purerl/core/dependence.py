"""Dependence of a function's outputs on its inputs, found by tracing."""

from collections.abc import Callable
from typing import Any

import jax


def inputs_read(function: Callable, *args: Any) -> list[bool]:
    """Return, for each array in `args`, True if the outputs or effects of the function may depend on it. Nothing is compiled.

    Args:
        function: the function.
        *args: shapes and dtypes of its arguments, as for `jax.eval_shape`.
    """
    traced = jax.make_jaxpr(function)(*args).jaxpr
    read = set(map(id, traced.outvars))
    for equation in reversed(traced.eqns):
        if equation.effects or not read.isdisjoint(map(id, equation.outvars)):
            read |= set(map(id, equation.invars))
    return [id(x) in read for x in traced.invars]
