"""GPU kernels of `fused.py`, in Pallas for Triton: one forward and one backward kernel for the dense layers of several networks.

Each program instance of a kernel computes tiles of 16 batch rows of one network. The forward kernel stores only the outputs. The
backward kernel computes the activations again in registers, and stores the gradient of the inputs, if needed, and the gradients
of weights and biases, summed over the rows of each program instance. XLA then adds these sums in a fixed order, so that repeated
runs are identical to the bit. The kernels read parameters from the optimizer's vector, and store gradients in its order.

Matrix products have the precision of the config's `matmul_precision`. A linear last layer of up to 8 outputs is computed in
float32, without a matrix product. Activation functions are computed in float32, also for layers in bfloat16.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from purerl.core.errors import config_error

PROGRAMS = 128  # approximate maximum number of program instances that sum tiles; an H100 has 132 multiprocessors
WARPS = 8  # warps of 32 threads in a program instance
ROWS = 16  # batch rows in a tile
SIDE = 16  # minimum height and width of the matrices of a product in Triton


class Chain(NamedTuple):
    """Static arguments of the kernels.

    Attributes:
        sizes: the size of the input, then the width of each layer.
        places: the places of the layers of each network in the vector of parameters.
        activation: the activation function of each layer. It must be zero at zero, since columns are padded with zeros.
        activated: True if the kernels first apply `activation` to the input.
        linear: True if the last layer has no activation function. The outputs are then float32.
        by_column: True if the last layer computes one output after the other.
        sums_tiles: True if a program instance of the backward kernel sums gradients over several tiles in registers.
        interpret: True to interpret the kernels, in tests on a CPU.
    """

    sizes: tuple[int, ...]
    places: tuple[tuple[Any, ...], ...]
    activation: Callable
    activated: bool = False
    linear: bool = False
    by_column: bool = False
    sums_tiles: bool = True
    interpret: bool = False


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def run_chain(chain: Chain, x: jax.Array, params: jax.Array) -> jax.Array:
    """Compute the layers of `n` networks: `[m, N, inputs] -> [n, N, last width]`.

    x: `m` input arrays of `N` batch rows; each is the input of `n / m` networks with consecutive indices.
    params: vectors of parameters, `[k, size]` (`FusedLayers.params`); each has those of `n / k` networks.
    """
    return _merge_axes(functools.partial(_forward, chain))(x, params)


def _forward_rule(chain: Chain, x: Any, params: Any) -> tuple[jax.Array, tuple]:
    # Residuals must be arrays, but their tree structure is static: () instead of None means that the gradient of `x` is needed.
    return run_chain(chain, x.value, params.value), (x.value, params.value, () if x.perturbed else None)


def _backward_rule(chain: Chain, saved: tuple, gradient: Any) -> tuple[jax.Array, jax.Array]:
    x, params, wanted = saved
    if isinstance(gradient, jax.custom_derivatives.SymbolicZero):
        return jnp.zeros_like(x), jnp.zeros_like(params)
    sums, *of_x = _first_derivative(chain, wanted is not None, x, params, gradient)
    of_x = of_x[0].reshape(x.shape[0], -1, *x.shape[1:]).sum(1) if of_x else jnp.zeros_like(x)
    return of_x, sums.astype(params.dtype)


run_chain.defvjp(_forward_rule, _backward_rule, symbolic_zeros=True)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _first_derivative(chain: Chain, wanted: bool, x: jax.Array, params: jax.Array, gradient: jax.Array) -> list[jax.Array]:
    return _merge_axes(functools.partial(_backward, chain, wanted))(x, params, gradient)


@_first_derivative.defjvp
def _refuse_second_derivative(chain: Chain, wanted: bool, primals: tuple, tangents: tuple) -> tuple:
    raise config_error("kernels", "fused", "has no second derivatives; use 'xla'")


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


def _forward(chain: Chain, x: jax.Array, params: jax.Array) -> jax.Array:
    count, networks = x.shape[1], params.shape[0] * len(chain.places)
    out = jax.ShapeDtypeStruct((networks, count, chain.sizes[-1]), _wide(x) if chain.linear else x.dtype)
    return _call(chain, _forward_kernel, (pl.cdiv(count, ROWS), networks), out, shared=networks // x.shape[0])(x, params)


def _backward(chain: Chain, wanted: bool, x: jax.Array, params: jax.Array, gradient: jax.Array) -> list[jax.Array]:
    """Return the gradient of `params` and, if `wanted`, the gradient of `x` for each network, `[n, N, inputs]`.

    The gradient of parameters that the layers do not read is arbitrary.
    """
    count, networks = x.shape[1], params.shape[0] * len(chain.places)
    # For wide layers, sums over tiles do not fit into registers beside the current tile, so a program instance has one tile.
    most = pl.cdiv(PROGRAMS, networks) if chain.sums_tiles else count
    tiles = pl.cdiv(pl.cdiv(count, ROWS), most)
    programs = pl.cdiv(pl.cdiv(count, ROWS), tiles)
    out = [jax.ShapeDtypeStruct((params.shape[0], programs, params.shape[1]), _wide(x))]
    out += [jax.ShapeDtypeStruct((networks, *x.shape[1:]), x.dtype)] * wanted
    static = {"shared": networks // x.shape[0], "tiles": tiles}
    sums, *of_x = _call(chain, _backward_kernel, (programs, networks), out, **static)(x, params, gradient)
    return [sums.sum(1), *of_x]


def _call(chain: Chain, kernel: Callable, grid: tuple[int, int], out: Any, **static: int) -> Callable:
    options = {"interpret": chain.interpret, "compiler_params": triton.CompilerParams(num_warps=WARPS, num_stages=1)}
    run = functools.partial(kernel, chain, **static)
    return pl.pallas_call(run, out, grid=grid, name=kernel.__name__.strip("_"), **options)


def _forward_kernel(chain: Chain, x: Any, params: Any, y: Any, *, shared: int) -> None:
    start, n, sizes, count = pl.program_id(0) * ROWS, pl.program_id(1), chain.sizes, x.shape[1]
    layers, inputs = _layers(chain, params, n), _rows(x, n // shared, start, sizes[0])
    *_, (h, z) = _activations(chain, inputs, layers)
    if z is not None:
        _store_rows(y, n, start, z if chain.linear else _activate(chain, z, inputs.dtype))
    else:
        at = start + jnp.arange(ROWS)
        for j, (weight, bias) in enumerate(_columns(chain, layers)):
            triton.store(y.at[n, at, j], (h * weight[None]).sum(1) + bias, mask=at < count)


def _backward_kernel(chain: Chain, x: Any, params: Any, gradient: Any, sums: Any, *of_x: Any, shared: int, tiles: int) -> None:
    program, n, sizes, count = pl.program_id(0), pl.program_id(1), chain.sizes, x.shape[1]
    layers, last = _layers(chain, params, n), len(sizes) - 2

    def of_tile(k) -> Iterator[Any]:
        """Yield the gradient of each layer, from the last to the first, summed over the rows of tile k."""
        start = (program * tiles + k) * ROWS
        inputs = _rows(x, n // shared, start, sizes[0])
        kept = _activations(chain, inputs, layers)
        if chain.by_column:
            at, (h, _) = start + jnp.arange(ROWS), kept.pop()
            given = [triton.load(gradient.at[n, at, j], mask=at < count, other=0.0) for j in range(sizes[-1])]
            yield [((h * g[:, None]).sum(0), g.sum()) for g in given]
            pairs = zip(given, _columns(chain, layers), strict=True)
            g = functools.reduce(jnp.add, (g[:, None] * weight[None] for g, (weight, _) in pairs))
        else:
            g = _rows(gradient, n, start, sizes[-1])
        for i, (h, z) in reversed(list(enumerate(kept))):
            if not (chain.linear and i == last):
                (g,) = jax.vjp(chain.activation, z)[1](g.astype(z.dtype))
            g = g.astype(h.dtype)
            yield (_dot(h.T, g), g.sum(0, dtype=z.dtype))
            if i or of_x:
                g = _dot(g, _kernel(chain, layers, i).astype(h.dtype).T)
        if of_x:
            if chain.activated:
                (g,) = jax.vjp(chain.activation, inputs.astype(g.dtype))[1](g)
            _store_rows(of_x[0], n, start, g.astype(inputs.dtype))

    add = lambda k, total: jax.tree.map(jnp.add, total, list(of_tile(k)))
    # A single tile's gradients are stored one by one, so that fewer registers are in use.
    found = of_tile(0) if tiles == 1 else jax.lax.fori_loop(1, tiles, add, list(of_tile(0)))
    to = lambda at: sums.at[layers.index, program, at]
    # `strict` runs the generator of a single tile to its end, where the tile's gradient of the inputs is stored.
    for i, gradients in zip(range(last, -1, -1), found, strict=True):
        place = layers.places[i]
        if chain.by_column and i == last:
            at = jnp.arange(_side(sizes[i]))
            for j, (weight, bias) in enumerate(gradients):
                inside = j < place.width
                triton.store(to(place.kernel + at * place.width + j), weight, mask=(at < sizes[i]) & inside)
                triton.store(to(jnp.full((), place.bias + j)), bias, mask=jnp.full((), inside))
        else:
            (kernel, bias), at = gradients, jnp.arange(_side(sizes[i + 1]))
            where, mask = _matrix_at(place, sizes[i], kernel.shape)
            triton.store(to(where), kernel, mask=mask)
            triton.store(to(place.bias + at), bias, mask=at < place.width)


# --- parts of a kernel; arrays are padded to powers of two ---------------------------------------------------------------


class _Layers(NamedTuple):
    """The layers of one network, and their places in the vector `params[index]`."""

    params: Any
    index: Any
    places: list[Any]


def _layers(chain: Chain, params: Any, n: Any) -> _Layers:
    """Return the layers of the network with index n. Only the device knows the index."""
    count = len(chain.places)
    is_at = [(n % count == k).astype(jnp.int32) for k in range(count)]
    chosen = lambda *xs: xs[0] + sum((x - xs[0]) * is_at[k] for k, x in enumerate(xs) if x != xs[0])
    return _Layers(params, n // count, [jax.tree.map(chosen, *alike) for alike in zip(*chain.places, strict=True)])


def _activations(chain: Chain, inputs: jax.Array, layers: _Layers) -> list[tuple[jax.Array, Any]]:
    """Return the input and the pre-activation (with bias) of each layer. With `by_column`, the last pre-activation is None."""
    sizes, found = chain.sizes, []
    h = _activate(chain, inputs, inputs.dtype) if chain.activated else inputs
    for i, place in enumerate(layers.places):
        last = i == len(sizes) - 2
        h = h.astype(_wide(h)) if last and chain.linear else h
        if last and chain.by_column:
            return [*found, (h, None)]
        j = jnp.arange(_side(sizes[i + 1]))
        bias = triton.load(layers.params.at[layers.index, place.bias + j], mask=j < place.width, other=0.0)
        z = _dot(h, _kernel(chain, layers, i).astype(h.dtype)) + bias[None]
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


def _columns(chain: Chain, layers: _Layers) -> list[tuple[jax.Array, jax.Array]]:
    """Load the weights and the bias of each output of the last layer. Outputs that the network does not have are 0."""
    inputs, outputs = chain.sizes[-2:]
    params, k, (*_, place) = layers
    i = jnp.arange(_side(inputs))

    def column(j):
        inside = j < place.width
        weight = triton.load(params.at[k, place.kernel + i * place.width + j], mask=(i < inputs) & inside, other=0.0)
        # Triton needs an array if all indices are numbers.
        return weight, triton.load(params.at[k, jnp.full((), place.bias + j)], mask=jnp.full((), inside), other=0.0)

    return [column(j) for j in range(outputs)]


def _kernel(chain: Chain, layers: _Layers, i: int) -> jax.Array:
    """Load the weight matrix of layer i."""
    inputs, width = chain.sizes[i : i + 2]
    at, mask = _matrix_at(layers.places[i], inputs, (_side(inputs), _side(width)))
    return triton.load(layers.params.at[layers.index, at], mask=mask, other=0.0)


def _matrix_at(place: Any, inputs: int, padded: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Return the positions of a layer's weights in the vector of parameters, and where the padded matrix has weights."""
    i, j = _indices(padded)
    return place.kernel + i * place.width + j, (i < inputs) & (j < place.width)


def _side(size: int) -> int:
    return max(SIDE, pl.next_power_of_2(size))


def _rows(ref: Any, n: Any, start: Any, size: int) -> jax.Array:
    """Load the rows of a tile, `ref[n, start : start + ROWS]`, padded with zeros to a power of two."""
    i, j = _indices((ROWS, _side(size)))
    return triton.load(ref.at[n, start + i, j], mask=(start + i < ref.shape[1]) & (j < size), other=0.0)


def _store_rows(ref: Any, n: Any, start: Any, rows: jax.Array) -> None:
    """Store the rows of a tile, without their padding."""
    i, j = _indices(rows.shape)
    triton.store(ref.at[n, start + i, j], rows, mask=(start + i < ref.shape[1]) & (j < ref.shape[2]))


def _indices(shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    return jnp.arange(shape[0])[:, None], jnp.arange(shape[1])[None]
