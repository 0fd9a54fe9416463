"""Timing of any program for `speed.py` and `gpu.py`; runs in each program's own virtual environment, so it needs JAX alone."""

import json
import sys
import time

import jax


def timed(train, keys, env_steps, repeats=3, turns=False):
    """Return seconds to compile `train(keys)`, and environment steps a second of each run; `env_steps` are of all seeds.

    With `turns`, print "ready" when the program is compiled, and wait for a line of input before the runs.
    """
    import scipy.linalg  # noqa: F401  which JAX imports with the first factorisation, and some programs before

    start = time.perf_counter()
    compiled = jax.jit(train).lower(keys).compile()
    compiling, speeds = time.perf_counter() - start, []
    if turns:
        print("ready", flush=True)
        sys.stdin.readline()
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(keys))
        speeds.append(env_steps / (time.perf_counter() - start))
    memory = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e6
    return {"compile": compiling, "speeds": speeds, "megabytes": memory}


def report(train, keys, work):
    """Print one JSON line: seconds to compile, environment steps a second of each run."""
    print(json.dumps(timed(train, keys, work["seeds"] * work["total_timesteps"], work["repeats"])))
