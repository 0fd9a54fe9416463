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


def iqm(scores: np.ndarray) -> float:
    """The interquartile mean: of the middle half, whose outermost scores count in part where the seeds do not divide by 4."""
    scores, n = np.sort(scores), len(scores)
    edges = np.linspace(0, 1, n + 1)
    weight = np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25)
    return float(np.average(scores, weights=np.maximum(weight, 0)))


def interval(scores: np.ndarray, resamples: int = 10_000) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the interquartile mean over seeds (Agarwal et al. 2021, arXiv:2108.13264)."""
    draws = np.random.default_rng(0).choice(scores, (resamples, len(scores)))
    low, high = np.percentile([iqm(draw) for draw in draws], [2.5, 97.5])
    return float(low), float(high)
