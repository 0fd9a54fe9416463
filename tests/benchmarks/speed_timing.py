"""Timing of a program, for `speed.py` and `gpu.py`. Needs only JAX, since it runs in the virtual environment of each library."""

import json
import sys
import time

import jax


def timed(train, keys, env_steps, repeats=3, turns=False):
    """Return the seconds to compile `train(keys)`, the speed of each run, and the peak memory; `env_steps` is the sum over seeds.

    With `turns`, print "ready" when the program is compiled, and wait for a line of input before the runs.
    """
    import scipy.linalg  # noqa: F401  JAX imports it with the first factorisation; some programs import it before

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
    """Print one JSON line: the seconds to compile, the environment steps per second of each run, and the peak memory."""
    print(json.dumps(timed(train, keys, work["seeds"] * work["total_timesteps"], work["repeats"])))
