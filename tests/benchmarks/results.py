"""Learning results: scores of seeds 0 - 7. `--record` saves them in `results.json`; `RESULTS.md` shows them.

python -m tests.benchmarks.results train [ENV ...]             purerl's presets, or the defaults without a preset
python -m tests.benchmarks.results check [ENV ...]             retrains seeds 0 and 1, compares scores; two minutes
python -m tests.benchmarks.results peer --peer PYTHON          rejax, in the virtual environment of speed.py
python -m tests.benchmarks.results purejaxrl PATH              purejaxrl on Seaquest, which rejax lacks (see studies_purejaxrl.py)
python -m tests.benchmarks.tables                              the tables, from the JSON files beside this one
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

import numpy as np

import purerl
from purerl.config.algorithms import ALGORITHMS
from purerl.config.presets import presets
from purerl.runs.analysis.statistics import interval, iqm
from tests.benchmarks import recording
from tests.benchmarks.peers import PUREJAXRL, REJAX, for_rejax
from tests.benchmarks.recording import circumstances
from tests.benchmarks.references import REFERENCES
from tests.benchmarks.scores import score

HERE = pathlib.Path(__file__).parent
SEEDS, CHECKED_SEEDS = range(8), range(2)
NAMES = (*REFERENCES, "CartPole-v1 in bfloat16", *(f"CartPole-v1 by {name}" for name in ("ppg", "daac", "appo")))
CHECKED = (
    *("CartPole-v1", "Acrobot-v1", "Reacher-misc", "MountainCar-v0", "MountainCarContinuous-v0"),
    *("Catch-bsuite", "UmbrellaChain-bsuite", "DiscountingChain-bsuite", "FourRooms-misc", "FrozenLake-misc"),
)

# The task of `REJAX` whose hyperparameters rejax uses for each task. Asterix has those of Breakout in `REJAX`.
PEERED = {"Asterix-MinAtar": "Asterix-MinAtar"} | dict.fromkeys(("Reacher-misc", "Swimmer-misc"), "Pendulum-v1")
SEAQUEST = "Seaquest-MinAtar"  # missing in rejax's version of gymnax


def config(name):
    """Return a preset, or the defaults; "ENV in DTYPE" sets `compute_dtype`, "ENV by NAME" is another algorithm's defaults."""
    env, _, algorithm = name.partition(" by ")
    if algorithm:
        return ALGORITHMS[algorithm](env=env)
    env, _, dtype = name.partition(" in ")
    return (presets().get(env) or purerl.PPOConfig(env=env)).replace(compute_dtype=dtype or "float32")


def load():
    return {"purerl": {}, "rejax": {}, "purejaxrl": {}} | recording.load("results.json")


def keep(results):
    parts = {who: recording.in_order(part, NAMES) for who, part in results.items()}
    recording.write("results.json", parts, ("purerl", "rejax", "purejaxrl"))


def train(names, record):
    for name in names:
        start = time.perf_counter()
        scores = score(config(name), SEEDS).tolist()
        row = {"config": json.loads(config(name).to_json()), "seeds": list(SEEDS), "scores": scores}
        row |= circumstances(f"results train '{name}'") | {"seconds": time.perf_counter() - start}
        print(says(name, scores), flush=True)
        if record:
            results = load()
            results["purerl"][name] = row
            keep(results)


def check(names):
    """Retrain the first seeds; return the differences from the recorded configs and scores."""
    found = []
    for name in names:
        scores = score(config(name), CHECKED_SEEDS)
        wrong = disagreements(config(name), scores, load()["purerl"][name], recording.platform())
        print(f"{name}: {', '.join(f'{x:.1f}' for x in scores)}", *wrong, sep="\n  ", flush=True)
        found += [f"{name}: {text}" for text in wrong]
    return found


def disagreements(cfg, scores, row, here):
    """List how a config and the scores of its first seeds differ from a recorded row.

    On the platform of the row, scores must be equal bit for bit. On another platform, rounding and therefore learning differ, and
    scores must lie in the range of all recorded seeds, extended by half its width to each side.
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


def peer(python, names, record):
    for name in names:
        for variant, settings in (("its own config", REJAX[PEERED[name]]), ("our settings", for_rejax(config(name)))):
            work = settings | {"env": name, "total_timesteps": config(name).total_timesteps, "seeds": list(SEEDS)}
            start = time.perf_counter()
            done = subprocess.run([python, str(HERE / "results_rejax.py"), json.dumps(work)], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            scores = json.loads(done.stdout.splitlines()[-1])
            row = {"config": work, "scores": scores} | circumstances("results peer --peer PYTHON")
            print(says(f"{name}, rejax with {variant}", scores), flush=True)
            if record:
                results = load()
                results["rejax"].setdefault(name, {})[variant] = row | {"seconds": time.perf_counter() - start}
                keep(results)


def purejaxrl(path, record):
    """Train purejaxrl's PPO on purerl's Seaquest; the score is the mean return of the last 100 training episodes."""
    from tests.benchmarks import studies_purejaxrl

    ours, its = config(SEAQUEST), PUREJAXRL["Breakout-MinAtar"]
    sizes = {name: its[name.upper()] for name in ("lr", "num_envs", "num_steps", "num_minibatches", "activation")}
    its_own = purerl.PPOConfig(env=SEAQUEST, total_timesteps=ours.total_timesteps, **sizes)
    for variant, cfg in (("its own config", its_own), ("our settings", ours)):
        start = time.perf_counter()
        scores = studies_purejaxrl.last_returns(path, cfg, SEEDS).tolist()
        row = {"config": json.loads(cfg.to_json()), "scores": scores} | circumstances("results purejaxrl PATH")
        print(says(f"{SEAQUEST}, purejaxrl with {variant}", scores), flush=True)
        if record:
            results = load()
            results["purejaxrl"].setdefault(SEAQUEST, {})[variant] = row | {"seconds": time.perf_counter() - start}
            keep(results)


def says(name, scores):
    low, high = interval(np.array(scores))
    return f"{name}: IQM {iqm(np.array(scores)):.1f} ({low:.1f} to {high:.1f}) of {', '.join(f'{x:.1f}' for x in sorted(scores))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    made = recording.with_record(commands.add_parser("train"))
    made.add_argument("names", nargs="*", default=list(NAMES), metavar="ENV")
    commands.add_parser("check").add_argument("names", nargs="*", default=list(CHECKED), metavar="ENV")
    peers = recording.with_record(commands.add_parser("peer"))
    peers.add_argument("names", nargs="*", default=list(PEERED), metavar="ENV")
    peers.add_argument("--peer", required=True, help="the Python of a virtual environment with rejax")
    recording.with_record(commands.add_parser("purejaxrl")).add_argument("path", help="a clone of purejaxrl's repository")
    args = parser.parse_args()
    if args.command == "check":
        return check(args.names)
    if args.command == "purejaxrl":
        return purejaxrl(args.path, args.record)
    return train(args.names, args.record) if args.command == "train" else peer(args.peer, args.names, args.record)


if __name__ == "__main__":
    sys.exit(main())
