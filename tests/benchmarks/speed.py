"""Speed against rejax, on the same work, the two programs in turn. Exits with 1 if a ratio is below its floor.

Published rejax needs an older gymnax, so it lives in an environment of its own:

    python3 -m venv .venv-peers && .venv-peers/bin/pip install "jax==0.10.2" "gymnax==0.0.9" "rejax==0.1.3"
    .venv/bin/python -m tests.benchmarks.speed --peer .venv-peers/bin/python

With `--record` each workload is kept in `speed.json`, of which the README's table is made. Every run is a process of its own.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

from tests.benchmarks import recording

HERE = pathlib.Path(__file__).parent
NAMES = ("env", "num_envs", "num_steps", "num_minibatches", "total_timesteps", "lr")
SMALL = dict(zip(NAMES, ("CartPole-v1", 4, 128, 4, 499_712, 2.5e-4), strict=True)) | {"repeats": 3}
LARGE = dict(zip(NAMES, ("CartPole-v1", 2048, 32, 32, 5_242_880, 1e-3), strict=True))
IMAGES = dict(zip(NAMES, ("Breakout-MinAtar", 64, 128, 8, 1_048_576, 1e-3), strict=True)) | {"repeats": 3}
SEEDS = SMALL | {"seeds": 16, "repeats": 1}
DEFAULTS = {"seeds": 1, "repeats": 1, "pinned": False, "over_devices": False}

# What purerl runs, what the peer runs, and the least ratio of their speeds.
WORKLOADS = {
    "A": (SMALL, SMALL, 1.1),
    "A on one core": (SMALL | {"pinned": True}, SMALL | {"pinned": True}, 1.15),
    "B": (LARGE, LARGE, 1.8),
    "C, against the peer's A": (IMAGES, SMALL, 0.6),
    "D in one vmap": (SEEDS, SEEDS, 1.0),
    "D over devices": (SEEDS | {"over_devices": True}, SEEDS, 2.0),
}
COMPILE_CEILING = 1.15  # of the time that the peer takes to compile A


def run(python, program, work):
    """One process of a program; what it reports."""
    work = DEFAULTS | work
    pin = (lambda: os.sched_setaffinity(0, {0})) if work["pinned"] else None
    command = [python, str(HERE / program), json.dumps(work)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=pin)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def compare(name, python, times):
    """Both programs `times` times in turn: medians and ranges of their speeds and of what they take to compile."""
    ours, peers, floor = WORKLOADS[name]
    mine, theirs = [], []
    for _ in range(times):
        mine.append(run(sys.executable, "speed_purerl.py", ours))
        theirs.append(run(python, "speed_rejax.py", peers))
    of = lambda reports: {key: spread([report[key] for report in reports]) for key in ("speed", "compile")}
    row = {"floor": floor, "purerl": of(mine), "rejax": of(theirs)}
    row["ratio"] = row["purerl"]["speed"]["median"] / row["rejax"]["speed"]["median"]
    row["ratios"] = spread([a["speed"] / b["speed"] for a, b in zip(mine, theirs, strict=True)])
    row["compile_ratio"] = row["purerl"]["compile"]["median"] / row["rejax"]["compile"]["median"]
    row["ok"] = row["ratio"] >= floor and (name != "A" or row["compile_ratio"] <= COMPILE_CEILING)
    return row


def spread(values):
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def says(name, row):
    ratio = f"{row['ratio']:.2f} ({row['ratios']['low']:.2f} to {row['ratios']['high']:.2f}), floor {row['floor']}"
    speeds = ", ".join(f"{program} {row[program]['speed']['median']:,.0f}" for program in ("purerl", "rejax"))
    return f"{name}: {ratio}; steps/s {speeds}; compile {row['compile_ratio']:.2f}: {'ok' if row['ok'] else 'BELOW THE FLOOR'}"


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("--peer", required=True, help="the Python that has rejax")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    args = parser.parse_args()
    rows = {}
    for name in args.only:
        rows[name] = compare(name, args.peer, args.times)
        print(says(name, rows[name]), flush=True)
        if args.record:
            row = rows[name] | {"times": args.times} | recording.circumstances(f"speed --peer PYTHON --only {name}")
            recording.add("speed.json", name, row, WORKLOADS)
    return int(not all(row["ok"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
