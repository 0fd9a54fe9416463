"""`kernels="fused"`: which layers are refused, what a CPU computes, and what a program for a GPU calls."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import ConfigError
from tests.helpers.probes import Rich

SMALL = {"env": "CartPole-v1", "num_envs": 4, "num_steps": 16}
IMAGES = {"env": "Breakout-MinAtar", "num_envs": 4, "num_steps": 16}


def updated(cfg):
    train = purerl.make_train(cfg)
    return jax.jit(train.update)(train.init(jax.random.key(0)))[0].params


def described_gpu():
    """Describe a GPU to JAX, which has to know one since 0.11 to make a program for it on a machine without."""
    if jax.__version_info__ < (0, 11):
        return contextlib.nullcontext()
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H100", num_cores=132, platform="gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


def program_for_a_gpu(cfg):
    """Return the text of an update's program for a GPU, which any machine can make."""
    train = purerl.make_train(cfg)
    state = jax.eval_shape(train.init, jax.random.key(0))
    with described_gpu():
        return jax.jit(train.update).trace(state).lower(lowering_platforms=("cuda",)).as_text()


def assert_computes_the_same_on_a_cpu(config, **values):
    jax.tree.map(np.testing.assert_array_equal, updated(config(**values, kernels="fused")), updated(config(**values)))


@pytest.mark.long
def test_cpu_computes_layer_by_layer():
    assert_computes_the_same_on_a_cpu(purerl.PPOConfig, **SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["auto", "fused"])
def test_gpu_calls_kernels_only_where_they_are_chosen(kernels):
    assert ("xla.gpu.triton" in program_for_a_gpu(purerl.PPOConfig(**SMALL, kernels=kernels))) == (kernels == "fused")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "values"),
    [
        (purerl.PPOConfig, {**SMALL, "arch": "shared"}),
        (purerl.PPOConfig, {**SMALL, "memory": "gru", "memory_size": 16}),
        (purerl.PPOConfig, {**SMALL, "critic_hidden": (32,)}),
        (purerl.PPOConfig, {**SMALL, "rnd": purerl.RNDConfig()}),
        (purerl.PPOConfig, {**SMALL, "env": "Pendulum-v1", "compute_dtype": "bfloat16"}),
        pytest.param(purerl.PPOConfig, {**IMAGES, "torso": "mlp"}, marks=pytest.mark.long),
        pytest.param(purerl.PPOConfig, IMAGES, marks=pytest.mark.long),
        pytest.param(purerl.PPGConfig, SMALL, marks=pytest.mark.long),
        pytest.param(purerl.DAACConfig, SMALL, marks=pytest.mark.long),
        pytest.param(purerl.APPOConfig, SMALL, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_all_algorithms_and_networks_take_fused_kernels(config, values):
    assert "xla.gpu.triton" in program_for_a_gpu(config(**values, kernels="fused"))


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ({"hidden": (256, 256)}, "hidden = \\(256, 256\\): cannot be fused"),
        ({"hidden": (64,) * 4}, "hidden = .*: cannot be fused"),
        ({"hidden": ()}, "hidden = \\(\\): cannot be fused"),
        ({"critic_hidden": (512,)}, "critic_hidden = \\(512,\\): cannot be fused"),
        (
            {"hidden": (128, 128), "matmul_precision": "highest"},
            "matmul_precision = 'highest': needs layers of width up to 64",
        ),
    ],
)
def test_layers_that_do_not_fit_into_registers_are_refused(values, refused):
    with pytest.raises(ConfigError, match=refused):
        purerl.make_train(purerl.PPOConfig(**SMALL, **values, kernels="fused"))


def test_networks_with_different_inputs_are_fused_separately():
    cfg = purerl.PPOConfig(num_envs=4, num_steps=16, kernels="fused", critic_obs="secret", action_mask="legal")
    train = purerl.make_train(cfg, env=Rich())
    jax.eval_shape(train.update, jax.eval_shape(train.init, jax.random.key(0)))


def test_custom_torso_is_named_as_without_kernels():
    torso = (lambda key, x: (), lambda params, x: x)
    with pytest.warns(UserWarning, match="kernels = 'fused': has no effect, since torso= replaces this field"):
        purerl.make_train(purerl.PPOConfig(**SMALL, kernels="fused"), torso=torso)


@pytest.mark.long
@pytest.mark.gpu
def test_gpu_computes_what_xla_computes():
    """Interpreted kernels do not round to TF32, so that the products themselves can be compared on a GPU alone."""
    values = SMALL | {"matmul_precision": "highest"}
    for x, y in zip(
        *(jax.tree.leaves(updated(purerl.PPOConfig(**values, kernels=kernels))) for kernels in ("xla", "fused")), strict=True
    ):
        np.testing.assert_allclose(x, y, atol=1e-5)
    assert jnp.isfinite(x).all()
