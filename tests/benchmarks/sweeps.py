"""Speed of a sweep as one compiled program, and results of tuning: `sweeps.json` and `tuning.json`, shown in `tuning.md`.

python -m tests.benchmarks.sweeps speed             96 runs as one program, and one after the other, in turn; five minutes
python -m tests.benchmarks.sweeps tune [TASK ...]   the tuner and random search, each for the same time; then seeds 0 - 7

Needs `pip install '.[tune]'` and an idle machine. Without `--record` nothing is written.
"""

import json
import pathlib
import time

import jax
import numpy as np

import purerl
from purerl.config.presets import presets
from purerl.runs.trainer import Trainer
from purerl.studies.space import default_ranges
from tests.benchmarks import recording
from tests.benchmarks.scores import score

HERE = pathlib.Path(__file__).parent
SEEDS, PAIRS = 4, 5
GRID = {"lr": np.geomspace(1e-4, 1e-2, 6), "ent_coef": [0.0, 0.003, 0.01, 0.03]}
TASKS = ("Acrobot-v1", "MountainCar-v0", "Pendulum-v1", "Breakout-MinAtar")
SEARCHES = ("tune", "random")
FIRST_SEED = 1000  # of the trials; scores are of seeds 0 - 7
# Fields from the preset. With the defaults on Breakout, four environments and convolutions, a run takes minutes on a CPU.
SHAPES = {"Breakout-MinAtar": ("torso", "hidden", "num_envs", "num_minibatches")}
AT_ONCE = {"Breakout-MinAtar": 4}  # trials in one program; sixteen would take longer than the search is allowed


def speed(total_timesteps=100_000):
    """Measure the seconds of 96 runs: as one program over all devices, and one after the other with the config as an argument."""
    purerl.use_cores()
    cfg = purerl.PPOConfig(env="CartPole-v1", total_timesteps=total_timesteps)
    made = purerl.sweep(cfg, GRID)
    runs = Trainer(made.programs()[0].cfg, 0, SEEDS, False, {}, 1)
    runs.compile(runs.init())
    updates = runs.here.plan.num_updates

    def together():
        jax.block_until_ready(runs.chunk(runs.init(), updates)[0])

    one = jax.jit(lambda cfg, key: purerl.make_train(cfg)(key))
    alone = one.lower(made.configs[0], jax.random.key(0)).compile()

    def apart():
        for cfg in made.configs:
            for seed in range(SEEDS):
                jax.block_until_ready(alone(cfg, jax.random.key(seed)))

    seconds = {"together": [], "apart": []}
    together()
    for _ in range(PAIRS):
        for name, function in (("together", together), ("apart", apart)):
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
            print(f"{name}: {seconds[name][-1]:.1f} s", flush=True)
    ratios = np.array(seconds["apart"]) / np.array(seconds["together"])
    memory = alone.memory_analysis()
    return {
        "runs": len(made.points) * SEEDS,
        "steps": runs.here.plan.env_steps,
        "devices": jax.device_count(),
        "seconds": {name: float(np.median(x)) for name, x in seconds.items()},
        "ratio": [float(x) for x in (np.median(ratios), ratios.min(), ratios.max())],
        "bytes of a device": runs.needed_bytes(),
        "bytes of one run": memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes,
    }


def tuned(task, minutes, random):
    """Search from the defaults for `minutes`; score the best config on seeds 0 - 7, as presets are scored."""
    import optuna

    purerl.use_cores()
    shapes = {name: getattr(presets()[task], name) for name in ("total_timesteps", *SHAPES.get(task, ()))}
    cfg = purerl.PPOConfig(env=task, **shapes)
    plain = {"sampler": lambda seed: optuna.samplers.RandomSampler(seed=seed), "pruner": optuna.pruners.NopPruner()}
    options = {
        "trials": 10_000,
        "at_once": AT_ONCE.get(task, 16),
        "num_seeds": 4,
        "seed": FIRST_SEED,
        "search_hours": minutes / 60,
    }
    found = purerl.tune(cfg, default_ranges(cfg), **options, **(plain | {"rungs": 1} if random else {}))
    return {
        "point": found.point,
        "trials": len(found.trials),
        "completed": sum(trial.completed for trial in found.trials),
        "env_steps": found.env_steps,
        "minutes": found.seconds / 60,
        "scores": score(found.cfg, range(8)).tolist(),
        "preset": recording.load("results.json")["purerl"][task]["scores"],
    }


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("what", choices=("speed", "tune"))
    parser.add_argument("tasks", nargs="*", default=TASKS, metavar="TASK")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--only", choices=SEARCHES, help="run only this search")
    args = parser.parse_args()
    if args.what == "speed":
        found = speed()
        print(json.dumps(found, indent=1))
        if args.record:
            recording.add("sweeps.json", "speed", found | recording.circumstances("sweeps speed"))
        return
    for task in args.tasks:
        for name in SEARCHES if args.only is None else (args.only,):
            found = tuned(task, args.minutes, random=name == "random")
            print(task, name, json.dumps(found), flush=True)
            if args.record:
                label = f"{task}, {'random search' if name == 'random' else 'purerl tune'}"
                recording.add(
                    "tuning.json", label, found | recording.circumstances(f"sweeps tune {task} --minutes {args.minutes:g}")
                )


if __name__ == "__main__":
    main()
