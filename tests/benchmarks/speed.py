"""Speed against rejax, on the same work, the two programs in turn. Exits with 1 if a ratio is below its floor.

Published rejax needs an older gymnax, so it lives in an environment of its own:

    python3 -m venv .venv-peers && .venv-peers/bin/pip install "jax==0.10.2" "gymnax==0.0.9" "rejax==0.1.3"
    .venv/bin/python -m tests.benchmarks.speed --peer .venv-peers/bin/python

Writes `speed.json` beside this file, from which `results.py` renders the README's table. Every run is a process of its own.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
SMALL = {"env": "CartPole-v1", "num_envs": 4, "num_steps": 128, "num_minibatches": 4, "total_timesteps": 499_712, "lr": 2.5e-4}
LARGE = {"env": "CartPole-v1", "num_envs": 2048, "num_steps": 32, "num_minibatches": 32, "total_timesteps": 5_242_880, "lr": 1e-3}
IMAGES = {
    "env": "Breakout-MinAtar",
    "num_envs": 64,
    "num_steps": 128,
    "num_minibatches": 8,
    "total_timesteps": 1_048_576,
    "lr": 1e-3,
}
DEFAULTS = {"seeds": 1, "repeats": 1, "pinned": False, "over_devices": False}

# What purerl runs, what the peer runs, and the least ratio of their speeds.
WORKLOADS = {
    "A": (SMALL | {"repeats": 3}, SMALL | {"repeats": 3}, 1.1),
    "A on one core": (SMALL | {"repeats": 3, "pinned": True}, SMALL | {"repeats": 3, "pinned": True}, 1.15),
    "B": (LARGE, LARGE, 1.8),
    "C, against the peer's A": (IMAGES, SMALL | {"repeats": 3}, 0.6),
    "D in one vmap": (SMALL | {"seeds": 16}, SMALL | {"seeds": 16}, 1.0),
    "D over devices": (SMALL | {"seeds": 16, "over_devices": True}, SMALL | {"seeds": 16}, 2.0),
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


def compare(ours, peers, python, times):
    """Both programs `times` times in turn: the reports of each."""
    pairs = [(run(sys.executable, "speed_purerl.py", ours), run(python, "speed_rejax.py", peers)) for _ in range(times)]
    return [list(reports) for reports in zip(*pairs, strict=True)]


def summary(values):
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="the Python that has rejax")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    args = parser.parse_args()
    results, failed = {}, False
    for name in args.only:
        ours, peers, floor = WORKLOADS[name]
        mine, theirs = compare(ours, peers, args.peer, args.times)
        row = {
            who: {key: summary([r[key] for r in reports]) for key in reports[0]}
            for who, reports in (("purerl", mine), ("rejax", theirs))
        }
        row["ratio"] = row["purerl"]["speed"]["median"] / row["rejax"]["speed"]["median"]
        row["pairs"] = summary([a["speed"] / b["speed"] for a, b in zip(mine, theirs, strict=True)])
        row["compile_ratio"] = row["purerl"]["compile"]["median"] / row["rejax"]["compile"]["median"]
        row["floor"] = floor
        results[name] = row
        slow = row["ratio"] < floor or (name == "A" and row["compile_ratio"] > COMPILE_CEILING)
        failed |= slow
        speeds = ", ".join(f"{who} {row[who]['speed']['median']:,.0f}" for who in ("purerl", "rejax"))
        span = f"{row['pairs']['low']:.2f} to {row['pairs']['high']:.2f}"
        verdict = "BELOW THE FLOOR" if slow else "ok"
        print(
            f"{name}: {row['ratio']:.2f} ({span}), floor {floor}; steps/s: {speeds}; compile {row['compile_ratio']:.2f}: {verdict}",
            flush=True,
        )
    if args.only == list(WORKLOADS):
        facts = {
            "command": "python -m tests.benchmarks.speed --peer PYTHON",
            "times": args.times,
            "cores": len(os.sched_getaffinity(0)),
        }
        (HERE / "speed.json").write_text(json.dumps({**facts, "workloads": results}, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
