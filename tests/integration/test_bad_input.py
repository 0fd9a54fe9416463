"""Every bad input ends in one clear error, before anything is compiled, allocated or run."""

import dataclasses
import gc
import json
import math
import time
import warnings

import jax
import numpy as np
import pytest

import purerl
from purerl import ConfigError, Normal, PPOConfig, RNDConfig, Scale, Uniform
from tests.helpers import bad_input
from tests.helpers.bad_input import ACCEPTED, KEY, REFUSED, WARNED, outcome
from tests.helpers.probes import Varied
from tests.helpers.programs import compiles


def allocated():
    return sum(x.nbytes for x in jax.live_arrays())


def ids(cases):
    return [f"{row} {name}" for row, name in cases]


@pytest.fixture(scope="module")
def traced_seconds():
    """Measure how long this machine traces an update; compiling the update takes ten times as long."""

    def once():
        start = time.thread_time()
        train = purerl.make_train(PPOConfig())
        jax.eval_shape(train.update, jax.eval_shape(train.init, KEY))
        return time.thread_time() - start

    return sorted(once() for _ in range(5))[2]


@pytest.fixture
def no_collection():
    """Prevent Python from collecting the garbage of earlier tests, which takes up to a second."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("row", REFUSED, ids=ids(REFUSED))
def test_invalid_input_is_refused_before_compiling(row, traced_seconds):
    case, parts = REFUSED[row]
    outcome(case)  # warm up, so that neither imports nor the case's own computations are measured
    before, arrays, start = compiles(), allocated(), time.thread_time()
    said = outcome(case)
    seconds = time.thread_time() - start
    assert said.startswith(("ConfigError", "CheckpointError"))
    for part in parts:
        assert part in said
    assert compiles() == before
    assert allocated() <= arrays + 1000  # constants of an environment, and no more
    assert seconds < 3 * traced_seconds


@pytest.mark.parametrize("row", WARNED, ids=ids(WARNED))
def test_dubious_input_warns_at_the_callers_line(row):
    case, says = WARNED[row]
    with pytest.warns(UserWarning, match=says.split(":")[0]) as caught:
        case()
    assert says in str(caught[0].message)
    assert caught[0].filename == bad_input.__file__


@pytest.mark.slow
@pytest.mark.parametrize("row", ACCEPTED, ids=ids(ACCEPTED))
def test_unusual_valid_input_is_accepted(row):
    train = ACCEPTED[row]()
    state = jax.eval_shape(train.init, KEY)
    after, metrics = jax.eval_shape(train.update, state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.weak_type), state
    )
    assert metrics


def test_plan_reports_rounded_up_steps():
    plan = purerl.make_train(PPOConfig(total_timesteps=1000)).plan
    assert (plan.num_updates, plan.env_steps, plan.extra_steps) == (2, 1024, 24)
    assert purerl.make_train(PPOConfig(total_timesteps=10**18 + 1)).plan.env_steps == 1_000_000_000_000_000_512


def test_float64_observation_is_cast_with_a_warning(fresh_python):
    code = """
import warnings, jax, purerl
jax.config.update("jax_enable_x64", True)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    train = purerl.make_train(purerl.PPOConfig(env="MountainCar-v0"))
print("observations of float64" in str(caught[0].message), jax.eval_shape(train.init, jax.random.key(0)).params["policy"]["head"])
"""
    said = fresh_python(code)
    assert said.startswith("True")
    assert "float64" not in said.removeprefix("True")


@pytest.mark.long
def test_invalid_input_is_refused_without_asserts(fresh_python):
    said = json.loads(
        fresh_python("import runpy; runpy.run_module('tests.helpers.bad_input', run_name='__main__')", flags=("-O",))
    )
    assert said.keys() == {f"{row} {name}" for row, name in REFUSED}
    for (row, name), (_, parts) in REFUSED.items():
        assert all(part in said[f"{row} {name}"] for part in parts), (row, name)


# --- 500 configs at the boundaries ------------------------------------------------------------------------------------

BOUNDARY = {
    float: [0.0, -0.0, 1.0, 1e-38, -1e-38, 1 + 1e-6, 1e38, math.inf, -math.inf, math.nan, 1, 0, True, "1", None],
    int: [1, 0, -1, 2, 3, 2**31 - 1, 2**31, 10**18, 1.0, math.nan, True, "1", None],
    bool: [True, False, 1, 0, "True", None],
    bool | str: [True, False, "auto", 1, 0, "True", None],
    str: ["", "gae", "none", "tanh", "linear", "CartPole-v1", 1, None],
    tuple: [(), (1,), (0,), (1.0,), ((),), (8, 8), [8], None, "8"],
    dict: [{}, {"max_steps_in_episode": 8}, {"max_steps_in_episode": -1}, {"x": 1}, {"max_steps_in_episode": "8"}, None, ()],
    dict[str, Uniform | Normal | Scale]: [
        {},
        {"gravity": Uniform(8, 12)},
        {"gravity": Uniform(2, 1)},
        {"gravity": Scale(0.8, 1.2)},
        {"x": Normal(0, 1)},
        {"x": 1},
        None,
    ],
    RNDConfig | None: [None, RNDConfig(init_steps=0), RNDConfig(hidden=()), RNDConfig(lr_scale=-1), 5],
}


def random_config(rng):
    """Return a small config with one to three of its fields at a boundary."""
    small = PPOConfig(num_envs=2, num_steps=4, num_minibatches=2, num_epochs=1, hidden=(4,), total_timesteps=64)
    fields = rng.choice(list(dataclasses.fields(PPOConfig)), rng.integers(1, 4), replace=False)
    pools = {f.name: f.metadata["rule"].choices or BOUNDARY[f.type] for f in fields}
    return small.replace(**{name: pool[rng.integers(len(pool))] for name, pool in pools.items()})


@pytest.mark.slow
@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.long)])
def test_boundary_configs_are_refused_or_can_be_traced(count):
    rng, refused = np.random.default_rng(count), 0
    for _ in range(count):
        cfg = random_config(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                jax.eval_shape(purerl.make_train(cfg, env=Varied() if rng.integers(2) else None), KEY)
            except ConfigError:
                refused += 1
    assert 0.4 * count < refused < 0.9 * count
