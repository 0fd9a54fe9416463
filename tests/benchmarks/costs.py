"""Costs of a GRU, PPG, DAAC, APPO and RND relative to PPO of the same sizes, on CartPole with 4 environments x 128 steps.

Memories of 64 over sequences of 1,024 steps are compared with a second dense layer of 64, with 8 environments x 1,024 steps.

    python -m tests.benchmarks.costs [NAME ...]

PPO and the compared config run in turn, each in a process of its own. `--record` saves the ratios in `costs.json`. The exit
status is 1 if a ratio is beyond its bound.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import jax

import purerl
from tests.benchmarks import recording

PPO = purerl.PPOConfig(total_timesteps=400_000)
WIDE = PPO.replace(hidden=(128, 128), total_timesteps=100_000)
LONG = PPO.replace(num_envs=8, num_steps=1024, total_timesteps=16 * 8 * 1024)
OVER_LONG = {name: LONG.replace(hidden=(64,), memory=name, memory_size=64) for name in ("min_gru", "lru")}
SAME = {name: value for name, value in vars(PPO).items() if name not in ("num_epochs", "arch")}
PHASES = purerl.PPGConfig(**SAME, e_pi=4, e_v=4, aux_columns=4)

# PPO, the config compared with PPO, the minimum ratio of their speeds, and the maximum ratio of their compile times.
COSTS = {
    "GRU of 128, two layers of 128 before it": (WIDE, WIDE.replace(memory="gru"), 0.0, 2.0),
    "minimal GRU of 64, sequences of 1,024": (LONG, OVER_LONG["min_gru"], 0.25, 3.0),
    "LRU of 64, sequences of 1,024": (LONG, OVER_LONG["lru"], 0.25, 3.0),
    "PPG, policy phase": (PPO, PHASES.replace(n_pi=2**12), 0.95, 2.0),
    "PPG, with its auxiliary phases": (PPO, PHASES, 0.0, 2.0),
    "DAAC, four passes each": (PPO, purerl.DAACConfig(**SAME | {"advantage_norm": "batch"}, e_pi=4, e_v=4), 0.0, 2.0),
    "APPO, fresh data": (PPO, purerl.APPOConfig(**SAME, num_epochs=4, replay=1, lag=0, target_update_freq=1), 0.85, 2.0),
    "RND": (PPO, PPO.replace(rnd=purerl.RNDConfig()), 0.0, 2.0),
}


def timed(cfg):
    """Return the seconds to compile, and the environment steps per second."""
    run, key = purerl.make_train(cfg), jax.random.key(0)
    start = time.perf_counter()
    compiled = jax.jit(run).lower(key).compile()
    compiling, start = time.perf_counter() - start, time.perf_counter()
    jax.block_until_ready(compiled(key))
    return compiling, run.plan.env_steps / (time.perf_counter() - start)


def measure(name, which):
    command = [sys.executable, "-m", "tests.benchmarks.costs", "--one", name, str(which)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("names", nargs="*", default=list(COSTS), metavar="NAME")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(timed(COSTS[args.one[0]][int(args.one[1])])))
        return 0
    beyond = False
    for name in args.names:
        pairs = [[measure(name, which) for which in (0, 1)] for _ in range(args.pairs)]
        speeds = sorted(other[1] / base[1] for base, other in pairs)
        compiling = statistics.median(other[0] / base[0] for base, other in pairs)
        row = {"pairs": pairs, "speed": statistics.median(speeds), "low": speeds[0], "high": speeds[-1], "compile": compiling}
        if args.record:
            recording.add("costs.json", name, row, COSTS)
        beyond |= row["speed"] < COSTS[name][2] or compiling > COSTS[name][3]
        span = f"{row['low']:.2f} to {row['high']:.2f}"
        print(f"{name}: {row['speed']:.2f} ({span}) of the speed, {compiling:.2f} of the compile time", flush=True)
    return int(beyond)


if __name__ == "__main__":
    sys.exit(main())
