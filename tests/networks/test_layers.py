"""Convolutions, compared with those of JAX, and the precision of matrix products."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.tiny import CFG, tiny

KEY = jax.random.key(0)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (4, 2), (8, 4)])
def test_convolutions_equal_those_of_jax(size, stride):
    from purerl.networks.layers import Conv

    x, kernel = jax.random.normal(KEY, (2, 21, 18, 3)), jax.random.normal(KEY, (size, size, 3, 5))
    got = Conv(5, size, stride).apply({"params": {"kernel": kernel, "bias": jnp.arange(5.0)}}, x)
    layout = ("NHWC", "HWIO", "NHWC")
    want = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=layout)
    np.testing.assert_allclose(got, want + jnp.arange(5.0).reshape(1, 1, 1, 5), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["default", "highest"])
def test_every_matrix_product_has_the_configured_precision(precision):
    train = tiny(CFG.replace(matmul_precision=precision))
    state, obs = jax.eval_shape(train.init, KEY), jnp.zeros((2, *train.env.observation_space.shape))
    programs = [
        jax.make_jaxpr(train.init)(KEY),
        jax.make_jaxpr(train.update)(state),
        jax.make_jaxpr(lambda state: train.evaluate(state, KEY, num_episodes=2, max_steps=3))(state),
        jax.make_jaxpr(lambda state: train.policy(state)((), obs, jnp.ones(2, bool), KEY))(state),
    ]
    found = re.findall(r"dot_general\[(.*?)\] \S+ \S+\n", "\n".join(map(str, programs)), re.DOTALL)
    assert len(found) > 20
    assert {"Precision.HIGHEST" in options for options in found} == {precision == "highest"}
