"""Weight initialisation."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from purerl.core.platform import by_platform
from purerl.core.types import PyTree


def initialize(
    key: jax.Array, params: PyTree, scheme: str, gain: Callable[[str], float | None], last: tuple[str, ...] = ()
) -> PyTree:
    """Return parameters with newly sampled kernels.

    One call of the generator samples all random numbers, since XLA takes a tenth of a second to compile each call. Under `vmap`,
    an accelerator samples kernels for all seeds at once, and a CPU for one seed after the other. On a CPU, a batch of orthogonal
    kernels would need batched LAPACK QR factorisations. Several of these at once deadlock on a machine with few cores, since they
    wait for each other's threads (jaxlib 0.10.2).

    Args:
        key: consumed.
        params: parameters. The leaves named "kernel" of dense layers, `[inputs, outputs]`, and of convolutions,
          `[height, width, inputs, outputs]`, are replaced. All other leaves are kept.
        scheme: `orthogonal` (Saxe et al. 2014, arXiv:1312.6120), `xavier_uniform` or `xavier_normal` (variance
          2 / (fan_in + fan_out), Glorot & Bengio 2010), or `lecun` (normal, variance 1 / fan_in, LeCun et al. 1998).
        gain: function from the path of a kernel, such as "torso/Dense_0/kernel", to the kernel's factor. A kernel whose factor is
          None is kept.
        last: groups whose kernels are sampled last, so that the kernels of all other groups do not depend on these groups.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    drawn_anew = lambda path, leaf: path.split("/")[-1] == "kernel" and leaf.ndim in (2, 4) and gain(path) is not None
    shapes = {path: leaf.shape for path, (_, leaf) in zip(paths, leaves, strict=True) if drawn_anew(path, leaf)}
    shapes = dict(sorted(shapes.items(), key=lambda item: item[0].split("/")[0] in last))
    numbers_of, kernel_of = SCHEMES[scheme]

    def draw(key):
        numbers, kernels = numbers_of(key, (sum(map(math.prod, shapes.values())),)), {}
        for path, shape in shapes.items():
            drawn, numbers = jnp.split(numbers, [math.prod(shape)])
            kernels[path] = gain(path) * kernel_of(drawn.reshape(-1, shape[-1]), shape).reshape(shape)
        return kernels

    kernels = by_platform(key, cpu=jax.custom_batching.sequential_vmap(draw), accelerator=draw)
    return jax.tree.unflatten(structure, [kernels.get(path, leaf) for path, (_, leaf) in zip(paths, leaves, strict=True)])


def _normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.normal(key, shape, jnp.float32)


def _uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sample uniform numbers with mean 0 and variance 1."""
    return jax.random.uniform(key, shape, jnp.float32, -math.sqrt(3), math.sqrt(3))


def _orthogonal(normal: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Orthonormalise the columns, or the rows if these are fewer. For normal entries, the result is uniformly distributed."""
    rows, columns = normal.shape
    q, r = jnp.linalg.qr(normal if rows >= columns else normal.T)
    q = q * jnp.sign(jnp.diagonal(r))[None]
    return q if rows >= columns else q.T


def _xavier(numbers: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    fan_in, fan_out = numbers.shape[0], shape[-1] * math.prod(shape[:-2])
    return math.sqrt(2 / (fan_in + fan_out)) * numbers


def _lecun(numbers: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return math.sqrt(1 / numbers.shape[0]) * numbers


SCHEMES = {
    "orthogonal": (_normal, _orthogonal),
    "xavier_uniform": (_uniform, _xavier),
    "xavier_normal": (_normal, _xavier),
    "lecun": (_normal, _lecun),
}
