"""Stable-Baselines3's PPO, as `host.py` asks for it; runs in the peer's own environment."""

import json
import sys
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

work = json.loads(sys.argv[1])
torch.set_num_threads(work["threads"])


def train(seed):
    env = make_vec_env(work["env"], n_envs=work["num_envs"], seed=seed)
    if work["normalize"]:
        env = VecNormalize(env, gamma=work["ppo"]["gamma"])
    policy = {"net_arch": {"pi": work["hidden"], "vf": work["hidden"]}}
    model = PPO("MlpPolicy", env, seed=seed, device="cpu", policy_kwargs=policy, **work["ppo"])
    start = time.perf_counter()
    model.learn(work["total_timesteps"])
    return model, env, time.perf_counter() - start


def score(model, env, episodes=128):
    """The mean return of fresh episodes with sampled actions."""
    count = 16
    fresh = make_vec_env(work["env"], n_envs=count, seed=10_000)
    shown = env.normalize_obs if work["normalize"] else lambda obs: obs
    obs, total, returns, left = fresh.reset(), np.zeros(count), [], np.full(count, episodes // count)
    while left.any():
        obs, reward, done, _ = fresh.step(model.predict(shown(obs), deterministic=False)[0])
        total += reward
        for i in np.flatnonzero(done):
            if left[i]:
                returns.append(total[i])
                left[i] -= 1
            total[i] = 0.0
    return float(np.mean(returns))


found = []
for seed in work["seeds"]:
    model, env, seconds = train(seed)
    found.append({"seconds": seconds, "score": score(model, env) if work["scored"] else None})
print(json.dumps(found))
