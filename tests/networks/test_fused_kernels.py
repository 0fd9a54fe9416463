"""The kernels compute what XLA computes: outputs and gradients, interpreted on a CPU."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from purerl import ConfigError
from purerl.networks import fused_kernels
from purerl.networks.fused import apply_fused_layers, pack_layers
from purerl.networks.torsos import ACTIVATIONS
from tests.helpers.layers import group_of

# Sizes of input, layers and outputs; the activation's name; rows; seeds, 0 without `vmap`; True if the last layer is linear.
PLAIN = ((4, 64, 64, 2), "tanh", 40, 0, True)
CASES = [
    ((4, 64, 64, 2), "tanh", 1, 0, True),
    ((17, 50, 33, 11), "swish", 100, 3, True),
    ((200, 32, 16), "gelu", 70, 0, False),
    ((3, 16, 128), "relu", 64, 2, False),
    ((150, 20, 1), "elu", 130, 0, True),
    ((4, 128, 128, 3), "tanh", 70, 2, True),
    ((5, 16, 16, 16, 2), "elu", 33, 0, True),
]


def network(sizes, key, dtype):
    keys = jax.random.split(key, 2 * len(sizes))
    normal = lambda i, *shape: jax.random.normal(keys[i], shape, dtype) / shape[0] ** 0.5
    return [{"kernel": normal(2 * i, n, m), "bias": normal(2 * i + 1, m)} for i, (n, m) in enumerate(itertools.pairwise(sizes))]


def packed(networks, linear):
    return pack_layers([group_of(layers, linear) for layers in networks])


def by_xla(layers, x, activation, linear):
    for i, layer in enumerate(layers):
        x = x @ layer["kernel"] + layer["bias"][None]
        x = x if linear and i == len(layers) - 1 else activation(x)
    return x


def both_forms(sizes, name, rows, seeds, linear, dtype):
    """Return value and gradients of a loss over two networks, by the kernels and by XLA; networks share the input."""
    activation = ACTIVATIONS[name]
    last = 1 if linear else sizes[-1]  # a head of the value, beside one of the policy

    def networks(key):
        return [network(sizes, key, dtype), network((*sizes[:-1], last), jax.random.fold_in(key, 1), dtype)]

    def loss(outputs, networks):
        pairs = enumerate(zip(outputs, networks, strict=True))
        given = [(i + 1) * y[:, : x[-1]["bias"].size] for i, (y, x) in pairs]  # a head may be padded to the other's width
        return sum((y + jnp.tanh(y)).sum() for y in given)  # its slope is never near zero, where rounding would weigh more

    fused = lambda networks, x: apply_fused_layers(packed(networks, linear), x, activation, interpret=True)
    by_kernels = lambda networks, x: loss(fused(networks, x), networks)
    plain = lambda networks, x: loss([by_xla(layers, x, activation, linear) for layers in networks], networks)
    x = jax.random.normal(jax.random.key(1), (max(seeds, 1), rows, sizes[0]), dtype)
    made = jax.vmap(networks)(jax.random.split(jax.random.key(2), max(seeds, 1)))
    given = (made, x) if seeds else jax.tree.map(lambda x: x[0], (made, x))
    arguments = (0, 1) if linear else 0  # the gradient of the input is not computed unless it is asked for
    gradients = [jax.value_and_grad(form, arguments) for form in (by_kernels, plain)]
    return [jax.jit(jax.vmap(form) if seeds else form)(*given) for form in gradients]


def assert_equal(found, expected, tolerance):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * float(jnp.abs(y).max()))


@pytest.mark.slow
def test_kernels_compute_outputs_and_gradients():
    assert_equal(*both_forms(*PLAIN, jnp.float32), tolerance=5e-6)


def test_backward_kernel_adds_tiles_within_a_program(monkeypatch):
    monkeypatch.setattr(fused_kernels, "PROGRAMS", 4)  # two for each network; one has two tiles of 16 rows, the other one of 8
    assert_equal(*both_forms(*PLAIN, jnp.float32), tolerance=5e-6)


@pytest.mark.each_landing("((17, 50, 33, 11), 'swish', 100, 3, True)-float64", "((3, 16, 128), 'relu', 64, 2, False)-float32")
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_compute_outputs_and_gradients_of_all_forms(case, dtype):
    with jax.enable_x64(dtype == "float64"):
        assert_equal(*both_forms(*case, jnp.dtype(dtype)), tolerance={"float32": 1e-5, "float64": 1e-13}[dtype])


@pytest.mark.slow
def test_layers_in_bfloat16_stay_close_to_float32():
    sizes, activation, linear = (4, 64, 64, 2), jnp.tanh, True
    layers = network(sizes, jax.random.key(0), jnp.float32)
    x = jax.random.normal(jax.random.key(1), (40, 4))
    run = lambda x: apply_fused_layers(packed([layers], linear), x, activation, interpret=True)[0]
    assert run(x.astype(jnp.bfloat16)).dtype == jnp.float32
    np.testing.assert_allclose(run(x.astype(jnp.bfloat16)), by_xla(layers, x, activation, linear), atol=0.03)
    slope = lambda form, x: jax.grad(lambda layers: jnp.square(form(layers, x)).mean())(layers)
    fused = lambda layers, x: apply_fused_layers(packed([layers], linear), x, activation, interpret=True)[0]
    plain = lambda layers, x: by_xla(layers, x, activation, linear)
    assert_equal(slope(fused, x.astype(jnp.bfloat16)), slope(plain, x), tolerance=0.03)


@pytest.mark.slow
def test_rows_are_computed_alike_in_every_batch():
    """The ratio of new to old probabilities is exactly 1 before the first gradient step, though minibatches have other rows."""
    layers = packed([network((4, 16, 16, 2), jax.random.key(0), jnp.float32)], linear=True)
    run = lambda x: apply_fused_layers(layers, x, jnp.tanh, interpret=True)[0]
    x = jax.random.normal(jax.random.key(1), (40, 4))
    np.testing.assert_array_equal(run(x)[21:30], run(x[21:30]))


def groups_with_a_standard_deviation():
    policy, value = (group_of(network((4, 16, size), jax.random.key(size), jnp.float32)) for size in (2, 1))
    policy["head"]["log_std"] = jnp.ones(2)
    return [policy, value]


def test_parameters_are_packed_as_optimizers_keep_them():
    groups = groups_with_a_standard_deviation()
    vector = jnp.concatenate([ravel_pytree(group)[0] for group in groups])
    np.testing.assert_array_equal(pack_layers(groups).params, vector[None])


def test_parameters_that_no_layer_reads_have_no_gradient():
    value = lambda groups, x: apply_fused_layers(pack_layers(groups), x, jnp.tanh, interpret=True).sum()
    policy, _ = jax.grad(value)(groups_with_a_standard_deviation(), jnp.ones((3, 4)))
    np.testing.assert_array_equal(policy["head"]["log_std"], 0)
    assert jnp.abs(policy["head"]["Linear_0"]["kernel"]).min() > 0


def test_second_derivative_is_refused():
    layers = network((2, 4, 1), jax.random.key(0), jnp.float32)
    value = lambda layers, x: apply_fused_layers(packed([layers], linear=True), x, jnp.tanh, interpret=True).sum()
    slope = lambda layers: jax.grad(value, 1)(layers, jnp.ones((3, 2))).sum()
    with pytest.raises(ConfigError, match="has no second derivatives; use 'xla'"):
        jax.grad(slope)(layers)
