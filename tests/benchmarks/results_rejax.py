"""Scores of rejax's PPO, for `results.py`. Runs in rejax's virtual environment; prints one JSON line."""

import json
import sys

import jax
import jax.numpy as jnp
from rejax import PPO
from rejax.evaluate import evaluate

NUM_EPISODES = 128

work = json.loads(sys.argv[1])
seeds = jnp.array(work.pop("seeds"))
agent = {"hidden_layer_sizes": tuple(work.pop("hidden", (64, 64))), "activation": work.pop("activation")}
defaults = {"gamma": 0.99, "gae_lambda": 0.95, "clip_eps": 0.2, "vf_coef": 0.5}
once = {"eval_freq": work["total_timesteps"], "skip_initial_evaluation": True}
algo = PPO.create(agent_kwargs=agent, **once, **(defaults | work))
algo = algo.replace(eval_callback=lambda algo, state, key: jnp.zeros(()))


@jax.jit
def score(seed):
    state, _ = algo.train(jax.random.PRNGKey(seed))
    key = jax.random.fold_in(jax.random.PRNGKey(seed), 1)
    return evaluate(algo.make_act(state), key, algo.env, algo.env_params, NUM_EPISODES)[1].mean()


print(json.dumps([float(score(seed)) for seed in seeds]))
