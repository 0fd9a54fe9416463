"""How `speed.py` times any program; runs in each program's own environment, so it imports nothing but JAX."""

import json
import time

import jax


def report(train, keys, work):
    """Compiles `train(keys)`, times it, and prints one JSON line: seconds to compile, environment steps per second."""
    start = time.perf_counter()
    compiled = jax.jit(train).lower(keys).compile()
    compiling = time.perf_counter() - start
    seconds = []
    for _ in range(work["repeats"]):
        start = time.perf_counter()
        jax.block_until_ready(compiled(keys))
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"compile": compiling, "speed": work["seeds"] * work["total_timesteps"] / min(seconds)}))
