"""Stable-Baselines3's PPO, and SBX's, on environments of gymnasium; runs in their own environment and prints one JSON line."""

import importlib
import json
import sys
import time

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

NUM_EPISODES = 128

work = json.loads(sys.argv[1])
torch.set_num_threads(work.get("threads", 1))  # with two it is slower here
PPO = importlib.import_module({"Stable-Baselines3": "stable_baselines3", "SBX": "sbx"}[work["program"]]).PPO
settings = {
    name: (lambda left, x=x["linear"]: left * x) if isinstance(x, dict) and "linear" in x else x
    for name, x in work["settings"].items()
}
num_envs, normalize = settings.pop("num_envs"), settings.pop("normalize", False)


class Returns(BaseCallback):
    """Steps so far, and the return of each episode that ends."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def _on_step(self):
        self.rows += [(self.num_timesteps, info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info]
        return True


def train(seed):
    env = make_vec_env(work["env"], n_envs=num_envs, seed=seed)
    if normalize:
        env = VecNormalize(env, gamma=settings.get("gamma", 0.99))
    model, returns = PPO("MlpPolicy", env, seed=seed, device="cpu", **settings), Returns()
    start = time.perf_counter()
    model.learn(work["total_timesteps"], callback=returns)
    return model, env, time.perf_counter() - start, returns.rows


def score(model, env, count=16):
    """The mean return of fresh episodes with sampled actions."""
    fresh = make_vec_env(work["env"], n_envs=count, seed=10_000)
    shown = env.normalize_obs if normalize else lambda obs: obs
    obs, total, returns, left = fresh.reset(), np.zeros(count), [], np.full(count, NUM_EPISODES // count)
    while left.any():
        obs, reward, done, _ = fresh.step(model.predict(shown(obs), deterministic=False)[0])
        total += reward
        for i in np.flatnonzero(done):
            if left[i]:
                returns.append(total[i])
                left[i] -= 1
            total[i] = 0.0
    return float(np.mean(returns))


def curve(rows):
    part = work["total_timesteps"] / work["points"]
    means = [[r for steps, r in rows if i * part < steps <= (i + 1) * part] for i in range(work["points"])]
    return [float(np.mean(x)) if x else None for x in means]


found = {"startup": time.time() - work["started"], "seconds": [], "scores": [], "curves": []}
for seed in work["seeds"]:
    model, env, seconds, rows = train(seed)
    found["seconds"].append(seconds)
    found["curves"].append(curve(rows))
    found["scores"].append(score(model, env) if work.get("scored", True) else None)
print(json.dumps(found))
