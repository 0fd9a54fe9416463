"""PPO of purejaxrl, for `peers.py`. Runs in purejaxrl's virtual environment; prints one JSON line.

purejaxrl needs repairs to run here. Empty modules replace brax and navix, which its `wrappers.py` imports. In
`ppo_continuous_action.py`, gymnax's environments replace brax's, and actions in [-1, 1] are scaled to the bounds of the action
space. The score is the mean return of the last 128 training episodes.
"""

import json
import pathlib
import sys
import time
import types

import gymnax
import jax
import numpy as np

LAST_EPISODES = 128

work = json.loads(sys.argv[1])
home = pathlib.Path(work["path"]) / "purejaxrl"


class Stretched:
    """A gymnax environment with actions in [-1, 1]."""

    def __init__(self, name):
        self._env, self._params = gymnax.make(name)

    def reset(self, key, params=None):
        return self._env.reset(key, self._params)

    def step(self, key, state, action, params=None):
        space = self._env.action_space(self._params)
        return self._env.step(key, state, space.low + (action + 1) / 2 * (space.high - space.low), self._params)

    def observation_space(self, params=None):
        return self._env.observation_space(self._params)

    def action_space(self, params=None):
        return types.SimpleNamespace(shape=self._env.action_space(self._params).shape)


def loaded(name, file, **replaced):
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile((home / file).read_text(), file, "exec"), module.__dict__)
    module.__dict__.update(replaced)
    return module


for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["brax"].envs = sys.modules["brax.envs"]
sys.modules["brax.envs.wrappers.training"].EpisodeWrapper = sys.modules["brax.envs.wrappers.training"].AutoResetWrapper = None
loaded("wrappers", "wrappers.py", BraxGymnaxWrapper=Stretched)
choices = hasattr(gymnax.make(work["env"])[0].action_space(), "n")
module = loaded("purejaxrl_program", "ppo.py" if choices else "ppo_continuous_action.py")
config = {"NORMALIZE_ENV": False} | work["settings"] | {"ENV_NAME": work["env"], "TOTAL_TIMESTEPS": work["total_timesteps"]}
run = jax.jit(lambda key: module.make_train(config)(key)["metrics"]).lower(jax.random.PRNGKey(0)).compile()
found = {"startup": time.time() - work["started"], "seconds": [], "scores": [], "curves": []}
for seed in work["seeds"]:
    start = time.perf_counter()
    metrics = jax.block_until_ready(run(jax.random.PRNGKey(seed)))
    found["seconds"].append(time.perf_counter() - start)
    ended, returns = (np.asarray(metrics[name]) for name in ("returned_episode", "returned_episode_returns"))
    found["scores"].append(float(returns[ended][-LAST_EPISODES:].mean()) if ended.any() else None)
    parts = zip(*(np.array_split(x, work["points"]) for x in (returns, ended)), strict=True)
    found["curves"].append([float(x[done].mean()) if done.any() else None for x, done in parts])
print(json.dumps(found))
