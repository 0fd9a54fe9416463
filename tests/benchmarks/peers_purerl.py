"""purerl's side of `peers.py`; prints one JSON line."""

import json
import sys
import time

import jax
import numpy as np

import purerl
from purerl.core.keys import named_key

NUM_EPISODES = 128

work = json.loads(sys.argv[1])
train = purerl.make_train(purerl.PPOConfig.from_json(json.dumps(work["settings"])))
run = jax.jit(train).lower(jax.random.key(0)).compile()
startup = time.time() - work["started"]
evaluate = jax.jit(lambda state, key: train.evaluate(state, key, NUM_EPISODES).returns.mean())
found = {"startup": startup, "seconds": [], "scores": [], "curves": []}
for seed in work["seeds"]:
    start = time.perf_counter()
    result = jax.block_until_ready(run(jax.random.key(seed)))
    found["seconds"].append(time.perf_counter() - start)
    total, count = (np.asarray(x) for x in jax.tree.leaves(result.metrics["episode_return"]))
    parts = [(t.sum(), n.sum()) for t, n in zip(*(np.array_split(x, work["points"]) for x in (total, count)), strict=True)]
    found["curves"].append([float(t / n) if n else None for t, n in parts])
    found["scores"].append(float(evaluate(result.state, named_key(jax.random.key(seed), "score"))))
print(json.dumps(found))
