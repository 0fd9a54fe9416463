"""purerl in external (Python) environments, compared with JAX environments and with Stable-Baselines3.

python -m tests.benchmarks.host scores                CartPole of gymnasium and of gymnax, equal hyperparameters, seeds 0 - 7
python -m tests.benchmarks.host speed --peer PYTHON   steps per second of training on CartPole, the libraries in turn
python -m tests.benchmarks.host mujoco --peer PYTHON  HalfCheetah-v5, 300,000 steps, seeds 0 - 3 of each library

PYTHON is the interpreter of a virtual environment with `pip install stable-baselines3==2.9.2 "gymnasium[mujoco]"`. The machine
must be idle. `--record` saves the results in `host.json`.
"""

import json
import time

import jax
import numpy as np

import purerl
from purerl.runs.analysis.statistics import interval, iqm
from tests.benchmarks import recording
from tests.benchmarks.peers import for_baselines, run

CARTPOLE = purerl.PPOConfig(env="gymnasium/CartPole-v1", total_timesteps=500_000)
SPEED = CARTPOLE.replace(total_timesteps=102_400)
# Stable-Baselines3's defaults for PPO, with normalised observations and rewards, for both libraries.
CHEETAH = purerl.PPOConfig(
    env="gymnasium/HalfCheetah-v5",
    total_timesteps=300_000,
    num_envs=1,
    num_steps=2048,
    num_minibatches=32,
    num_epochs=10,
    lr=3e-4,
    lr_schedule="constant",
    hidden=(64, 64),
)
TURNS = 3


def peer(python, cfg, seeds, scored, threads=2):
    """Train Stable-Baselines3 with the hyperparameters of a config; return seconds and scores of each seed."""
    work = {
        "program": "Stable-Baselines3",
        "env": cfg.env.removeprefix("gymnasium/"),
        "total_timesteps": int(cfg.total_timesteps),
    }
    work |= {"settings": for_baselines(cfg), "seeds": list(seeds), "points": 1, "scored": scored, "threads": threads}
    return run(python, "peers_baselines.py", work | {"started": time.time()})


def trained(cfg, seed):
    """Train one seed; return the training function, the final state, and the seconds without compilation."""
    train = purerl.make_train(cfg)
    run = jax.jit(train).lower(jax.random.key(seed)).compile()
    start = time.perf_counter()
    result = jax.block_until_ready(run(jax.random.key(seed)))
    return train, result.state, time.perf_counter() - start


def score(train, state, seed, count=128):
    episodes = jax.jit(lambda state, key: train.evaluate(state, key, count))(state, jax.random.key(10_000 + seed))
    assert episodes.finished.all()
    return float(episodes.returns.mean())


def scores(seeds=range(8)):
    found = {}
    for name in ("gymnasium/CartPole-v1", "CartPole-v1"):
        runs = [trained(CARTPOLE.replace(env=name), seed) for seed in seeds]
        rows = [score(train, state, seed) for (train, state, _), seed in zip(runs, seeds, strict=True)]
        found[name] = {"scores": rows, "seconds": float(np.median([seconds for *_, seconds in runs]))}
        print(name, says(rows), flush=True)
    return found


def speed(python):
    found = {"purerl, gymnasium": [], "purerl, gymnax": [], "Stable-Baselines3": []}
    for turn in range(TURNS):
        for name, env in (("purerl, gymnasium", "gymnasium/CartPole-v1"), ("purerl, gymnax", "CartPole-v1")):
            found[name].append(int(SPEED.total_timesteps) / trained(SPEED.replace(env=env), turn)[2])
        by_threads = [peer(python, SPEED, [turn], False, threads)["seconds"][0] for threads in (1, 2)]
        found["Stable-Baselines3"].append(int(SPEED.total_timesteps) / min(by_threads))
        print({name: round(x[-1]) for name, x in found.items()}, flush=True)
    ours, theirs = (np.array(found[name]) for name in ("purerl, gymnasium", "Stable-Baselines3"))
    ratios = ours / theirs
    return {"steps a second": found, "ratio": [float(x) for x in (np.median(ratios), ratios.min(), ratios.max())]}


def mujoco(python, seeds=range(4)):
    runs = [trained(CHEETAH, seed) for seed in seeds]
    ours = {"scores": [score(train, state, seed, 16) for (train, state, _), seed in zip(runs, seeds, strict=True)]}
    ours["seconds"] = [seconds for *_, seconds in runs]
    print("purerl", ours, flush=True)
    found = peer(python, CHEETAH, seeds, True, 1)
    theirs = {name: found[name] for name in ("scores", "seconds")}
    print("Stable-Baselines3", theirs, flush=True)
    return {"purerl": ours, "Stable-Baselines3": theirs}


def says(rows):
    low, high = interval(np.array(rows))
    return f"IQM {iqm(np.array(rows)):.1f} ({low:.1f} to {high:.1f})"


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("what", choices=("scores", "speed", "mujoco"))
    parser.add_argument("--peer", metavar="PYTHON")
    args = parser.parse_args()
    found = scores() if args.what == "scores" else {"speed": speed, "mujoco": mujoco}[args.what](args.peer)
    print(json.dumps(found, indent=1))
    if args.record:
        recording.add("host.json", args.what, found | recording.circumstances(f"host {args.what}"))


if __name__ == "__main__":
    main()
