"""PPO of Stable-Baselines3 or SBX on gymnasium's environments. Runs in its own virtual environment; prints one JSON line."""

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
torch.set_num_threads(work.get("threads", 1))  # two threads are slower here
PPO = importlib.import_module({"Stable-Baselines3": "stable_baselines3", "SBX": "sbx"}[work["program"]]).PPO
settings = {
    name: (lambda left, x=x["linear"]: left * x) if isinstance(x, dict) and "linear" in x else x
    for name, x in work["settings"].items()
}
num_envs, normalize = settings.pop("num_envs"), settings.pop("normalize", False)


class Points(BaseCallback):
    """A callback that records mean returns of fresh episodes during training, and the seconds that these episodes take."""

    def __init__(self, env):
        super().__init__()
        self.env, self.curve, self.seconds = env, [], 0.0

    def _on_step(self):
        following = (len(self.curve) + 1) / work["points"] * work["total_timesteps"]
        if work.get("scored", True) and following <= min(self.num_timesteps, work["total_timesteps"]):
            start = time.perf_counter()
            self.curve.append(mean_return(self.model, self.env, 16))
            self.seconds += time.perf_counter() - start
        return True


def train(seed):
    env = make_vec_env(work["env"], n_envs=num_envs, seed=seed)
    if normalize:
        env = VecNormalize(env, gamma=settings.get("gamma", 0.99))
    model, points = PPO("MlpPolicy", env, seed=seed, device="cpu", **settings), Points(env)
    start = time.perf_counter()
    model.learn(work["total_timesteps"], callback=points)
    return model, env, time.perf_counter() - start - points.seconds, points.curve


def mean_return(model, env, episodes, count=16):
    """Return the mean return of fresh episodes with sampled actions."""
    fresh = make_vec_env(work["env"], n_envs=count, seed=10_000)
    shown = env.normalize_obs if normalize else lambda obs: obs
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


found = {"startup": time.time() - work["started"], "seconds": [], "scores": [], "curves": []}
for seed in work["seeds"]:
    model, env, seconds, curve = train(seed)
    found["seconds"].append(seconds)
    found["curves"].append(curve)
    found["scores"].append(mean_return(model, env, NUM_EPISODES) if work.get("scored", True) else None)
print(json.dumps(found))
