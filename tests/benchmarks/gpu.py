"""All GPU measurements in one command, which needs a GPU. `gpu.md` shows the results.

    python3 -m venv .venv && .venv/bin/pip install '.[cuda]'
    .venv/bin/python -m tests.benchmarks.gpu --profile DIRECTORY --purejaxrl purejaxrl --peer .venv-purejaxrl/bin/python

`programs.py` says how to get purejaxrl; without it, only purerl is measured. Every measurement is its own process, the two
programs in turn, and is kept in `gpu.json` beside this file at once:

    smoke     one update of every algorithm: finite numbers
    speed     environment steps a second, compiling apart: medians of three runs, and their range
    largest   the most environments of B that fit, by doubling
    profile   one update of B, for `tensorboard --logdir DIRECTORY`

`--small` runs all measurements in a few minutes on a CPU, to try this program itself.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from tests.benchmarks import recording
from tests.benchmarks.programs import GRU, IMAGES, LARGE, SMALL

HERE = pathlib.Path(__file__).parent
PATH = HERE / "gpu.json"
SMOKE = ("ppo", "ppg", "daac", "appo", "rnd", "gru", "lstm", "min_gru", "cnn", "bfloat16")
SPEED = {  # hyperparameters, seeds, environment steps
    "A": (SMALL, 1, 500_000),
    "B": (LARGE, 1, 20_000_000),
    "B, 65,536 environments": (LARGE | {"num_envs": 65_536}, 1, 200_000_000),
    "C, MLP": (IMAGES | {"torso": "mlp"}, 1, 10_000_000),
    "C, convolutions": (IMAGES | {"torso": "cnn"}, 1, 10_000_000),
    "D, 16 seeds": (SMALL, 16, 500_000),
    "D, 256 seeds": (SMALL, 256, 500_000),
    "D, 2048 seeds": (SMALL, 2048, 100_000),
    "GRU": (LARGE | GRU, 1, 1_000_000),
    "GRU, 4 x 128": (SMALL | GRU, 1, 20_000),
}


def config(changes, **more):
    import purerl

    return purerl.PPOConfig(**{**changes, **more})


def about():
    """Return the device and the versions that are measured."""
    import flax
    import jax

    versions = {"python": sys.version.split()[0], "jax": jax.__version__, "flax": flax.__version__}
    return {"device": jax.devices()[0].device_kind, "versions": versions}


def smoke(name, small):
    """Return True if all parameters are finite after an update of an algorithm."""
    import jax
    import jax.numpy as jnp

    import purerl

    sizes = {"num_envs": 8 if small else 2048, "num_steps": 8}
    others = {"ppg": purerl.PPGConfig, "daac": purerl.DAACConfig, "appo": purerl.APPOConfig}
    changes = {"rnd": {"rnd": purerl.RNDConfig()}, "cnn": {"env": "Breakout-MinAtar", "torso": "cnn"}}
    changes |= {name: {"memory": name} for name in ("gru", "lstm", "min_gru")} | {"bfloat16": {"compute_dtype": "bfloat16"}}
    phases = {"n_pi": 1, "e_aux": 1} if name == "ppg" else {}
    train = purerl.make_train(others.get(name, purerl.PPOConfig)(**sizes, **phases, **changes.get(name, {})))
    state, _ = jax.jit(train.update)(jax.jit(train.init)(jax.random.key(0)))
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(state.params))


def speed(name, small):
    """Measure seconds to compile, and environment steps a second over all seeds, of three runs."""
    import jax

    import purerl
    from tests.benchmarks.speed_timing import timed

    changes, seeds, steps = SPEED[name]
    seeds, steps = (min(seeds, 4), 20_000) if small else (seeds, steps)
    cfg = config(changes | ({"num_envs": min(changes["num_envs"], 64)} if small else {}), total_timesteps=steps)
    train, keys = purerl.make_train(cfg), jax.random.split(jax.random.key(0), seeds)
    run, given = (jax.vmap(train), keys) if seeds > 1 else (train, keys[0])
    return timed(run, given, seeds * train.plan.env_steps)


def fits(num_envs):
    """Return True if an update of B with `count` environments runs."""
    import jax

    import purerl

    train = purerl.make_train(config(LARGE, num_envs=num_envs))
    jax.block_until_ready(jax.jit(train.update)(jax.jit(train.init)(jax.random.key(0))))
    return True


def profile(directory):
    """Trace one update of B, after a first that compiles."""
    import jax

    import purerl

    train = purerl.make_train(config(LARGE))
    update = jax.jit(train.update)
    state, _ = jax.block_until_ready(update(jax.jit(train.init)(jax.random.key(0))))
    with jax.profiler.trace(directory):
        jax.block_until_ready(update(state))
    return directory


ONE = {"about": about, "smoke": smoke, "speed": speed, "fits": fits, "profile": profile}


def process(what, *values):
    """Return the result of one measurement, in its own process; None if the process failed."""
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--one", json.dumps([what, *values])]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PURERL_CACHE": "off"})
    if done.returncode:
        print(f"{what} {values}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def peer(name, path, python):
    """Run purejaxrl on the same work; return None for a torso of convolutions, which it lacks."""
    changes, seeds, steps = SPEED[name]
    if changes.get("torso") == "cnn":
        return None
    work = {key: changes[key] for key in ("env", "num_envs", "num_steps", "num_minibatches")}
    work |= {"memory": "memory" in changes, "seeds": seeds, "total_timesteps": steps}
    done = subprocess.run(
        [python, str(HERE / "programs_purejaxrl.py"), path, "time", json.dumps(work)], capture_output=True, text=True
    )
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--purejaxrl", metavar="PATH")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--profile", metavar="DIRECTORY", default="")
    parser.add_argument("--out", default=str(PATH))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        what, *values = json.loads(args.one)
        print(json.dumps(ONE[what](*values)))
        return 0
    found = {**process("about"), "date": time.strftime("%Y-%m-%d"), "commit": recording.commit(), "smoke": {}, "speed": {}}
    keep = lambda: pathlib.Path(args.out).write_text(json.dumps(found, indent=1) + "\n")
    for name in SMOKE:
        found["smoke"][name] = process("smoke", name, args.small)
        keep()
    for name in SPEED:
        row = {"purerl": process("speed", name, args.small)}
        if args.purejaxrl and not args.small:
            row["purejaxrl"] = peer(name, args.purejaxrl, args.peer)
        medians = [statistics.median(x["speeds"]) for x in row.values() if x]
        row["ratio"] = medians[0] / medians[1] if len(medians) == 2 else None
        found["speed"][name] = row
        print(name, row, flush=True)
        keep()
    num_envs = 64 if args.small else 2**17
    while num_envs < (256 if args.small else 2**27) and process("fits", num_envs):
        found["largest"] = num_envs
        num_envs *= 2
        keep()
    if args.profile:
        found["profile"] = process("profile", args.profile)
        keep()
    return int(not all(found["smoke"].values()))


if __name__ == "__main__":
    sys.exit(main())
