"""Timing of any program for `speed.py` and `gpu.py`; runs in each program's own virtual environment, so it needs JAX alone."""

import json
import time

import jax


def timed(train, keys, env_steps, repeats=3):
    """Return seconds to compile `train(keys)`, and environment steps a second of each run; `env_steps` are of all seeds."""
    import scipy.linalg  # noqa: F401  which JAX imports with the first factorisation, and some programs before

    start = time.perf_counter()
    compiled = jax.jit(train).lower(keys).compile()
    compiling, speeds = time.perf_counter() - start, []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(keys))
        speeds.append(env_steps / (time.perf_counter() - start))
    return {"compile": compiling, "speeds": speeds}


def report(train, keys, work):
    """Print one JSON line: seconds to compile, environment steps a second of each run."""
    print(json.dumps(timed(train, keys, work["seeds"] * work["total_timesteps"], work["repeats"])))
