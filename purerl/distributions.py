"""Distributions over actions.

Each is a PyTree of its parameters, of any batch shape, with the same methods:

    noise(key, *leading)    standard noise for `leading` times a sample, so that it can be drawn for a whole rollout at
                            once: `[*leading, *batch, ...]`; the key is consumed
    sample(noise)           `[*batch, ...]` an action, a deterministic function of the noise of one sample
    mode()                  the most likely action
    log_prob(action)        `[*batch]` log-probability (density)
    entropy()               `[*batch]` in nats, summed over the dimensions of an action
    kl(other)               `[*batch]` KL(self || other) in nats
    env_action(action, space)  what the environment receives for `action`
    metrics()               scalars worth logging, by name
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from purerl.keys import flat_draw
from purerl.metrics import Mean, mean_of
from purerl.types import Box, Discrete

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
_HALF_LOG_2PI = np.float32(0.5 * np.log(2 * np.pi))


@struct.dataclass
class Categorical:
    """One of `n` choices, with probabilities `softmax(logits)`.

    logits: `[*batch, n]` float32, unnormalised.
    """

    logits: jax.Array

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return flat_draw(jax.random.gumbel, key, (*leading, *self.logits.shape))

    def sample(self, noise: jax.Array) -> jax.Array:
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        # A masked sum: the gradient of a gather is a scatter, which XLA runs one element at a time on a CPU.
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=bool)
        log_p = jax.nn.log_softmax(self.logits)
        return jnp.where(chosen, log_p, jnp.zeros_like(log_p)).sum(-1)

    def entropy(self) -> jax.Array:
        log_p = jax.nn.log_softmax(self.logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    def kl(self, other: "Categorical") -> jax.Array:
        log_p, log_q = jax.nn.log_softmax(self.logits), jax.nn.log_softmax(other.logits)
        return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)

    def env_action(self, action: jax.Array, space: Discrete) -> jax.Array:
        return action

    def metrics(self) -> dict[str, Mean]:
        return {}


@struct.dataclass
class DiagGaussian:
    """Independent normals, one for each dimension of a Box action.

    The environment receives the sample clipped to its bounds; the sample itself and its density are what is learnt from,
    so that the ratio of densities is exact.

    mean, log_std: `[*batch, d]` float32. `log_std` is used clipped to [-20, 2]; outside it has no gradient.
    """

    mean: jax.Array
    log_std: jax.Array

    @property
    def clipped_log_std(self) -> jax.Array:
        return jnp.clip(self.log_std, LOG_STD_MIN, LOG_STD_MAX)

    def noise(self, key: jax.Array, *leading: int) -> jax.Array:
        return flat_draw(jax.random.normal, key, (*leading, *self.mean.shape))

    def sample(self, noise: jax.Array) -> jax.Array:
        return self.mean + jnp.exp(self.clipped_log_std) * noise

    def mode(self) -> jax.Array:
        return self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        z = (action - self.mean) * jnp.exp(-self.clipped_log_std)
        return (-0.5 * jnp.square(z) - self.clipped_log_std - _HALF_LOG_2PI).sum(-1)

    def entropy(self) -> jax.Array:
        return (self.clipped_log_std + (0.5 + _HALF_LOG_2PI)).sum(-1)

    def kl(self, other: "DiagGaussian") -> jax.Array:
        ratio = self.clipped_log_std - other.clipped_log_std
        distance = jnp.square((self.mean - other.mean) * jnp.exp(-other.clipped_log_std))
        return (0.5 * (jnp.exp(2 * ratio) + distance - 1) - ratio).sum(-1)

    def env_action(self, action: jax.Array, space: Box) -> jax.Array:
        action = action.reshape(action.shape[:-1] + space.shape)
        return jnp.clip(action, jnp.broadcast_to(space.low, action.shape), jnp.broadcast_to(space.high, action.shape))

    def metrics(self) -> dict[str, Mean]:
        return {"policy_std": mean_of(jnp.exp(self.clipped_log_std))}
