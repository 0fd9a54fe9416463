"""purerl's PPO on a workload of `speed.py`."""

import json
import sys

import jax
from speed_timing import report

import purerl

work = json.loads(sys.argv[1])
if work["over_devices"]:
    purerl.use_cores()
sizes = {name: work[name] for name in ("env", "num_envs", "num_steps", "num_minibatches", "total_timesteps", "lr")}
cfg = purerl.PPOConfig.from_json(json.dumps({"torso": "mlp"} | sizes | work.get("more", {})))
train, key = purerl.make_train(cfg), jax.random.key(0)
if work["seeds"] > 1:
    many = purerl.over_devices if work["over_devices"] else jax.vmap
    train, key = many(train), jax.random.split(key, work["seeds"])
report((lambda key: train(key).state) if work["agent_alone"] else train, key, work)
