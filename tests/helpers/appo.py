"""Small runs of APPO."""

import jax

import purerl
from purerl import APPOConfig
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG

KEY = jax.random.key(0)
SIZES = {name: getattr(CFG, name) for name in ("num_envs", "num_steps", "num_epochs", "num_minibatches", "hidden", "lr")}
FRESH = APPOConfig(total_timesteps=64 * 3, replay=1, lag=0, target_update_freq=1, **SIZES)
STALE = FRESH.replace(total_timesteps=64 * 10, replay=3, lag=2, target_update_freq=4, lr_schedule="constant")
MEMORY = {"memory": "gru", "memory_size": 8, "sequence_length": 8}


def made(cfg=STALE, env=None, **objects):
    return purerl.make_train(cfg, env=env or Varied(), **objects)


def updates(cfg, count, env=None):
    """Return the training function, and the states before and after each of `count` updates."""
    train = made(cfg, env)
    states, update = [jax.jit(train.init)(KEY)], jax.jit(train.update)
    for _ in range(count):
        states.append(update(states[-1])[0])
    return train, states
