import gc
import json
import os
import pathlib
import shutil
import tempfile

import jax
import numpy as np
import pytest

from purerl.runs.devices.over_devices import add_xla_flags

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_rank_promotion", "raise")


OWN_CACHE = pytest.StashKey[bool]()


def pytest_configure(config):
    """Share compiled programs between the processes of a test run, which compile many programs more than once.

    Consecutive test runs share them if `PURERL_TESTS_CACHE` names a directory.
    """
    config.stash[OWN_CACHE] = "PURERL_TESTS_CACHE" not in os.environ
    if config.stash[OWN_CACHE]:
        os.environ["PURERL_TESTS_CACHE"] = tempfile.mkdtemp()
    if "not slow" in config.option.markexpr or "not as_users" in config.option.markexpr:
        # Compilation takes most of the time of these tests, and these flags reduce it to a quarter.
        add_xla_flags("--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false")
    jax.config.update("jax_compilation_cache_dir", os.environ["PURERL_TESTS_CACHE"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def pytest_unconfigure(config):
    if config.stash[OWN_CACHE]:
        shutil.rmtree(os.environ.pop("PURERL_TESTS_CACHE"))


def pytest_collection_finish():
    """Collect garbage less often: tracing makes many objects, and each collection visits the objects of all earlier programs."""
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark a slow case `long` if its test has the marker `each_landing` and the marker does not name the case."""
    for item in items:
        named = item.get_closest_marker("each_landing")
        if named and item.get_closest_marker("slow") and item.callspec.id not in named.args:
            item.add_marker(pytest.mark.long)


def pytest_addoption(parser):
    parser.addoption("--record", action="store_true", help="save when long tests passed, and the results of fault tests")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Save the date, the commit and the minutes of a passed long test, if `--record` is given."""
    report = (yield).get_result()
    asked = item.config.getoption("record")
    if report.passed and call.when == "call" and asked and item.get_closest_marker("long"):
        from tests.benchmarks import recording

        recording.add_long(item.nodeid.removeprefix("tests/"), call.duration)


@pytest.fixture
def record_fault(request):
    """Return a function that prints the result of a fault test, and saves it if `--record` is given."""

    def record(name, row):
        print(f"\n{name}: {row}")
        if request.config.getoption("record"):
            from tests.benchmarks import recording

            recording.add("faults.json", name, row)

    return record


@pytest.fixture(scope="session", autouse=True)
def share_trainers():
    from tests.helpers.sharing import share_trainers

    share_trainers()


@pytest.fixture(scope="session")
def vectors():
    """Return reference numbers, computed in float64 by code that shares nothing with purerl."""

    def arrays(x):
        if isinstance(x, dict):
            return {name: arrays(value) for name, value in x.items()}
        if isinstance(x, list):
            parts = [arrays(value) for value in x]
            same = all(isinstance(p, np.ndarray | int | float) for p in parts) and len({np.shape(p) for p in parts}) == 1
            return np.asarray(parts, np.float64) if same else parts
        return float("inf") if x == "inf" else x

    text = (pathlib.Path(__file__).parent / "data" / "vectors.json").read_text()
    return {name: (arrays(vector["inputs"]), arrays(vector["expected"])) for name, vector in json.loads(text).items()}


@pytest.fixture(scope="session")
def fresh_python():
    """Return a function that runs code in a new process with changed environment variables, and returns its standard output."""
    import subprocess
    import sys

    def run(code, cwd=None, flags=(), **variables):
        env = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent.parent), **variables}
        done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, env=env, cwd=cwd, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def ranks():
    """Allow the rank promotion that suites need. purerl's own code needs none."""
    with jax.numpy_rank_promotion("allow"):
        yield
