"""Candidates for presets; `choices.json` has every score that chose among them.

python -m tests.benchmarks.choices ENV ... --record      trains the candidates that have no score yet

Each candidate is trained with seeds 100 and 101, or with more seeds if returns scatter. If these do not decide, finalists are
trained with eight seeds. The candidate with the best mean score is the preset; `RESULTS.md` shows all candidates.
"""

import json
import math
import sys
import time
from typing import Any, NamedTuple

import numpy as np

import purerl
from tests.benchmarks import recording
from tests.benchmarks.scores import score

FIRST_SEED = 100


class Choice(NamedTuple):
    """The choice of a preset among candidates.

    cfg: the config that each candidate changes. candidates: a dict from a candidate's name to its changes. seeds: number of seeds
    for each candidate. finalists: candidates that are trained with eight seeds; if there are any, the preset is one of them.
    """

    cfg: purerl.PPOConfig
    candidates: dict[str, dict[str, Any]]
    seeds: int = 2
    finalists: tuple[str, ...] = ()

    def num_seeds(self, name: str) -> int:
        return 8 if name in self.finalists else self.seeds


MINATAR = purerl.PPOConfig(
    total_timesteps=3_000_000,
    num_envs=128,
    num_steps=32,
    num_minibatches=8,
    lr=2e-3,
    torso="mlp",
    hidden=(128, 64),
    activation="relu",
    value_clip="none",
)
# A rollout is one episode. The observation includes the time, so the value after the time limit is 0.
EPISODES = purerl.PPOConfig(
    total_timesteps=2_000_000,
    num_envs=64,
    num_steps=100,
    num_minibatches=8,
    lr=3e-3,
    ent_schedule="linear",
    truncation="zero",
    hidden=(32,),
    memory="min_gru",
    memory_size=32,
)
TASKS = EPISODES.replace(memory="gru", memory_size=64, hidden=(64,), lr=1e-3, total_timesteps=4_000_000)
BOX = purerl.PPOConfig(
    total_timesteps=1_000_000, num_envs=16, num_epochs=10, num_minibatches=16, lr=1e-3, value_clip="none", reward_clip=math.inf
)
WIDE = {"num_envs": 64, "num_minibatches": 32, "total_timesteps": 2_000_000}
ADAPTIVE = WIDE | {"lr_schedule": "kl_adaptive"}
SIMULATED = BOX.replace(num_envs=64, num_steps=32, num_epochs=4, normalize_reward=False)
LONGER = {"num_envs": 16, "num_steps": 128}

CHOICES = {
    "Pendulum-v1": Choice(
        BOX.replace(env="Pendulum-v1", gamma=0.95, log_std_init=-0.7),  # a standard deviation of 1; the bounds are -2 and 2
        {
            "": {},
            "twice the steps": {"total_timesteps": 2_000_000},
            "twice the steps, lr 2e-3": {"total_timesteps": 2_000_000, "lr": 2e-3},
            "twice the steps, lambda 0.87": {"total_timesteps": 2_000_000, "gae_lambda": 0.87},
            "gamma 0.98": {"gamma": 0.98},
            "gamma 0.9": {"gamma": 0.9},
            "gamma 0.9, twice the steps": {"gamma": 0.9, "total_timesteps": 2_000_000},
            "64 environments, minibatches of 256, four times the steps": WIDE | {"total_timesteps": 4_000_000},
            "64 environments, minibatches of 256, adaptive rate, twice the steps": ADAPTIVE,
            "64 environments, minibatches of 256, adaptive rate, four times the steps": ADAPTIVE | {"total_timesteps": 4_000_000},
            "64 environments, minibatches of 256, adaptive rate, five epochs, twice the steps": ADAPTIVE | {"num_epochs": 5},
            "64 environments, minibatches of 256, adaptive rate to KL 0.005, twice the steps": ADAPTIVE | {"desired_kl": 0.005},
            "64 environments, minibatches of 256, adaptive rate to KL 0.02, twice the steps": ADAPTIVE | {"desired_kl": 0.02},
            "64 environments, minibatches of 256, adaptive rate, gamma 0.97, twice the steps": ADAPTIVE | {"gamma": 0.97},
            "64 environments, minibatches of 256, four epochs, twice the steps": WIDE | {"num_epochs": 4},
            "64 environments, minibatches of 256, adaptive rate, gamma 0.99, four times the steps": {
                **ADAPTIVE | {"gamma": 0.99, "total_timesteps": 4_000_000},
            },
            "128 environments, minibatches of 256, adaptive rate, gamma 0.99, four times the steps": {
                **ADAPTIVE | {"gamma": 0.99, "total_timesteps": 4_000_000, "num_envs": 128, "num_minibatches": 64},
            },
            "64 environments, minibatches of 256, clipping at 0.1, lr 3e-4, gamma 0.99, four times the steps": {
                **WIDE | {"clip_eps": 0.1, "lr": 3e-4, "gamma": 0.99, "total_timesteps": 4_000_000},
            },
            "64 environments, minibatches of 256, clipping at 0.1, lr 6e-4, gamma 0.99, four times the steps": {
                **WIDE | {"clip_eps": 0.1, "lr": 6e-4, "gamma": 0.99, "total_timesteps": 4_000_000},
            },
            "the same, deviation of 1 half width": {
                **WIDE | {"clip_eps": 0.1, "lr": 6e-4, "gamma": 0.99, "total_timesteps": 4_000_000, "log_std_init": 0.0},
            },
            "two layers of 128, relu": {"hidden": (128, 128), "activation": "relu"},
            "64 environments, minibatches of 256, twice the steps": WIDE,
        },
        seeds=4,
    ),
    "Breakout-MinAtar": Choice(
        MINATAR.replace(env="Breakout-MinAtar", total_timesteps=1_000_000, num_envs=64, num_steps=128, lr=5e-3, gamma=0.995),
        {
            "value clipped": {"value_clip": "max"},
            "": {},
            "lambda 0.8": {"gae_lambda": 0.8},
            "six epochs, lr 2.5e-3": {"num_epochs": 6, "lr": 2.5e-3},
            "rollouts of 32": {"num_steps": 32},
            "value clipped, lambda 0.8": {"value_clip": "max", "gae_lambda": 0.8},
            "value clipped, three times the steps": {"value_clip": "max", "total_timesteps": 3_000_000},
            "value clipped, two layers of 64, three times the steps": {
                **{"value_clip": "max", "hidden": (64, 64), "total_timesteps": 3_000_000},
            },
            "lambda 0.8, three times the steps": {"gae_lambda": 0.8, "total_timesteps": 3_000_000},
        },
        seeds=4,
        finalists=("value clipped, three times the steps", "value clipped, two layers of 64, three times the steps"),
    ),
    "Freeway-MinAtar": Choice(
        MINATAR.replace(env="Freeway-MinAtar"),
        {
            "": {},
            "gamma 0.995": {"gamma": 0.995},
            "entropy to 0": {"ent_schedule": "linear"},
            "twice the steps": {"total_timesteps": 6_000_000},
        },
    ),
    "Seaquest-MinAtar": Choice(
        MINATAR.replace(env="Seaquest-MinAtar", total_timesteps=1_000_000),
        {
            "": {},
            "lr 1e-3": {"lr": 1e-3},
            "32 environments": {"num_envs": 32},
            "32 environments, values clipped, lambda 0.8": {"num_envs": 32, "value_clip": "max", "gae_lambda": 0.8},
            "64 environments, rollouts of 128, lr 5e-3, gamma 0.995": {
                **{"num_envs": 64, "num_steps": 128, "lr": 5e-3, "gamma": 0.995},
            },
        },
    ),
    "SpaceInvaders-MinAtar": Choice(MINATAR.replace(env="SpaceInvaders-MinAtar"), {"": {}}),
    "MetaMaze-misc": Choice(
        TASKS.replace(env="MetaMaze-misc", num_steps=200, normalize_obs=True, normalize_reward=True),
        {"": {}, "lr 3e-3": {"lr": 3e-3}},
    ),
    "PointRobot-misc": Choice(
        TASKS.replace(env="PointRobot-misc", normalize_reward=False, ent_schedule="constant"),
        {"deviation of 0.14": {"log_std_init": 0.3}, "deviation of 1": {"log_std_init": 2.3}},  # the bounds are -0.1 and 0.1
    ),
    "BernoulliBandit-misc": Choice(
        EPISODES.replace(env="BernoulliBandit-misc"),
        {"gamma 0.95": {"gamma": 0.95}, "gamma 0.5": {"gamma": 0.5}, "gamma 0.5, GRU": {"gamma": 0.5, "memory": "gru"}},
    ),
    "GaussianBandit-misc": Choice(
        EPISODES.replace(env="GaussianBandit-misc", normalize_reward=True, value_clip="none"),
        {
            "": {},
            "gamma 1": {"gamma": 1.0},
            "lr 1e-3": {"lr": 1e-3},
            "entropy 0.1": {"ent_coef": 0.1},
            "entropy 0.1, gamma 1": {"ent_coef": 0.1, "gamma": 1.0},
            "entropy 0.3": {"ent_coef": 0.3},
            "lr 1e-3, entropy 0.03": {"lr": 1e-3, "ent_coef": 0.03},
            "lr 3e-4, twice the steps": {"lr": 3e-4, "total_timesteps": 4_000_000},
            "lr 1e-3, 256 environments, twice the steps": {
                **{"lr": 1e-3, "num_envs": 256, "num_minibatches": 16, "total_timesteps": 4_000_000},
            },
        },
    ),
    "Pong-misc": Choice(
        MINATAR.replace(env="Pong-misc", total_timesteps=1_000_000, arch="shared", hidden=(64, 64), ent_schedule="linear"),
        {"gamma 0.99": {"lr": 1e-3}, "gamma 0.995": {"lr": 1e-3, "gamma": 0.995}},
    ),
    "Reacher-misc": Choice(
        BOX.replace(env="Reacher-misc", gamma=0.97),
        {"": {}, "gamma 0.95": {"gamma": 0.95}, "rewards as they are": {"normalize_reward": False}},
    ),
    "Swimmer-misc": Choice(
        purerl.PPOConfig(env="Swimmer-misc", total_timesteps=1_000_000, normalize_obs=False, normalize_reward=False),
        {"": {}, "16 environments, lr 1e-3": {"num_envs": 16, "num_minibatches": 16, "lr": 1e-3}},
    ),
    "brax/inverted_pendulum": Choice(
        SIMULATED.replace(env="brax/inverted_pendulum", total_timesteps=2_000_000),
        {
            "": {},
            "lr 3e-4": {"lr": 3e-4},
            "adaptive rate": {"lr_schedule": "kl_adaptive"},
            "gamma 0.995": {"gamma": 0.995},
            "values normalised": {"normalize_value": True},
            "clipping at 0.1": {"clip_eps": 0.1},
            "ten epochs": {"num_epochs": 10},
            "ten epochs, gamma 0.995": {"num_epochs": 10, "gamma": 0.995},
            "observations as they are": {"normalize_obs": False},
            "observations as they are, gamma 0.995": {"normalize_obs": False, "gamma": 0.995},
            "rollouts of 128, entropy 0.005": LONGER | {"ent_coef": 0.005},
            "rollouts of 128, entropy 0.005 to 0": LONGER | {"ent_coef": 0.005, "ent_schedule": "linear"},
        },
        seeds=8,
    ),
    "playground/CartpoleSwingup": Choice(
        SIMULATED.replace(env="playground/CartpoleSwingup"),
        {
            "": {},
            "gamma 0.995": {"gamma": 0.995},
            "ten epochs, lr 3e-4": {"num_epochs": 10, "lr": 3e-4},
            "adaptive rate": {"lr_schedule": "kl_adaptive"},
            "twice the steps": {"total_timesteps": 2_000_000},
        },
    ),
}


def config(env, name):
    """Return the config of a candidate."""
    choice = CHOICES[env]
    return choice.cfg.replace(**choice.candidates[name])


def best(env):
    """Return the name of the candidate with the best mean score on the tuning seeds; only finalists count, if there are any."""
    rows = recording.load("choices.json")[env]
    return max(CHOICES[env].finalists or rows, key=lambda name: np.mean(rows[name]["scores"]))


def main():
    parser = recording.parser(__doc__)
    parser.add_argument("names", nargs="*", default=list(CHOICES), metavar="ENV")
    args = parser.parse_args()
    for env in args.names:
        for name in CHOICES[env].candidates:
            num_seeds = CHOICES[env].num_seeds(name)
            rows = recording.load("choices.json").get(env, {})
            if name in rows and len(rows[name]["scores"]) == num_seeds:
                continue
            start = time.perf_counter()
            scores = score(config(env, name), range(FIRST_SEED, FIRST_SEED + num_seeds)).tolist()
            seconds = time.perf_counter() - start
            print(f"{env}, {name}: {np.round(scores, 2).tolist()}, {seconds:.0f} s", flush=True)
            if args.record:
                row = {"config": json.loads(config(env, name).to_json()), "scores": scores, "seconds": seconds}
                rows |= {name: row | recording.circumstances(f"choices {env}")}
                recording.add("choices.json", env, recording.in_order(rows, CHOICES[env].candidates), CHOICES)


if __name__ == "__main__":
    sys.exit(main())
