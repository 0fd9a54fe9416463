"""Torsos: encoded observations, sizes, precision, and observations that do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purerl import ConfigError, PPOConfig
from purerl.core.spaces import Discrete
from purerl.networks.torsos import encode
from tests.helpers.networks import IMAGE, made, outputs
from tests.helpers.tiny import CFG, tiny

KEY = jax.random.key(0)


def test_image_networks_have_the_published_sizes():
    """The three layers of Mnih et al. give 20 x 20, 9 x 9 and 7 x 7 features."""
    nature = jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)
    kernels = jax.eval_shape(lambda: made(CFG.replace(hidden=(512,)), nature)[1])["policy"]["torso"]
    shapes = [kernels[f"Conv_{i}"]["kernel"].shape for i in range(3)] + [kernels["MLP_0"]["Dense_0"]["kernel"].shape]
    assert shapes == [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (7 * 7 * 64, 512)]
    _, params, _ = made(CFG, IMAGE)
    assert params["policy"]["torso"]["Conv_0"]["kernel"].shape == (3, 3, 3, 16)


@pytest.mark.slow
def test_half_precision_stays_in_the_torsos():
    """Parameters, outputs, metrics and all other state are float32."""
    cfg = CFG.replace(compute_dtype="bfloat16", normalize_obs=True, normalize_reward=True, normalize_value=True)
    train = tiny(cfg)
    program = str(jax.make_jaxpr(train.update)(train.init(KEY)))
    assert "bf16" in program
    state, metrics = jax.eval_shape(train.update, train.init(KEY))
    assert not any(x.dtype == jnp.bfloat16 for x in jax.tree.leaves((state, metrics)))
    out = outputs(*made(cfg))
    assert {x.dtype for x in jax.tree.leaves(out)} == {jnp.dtype("float32")}
    single = outputs(*made(cfg.replace(compute_dtype="float32")))
    np.testing.assert_allclose(out.value, single.value, rtol=0.05, atol=0.02)
    assert (out.value != single.value).any()
    assert "bf16" not in str(jax.make_jaxpr(tiny().update)(tiny().init(KEY)))


def test_default_networks_match_the_37_implementation_details():
    _, params, _ = made(PPOConfig())
    assert jax.tree.map(jnp.shape, params["value"]["torso"]) == {
        "Dense_0": {"kernel": (4, 64), "bias": (64,)},
        "Dense_1": {"kernel": (64, 64), "bias": (64,)},
    }


def test_cnn_torso_needs_image_observations():
    with pytest.raises(ConfigError, match=r"torso = 'cnn': needs images \[height, width, channels\]"):
        tiny(CFG.replace(torso="cnn"))


def test_entries_are_concatenated_by_name():
    space = {"b": jax.ShapeDtypeStruct((2, 2), jnp.int8), "a": Discrete(3), "c": jax.ShapeDtypeStruct((), jnp.float32)}
    obs = {"a": jnp.array([[2]]), "b": jnp.arange(4, dtype=jnp.int8).reshape(1, 1, 2, 2), "c": jnp.full((1, 1), 9.0)}
    np.testing.assert_array_equal(encode(obs, space)[0, 0], [0, 0, 1, 0, 1, 2, 3, 9])


def test_byte_images_are_scaled_and_byte_vectors_are_not():
    image, vector = jax.ShapeDtypeStruct((36, 36, 4), jnp.uint8), jax.ShapeDtypeStruct((3,), jnp.uint8)
    of = lambda space: encode(jnp.full((1, 1, *space.shape), 255, jnp.uint8), space)
    assert (of(image) == 1).all()
    assert (of(vector) == 255).all()


def test_categories_beyond_the_range_of_a_byte_are_distinct():
    values = jnp.full((1, 1), 3, jnp.uint8)
    assert encode(values, Discrete(300)).sum() == 1
    assert encode(values == 3, Discrete(2)).tolist() == [[[0.0, 1.0]]]
