"""Learning results: trains and scores seeds 0 - 7, keeps every score in `results.json`, and renders the README's tables.

python -m tests.benchmarks.results train [ENV ...]             purerl's presets, or the defaults where there is none
python -m tests.benchmarks.results peer --peer PYTHON          rejax on MinAtar, in its own environment (see speed.py)
python -m tests.benchmarks.results render                      the tables, from the JSON files beside this one
"""

import argparse
import csv
import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import numpy as np

import purerl
from purerl.config.algorithms import ALGORITHMS
from purerl.config.presets import PRESETS
from purerl.runs.analysis.statistics import interval, iqm
from tests.benchmarks.scores import score

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
SEEDS = range(8)

# Environments, and the scores that gymnax publishes for its own PPO agents, where it does.
BASELINES = {
    "CartPole-v1": 500,
    "CartPole-v1 in bfloat16": "",
    "CartPole-v1 by ppg": "",
    "CartPole-v1 by daac": "",
    "CartPole-v1 by appo": "",
    "Acrobot-v1": -80,
    "Pendulum-v1": -130,
    "MountainCar-v0": -118,
    "MountainCarContinuous-v0": "",
    "Asterix-MinAtar": 15,
    "Breakout-MinAtar": 28,
    "Catch-bsuite": 1,
    "UmbrellaChain-bsuite": 1,
}
PEER = {  # rejax on MinAtar: as its repository configures Breakout, and with the sizes and rates of purerl's preset
    "its own config": lambda cfg: {
        **{"num_envs": 32, "num_steps": 32, "num_minibatches": 4, "hidden": [64, 64], "activation": "tanh"},
        **{"learning_rate": 2.5674e-4, "gamma": 0.995, "max_grad_norm": 1},
    },
    "our sizes": lambda cfg: {
        **{name: getattr(cfg, name) for name in ("num_envs", "num_steps", "num_minibatches", "gamma", "hidden", "activation")},
        "learning_rate": cfg.lr,
        "max_grad_norm": cfg.max_grad_norm,
    },
}


def config(name):
    """The preset of an environment, or the defaults; "ENV in DTYPE" computes in it, "ENV by NAME" is another algorithm."""
    env, _, algorithm = name.partition(" by ")
    if algorithm:
        return ALGORITHMS[algorithm](env=env)
    env, _, dtype = name.partition(" in ")
    return (PRESETS.get(env) or purerl.PPOConfig(env=env)).replace(compute_dtype=dtype or "float32")


def load():
    path = HERE / "results.json"
    return json.loads(path.read_text()) if path.exists() else {"purerl": {}, "rejax": {}}


def keep(results):
    for part in results.values():
        for name in sorted(part, key=list(BASELINES).index):
            part[name] = part.pop(name)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def record_fault(name, row):
    """Keeps what a long test of faults found, and shows it in the README."""
    _record("faults.json", name, row)


def record_long(name, seconds):
    """Keeps when a long test passed, and shows it in the README."""
    commit = _commit()
    _record("long.json", name, {"passed": time.strftime("%Y-%m-%d"), "commit": commit, "minutes": round(seconds / 60, 1)})


def _record(file, name, row):
    path = HERE / file
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(dict(sorted((kept | {name: row}).items())), indent=1) + "\n")
    render()


def render():
    """Makes the README's tables anew."""
    (ROOT / "README.md").write_text(rendered((ROOT / "README.md").read_text()))


def _commit():
    """The commit that runs, and whether its code was changed since; tables beside it may be."""
    git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return git("describe", "--always") + ("-dirty" if git("status", "--porcelain", "--", "purerl", "tests/*.py") else "")


def circumstances(command):
    versions = {"purerl": purerl.__version__, "jax": jax.__version__}
    return {
        "command": f"python -m tests.benchmarks.results {command}",
        "commit": _commit(),
        "versions": versions,
        "cores": cores(),
    }


def cores():
    return len(os.sched_getaffinity(0))


def train(names):
    results = load()
    for name in names:
        start = time.perf_counter()
        scores = score(config(name), SEEDS).tolist()
        row = {"config": json.loads(config(name).to_json()), "seeds": list(SEEDS), "scores": scores}
        results["purerl"][name] = row | circumstances(f"train {name}") | {"seconds": time.perf_counter() - start}
        keep(results)
        print(says(name, scores), flush=True)


def peer(python, names):
    results = load()
    for name in names:
        for variant, sizes in PEER.items():
            work = sizes(config(name)) | {"env": name, "total_timesteps": config(name).total_timesteps, "seeds": list(SEEDS)}
            start = time.perf_counter()
            done = subprocess.run([python, str(HERE / "results_rejax.py"), json.dumps(work)], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            scores = json.loads(done.stdout.splitlines()[-1])
            row = {"config": work, "scores": scores} | circumstances("peer") | {"seconds": time.perf_counter() - start}
            results["rejax"].setdefault(name, {})[variant] = row
            keep(results)
            print(says(f"{name}, rejax with {variant}", scores), flush=True)


def says(name, scores):
    low, high = interval(np.array(scores))
    return f"{name}: IQM {iqm(np.array(scores)):.1f} ({low:.1f} to {high:.1f}) of {', '.join(f'{x:.1f}' for x in sorted(scores))}"


# --- tables -----------------------------------------------------------------------------------------------------------


def learning_table(results):
    lines = ["| environment | steps | IQM | 95 % interval | all seeds | gymnax | rejax |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, row in results["purerl"].items():
        scores = np.array(row["scores"])
        low, high = interval(scores)
        peers = [np.array(p["scores"]) for p in results["rejax"].get(name, {}).values()]
        best = f"{max(map(iqm, peers)):.1f}" if peers else ""
        cells = [name, f"{int(row['config']['total_timesteps']):,}", f"{iqm(scores):.1f}", f"{low:.1f} to {high:.1f}"]
        lines.append("| " + " | ".join([*cells, f"{scores.min():.1f} to {scores.max():.1f}", str(BASELINES[name]), best]) + " |")
    return "\n".join(lines)


def speed_table(speed):
    lines = ["| workload | purerl, steps/s | rejax, steps/s | ratio | range |", "|---|--:|--:|--:|--:|"]
    for name, row in speed["workloads"].items():
        ours, peers = (row[program]["speed"]["median"] for program in ("purerl", "rejax"))
        span = f"{row['ratios']['low']:.2f} to {row['ratios']['high']:.2f}"
        lines.append(f"| {name} | {ours / 1e3:,.0f} k | {peers / 1e3:,.0f} k | {row['ratio']:.2f} | {span} |")
    return "\n".join(lines)


def overhead_table(workloads):
    lines = ["| workload | `fit`, share of the speed of `jax.jit(train)` | range |", "|---|--:|--:|"]
    lines += [f"| {name} | {row['ratio']:.3f} | {row['low']:.3f} to {row['high']:.3f} |" for name, row in workloads.items()]
    return "\n".join(lines)


def costs_table(costs):
    lines = ["| | steps/s | share of PPO's | range | compile time |", "|---|--:|--:|--:|--:|"]
    for name, row in costs.items():
        speed = float(np.median([other[1] for _, other in row["pairs"]]))
        span = f"{row['low']:.2f} to {row['high']:.2f}"
        lines.append(f"| {name} | {speed / 1e3:,.0f} k | {row['speed']:.2f} | {span} | {row['compile']:.2f} |")
    return "\n".join(lines)


def faults_table(faults):
    lines = ["| fault | times | lost |", "|---|--:|--:|"]
    add = lambda says, times, lost: lines.append(f"| {says} | {times} | {lost} |")
    for name, what in (
        ("kills", "SIGKILL"),
        ("kills of a batch", "SIGKILL of a batch of configs, with evaluations and best states"),
    ):
        if kills := faults.get(name):
            during = kills["while a checkpoint was being written"]
            add(f"{what}, {during} of them while a checkpoint was being written", kills["kills"], kills["lost"])
    if crashes := faults.get("crashes"):
        calls = crashes["calls that touch the file system"]
        add(f"death at one of the {calls} calls that touch the file system", crashes["crashes"], crashes["lost"])
    if disks := faults.get("full disks"):
        add(f"a disk that fills at one of {disks['writes']} writes, `raise` and `warn`", disks["filled"], disks["lost"])
    if flips := faults.get("flips"):
        told = f"{flips['told']} told, {flips['no difference']} without a difference"
        bad = sum(flips[name] for name in ("other numbers", "raw errors", "lost states"))
        add(f"a bit flipped in any file of a run: {told}", flips["bits flipped"], bad)
    return "\n".join(lines)


def long_table(rows):
    lines = ["| test | minutes | last passed | commit |", "|---|--:|---|---|"]
    lines += [f"| `{name}` | {row['minutes']} | {row['passed']} | {row['commit']} |" for name, row in rows.items()]
    return "\n".join(lines)


def studies_tables():
    """A table for each study."""
    path = HERE / "studies.json"
    return {f"study {name}": study_table(rows) for name, rows in json.loads(path.read_text()).items()} if path.exists() else {}


def study_table(rows):
    lines = ["| | steps | IQM | 95 % interval | all seeds |", "|---|--:|--:|--:|--:|"]
    timed = all("seconds of a run" in row for row in rows.values())
    if timed:
        lines = [line + more for line, more in zip(lines, (" seconds of a run |", "--:|"), strict=True)]
    for label, row in rows.items():
        scores = np.array(row["scores"])
        digits = 0 if np.abs(scores).max() > 100 else 1 if np.abs(scores).max() > 2 else 2
        says = [f"{x:.{digits}f}" for x in (iqm(scores), *interval(scores), *sorted(scores))]
        cells = [label, f"{int(row['config']['total_timesteps']):,}", says[0], f"{says[1]} to {says[2]}", ", ".join(says[3:])]
        cells += [f"{row['seconds of a run']:.1f}"] if timed else []
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def names_table():
    """What other systems call things, a table for each."""
    text = (ROOT / "tests" / "data" / "names.csv").read_text()
    lines, system = [], None
    for row in csv.DictReader(text.splitlines()):
        if row["system"] != system:
            system = row["system"]
            lines += ["", f"| {system} | purerl | |", "|---|---|---|"]
        ours = row["purerl"].replace("cfg.", "")
        lines.append(f"| `{row['name']}` | {f'`{ours}`' if ours else ''} | {row['note']} |")
    return "\n".join([*lines, ""])


def rendered(readme):
    """The README with its tables made anew."""
    makers = {"speed": speed_table, "overhead": overhead_table, "costs": costs_table, "faults": faults_table, "long": long_table}
    kept = {name: HERE / f"{name}.json" for name in makers}
    tables = {"learning": learning_table(load()), "names": names_table()}
    tables |= {name: make(json.loads(kept[name].read_text())) for name, make in makers.items() if kept[name].exists()}
    tables |= studies_tables()
    for name, table in tables.items():
        before, rest = readme.split(f"<!-- {name} -->\n")
        readme = f"{before}<!-- {name} -->\n{table}\n<!-- end -->" + rest.split("<!-- end -->", 1)[1]
    return readme


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("train").add_argument("names", nargs="*", default=list(BASELINES), metavar="ENV")
    peers = commands.add_parser("peer")
    peers.add_argument("names", nargs="*", default=["Asterix-MinAtar", "Breakout-MinAtar"], metavar="ENV")
    peers.add_argument("--peer", required=True, help="the Python that has rejax")
    commands.add_parser("render")
    args = parser.parse_args()
    if args.command == "train":
        train(args.names)
    elif args.command == "peer":
        peer(args.peer, args.names)
    else:
        render()


if __name__ == "__main__":
    sys.exit(main())
