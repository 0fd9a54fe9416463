"""GPU kernels of `fused.py`, in Pallas for Triton: one forward and one backward kernel for the dense layers of several networks.

Each program instance of a kernel computes tiles of 16 batch rows of one network. The forward kernel stores only the outputs. The
backward kernel computes the activations again in registers, and stores the gradient of the inputs, if needed, and the gradients
of weights and biases, summed over the rows of each program instance. XLA then adds these sums in a fixed order, so that repeated
runs are identical to the bit.

Matrix products have the precision of the config's `matmul_precision`. A linear last layer of up to 8 outputs is computed in
float32, without a matrix product. Activation functions are computed in float32, also for layers in bfloat16.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from purerl.core.errors import ConfigError, Problem

PROGRAMS = 128  # approximate maximum number of program instances that sum tiles; an H100 has 132 multiprocessors
WARPS = 8  # warps of 32 threads in a program instance
ROWS = 16  # batch rows in a tile
SIDE = 16  # minimum height and width of the matrices of a product in Triton


class Chain(NamedTuple):
    """Static arguments of the kernels.

    Attributes:
        sizes: the size of the input, then the width of each layer.
        activation: the activation function of each layer. It must be zero at zero, since columns are padded with zeros.
        activated: True if the kernels first apply `activation` to the input.
        linear: True if the last layer has no activation function. The outputs are then float32.
        by_column: True if the last layer computes one output after the other. Its weight matrix is then packed transposed.
        sums_tiles: True if a program instance of the backward kernel sums gradients over several tiles in registers.
        interpret: True to interpret the kernels, in tests on a CPU.
    """

    sizes: tuple[int, ...]
    activation: Callable
    activated: bool = False
    linear: bool = False
    by_column: bool = False
    sums_tiles: bool = True
    interpret: bool = False


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def run_chain(chain: Chain, x: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute the layers of `n` networks: `[m, N, inputs] -> [n, N, last width]`.

    x: `m` input arrays of `N` batch rows; each is the input of `n / m` networks with consecutive indices.
    weights: the packed weight matrices and biases, `[n, height, width]` (`FusedLayers.weights`).
    """
    return _merge_axes(functools.partial(_forward, chain))(x, weights)


def _forward_rule(chain: Chain, x: Any, weights: Any) -> tuple[jax.Array, tuple]:
    # Residuals must be arrays, but their tree structure is static: () instead of None means that the gradient of `x` is needed.
    return run_chain(chain, x.value, weights.value), (x.value, weights.value, () if x.perturbed else None)


def _backward_rule(chain: Chain, saved: tuple, gradient: Any) -> tuple[jax.Array, jax.Array]:
    x, weights, wanted = saved
    if isinstance(gradient, jax.custom_derivatives.SymbolicZero):
        return jnp.zeros_like(x), jnp.zeros_like(weights)
    sums, *of_x = _first_derivative(chain, wanted is not None, x, weights, gradient)
    of_x = of_x[0].reshape(x.shape[0], -1, *x.shape[1:]).sum(1) if of_x else jnp.zeros_like(x)
    return of_x, sums.astype(weights.dtype)


run_chain.defvjp(_forward_rule, _backward_rule, symbolic_zeros=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _first_derivative(chain: Chain, wanted: bool, x: jax.Array, weights: jax.Array, gradient: jax.Array) -> list[jax.Array]:
    return _merge_axes(functools.partial(_backward, chain, wanted))(x, weights, gradient)


@_first_derivative.defjvp
def _refuse_second_derivative(chain: Chain, wanted: bool, primals: tuple, tangents: tuple) -> tuple:
    raise ConfigError([Problem("kernels", "fused", "has no second derivatives; use 'xla'")])


def _merge_axes(function: Callable) -> Callable:
    """Wrap a function of arrays so that `vmap` merges the mapped axis into the first axis: one call computes all networks."""
    run = jax.custom_batching.custom_vmap(function)

    @run.def_vmap
    def _(size, is_batched, *args):
        batched = [x if is_ else jnp.broadcast_to(x[None], (size, *x.shape)) for x, is_ in zip(args, is_batched, strict=True)]
        found = run(*(x.reshape(-1, *x.shape[2:]) for x in batched))
        found = jax.tree.map(lambda y: y.reshape(size, -1, *y.shape[1:]), found)
        return found, jax.tree.map(lambda _: True, found)

    return run


def _forward(chain: Chain, x: jax.Array, weights: jax.Array) -> jax.Array:
    count, networks = x.shape[1], weights.shape[0]
    out = jax.ShapeDtypeStruct((networks, count, chain.sizes[-1]), _wide(x) if chain.linear else x.dtype)
    return _call(chain, _forward_kernel, (pl.cdiv(count, ROWS), networks), out, shared=networks // x.shape[0])(x, weights)


def _backward(chain: Chain, wanted: bool, x: jax.Array, weights: jax.Array, gradient: jax.Array) -> list[jax.Array]:
    """Return the gradient of `weights` and, if `wanted`, the gradient of `x` for each network, `[n, N, inputs]`."""
    count, networks = x.shape[1], weights.shape[0]
    # For wide layers, sums over tiles do not fit into registers beside the current tile, so a program instance has one tile.
    most = pl.cdiv(PROGRAMS, networks) if chain.sums_tiles else count
    tiles = pl.cdiv(pl.cdiv(count, ROWS), most)
    programs = pl.cdiv(pl.cdiv(count, ROWS), tiles)
    out = [jax.ShapeDtypeStruct((networks, programs, *weights.shape[1:]), _wide(x))]
    out += [jax.ShapeDtypeStruct((networks, *x.shape[1:]), x.dtype)] * wanted
    static = {"shared": networks // x.shape[0], "tiles": tiles}
    sums, *of_x = _call(chain, _backward_kernel, (programs, networks), out, **static)(x, weights, gradient)
    return [sums.sum(1), *of_x]


def _call(chain: Chain, kernel: Callable, grid: tuple[int, int], out: Any, **static: int) -> Callable:
    return pl.pallas_call(
        functools.partial(kernel, chain, **static),
        out,
        grid=grid,
        interpret=chain.interpret,
        compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
        name=kernel.__name__.strip("_"),
    )


def _forward_kernel(chain: Chain, x: Any, weights: Any, y: Any, *, shared: int) -> None:
    start, n, sizes, count = pl.program_id(0) * ROWS, pl.program_id(1), chain.sizes, x.shape[1]
    inputs = _load(x, n // shared, start, (count - start, sizes[0]), (ROWS, _side(sizes[0])))
    *_, (h, z) = _activations(chain, inputs, weights, n)
    if z is not None:
        outputs = z if chain.linear else _activate(chain, z, inputs.dtype)
        _store(y, (n,), start, (count - start, sizes[-1]), outputs)
    else:
        at = start + jnp.arange(ROWS)
        for j, (weight, bias) in enumerate(_columns(chain, weights, n)):
            triton.store(y.at[n, at, j], (h * weight[None]).sum(1) + bias, mask=at < count)


def _backward_kernel(chain: Chain, x: Any, weights: Any, gradient: Any, sums: Any, *of_x: Any, shared: int, tiles: int) -> None:
    program, n, sizes, count = pl.program_id(0), pl.program_id(1), chain.sizes, x.shape[1]
    starts = _starts(sizes)

    def of_tile(k):
        """Return the gradients of each layer's weights and bias, summed over the rows of tile k, the last layer first."""
        start = (program * tiles + k) * ROWS
        inputs = _load(x, n // shared, start, (count - start, sizes[0]), (ROWS, _side(sizes[0])))
        kept, found = _activations(chain, inputs, weights, n), []
        if chain.by_column:
            at, (h, _) = start + jnp.arange(ROWS), kept.pop()
            given = [triton.load(gradient.at[n, at, j], mask=at < count, other=0.0) for j in range(sizes[-1])]
            found.append([((h * g[:, None]).sum(0), g.sum()) for g in given])
            of_h = (g[:, None] * weight[None] for g, (weight, _) in zip(given, _columns(chain, weights, n), strict=True))
            g = functools.reduce(jnp.add, of_h)
        else:
            g = _load(gradient, n, start, (count - start, sizes[-1]), (ROWS, _side(sizes[-1])))
        for i, (h, z) in reversed(list(enumerate(kept))):
            if not (chain.linear and i == len(sizes) - 2):
                (g,) = jax.vjp(chain.activation, z)[1](g.astype(z.dtype))
            g = g.astype(h.dtype)
            found.append((_dot(h.T, g), g.sum(0, dtype=z.dtype)))
            if i or of_x:
                g = _dot(g, _kernel(sizes, i, weights, n).astype(h.dtype).T)
        if of_x:
            if chain.activated:
                (g,) = jax.vjp(chain.activation, inputs.astype(g.dtype))[1](g)
            _store(of_x[0], (n,), start, (count - start, sizes[0]), g.astype(inputs.dtype))
        return found

    add = lambda k, total: jax.tree.map(jnp.add, total, of_tile(k))
    found = jax.lax.fori_loop(1, tiles, add, of_tile(0))
    if chain.by_column:
        i = jnp.arange(_side(sizes[-2]))
        for j, (weight, bias) in enumerate(found[0]):
            triton.store(sums.at[n, program, starts[-1] + j, i], weight, mask=i < sizes[-2])
            sums[n, program, starts[-1] + sizes[-1], j] = bias
    for i, (kernel, bias) in enumerate(reversed(found[chain.by_column :])):
        _store(sums, (n, program), starts[i], sizes[i : i + 2], kernel)
        j = jnp.arange(bias.size)
        triton.store(sums.at[n, program, starts[i] + sizes[i], j], bias, mask=j < sizes[i + 1])


# --- parts of a kernel; arrays are padded to powers of two ---------------------------------------------------------------


def _activations(chain: Chain, inputs: jax.Array, weights: Any, n: Any) -> list[tuple[jax.Array, Any]]:
    """Return the input and the pre-activation (with bias) of each layer. With `by_column`, the last pre-activation is None."""
    sizes, found = chain.sizes, []
    h = _activate(chain, inputs, inputs.dtype) if chain.activated else inputs
    for i, width in enumerate(sizes[1:]):
        last = i == len(sizes) - 2
        h = h.astype(_wide(h)) if last and chain.linear else h
        if last and chain.by_column:
            return [*found, (h, None)]
        j = jnp.arange(_side(width))
        bias = triton.load(weights.at[n, _starts(sizes)[i] + sizes[i], j], mask=j < width, other=0.0)
        z = _dot(h, _kernel(sizes, i, weights, n).astype(h.dtype)) + bias[None]
        found.append((h, z))
        h = _activate(chain, z, inputs.dtype)
    return found


def _activate(chain: Chain, z: jax.Array, dtype: Any) -> jax.Array:
    return chain.activation(z.astype(_wide(z))).astype(dtype)


def _wide(x: jax.Array) -> Any:
    return jnp.promote_types(x.dtype, jnp.float32)


def _dot(x: jax.Array, y: jax.Array) -> jax.Array:
    # Triton has two precisions, where XLA has three: `high` is computed as `highest`.
    chosen = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    precision = "highest" if chosen in ("high", "highest") else None
    return jnp.dot(x, y, precision=precision, preferred_element_type=_wide(x))


def _columns(chain: Chain, weights: Any, n: Any) -> list[tuple[jax.Array, jax.Array]]:
    """Load the weights and the bias of each output of the last layer."""
    inputs, outputs = chain.sizes[-2:]
    start, i = _starts(chain.sizes)[-1], jnp.arange(_side(inputs))
    load = lambda j: triton.load(weights.at[n, start + j, i], mask=i < inputs, other=0.0)
    return [(load(j), weights[n, start + outputs, j]) for j in range(outputs)]


def _starts(sizes: tuple[int, ...]) -> list[int]:
    """Return the row of the packed weights at which each layer starts."""
    return [0, *itertools.accumulate(size + 1 for size in sizes[:-2])]


def _kernel(sizes: tuple[int, ...], i: int, weights: Any, n: Any) -> jax.Array:
    return _load(weights, n, _starts(sizes)[i], sizes[i : i + 2], (_side(sizes[i]), _side(sizes[i + 1])))


def _side(size: int) -> int:
    return max(SIDE, pl.next_power_of_2(size))


def _load(ref: Any, n: Any, start: Any, shape: tuple, padded: tuple[int, int]) -> jax.Array:
    """Load the matrix `ref[n, start : start + shape[0], : shape[1]]`, padded with zeros."""
    i, j, mask = _indices(shape, padded)
    return triton.load(ref.at[n, start + i, j], mask=mask, other=0.0)


def _store(ref: Any, lead: tuple, start: Any, shape: tuple, value: jax.Array) -> None:
    """Store a matrix without its padding in `ref[*lead, start : start + shape[0], : shape[1]]`."""
    i, j, mask = _indices(shape, value.shape)
    triton.store(ref.at[(*lead, start + i, j)], value, mask=mask)


def _indices(shape: tuple, padded: tuple[int, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
    i, j = jnp.arange(padded[0])[:, None], jnp.arange(padded[1])[None]
    return i, j, (i < shape[0]) & (j < shape[1])
