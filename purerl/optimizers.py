"""Directions of descent, step sizes and limits: what turns gradients into the next parameters."""

import jax
import jax.numpy as jnp
import optax

from purerl.clock import progress
from purerl.types import Clock


def adam(eps: jax.Array) -> optax.GradientTransformation:
    """Adam's direction (Kingma & Ba 2015, arXiv:1412.6980), without a learning rate: the phase scales the step."""
    return optax.scale_by_adam(eps=eps)


def learning_rate(clock: Clock, num_updates: int, lr: jax.Array, lr_final: jax.Array, schedule: str) -> jax.Array:
    """The learning rate of the update that the clock stands before; constant within an update. Float32 scalar.

    constant  lr
    linear    lr + (lr_final - lr) * i / n    at update i = 0 .. n - 1
    """
    return {"constant": lr, "linear": lr + (lr_final - lr) * progress(clock, num_updates)}[schedule]


def clip_scale(norm: jax.Array, max_norm: jax.Array) -> jax.Array:
    """The factor that brings a gradient of this norm to `max_norm` at most: `min(1, max_norm / norm)`.

    Infinity disables it. Unlike optax's clipping it makes no NaN of a gradient of 0, so that `jax.debug_nans` stays usable.
    """
    return jnp.minimum(1, max_norm / jnp.maximum(norm, 1e-12))
