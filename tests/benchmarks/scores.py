"""The score of a config on a seed, and what is said of several: the one definition that every result here uses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import purerl
from purerl.config import OnPolicyConfig
from purerl.keys import stream

NUM_EPISODES = 128


def score(cfg: OnPolicyConfig, seeds: range, env: Any = None) -> np.ndarray:
    """Trains each seed and scores its final parameters: the mean return of 128 fresh episodes with sampled actions. `[seeds]`."""
    purerl.use_cores()
    train = purerl.make_train(cfg, env=env)
    return _scores(lambda key: _one(train, key), _keys(seeds))


def score_rows(cfgs: list[OnPolicyConfig], seeds: list[int], env: Any = None) -> np.ndarray:
    """The scores of pairs of a config and a seed, in one program: configs that differ in floats only. `[pairs]`."""
    purerl.use_cores()
    stacked = jax.tree.map(lambda *leaves: np.array(leaves, np.float32), *cfgs)
    return _scores(lambda cfg, key: _one(purerl.make_train(cfg, env=env), key), stacked, _keys(seeds))


def _one(train: purerl.Train, key: jax.Array) -> Any:
    return train.evaluate(train(key).state, stream(key, "score"), NUM_EPISODES)


def _keys(seeds: Any) -> jax.Array:
    return jnp.stack([jax.random.key(seed) for seed in seeds])


def _scores(one: Any, *rows: Any) -> np.ndarray:
    episodes = jax.jit(purerl.over_devices(one, exact=True))(*rows)
    assert episodes.finished.all()
    return np.asarray(episodes.returns.mean(-1))
