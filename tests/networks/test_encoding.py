"""Encoding of observations for networks."""

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.spaces import Discrete
from purerl.networks.encoding import encode


def test_entries_are_concatenated_by_name():
    space = {"b": jax.ShapeDtypeStruct((2, 2), jnp.int8), "a": Discrete(3), "c": jax.ShapeDtypeStruct((), jnp.float32)}
    obs = {"a": jnp.array([[2]]), "b": jnp.arange(4, dtype=jnp.int8).reshape(1, 1, 2, 2), "c": jnp.full((1, 1), 9.0)}
    np.testing.assert_array_equal(encode(obs, space)[0, 0], [0, 0, 1, 0, 1, 2, 3, 9])


def test_byte_images_are_scaled_and_byte_vectors_are_not():
    image, vector = jax.ShapeDtypeStruct((36, 36, 4), jnp.uint8), jax.ShapeDtypeStruct((3,), jnp.uint8)
    of = lambda space: encode(jnp.full((1, 1, *space.shape), 255, jnp.uint8), space)
    assert (of(image) == 1).all()
    assert (of(vector) == 255).all()
