"""Small directories of runs as each version of purerl left them, stopped after four of six updates.

JAX_NUM_CPU_DEVICES=2 python -m tests.old_runs    makes those of this version, under `data/runs`

One that is there already is never made again. Beside each are the hash of the state that was saved, by its values alone, and the
parameters that the run ended with.
"""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import tempfile
import warnings

import jax
import numpy as np

import purerl
from purerl import APPOConfig, DAACConfig, PPGConfig, PPOConfig, RNDConfig
from tests.probes import Varied
from tests.tiny import PLAIN

HERE = pathlib.Path(__file__).parent / "data" / "runs"
STOPPED, UPDATES = 4, 6
SIZES = {"total_timesteps": 64 * UPDATES, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "hidden": (8,)}
MEMORY = {"memory_size": 4, "sequence_length": 8}
PPO = PPOConfig(**SIZES, **PLAIN)  # as every default was
GRAVITIES = jax.vmap(lambda g: PPO.replace(env="Pendulum-v1", env_params={"g": g}))

CASES = {  # config, further arguments of `fit`
    "ppo": (PPO, {}),
    "ppg": (PPGConfig(**SIZES, n_pi=3, e_v=2, aux_columns=4, vf_coef=0.5, max_grad_norm=0.5), {"env": Varied()}),
    "daac": (DAACConfig(**SIZES, metrics_every=3), {"env": Varied()}),
    "appo": (APPOConfig(**SIZES, replay=2, lag=2), {"env": Varied()}),
    "rnd": (PPO.replace(rnd=RNDConfig(features=4, hidden=(8,), init_steps=64)), {"env": Varied()}),
    "gru": (PPO.replace(memory="gru", **MEMORY), {"env": Varied()}),
    "lstm": (PPO.replace(memory="lstm", **MEMORY), {"env": Varied()}),
    "batch": (lambda: GRAVITIES(np.array([10.0, 0.0], np.float32)), {"num_seeds": 2}),
}


def arguments(name):
    cfg, more = CASES[name]
    return (cfg() if callable(cfg) else cfg), {"eval_every": 2, "eval_episodes": 4, "save_every": 2, "keep": 1, **more}


def values(tree):
    """Every number of a tree, in the order of its leaves and without their paths."""
    is_key = lambda x: jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in jax.tree.leaves(tree)]


def digest(tree):
    return hashlib.sha256(b"".join(x.tobytes() for x in values(tree))).hexdigest()


def stop(progress):
    if progress.updates == STOPPED:
        os.kill(os.getpid(), signal.SIGTERM)


def make(name):
    target = HERE / purerl.__version__ / name
    cfg, options = arguments(name)
    state = purerl.fit(cfg, directory=target, recorders=(stop,), chunk_seconds=1e-9, **options).state
    assert purerl.load(target, **{n: x for n, x in options.items() if n == "env"}).updates == STOPPED
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(target, copy, dirs_exist_ok=True)
        ended = purerl.fit(cfg, directory=copy, **options)
    (target / "expected.json").write_text(json.dumps({"digest": digest(state)}) + "\n")
    np.savez_compressed(target / "ended.npz", *values(ended.state.params))
    for lock in target.glob(".*"):
        lock.unlink()


if __name__ == "__main__":
    warnings.simplefilter("error")
    for name in CASES:
        if not (HERE / purerl.__version__ / name).exists():
            make(name)
