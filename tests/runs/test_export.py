"""Exported policies."""

import jax
import jax.export
import jax.numpy as jnp
import pytest

import purerl
from purerl.runs.analysis.export import export


@pytest.mark.parametrize("name", ["policy.onnx", "policy.PT", "policy.tflite"])
def test_export_refuses_file_names_of_other_formats(name, tmp_path):
    with pytest.raises(purerl.ConfigError, match=r"jax.export does not write \.\w+ files; use the suffix .jaxexport"):
        export(None, None, tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_policy_with_fused_kernels_is_exported_for_any_number_of_environments():
    train = purerl.make_train(purerl.PPOConfig(env="CartPole-v1", kernels="fused", hidden=(8,)))
    act = jax.export.deserialize(bytearray(export(train, train.init(jax.random.key(0))))).call
    for count in (1, 3):
        action, _ = act((), jnp.zeros((count, 4)), jnp.ones(count, bool), jax.random.key_data(jax.random.key(0)), True)
        assert action.shape == (count,)
