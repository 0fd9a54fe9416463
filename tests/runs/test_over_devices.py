"""Seeds over devices. The tests run with two CPU devices (`conftest.py`)."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.runs.devices import processes
from purerl.runs.devices.over_devices import add_xla_flags
from tests.helpers.tiny import CFG, at, tiny

train = tiny(CFG)


def keys(count):
    return jax.random.split(jax.random.key(0), count)


@pytest.fixture(scope="module")
def alone():
    """Train three seeds, each by itself."""
    run = jax.jit(train)
    return [run(key) for key in keys(3)]


def close(got, want):
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-4)


@pytest.mark.each_landing("1")
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_over_devices_accepts_any_number_of_seeds(count, alone):
    many = jax.jit(purerl.over_devices(train))(keys(3)[:count])
    assert many.metrics["lr"].total.shape == (count, 4)
    for i in range(count):
        close(at(many.state.params, i), alone[i].state.params)


@pytest.mark.long
def test_exact_rows_equal_single_runs_bit_for_bit(fresh_python):
    """A new process compiles without the tests' flags: with them, XLA fuses a row's first operations with its selection."""
    code = """
import jax, purerl
purerl.use_cores()
from tests.helpers.tiny import at, digest, tiny
keys = jax.random.split(jax.random.key(0), 3)
many, alone = jax.jit(purerl.over_devices(tiny(), exact=True))(keys), jax.jit(tiny())
print([digest(at(many, i)) == digest(alone(key)) for i, key in enumerate(keys)])
"""
    assert fresh_python(code, XLA_FLAGS="") == "[True, True, True]\n"


@pytest.mark.long
def test_functions_with_default_arguments_can_run_one_after_the_other():
    states = jax.jit(purerl.over_devices(train.init, out_axes=train.seed_axes))(keys(2))
    many = lambda exact: purerl.over_devices(train.evaluate, in_axes=(train.seed_axes, 0), exact=exact)(states, keys(2))
    np.testing.assert_allclose(many(True).returns, many(False).returns, rtol=1e-5)


@pytest.mark.slow
def test_each_device_computes_its_share():
    many = jax.jit(purerl.over_devices(train))(keys(4))
    shards = jax.tree.leaves(many.state.params)[0].addressable_shards
    assert [shard.device for shard in shards] == jax.local_devices()
    assert {shard.data.shape[0] for shard in shards} == {2}


@pytest.mark.long
@pytest.mark.slow
def test_only_the_given_devices_are_used():
    many = jax.jit(purerl.over_devices(train, devices=jax.local_devices()[1:]))
    assert many(keys(2)).state.params.keys() == {"policy", "value"}


def test_single_row_runs_on_the_given_device():
    last = jax.local_devices()[-1]
    assert last != jax.local_devices()[0]
    for count in (1, 3):
        assert purerl.over_devices(lambda x: 2 * x, devices=[last])(jnp.ones(count)).devices() == {last}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "exact"), [(4, False), (3, True)])
def test_update_counter_is_shared_by_all_seeds(count, exact):
    """Spread a state over devices by `seed_axes`: the counter is shared, and gradients stay those of each seed."""
    spread = lambda f, **axes: jax.jit(purerl.over_devices(f, exact=exact, **axes))
    state = spread(train.init, out_axes=train.seed_axes)(keys(count))
    step = spread(train.update, in_axes=(train.seed_axes,), out_axes=(train.seed_axes, 0))
    for _ in range(2):
        state, metrics = step(state)
    assert state.clock.low.shape == ()
    assert state.clock.low == 2
    assert metrics["lr"].total.shape == (count,)
    alone, update = jax.jit(train.init)(keys(count)[2]), jax.jit(train.update)
    for _ in range(2):
        alone, _ = update(alone)
    close(at(state.params, 2), alone.params)


@pytest.mark.each_landing("True")
@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
def test_over_devices_accepts_sweeps(exact):
    sweep = jax.vmap(lambda lr: CFG.replace(lr=lr))(jnp.array([1e-3, 1e-2, 1e-1]))
    run = lambda cfg, key: tiny(cfg)(key).state.params
    got = jax.jit(purerl.over_devices(run, in_axes=(0, None), exact=exact))(sweep, keys(1)[0])
    one = jax.jit(run)
    for i in range(3):
        close(at(got, i), one(at(sweep, i), keys(1)[0]))


@pytest.mark.slow
def test_use_cores_sets_the_number_of_devices_once(fresh_python):
    code = "import purerl, jax; purerl.use_cores(3); purerl.use_cores(2); print(len(jax.local_devices()))"
    assert fresh_python(code) == "3\n"
    chosen = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    assert fresh_python(code, **chosen) == "4\n"  # the earlier configuration is kept


def test_use_cores_warns_after_jax_has_started(fresh_python):
    code = """
import warnings, jax, purerl
jax.random.key(0)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    purerl.use_cores(2)
print(len(caught), "purerl.use_cores()" in str(caught[0].message), len(jax.local_devices()))
"""
    assert fresh_python(code) == "1 True 1\n"


def test_xla_flags_of_other_versions_are_omitted(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_given=1")
    add_xla_flags("--xla_backend_optimization_level=0", "--xla_of_another_version=1", "--xla_given=1")
    assert os.environ["XLA_FLAGS"] == "--xla_given=1 --xla_backend_optimization_level=0"


def test_joining_a_job_omits_xla_flags_of_other_versions(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_given=1")
    monkeypatch.setattr(processes, "IN_ONE_ORDER", "--xla_of_another_version=1")
    monkeypatch.setattr(jax.distributed, "initialize", lambda **options: None)
    processes.join("127.0.0.1:1", num_processes=1, process_id=0)
    assert os.environ["XLA_FLAGS"] == "--xla_given=1"


def test_negative_numbers_of_cores_are_refused():
    with pytest.raises(purerl.ConfigError, match="count = -1: must be an int of at least 1, or None for all cores"):
        purerl.use_cores(-1)
