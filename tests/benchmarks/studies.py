"""Comparisons of algorithms and hyperparameters: scores of each case's seeds, 0 - 7. `--record` saves them in `studies.json`.

python -m tests.benchmarks.studies NAME ... --record              studies by name; minutes to an hour each
python -m tests.benchmarks.studies stale --seconds --record       seconds of a run of each recorded row; on an idle machine

Hyperparameters are chosen on other seeds: from grids of equal size for all algorithms, or by `purerl.tune` with equally many
trials.
"""

import itertools
import json
import sys
import time

import jax
import numpy as np

import purerl
from purerl.config.algorithms import algorithm_of
from purerl.studies.space import default_ranges
from tests.benchmarks import recording
from tests.benchmarks.scores import last_returns, score, score_rows
from tests.benchmarks.studies_cases import STUDIES

TUNING_SEEDS, FIRST_SEED_OF_TRIALS = range(100, 102), 1000


def settings(case):
    """Yield the changes of a case's config for each combination of values in its grid."""
    for values in itertools.product(*case.grid.values()):
        changes = {}
        for name, value in zip(case.grid, values, strict=True):
            changes |= dict(zip(name, value, strict=True)) if isinstance(name, tuple) else {name: value}
        yield changes


def scores_of(case, cfg, seeds, purejaxrl):
    """Return the score of each seed."""
    if case.purejaxrl:
        from tests.benchmarks import studies_purejaxrl

        return studies_purejaxrl.last_returns(purejaxrl, cfg, seeds)
    if case.last:
        return last_returns(cfg, seeds)
    how = {name: getattr(case, name) for name in ("memory", "success", "training_levels")}
    return score(cfg, seeds, case.env, case.before, **how)


def objects_of(case):
    """Return the arguments of `make_train` that replace an environment or a memory of the config."""
    return {name: x for name in ("env", "memory") if (x := getattr(case, name)) is not None}


def chosen(case, purejaxrl):
    """Return a case's config with the best values of its grid, and all values tried with their mean scores."""
    tried = []
    tree = jax.tree.structure
    rows = [(case.cfg.replace(**changes), changes) for changes in settings(case)]
    if case.purejaxrl:
        tried = [(float(scores_of(case, cfg, TUNING_SEEDS, purejaxrl).mean()), changes) for cfg, changes in rows]
        rows = []
    for _, same in itertools.groupby(sorted(rows, key=lambda row: str(tree(row[0]))), key=lambda row: str(tree(row[0]))):
        same = list(same)
        cfgs = [cfg for cfg, _ in same for _ in TUNING_SEEDS]
        scores = score_rows(cfgs, [seed for _ in same for seed in TUNING_SEEDS], case.env).reshape(len(same), -1)
        tried += [(float(mean), changes) for mean, (_, changes) in zip(scores.mean(1), same, strict=True)]
    best = max(tried, key=lambda row: row[0])[1]
    return case.cfg.replace(**best), [{"score": mean, **changes} for mean, changes in tried]


def tuned(case):
    """Return the config that `purerl.tune` finds for a case, and the values and the score of each trial."""
    ranges = {name: values for name, values in default_ranges(case.cfg).items() if isinstance(values, purerl.Range)}
    ranges = {name: x for name, x in (ranges | case.ranges).items() if name not in case.fixed}
    options = {"num_seeds": len(TUNING_SEEDS), "seed": FIRST_SEED_OF_TRIALS, "finalists": 2, "final_seeds": 1}
    options |= objects_of(case)
    steps = case.cfg.total_timesteps
    cfg = case.cfg.replace(total_timesteps=case.tuning_steps or steps)
    found = purerl.tune(cfg, ranges, trials=case.trials, at_once=min(case.trials, 8), **options)
    tried = [{"score": trial.score, **trial.point} for trial in found.trials]
    return found.cfg.replace(total_timesteps=steps), tried


def run(name, only, purejaxrl, record):
    for label, case in STUDIES[name]().items():
        if only not in label or (case.purejaxrl and not purejaxrl):
            continue
        start = time.perf_counter()
        cfg, tried = chosen(case, purejaxrl) if case.grid else tuned(case) if case.trials else (case.cfg, [])
        if case.like:
            found = type(cfg).from_json(json.dumps(recording.load("studies.json")[name][case.like]["config"]))
            sizes = ("env", "env_params", "total_timesteps", "num_envs", "num_steps")
            cfg = found.replace(**{name: getattr(cfg, name) for name in sizes})
        scores = scores_of(case, cfg, case.seeds, purejaxrl).tolist()
        row = {
            "algorithm": "purejaxrl" if case.purejaxrl else algorithm_of(cfg),
            "config": json.loads(cfg.to_json()),
            "tried": tried,
            "scores": scores,
        }
        row |= recording.circumstances(f"studies {name} --only '{label}'") | {"seconds": time.perf_counter() - start}
        if record:
            rows = recording.load("studies.json").get(name, {}) | {label: row}
            recording.add("studies.json", name, recording.in_order(rows, STUDIES[name]()), STUDIES)
        print(label, np.round(sorted(scores), 2).tolist(), f"{row['seconds']:.0f} s", flush=True)


def measure(name, only, record):
    """Measure the seconds of a compiled run of each recorded, timed case: the median of five, with all cases in turn."""
    cases, rows, key = STUDIES[name](), recording.load("studies.json")[name], jax.random.key(0)
    labels = [label for label, case in cases.items() if case.timed and only in label and label in rows]
    configs = [type(cases[label].cfg).from_json(json.dumps(rows[label]["config"])) for label in labels]
    runs = [jax.jit(purerl.make_train(cfg)).lower(key).compile() for cfg in configs]
    times = np.array([[_seconds(run, key) for run in runs] for _ in range(5)])
    for label, median in zip(labels, np.median(times, axis=0).tolist(), strict=True):
        rows[label] |= {"seconds of a run": median, "timed": recording.circumstances(f"studies {name} --seconds")}
        print(label, f"{median:.2f} s", flush=True)
    if record:
        recording.add("studies.json", name, rows, STUDIES)


def _seconds(run, key):
    start = time.perf_counter()
    jax.block_until_ready(run(key))
    return time.perf_counter() - start


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("names", nargs="+", choices=list(STUDIES))
    parser.add_argument("--only", default="", help="run only cases whose label contains this text")
    parser.add_argument("--seconds", action="store_true", help="measure only the seconds of runs of recorded rows")
    parser.add_argument("--purejaxrl", metavar="PATH", help="a clone of purejaxrl, for the cases with its PPO")
    args = parser.parse_args()
    purerl.use_cores()
    for name in args.names:
        if args.seconds:
            measure(name, args.only, args.record)
        else:
            run(name, args.only, args.purejaxrl, args.record)


if __name__ == "__main__":
    sys.exit(main())
