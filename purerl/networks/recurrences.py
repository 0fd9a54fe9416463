"""Linear recurrences over the steps of a sequence, `h_t = keep_t * h_(t-1) + added_t`, and their gradients."""

import jax
import jax.numpy as jnp

from purerl.core.platform import by_platform

BLOCK = 16  # steps that a GPU kernel computes one after the other


@jax.custom_vjp
def linear_recurrence(keep: jax.Array, added: jax.Array, before: jax.Array) -> jax.Array:
    """Return `h_t = keep_t * h_(t-1) + added_t` for each step t.

    The gradient is the same recurrence backwards in time: if `g_t` is the gradient of the outputs, then
    `d_t = g_t + keep_(t+1) d_(t+1)` is the gradient of `added_t`, and `d_t * h_(t-1)` is the gradient of `keep_t`. Autodiff of a
    scan would store further arrays of each step.

    Args:
        keep: factors `[L, ...]`, float32 or complex64. A factor of 0 starts a new episode: `h_(t-1)` is ignored, even if it is
          not finite, and the gradient of the factor is 0.
        added: summands `[L, ...]`.
        before: `h_0 [...]`.

    Returns:
        `h [L, ...]`.
    """
    if len(keep) == 1:
        return _keep(keep, before[None]) + added
    return by_platform(keep, added, before, cpu=step_by_step, accelerator=in_blocks)


def _forward(keep, added, before):
    outputs = linear_recurrence(keep, added, before)
    return outputs, (keep, jnp.concatenate([before[None], outputs[:-1]]))


def _backward(kept, gradient):
    keep, previous = kept
    later = jnp.concatenate([keep[1:], jnp.zeros_like(keep[:1])])
    d_added = linear_recurrence(later[::-1], gradient[::-1], jnp.zeros_like(gradient[0]))[::-1]
    return jnp.where(keep == 0, jnp.zeros_like(keep), d_added * previous), d_added, _keep(keep[0], d_added[0])


linear_recurrence.defvjp(_forward, _backward)


def _keep(keep: jax.Array, h: jax.Array) -> jax.Array:
    """Return `keep * h`, and 0 where `keep` is 0. The product of 0 and NaN would be NaN."""
    return jnp.where(keep == 0, jnp.zeros_like(h), keep * h)


def step_by_step(keep: jax.Array, added: jax.Array, before: jax.Array) -> jax.Array:
    """Compute one step after the other, since an iteration costs little on a CPU."""

    def step(h, x):
        h = _keep(x[0], h) + x[1]
        return h, h

    return jax.lax.scan(step, before, (keep, added))[1]


def in_blocks(keep: jax.Array, added: jax.Array, before: jax.Array) -> jax.Array:
    """Compute blocks of `BLOCK` steps side by side, with few GPU kernels.

    The first pass starts each block from zero. The recurrence over the blocks' results yields the h before each block. The second
    pass starts each block from this h.
    """
    length = len(keep)
    if length <= BLOCK:
        return jnp.stack(_unroll(keep, added, before))
    fill = [(0, -length % BLOCK)] + [(0, 0)] * (keep.ndim - 1)
    keep, added = (jnp.pad(x, fill).reshape(-1, BLOCK, *x.shape[1:]).swapaxes(0, 1) for x in (keep, added))
    last = _unroll(keep, added, jnp.zeros_like(added[0]))[-1]
    factors = _unroll(keep, jnp.zeros_like(added), jnp.ones_like(added[0]))[-1]  # of the h before each block
    starts = in_blocks(factors[:-1], last[:-1], before)
    outputs = _unroll(keep, added, jnp.concatenate([before[None], starts]))
    return jnp.stack(outputs, axis=1).reshape(-1, *before.shape)[:length]


def _unroll(keep: jax.Array, added: jax.Array, h: jax.Array) -> list[jax.Array]:
    outputs = []
    for one, other in zip(keep, added, strict=True):
        h = _keep(one, h) + other
        outputs.append(h)
    return outputs
