"""Speed of `fit` relative to `jax.jit(train)`, with a checkpoint every 30 s and JSON lines, CSV and TensorBoard files.

    python -m tests.benchmarks.overhead

Both run in turn, each in a process of its own and for at least 30 s. `--record` saves the ratios in `overhead.json`. The exit
status is 1 if a median ratio is below 0.95.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import jax

import purerl
from purerl.runs.logging.recorders import Csv, JsonLines, TensorBoard
from tests.benchmarks import recording

FLOOR = 0.95
WORKLOADS = {
    "A": purerl.PPOConfig(total_timesteps=8_000_000),
    "B": purerl.PPOConfig(total_timesteps=13_000_000, num_envs=2048, num_steps=32, num_minibatches=32),
}


def plain(cfg):
    """Measure the steps per second of `jax.jit(train)`, without compilation."""
    run, key = purerl.make_train(cfg), jax.random.key(0)
    compiled = jax.jit(run).lower(key).compile()
    start = time.perf_counter()
    jax.block_until_ready(compiled(key))
    return run.plan.env_steps / (time.perf_counter() - start)


def fitted(cfg):
    """Measure the steps per second of `fit`, from two seconds after its first chunk."""
    seen = []
    note = lambda progress: seen.append((time.perf_counter(), progress.steps))
    with tempfile.TemporaryDirectory() as directory:
        home = pathlib.Path(directory)
        files = (JsonLines(home / "metrics.jsonl"), Csv(home / "metrics.csv"), TensorBoard(home / "tensorboard"))
        purerl.fit(cfg, directory=home, save_seconds=30.0, recorders=(note, *files))
    (began, first), (ended, last) = next(x for x in seen if x[0] > seen[0][0] + 2), seen[-1]
    return (last - first) / (ended - began)


def measure(name, form):
    command = [sys.executable, "-m", "tests.benchmarks.overhead", "--one", name, form]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("--one", nargs=2, metavar=("WORKLOAD", "FORM"), help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    if args.one:
        print({"plain": plain, "fit": fitted}[args.one[1]](WORKLOADS[args.one[0]]))
        return 0
    kept = {}
    for name in WORKLOADS:
        pairs = [[measure(name, form) for form in ("plain", "fit")] for _ in range(args.pairs)]
        ratios = sorted(fit / alone for alone, fit in pairs)
        low, median, high = ratios[0], statistics.median(ratios), ratios[-1]
        kept[name] = {"pairs": pairs, "ratio": median, "low": low, "high": high}
        print(f"{name}: fit at {median:.3f} of jax.jit(train) ({low:.3f} to {high:.3f})", flush=True)
    if args.record:
        recording.write("overhead.json", kept)
    return int(any(row["ratio"] < FLOOR for row in kept.values()))


if __name__ == "__main__":
    sys.exit(main())
