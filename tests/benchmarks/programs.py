"""Kernels, waits and bytes of an update on an H100 and on a TPU v5e, counted without either device.

    python3 -m venv .venv-programs && .venv-programs/bin/pip install "jax[cuda13,tpu]==0.10.2" .      (6 GB)
    .venv-programs/bin/python -m tests.benchmarks.programs [NAME ...]

For purejaxrl, clone its repository, and make a virtual environment beside the first:

    git clone https://github.com/luchris429/purejaxrl && git -C purejaxrl checkout 31756b1
    python3 -m venv .venv-purejaxrl
    .venv-purejaxrl/bin/pip install "jax[cuda13,tpu]==0.10.2" "gymnax==0.0.9" flax optax distrax tfp-nightly
    .venv-programs/bin/python -m tests.benchmarks.programs --purejaxrl purejaxrl --peer .venv-purejaxrl/bin/python

`programs_purejaxrl.py` lists the repairs of purejaxrl. Counts are exact; `--record` saves them in `programs.json`. The exit
status is 1 if a count is above its ceiling. `--kernels TIMES` lists the kernels of the largest loop body that runs TIMES times in
an update.
"""

import json
import math
import os
import pathlib
import subprocess
import sys
from unittest import mock

HERE = pathlib.Path(__file__).parent
TARGETS = ("h100", "v5e")
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "XLA_FLAGS": "--xla_gpu_autotune_level=0"}
NAMES = ("env", "num_envs", "num_steps", "num_minibatches")
SMALL = dict(zip(NAMES, ("CartPole-v1", 4, 128, 4), strict=True))
LARGE = dict(zip(NAMES, ("CartPole-v1", 2048, 32, 32), strict=True))
LONG = dict(zip(NAMES, ("CartPole-v1", 8, 1024, 4), strict=True))
IMAGES = LARGE | {"env": "Breakout-MinAtar"}
GRU = {"memory": "gru", "memory_size": 128, "hidden": (128,), "activation": "relu", "arch": "shared"}  # as in `ppo_rnn.py`

# Algorithm, hyperparameters, seeds in one `vmap`; limits for an update on an H100: kernels, waits, MB of scratch memory; devices.
WORKLOADS = {
    "A": ("ppo", SMALL, 1, (2000, 0, 0.5)),
    "B": ("ppo", LARGE, 1, (4400, 0, 10)),
    "C": ("ppo", IMAGES | {"torso": "mlp"}, 1, (5700, 0, 140)),
    "C, convolutions": ("ppo", IMAGES | {"torso": "cnn"}, 1, (9500, 0, 145)),
    "D, 16 seeds": ("ppo", SMALL, 16, (2200, 0, 7)),
    "GRU": ("ppo", LARGE | GRU, 1, (63000, 0, 24)),
    "GRU, 4 x 128": ("ppo", SMALL | GRU, 1, (30300, 0, 3)),
    "8 x 1024": ("ppo", LONG, 1, (11_400, 0, 6)),
    "LRU, 8 x 1024": ("ppo", LONG | {"memory": "lru", "memory_size": 64, "hidden": (64,)}, 1, (20_400, 0, 18)),
    "minimal GRU, 8 x 1024": ("ppo", LONG | {"memory": "min_gru", "memory_size": 64, "hidden": (64,)}, 1, (13_700, 0, 11)),
    "PPG": ("ppg", {"num_envs": 2048, "aux_columns": 2048}, 1, (12800, 1, 660)),
    "PPG, no auxiliary epochs": ("ppg", {"num_envs": 2048, "e_aux": 0}, 1, (3100, 1, 480)),
    "APPO": ("appo", LARGE, 1, (5150, 1, 150)),
    "RND": ("ppo", LARGE | {"rnd": True}, 1, (9600, 0, 145)),
    "A in bfloat16": ("ppo", SMALL | {"compute_dtype": "bfloat16"}, 1, (2060, 0, 0.5)),
    "C in bfloat16": ("ppo", IMAGES | {"torso": "mlp", "compute_dtype": "bfloat16"}, 1, (6100, 0, 140)),
}
# Each device has as many environments as a single device. XLA's GPU scheduler hides exchanges behind other work, and needs up to
# half as much memory again for this. The ceilings hold for the memory without hidden exchanges.
NOT_HIDDEN = {"xla_gpu_enable_analytical_sol_latency_estimator": False}
# Place all scratch arrays of a TPU program in memory that XLA counts, and none in the memory of the chip's core.
ALL_COUNTED = {"xla_vf_vmem_memory_space_assignment": "false"}
DEVICES = {"B": (8, 256), "C": (8,), "GRU": (8,), "PPG": (8,), "APPO": (8,), "RND": (8,)}
for name, device_counts in DEVICES.items():
    for count in device_counts:
        algorithm, changes, _, (kernels, waits, megabytes) = WORKLOADS[name]
        changes = changes | {key: changes[key] * count for key in ("num_envs", "aux_columns") if key in changes}
        WORKLOADS[f"{name} on {count} devices"] = (algorithm, changes, 1, (1.1 * kernels, waits, 1.05 * megabytes), count)
# Environments with slow resets, counted only for an H100, in `resets.json`.
CRAFTAX = {"env": "craftax/Craftax-Symbolic-v1", "num_steps": 64, "num_minibatches": 8, "hidden": (512, 512, 512)}
ANT = dict(zip(NAMES, ("brax/ant", 4096, 80, 32), strict=True)) | {"hidden": (256, 256), "activation": "swish"}
RESETS = {
    "Craftax-Symbolic, 1024 x 64": ("ppo", CRAFTAX | {"num_envs": 1024}, 1, (94_000, 0, 2900)),
    "Craftax-Symbolic, 4096 x 64": ("ppo", CRAFTAX | {"num_envs": 4096}, 1, (94_000, 0, 11_600)),
    "Craftax-Symbolic, 16384 x 64": ("ppo", CRAFTAX | {"num_envs": 16_384}, 1, (94_000, 0, 46_400)),
    "brax/ant, 4096 x 80": ("ppo", ANT | {"env_kwargs": (("backend", "positional"),)}, 1, (133_000, 0, 140)),
    "Maze": ("ppo", LARGE | {"env": "jumanji/Maze-v0"}, 1, (5300, 3, 27)),
    "SlidingTilePuzzle": ("ppo", LARGE | {"env": "jumanji/SlidingTilePuzzle-v0"}, 1, (20_000, 0, 23)),
    "RubiksCube": ("ppo", LARGE | {"env": "jumanji/RubiksCube-v0"}, 1, (17_000, 0, 20)),
    "MiniGrid-DoorKey-5x5": ("ppo", LARGE | {"env": "xminigrid/MiniGrid-DoorKey-5x5"}, 1, (12_300, 0, 38)),
    "CartpoleBalance": ("ppo", LARGE | {"env": "playground/CartpoleBalance"}, 1, (8400, 0, 20)),
    "CheetahRun": ("ppo", LARGE | {"env": "playground/CheetahRun"}, 1, (74_000, 240, 50)),
}
LOOPS = {"A": (128, 10), "B": (128, 30)}  # iterations, and the limit of kernels: of a rollout step, of a minibatch
PEERS = {"A": (SMALL, False), "B": (LARGE, False), "C": (IMAGES, False), "GRU": (LARGE, True), "GRU, 4 x 128": (SMALL, True)}


def compiled(name, target, options=None):
    """Compile an update of a workload for a device with these compiler options."""
    import jax

    import purerl
    from tests.benchmarks.programs_counting import compiled_for, mesh_of

    algorithm, changes, seeds, _, *devices = (WORKLOADS | RESETS)[name]
    changes = changes | ({"rnd": purerl.RNDConfig()} if changes.get("rnd") else {})
    cfg = {"ppo": purerl.PPOConfig, "ppg": purerl.PPGConfig, "appo": purerl.APPOConfig}[algorithm](**changes)
    with mock.patch("purerl.checks.check_environment._memory", return_value=math.inf):  # of this machine
        train, key = purerl.make_train(cfg), jax.random.key(0)
    if devices:
        spread = purerl.data_parallel(train, mesh_of(target, *devices))
        spread_as = {"mesh": spread.mesh, "specs": (spread.specs,), "options": options}
        return compiled_for(target, spread.update, jax.eval_shape(train.init, key), **spread_as)
    if seeds == 1:
        return compiled_for(target, train.update, jax.eval_shape(train.init, key), options=options)
    axes = train.seed_axes
    states = jax.eval_shape(jax.vmap(train.init, out_axes=axes), jax.random.split(key, seeds))
    return compiled_for(target, jax.vmap(train.update, in_axes=(axes,), out_axes=(axes, 0)), states)


def counted_peer(name, target, path, python):
    """Count purejaxrl's program of a workload, in its own process."""
    work, memory = PEERS[name]
    command = [python, str(HERE / "programs_purejaxrl.py"), path, target, json.dumps(work | {"memory": memory})]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENVIRONMENT)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def beyond(name, target, row):
    """Return the counts above their ceilings: the workload's for an H100; else 1.02 times the recorded counts."""
    from tests.benchmarks import recording

    before = recording.load("programs.json").get(name, {}).get(target, {}).get("purerl", {})
    before = recording.load("resets.json").get(name, before)
    grown = ("moved",) if target == "h100" else ("kernels", "memory in all")
    ceilings = {what: 1.02 * before[what] for what in grown if what in before}
    if target == "h100":
        *most, megabytes = (WORKLOADS | RESETS)[name][3]
        ceilings |= dict(zip(("kernels", "waits", "memory"), (*most, megabytes * 1e6), strict=True))
        if name in LOOPS:
            times, ceilings["kernels of an iteration"] = LOOPS[name]
            row = row | {"kernels of an iteration": max(x["kernels"] for x in row["loops"] if x["times"] == times)}
    return [f"{what} {row[what]:,} > {most:,.0f}" for what, most in ceilings.items() if row[what] > most]


def main():
    os.environ.update(ENVIRONMENT)
    from tests.benchmarks import recording  # imported late: JAX reads the environment variables when it is imported
    from tests.benchmarks.programs_counting import counts, kernels

    parser = recording.parser(__doc__)
    parser.add_argument("names", nargs="*", default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--targets", nargs="+", default=TARGETS, choices=TARGETS)
    parser.add_argument("--purejaxrl", metavar="PATH")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--kernels", type=int, metavar="TIMES")
    args = parser.parse_args()
    found = []
    for name in args.names:
        for target in ("h100",) if name in RESETS else args.targets:
            if args.purejaxrl and name not in PEERS:
                continue
            program = None if args.purejaxrl else compiled(name, target)
            if args.kernels:
                rows = kernels(program, args.kernels)
                print("\n".join(map("  ".join, rows)))
                if args.record:
                    kept = recording.load("programs.json")
                    kept[name][target].setdefault("lists", {})[str(args.kernels)] = rows
                    recording.write("programs.json", kept, WORKLOADS)
                continue
            row = counted_peer(name, target, args.purejaxrl, args.peer) if args.purejaxrl else counts(program)
            several = len((WORKLOADS | RESETS)[name]) == 5
            if several and target == "h100":
                row["memory with hiding"] = row["memory"]
                row["memory"] = counts(compiled(name, target, NOT_HIDDEN))["memory"]
            elif (several or name in DEVICES) and target == "v5e" and not args.purejaxrl:
                row["memory in all"] = counts(compiled(name, target, ALL_COUNTED))["memory"]
            above = [] if args.purejaxrl else beyond(name, target, row)
            if args.record and name in RESETS:
                recording.add("resets.json", name, row, RESETS)
            elif args.record:
                kept = recording.load("programs.json")
                kept.setdefault(name, {}).setdefault(target, {})["purejaxrl" if args.purejaxrl else "purerl"] = row
                recording.write("programs.json", kept, WORKLOADS)
            found += above
            print(name, target, {key: n for key, n in row.items() if key != "loops"}, *above, flush=True)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
