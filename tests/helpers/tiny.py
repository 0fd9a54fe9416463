"""A tiny run, and a hash of its results."""

import functools
import hashlib
import math
import pickle

import jax
import numpy as np

import purerl
from purerl import PPOConfig
from purerl.algorithms.ppo import surrogate
from purerl.learning.advantages import estimate
from purerl.learning.learner import Components, Learner
from purerl.learning.optimizers import base_optimizer
from purerl.learning.rewards import RewardStage
from tests.helpers.probes import Varied, boxed

# The defaults for discrete actions, for parts that are tested without an environment, which would resolve "auto".
PLAIN = {"ent_coef": 0.01, "normalize_obs": False, "normalize_reward": False, "reward_clip": math.inf, "value_clip": "max"}
SIZES = {"total_timesteps": 256, "num_envs": 4, "num_steps": 16, "num_epochs": 2, "num_minibatches": 2, "hidden": (16, 16)}
CFG = PPOConfig(**SIZES, **PLAIN, lr=1e-3)


def tiny(cfg=CFG, box=False, **objects):
    """Return the training function of a tiny run. Calls with equal configs share it, since tracing an update takes seconds."""
    if objects or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(cfg)):
        return purerl.make_train(cfg, env=boxed(Varied)() if box else Varied(), **objects)
    return _made(pickle.dumps(cfg), box)


@functools.lru_cache(64)
def _made(cfg, box):
    return purerl.make_train(pickle.loads(cfg), env=boxed(Varied)() if box else Varied())


def learner(cfg, network=None):
    """Return a learner with the default components."""
    return Learner(cfg, network, Components(estimate, surrogate, (), base_optimizer(cfg), None, RewardStage(cfg)))


def at(tree, index):
    """Return a tree with the entry of every leaf at this index."""
    return jax.tree.map(lambda x: x[index], tree)


def digest(tree):
    """Return the SHA-256 over the path, dtype, shape and bytes of every leaf."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        data = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        sha.update(f"{jax.tree_util.keystr(path)} {data.dtype} {data.shape}".encode() + data.tobytes())
    return sha.hexdigest()


if __name__ == "__main__":
    print(digest(jax.jit(tiny())(jax.random.key(0))))
