"""Speed of purerl's PPO on the workloads of the benchmark. Usage: purerl_ppo.py A B C D"""

import json
import sys
import time

import jax

import purerl

WORKLOADS = {
    "A": {"num_envs": 4, "num_steps": 128, "total_timesteps": 499_712},
    "B": {"num_envs": 2048, "num_steps": 32, "num_minibatches": 32, "total_timesteps": 5_242_880, "lr": 1e-3},
    "C": {"env": "Breakout-MinAtar", "torso": "mlp", "num_envs": 64, "num_minibatches": 8, "total_timesteps": 1_048_576, "lr": 1e-3},
    "D": {"num_envs": 4, "num_steps": 128, "total_timesteps": 499_712},
}


def workload(name, seeds, **fields):
    train, key = purerl.make_train(purerl.PPOConfig(**fields)), jax.random.key(0)
    if seeds > 1:
        train, key = jax.vmap(train), jax.random.split(key, seeds)
    start = time.perf_counter()
    compiled = jax.jit(train).lower(key).compile()
    compile_s = time.perf_counter() - start
    runs = []
    for _ in range(3):
        start = time.perf_counter()
        jax.block_until_ready(compiled(key))
        runs.append(time.perf_counter() - start)
    sps = seeds * fields["total_timesteps"] / min(runs)
    row = {"program": "purerl", "workload": name, "compile_s": round(compile_s, 2), "run_s": round(min(runs), 2), "sps": round(sps)}
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
  for name in sys.argv[1:] or WORKLOADS:
      workload(name, 16 if name == "D" else 1, **WORKLOADS[name])
