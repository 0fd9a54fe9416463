import json
import pathlib

import jax
import numpy as np
import pytest

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def vectors():
    """Reference numbers, computed in float64 by code that shares nothing with purerl."""

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
    """Runs code in another process with some environment variables changed, and gives its standard output."""
    import os
    import subprocess
    import sys

    def run(code, cwd=None, flags=(), **variables):
        env = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent.parent), **variables}
        done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, env=env, cwd=cwd, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
