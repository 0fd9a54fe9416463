"""PPO of purerl, for `peers.py`; prints one JSON line."""

import json
import sys
import time

import jax

import purerl
from purerl.core.keys import fold_in_name

NUM_EPISODES, EPISODES_OF_A_POINT = 128, 16

work = json.loads(sys.argv[1])
train = purerl.make_train(purerl.PPOConfig.from_json(json.dumps(work["settings"])))
run = jax.jit(train).lower(jax.random.key(0)).compile()
startup = time.time() - work["started"]
mean_return = lambda state, key, episodes: train.evaluate(state, key, episodes).returns.mean()
score = jax.jit(lambda state, key: mean_return(state, fold_in_name(key, "score"), NUM_EPISODES))
point = jax.jit(lambda state, key: mean_return(state, fold_in_name(key, "point"), EPISODES_OF_A_POINT))
onward = jax.jit(lambda state, updates: jax.lax.fori_loop(0, updates, lambda _, state: train.update(state)[0], state))


def curve(key):
    """Return the mean return of fresh episodes at each point of a second training, which is not timed."""
    state, done, found = jax.jit(train.init)(key), 0, []
    for i in range(work["points"]):
        ended = round((i + 1) / work["points"] * train.plan.num_updates)
        state, done = onward(state, ended - done), ended
        found.append(float(point(state, jax.random.fold_in(key, i))))
    return found


found = {"startup": startup, "seconds": [], "scores": [], "curves": []}
for seed in work["seeds"]:
    key = jax.random.key(seed)
    start = time.perf_counter()
    result = jax.block_until_ready(run(key))
    found["seconds"].append(time.perf_counter() - start)
    found["scores"].append(float(score(result.state, key)))
    found["curves"].append(curve(key))
print(json.dumps(found))
