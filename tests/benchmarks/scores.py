"""The score of a config on a seed, and what is said of several: the one definition that every result here uses."""

import jax
import jax.numpy as jnp
import numpy as np

import purerl
from purerl.keys import stream

NUM_EPISODES = 128


def score(cfg: purerl.PPOConfig, seeds: range) -> np.ndarray:
    """Trains each seed and scores its final parameters: the mean return of 128 fresh episodes with sampled actions. `[seeds]`."""
    purerl.use_cores()
    train = purerl.make_train(cfg)

    def one(key):
        return train.evaluate(train(key).state, stream(key, "score"), NUM_EPISODES)

    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    episodes = jax.jit(purerl.over_devices(one, exact=True))(keys)
    assert episodes.finished.all()
    return np.asarray(episodes.returns.mean(-1))
