"""Scores of configs on seeds: the definitions that all benchmarks share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import purerl
from purerl.config.base import OnPolicyConfig
from purerl.core.keys import fold_in_name

NUM_EPISODES = 128
LAST_EPISODES = 100


def score(
    cfg: OnPolicyConfig,
    seeds: range,
    env: Any = None,
    before: OnPolicyConfig | None = None,
    *,
    memory: Any = None,
    success: bool = False,
    training_levels: bool = False,
) -> np.ndarray:
    """Train each seed and score its final parameters: the mean return of 128 fresh episodes with sampled actions. `[seeds]`.

    `env`, `memory`: replace those of the config.
    `before`: a config that is trained first; the training then begins with its parameters and statistics.
    `success`: score the share of episodes with a positive return, in place of the mean return.
    `training_levels`: score episodes in the training levels of a config with `num_levels`.
    """
    purerl.use_cores()
    train = purerl.make_train(cfg, env=env, memory=memory)
    first = purerl.make_train(before, env=env) if before else None
    returns = _returns(lambda key: _one(train, key, first, training_levels), _keys(seeds))
    return (returns > 0).mean(-1) if success else returns.mean(-1)


def score_rows(cfgs: list[OnPolicyConfig], seeds: list[int], env: Any = None) -> np.ndarray:
    """Score pairs of a config and a seed, in one compiled program; the configs may differ only in float fields. `[pairs]`."""
    purerl.use_cores()
    stacked = jax.tree.map(lambda *leaves: np.array(leaves, np.float32), *cfgs)
    return _returns(lambda cfg, key: _one(purerl.make_train(cfg, env=env), key), stacked, _keys(seeds)).mean(-1)


def last_returns(cfg: OnPolicyConfig, seeds: range) -> np.ndarray:
    """Train each seed; return the mean return over the last updates in which at least 100 episodes ended. `[seeds]`."""
    purerl.use_cores()
    train = purerl.make_train(cfg)
    run = jax.jit(purerl.over_devices(lambda key: train(key).metrics["episode_return"], exact=True))
    returns, counts = (np.asarray(x)[:, ::-1].cumsum(1) for x in jax.tree.leaves(run(_keys(seeds))))
    assert (counts[:, -1] >= LAST_EPISODES).all(), f"only {counts[:, -1]} episodes ended"
    last = (counts >= LAST_EPISODES).argmax(1)
    return np.array([r[i] / n[i] for r, n, i in zip(returns, counts, last, strict=True)])


def _one(train: purerl.Train, key: jax.Array, first: purerl.Train | None = None, training_levels: bool = False) -> Any:
    if first is None:
        return train.evaluate(train(key).state, fold_in_name(key, "score"), NUM_EPISODES, training_levels=training_levels)
    taken = first(key).state
    state = train.init(fold_in_name(key, "second run"))
    extra = {**state.extra, "intrinsic": taken.extra["intrinsic"]}
    state = state.replace(params=taken.params, statistics=taken.statistics, extra=extra)
    after = lambda state, _: (train.update(state)[0], None)
    state, _ = jax.lax.scan(after, train.restart(state), length=train.plan.num_updates)
    return train.evaluate(state, fold_in_name(key, "score"), NUM_EPISODES)


def _keys(seeds: Any) -> jax.Array:
    return jnp.stack([jax.random.key(seed) for seed in seeds])


def _returns(one: Any, *rows: Any) -> np.ndarray:
    episodes = jax.jit(purerl.over_devices(one, exact=True))(*rows)
    assert episodes.finished.all()
    return np.asarray(episodes.returns)
