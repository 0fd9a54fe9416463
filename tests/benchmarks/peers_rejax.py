"""PPO of rejax, for `peers.py`. Runs in rejax's virtual environment; prints one JSON line.

The curves are from a second training, which is not timed.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp
from rejax import PPO
from rejax.evaluate import evaluate

NUM_EPISODES = 128

work = json.loads(sys.argv[1])
settings = {"gamma": 0.99, "gae_lambda": 0.95, "clip_eps": 0.2, "vf_coef": 0.5} | work["settings"]
agent = {"hidden_layer_sizes": tuple(settings.pop("hidden", (64, 64))), "activation": settings.pop("activation")}
steps = work["total_timesteps"]


def made(eval_freq, eval_callback):
    algo = PPO.create(
        env=work["env"], total_timesteps=steps, eval_freq=eval_freq, skip_initial_evaluation=True, agent_kwargs=agent, **settings
    )
    return algo.replace(eval_callback=eval_callback)


def mean_return(algo, state, key, episodes):
    return evaluate(algo.make_act(state), key, algo.env, algo.env_params, episodes)[1].mean()


timed = made(steps, lambda algo, state, key: jnp.zeros(()))
seen = made(steps // work["points"], lambda algo, state, key: mean_return(algo, state, key, 16))
key = jax.random.PRNGKey(0)
run = jax.jit(lambda key: timed.train(key)[0]).lower(key).compile()
startup = time.time() - work["started"]
score = jax.jit(lambda state, key: mean_return(timed, state, key, NUM_EPISODES))
curve = jax.jit(lambda key: seen.train(key)[1])
found = {"startup": startup, "seconds": [], "scores": [], "curves": []}
for seed in work["seeds"]:
    key = jax.random.PRNGKey(seed)
    start = time.perf_counter()
    state = jax.block_until_ready(run(key))
    found["seconds"].append(time.perf_counter() - start)
    found["scores"].append(float(score(state, jax.random.fold_in(key, 1))))
    points = curve(key).tolist()
    found["curves"].append([points[min(i * len(points) // work["points"], len(points) - 1)] for i in range(work["points"])])
print(json.dumps(found))
