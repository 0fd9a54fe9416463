"""Exported policies."""

import functools
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.runs.analysis.export import export
from tests.helpers.configs import RICH
from tests.helpers.probes import Rich, Varied, acting

KEY = jax.random.key(0)


@pytest.mark.parametrize("name", ["policy.safetensors", "policy.PT", "policy.tflite"])
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


ONNX = {
    "normalised": (purerl.PPOConfig(env="CartPole-v1", hidden=(16,), normalize_obs=True), None),
    "squashed": (purerl.PPOConfig(env="Pendulum-v1", hidden=(16,), action_distribution="tanh"), None),
    "images": (purerl.PPOConfig(env="Breakout-MinAtar", hidden=(16,), torso="cnn"), None),
    "gru": (purerl.PPOConfig(env="CartPole-v1", hidden=(16,), memory="gru", memory_size=8), None),
    "lstm": (purerl.PPOConfig(env="CartPole-v1", hidden=(16,), memory="lstm", memory_size=8), None),
    "min_gru": (purerl.PPOConfig(env="CartPole-v1", hidden=(16,), memory="min_gru", memory_size=8), None),
    "previous action": (
        purerl.PPOConfig(env="CartPole-v1", hidden=(16,), memory="gru", memory_size=8, memory_inputs=("action",)),
        None,
    ),
    "masked": (purerl.PPOConfig(hidden=(16,), **RICH), Rich()),
    "mixed": (purerl.PPOConfig(hidden=(16,)), acting(Varied, "mixed")()),
}


def arrays_of(prefix, tree):
    """Return the arrays of a tree as an ONNX model names them."""
    leaves = jax.tree_util.tree_leaves_with_path({prefix: tree})
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(x) for path, x in leaves}


@pytest.mark.slow
@pytest.mark.each_landing("previous action")
@pytest.mark.parametrize("kind", ONNX)
def test_onnx_policy_acts_like_the_policy(kind, tmp_path):
    """Both policies act in a loop of 1,000 steps of two environments, each in its own, from the same keys."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("jax2onnx")
    cfg, env = ONNX[kind]
    train = purerl.make_train(cfg.replace(total_timesteps=cfg.batch_size), env=env)
    state = jax.jit(train)(KEY).state
    data = export(train, state, tmp_path / "policy.onnx")
    assert (tmp_path / "policy.onnx").read_bytes() == data
    session, policy = runtime.InferenceSession(data, providers=["CPUExecutionProvider"]), train.policy(state)
    act, step, reset = (jax.jit(f) for f in (functools.partial(policy, deterministic=True), train.env.step, train.env.reset))
    env_state, obs = reset(jax.random.split(KEY, 2))
    carry, first, hidden = policy.initial_carry(2), jnp.ones(2, bool), policy.initial_carry(2)
    names, largest = [x.name for x in session.get_inputs()], 0.0
    for i in range(1000):
        given = arrays_of("obs", obs) | arrays_of("first", first) | arrays_of("carry", hidden)
        found = dict(zip([x.name for x in session.get_outputs()], session.run(None, {n: given[n] for n in names}), strict=True))
        action, carry = act(carry, obs, first, KEY)
        for name, x in arrays_of("action", action).items():
            largest = max(largest, np.abs(found[name].astype(np.float64) - x.astype(np.float64)).max())
        hidden = jax.tree.unflatten(jax.tree.structure(hidden), [x for name, x in found.items() if name.startswith("next/")])
        after = step(jax.random.split(jax.random.key(i), (2, 2)), env_state, action)
        env_state, obs, first = after.env_state, after.obs, after.terminated | after.truncated
    assert largest <= 1e-5
    assert ("first" in names) == bool(jax.tree.leaves(carry))


@pytest.mark.slow
def test_policy_that_onnx_cannot_hold_is_refused(tmp_path):
    pytest.importorskip("jax2onnx")
    cfg = purerl.PPOConfig(env="CartPole-v1", hidden=(8,), memory="lru", memory_size=8)
    train = purerl.make_train(cfg)
    with pytest.raises(purerl.ConfigError, match=r"cannot be converted.*use the suffix .jaxexport"):
        export(train, train.init(KEY), tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_onnx_names_the_missing_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    train = purerl.make_train(purerl.PPOConfig(env="CartPole-v1", hidden=(8,)))
    with pytest.raises(purerl.ConfigError, match=r"needs jax2onnx and onnxruntime; run pip install '\.\[onnx\]'"):
        export(train, train.init(KEY), tmp_path / "policy.onnx")
