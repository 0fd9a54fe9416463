"""Learning results: trains and scores seeds 0 - 7, keeps every score in `results.json`, and renders the tables.

python -m tests.benchmarks.results train [ENV ...]             purerl's presets, or the defaults where there is none
python -m tests.benchmarks.results check [ENV ...]             seeds 0 and 1 anew, against what is kept; two minutes
python -m tests.benchmarks.results peer --peer PYTHON          rejax on MinAtar, in its own environment (see speed.py)
python -m tests.benchmarks.tables                              the tables, from the JSON files beside this one
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import jaxlib
import numpy as np

import purerl
from purerl.config.algorithms import ALGORITHMS
from purerl.config.presets import PRESETS
from purerl.runs.analysis.statistics import interval, iqm
from purerl.runs.compile_cache import kind_of_processor
from tests.benchmarks import tables
from tests.benchmarks.scores import score
from tests.benchmarks.tables import BASELINES

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
SEEDS, CHECKED_SEEDS = range(8), range(2)
CHECKED = (
    *("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Breakout-MinAtar"),
    *("Catch-bsuite", "UmbrellaChain-bsuite", "DiscountingChain-bsuite", "FourRooms-misc"),
)

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
    """Keeps what a long test of faults found, and shows it in the tables."""
    _record("faults.json", name, row)


def record_long(name, seconds):
    """Keeps when a long test passed, and shows it in the tables."""
    commit = _commit()
    _record("long.json", name, {"passed": time.strftime("%Y-%m-%d"), "commit": commit, "minutes": round(seconds / 60, 1)})


def _record(file, name, row):
    path = HERE / file
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(dict(sorted((kept | {name: row}).items())), indent=1) + "\n")
    tables.render()


def _commit():
    """The commit that runs, and whether its code was changed since; tables beside it may be."""
    git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return git("describe", "--always") + ("-dirty" if git("status", "--porcelain", "--", "purerl", "tests/*.py") else "")


def circumstances(command, module="results"):
    versions = {"purerl": purerl.__version__, "jax": jax.__version__}
    return {
        "command": f"python -m tests.benchmarks.{module} {command}",
        "commit": _commit(),
        "versions": versions,
        "cores": cores(),
        "platform": platform(),
    }


def platform():
    """What the bits of a run depend on: the compiler, the processor, and how many cores share the work."""
    return f"jaxlib {jaxlib.__version__}, processor {kind_of_processor()}, {cores()} cores"


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


def check(names):
    """Trains the first seeds anew; what does not agree with the recorded results, in words."""
    found = []
    for name in names:
        scores = score(config(name), CHECKED_SEEDS)
        wrong = disagreements(config(name), scores, load()["purerl"][name], platform())
        print(f"{name}: {', '.join(f'{x:.1f}' for x in scores)}", *wrong, sep="\n  ", flush=True)
        found += [f"{name}: {text}" for text in wrong]
    return found


def disagreements(cfg, scores, row, here):
    """Where a config and the scores of its first seeds are not those of a recorded row.

    On the platform that the row was recorded on the scores are equal to the last bit. On another one rounding differs, and with
    it what is learnt: there they are within the range of all recorded seeds, and half its width to each side.
    """
    resolved = lambda cfg: json.loads(purerl.make_train(cfg).cfg.to_json())
    now, then = resolved(cfg), resolved(cfg.from_json(json.dumps(row["config"])))
    found = [f"{field}: {now[field]!r}, recorded with {then[field]!r}" for field in now if now[field] != then[field]]
    low, high = min(row["scores"]), max(row["scores"])
    low, high = low - (high - low) / 2, high + (high - low) / 2
    for seed, x in enumerate(map(float, scores)):
        if row.get("platform") == here and x != row["scores"][seed]:
            found.append(f"seed {seed}: {x!r}, and {row['scores'][seed]!r} was recorded on this platform")
        elif not low <= x <= high:
            found.append(f"seed {seed}: {x:.4g}, not from {low:.4g} to {high:.4g}")
    return found


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("train").add_argument("names", nargs="*", default=list(BASELINES), metavar="ENV")
    commands.add_parser("check").add_argument("names", nargs="*", default=list(CHECKED), metavar="ENV")
    peers = commands.add_parser("peer")
    peers.add_argument("names", nargs="*", default=["Asterix-MinAtar", "Breakout-MinAtar"], metavar="ENV")
    peers.add_argument("--peer", required=True, help="the Python that has rejax")
    args = parser.parse_args()
    if args.command == "check":
        return check(args.names)
    return train(args.names) if args.command == "train" else peer(args.peer, args.names)


if __name__ == "__main__":
    sys.exit(main())
