"""A small directory of runs in the format of this version, stopped after four of six updates.

JAX_NUM_CPU_DEVICES=2 python -m tests.helpers.old_runs    makes the directory under `data/runs`, unless it exists

Tests of later versions load the runs and resume them to the end. The directory also holds the hash of the values of the saved
state, and the final parameters.
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
from purerl import PPOConfig
from tests.helpers.tiny import PLAIN

RUN = pathlib.Path(__file__).parent.parent / "data" / "runs" / "0.4"
STOPPED, UPDATES = 4, 6
SIZES = {"total_timesteps": 64 * UPDATES, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "hidden": (8,)}
CFG = PPOConfig(**SIZES, **PLAIN, env="Pendulum-v1", nonfinite="ignore")
OPTIONS = {"num_seeds": 2, "eval_every": 2, "eval_episodes": 4, "save_every": 2, "keep": 1}


def configs():
    """Return two configs with different gravities."""
    return jax.vmap(lambda g: CFG.replace(env_params={"g": g}))(np.array([10.0, 0.0], np.float32))


def values(tree):
    """Return every number of a tree, in the order of its leaves and without their paths."""
    is_key = lambda x: jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(x) if is_key(x) else x) for x in jax.tree.leaves(tree)]


def digest(tree):
    return hashlib.sha256(b"".join(x.tobytes() for x in values(tree))).hexdigest()


def stop(progress):
    if progress.updates == STOPPED:
        os.kill(os.getpid(), signal.SIGTERM)


def make():
    state = purerl.fit(configs(), directory=RUN, recorders=(stop,), chunk_seconds=1e-9, **OPTIONS).state
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(RUN, copy, dirs_exist_ok=True)
        ended = purerl.fit(configs(), directory=copy, **OPTIONS)
    (RUN / "expected.json").write_text(json.dumps({"digest": digest(state)}) + "\n")
    np.savez_compressed(RUN / "ended.npz", *values(ended.state.params))
    for lock in RUN.glob(".*"):
        lock.unlink()


if __name__ == "__main__":
    warnings.simplefilter("error")
    if not RUN.exists():
        make()
