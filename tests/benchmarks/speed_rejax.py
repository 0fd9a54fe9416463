"""rejax's PPO on a workload of `speed.py`. Runs in rejax's virtual environment."""

import json
import sys

import jax
import jax.numpy as jnp
from rejax import PPO
from speed_timing import report

work = json.loads(sys.argv[1])
sizes = {name: work[name] for name in ("env", "num_envs", "num_steps", "num_minibatches", "total_timesteps")}
fixed = {"num_epochs": 4, "max_grad_norm": 0.5, "ent_coef": 0.01, "agent_kwargs": {"activation": "tanh"}}
once = {"eval_freq": work["total_timesteps"], "skip_initial_evaluation": True}
algo = PPO.create(learning_rate=work["lr"], **sizes, **fixed, **({} if work["evaluations"] else once))
if not work["evaluations"]:
    algo = algo.replace(eval_callback=lambda algo, state, key: jnp.zeros(()))  # only training is timed
train, key = algo.train, jax.random.PRNGKey(0)
if work["seeds"] > 1:
    train, key = jax.vmap(train), jax.random.split(key, work["seeds"])
report(train, key, work)
