"""Speed of purerl relative to rejax, and with a GRU relative to purejaxrl. Both programs run the same work, in turn.

rejax and purejaxrl need an older gymnax, so they have a virtual environment of their own:

    python3 -m venv .venv-peers
    .venv-peers/bin/pip install "jax==0.10.2" "gymnax==0.0.9" "rejax==0.1.3" distrax tfp-nightly
    git clone https://github.com/luchris429/purejaxrl && git -C purejaxrl checkout 31756b1
    .venv/bin/python -m tests.benchmarks.speed --peer .venv-peers/bin/python --purejaxrl purejaxrl

The exit status is 1 if a ratio of speeds is below its floor, or if A compiles too slowly. `programs_purejaxrl.py` lists the
repairs of purejaxrl. `--record` saves each workload in `speed.json`, for the tables of `speed.md` and the README. Every run is a
process of its own.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import NamedTuple

from tests.benchmarks import recording

HERE = pathlib.Path(__file__).parent
NAMES = ("env", "num_envs", "num_steps", "num_minibatches", "total_timesteps", "lr")
SMALL = dict(zip(NAMES, ("CartPole-v1", 4, 128, 4, 499_712, 2.5e-4), strict=True)) | {"repeats": 3}
LARGE = dict(zip(NAMES, ("CartPole-v1", 2048, 32, 32, 5_242_880, 1e-3), strict=True))
IMAGES = dict(zip(NAMES, ("Breakout-MinAtar", 64, 128, 8, 1_048_576, 1e-3), strict=True)) | {"repeats": 3}
SEEDS = SMALL | {"seeds": 16, "repeats": 1}
DEFAULTS = {"seeds": 1, "repeats": 1, "pinned": False, "over_devices": False, "agent_alone": False, "evaluations": False}

# As in purejaxrl's `ppo_rnn.py`: a shared layer followed by a GRU, with ReLU.
GRU = SMALL | {"more": {"memory": "gru", "memory_size": 128, "hidden": [128], "activation": "relu", "arch": "shared"}}
FEW = GRU | {"total_timesteps": 102_400, "repeats": 1}
MANY = GRU | {"num_envs": 64, "num_minibatches": 8, "total_timesteps": 409_600, "repeats": 1}


class Workload(NamedTuple):
    """The configs of purerl and of the peer, the minimum of purerl's speed divided by the peer's, and the peer's name."""

    ours: dict
    theirs: dict
    floor: float
    peer: str = "rejax"


WORKLOADS = {
    "A": Workload(SMALL, SMALL, 1.1),
    "A on one core": Workload(SMALL | {"pinned": True}, SMALL | {"pinned": True}, 1.15),
    "B": Workload(LARGE, LARGE, 1.8),
    "C, against the peer's A": Workload(IMAGES, SMALL, 0.6),
    "D in one vmap": Workload(SEEDS, SEEDS, 1.0),
    "D over devices": Workload(SEEDS | {"over_devices": True}, SEEDS, 2.0),
    "GRU, 4 x 128": Workload(FEW, FEW, 3.0, "purejaxrl"),
    "GRU, 64 x 128": Workload(MANY, MANY, 1.5, "purejaxrl"),
}
COMPILE_CEILING = 1.15  # the maximum of purerl's time to compile A, divided by the peer's
COMPILED = {  # outputs beside the trained agent -> options of purerl's and of rejax's program
    "nothing": ({"agent_alone": True}, {}),
    "purerl its metrics, rejax its evaluations: each by default": ({}, {"evaluations": True}),
    "purerl its metrics, rejax nothing: as in the table above": ({}, {}),
}


def run(command, work):
    """Run a program in a process of its own; return its compile time and its highest speed."""
    work = DEFAULTS | work
    pin = (lambda: os.sched_setaffinity(0, {0})) if work["pinned"] else None
    done = subprocess.run([*command, json.dumps(work)], capture_output=True, text=True, preexec_fn=pin)
    if done.returncode:
        raise SystemExit(done.stderr)
    report = json.loads(done.stdout.splitlines()[-1])
    return {"compile": report["compile"], "speed": max(report["speeds"], default=0.0)}


def compare(name, python, purejaxrl, times):
    """Run both programs `times` times in turn; return medians and ranges of their speeds, compile times and ratios."""
    work, reports = WORKLOADS[name], {"purerl": [], WORKLOADS[name].peer: []}
    if work.peer == "rejax":
        peer = [python, str(HERE / "speed_rejax.py")]
    else:
        peer = [python, str(HERE / "programs_purejaxrl.py"), purejaxrl, "time"]
    for _ in range(times):
        reports["purerl"].append(run([sys.executable, str(HERE / "speed_purerl.py")], work.ours))
        reports[work.peer].append(run(peer, work.theirs | {"memory": True}))
    of = lambda reports: {key: spread([report[key] for report in reports]) for key in ("speed", "compile")}
    row = {"floor": work.floor, "peer": work.peer} | {program: of(rows) for program, rows in reports.items()}
    mine, theirs = reports.values()
    row["ratio"] = row["purerl"]["speed"]["median"] / row[work.peer]["speed"]["median"]
    row["ratios"] = spread([a["speed"] / b["speed"] for a, b in zip(mine, theirs, strict=True)])
    row["compile_ratio"] = row["purerl"]["compile"]["median"] / row[work.peer]["compile"]["median"]
    row["ok"] = row["ratio"] >= work.floor and (name != "A" or row["compile_ratio"] <= COMPILE_CEILING)
    return row


def compare_compiling(python, times):
    """Measure in turn the seconds that both programs take to compile A, for each choice of outputs."""
    rows = {}
    for name, (ours, theirs) in COMPILED.items():
        pairs = []
        for _ in range(times):
            mine = run([sys.executable, str(HERE / "speed_purerl.py")], SMALL | ours | {"repeats": 0})
            peer = run([python, str(HERE / "speed_rejax.py")], SMALL | theirs | {"repeats": 0})
            pairs.append((mine["compile"], peer["compile"]))
        ours, theirs = (spread(list(seconds)) for seconds in zip(*pairs, strict=True))
        ratios = spread([mine / peer for mine, peer in pairs])
        rows[name] = {"purerl": ours, "rejax": theirs, "ratio": ours["median"] / theirs["median"], "ratios": ratios}
        print(f"{name}: {rows[name]['ratio']:.2f} ({ratios['low']:.2f} to {ratios['high']:.2f})", flush=True)
    return rows


def spread(values):
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def says(name, row):
    ratio = f"{row['ratio']:.2f} ({row['ratios']['low']:.2f} to {row['ratios']['high']:.2f}), floor {row['floor']}"
    speeds = ", ".join(f"{program} {row[program]['speed']['median']:,.0f}" for program in ("purerl", row["peer"]))
    return f"{name}: {ratio}; steps/s {speeds}; compile {row['compile_ratio']:.2f}: {'ok' if row['ok'] else 'BELOW THE FLOOR'}"


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("--peer", required=True, help="the Python of the virtual environment above")
    parser.add_argument("--purejaxrl", metavar="PATH", help="a clone of purejaxrl; without it, its workloads are left out")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--compiling", action="store_true", help="measure only compile times of A, by the outputs")
    parser.add_argument("--only", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    args = parser.parse_args()
    rows = {}
    if args.compiling:
        for name, row in compare_compiling(args.peer, args.times).items():
            if args.record:
                row |= {"times": args.times} | recording.circumstances("speed --peer PYTHON --compiling")
                recording.add("compiling.json", name, row, COMPILED)
        return 0
    for name in (name for name in args.only if WORKLOADS[name].peer == "rejax" or args.purejaxrl):
        rows[name] = compare(name, args.peer, args.purejaxrl, args.times)
        print(says(name, rows[name]), flush=True)
        if args.record:
            row = rows[name] | {"times": args.times} | recording.circumstances(f"speed --peer PYTHON --only {name}")
            recording.add("speed.json", name, row, WORKLOADS)
    return int(not all(row["ok"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
