"""Configs, each of which was tuned for one environment, on seeds that no published score uses."""

import math

from purerl.config.algorithms import PPOConfig
from purerl.core.errors import ConfigError, Problem, nearest

_MINATAR = PPOConfig(
    total_timesteps=3_000_000,
    num_envs=64,
    num_minibatches=8,
    lr=5e-3,
    gamma=0.995,
    torso="mlp",
    hidden=(128, 64),
    activation="relu",
)

_GAMES = _MINATAR.replace(num_envs=128, num_steps=32, lr=2e-3, gamma=0.99, value_clip="none")

_CONTINUOUS = PPOConfig(
    num_envs=16,
    num_epochs=10,
    num_minibatches=16,
    lr=1e-3,
    ent_coef=0.0,
    value_clip="none",
    normalize_obs=True,
    normalize_reward=True,
    reward_clip=math.inf,
)

_GRID = PPOConfig(
    total_timesteps=500_000, num_envs=64, num_steps=64, num_minibatches=8, lr=1e-3, hidden=(64,), activation="relu", torso="mlp"
)

_EPISODES = PPOConfig(  # a rollout is one episode; observations include the time, the previous action and the previous reward
    num_envs=64,
    num_steps=100,
    num_minibatches=8,
    ent_schedule="linear",
    truncation="zero",
    memory="gru",
)

_LEARNING_TO_LEARN = _EPISODES.replace(total_timesteps=4_000_000, lr=1e-3, hidden=(64,), memory_size=64)

_BANDITS = _EPISODES.replace(total_timesteps=2_000_000, lr=3e-3, hidden=(32,), memory="min_gru", memory_size=32)

_SIMULATED = _CONTINUOUS.replace(total_timesteps=2_000_000, num_envs=64, num_steps=32, num_epochs=4, normalize_reward=False)

_CRAFTAX = PPOConfig(
    total_timesteps=1_000_000, num_envs=64, num_steps=64, num_minibatches=8, lr=1e-3, gae_lambda=0.8, hidden=(128, 128)
)

PRESETS = {
    "Acrobot-v1": PPOConfig(env="Acrobot-v1", num_envs=16, num_steps=64, lr=3e-3, ent_coef=0.0),
    "Asterix-MinAtar": _GAMES.replace(env="Asterix-MinAtar", total_timesteps=10_000_000),
    "BernoulliBandit-misc": _BANDITS.replace(env="BernoulliBandit-misc", gamma=0.95),
    "Breakout-MinAtar": _MINATAR.replace(env="Breakout-MinAtar"),
    "DiscountingChain-bsuite": PPOConfig(
        env="DiscountingChain-bsuite",
        truncation="zero",  # the time is observed, and nothing follows the time limit
    ),
    "FrozenLake-misc": PPOConfig(
        env="FrozenLake-misc",
        total_timesteps=1_000_000,
        num_envs=64,
        num_steps=64,
        num_minibatches=8,
        lr=1e-3,
        gamma=0.999,
        ent_schedule="linear",
    ),
    "Freeway-MinAtar": _GAMES.replace(env="Freeway-MinAtar"),
    "GaussianBandit-misc": _BANDITS.replace(
        env="GaussianBandit-misc",
        total_timesteps=4_000_000,
        num_envs=256,  # between episodes, an arm's rewards vary by more than trying the arm gains
        num_minibatches=16,
        lr=1e-3,
        value_clip="none",
        normalize_reward=True,
    ),
    "MemoryChain-bsuite": PPOConfig(
        env="MemoryChain-bsuite",
        num_envs=64,
        num_steps=32,
        num_minibatches=8,
        lr=1e-3,
        ent_schedule="linear",
        hidden=(64,),
        memory="gru",
        memory_size=64,
    ),
    "MetaMaze-misc": _LEARNING_TO_LEARN.replace(env="MetaMaze-misc", num_steps=200, normalize_obs=True, normalize_reward=True),
    "MountainCar-v0": PPOConfig(
        env="MountainCar-v0",
        total_timesteps=1_000_000,
        num_envs=16,
        num_steps=16,
        lr=3e-3,
        gae_lambda=0.98,
        ent_coef=0.03,  # every reward is -1 until the car reaches the top, so only exploration gets there
    ),
    "MountainCarContinuous-v0": _CONTINUOUS.replace(
        env="MountainCarContinuous-v0",
        total_timesteps=1_000_000,
        gamma=0.999,
        log_std_init=1.0,  # most actions then lie at the bounds, which swings the car up by chance
    ),
    "Pendulum-v1": _CONTINUOUS.replace(
        env="Pendulum-v1",
        total_timesteps=4_000_000,
        num_envs=64,
        num_minibatches=32,
        lr=6e-4,
        gamma=0.99,  # the best policy has a mean return of -149.5 at a discount of 0.95, and of -138 at 0.99
        clip_eps=0.1,  # with 0.2, the returns of some seeds fell again in long runs
        log_std_init=-0.7,  # a standard deviation of half the bound, which is a torque of 1
    ),
    "PointRobot-misc": _LEARNING_TO_LEARN.replace(
        env="PointRobot-misc",
        normalize_reward=False,
        ent_schedule="constant",
        log_std_init=0.3,
    ),
    "Pong-misc": _GAMES.replace(
        env="Pong-misc", total_timesteps=1_000_000, lr=1e-3, arch="shared", hidden=(64, 64), ent_schedule="linear"
    ),
    "Reacher-misc": _CONTINUOUS.replace(env="Reacher-misc", total_timesteps=1_000_000, gamma=0.97, normalize_reward=False),
    "Seaquest-MinAtar": _GAMES.replace(env="Seaquest-MinAtar", total_timesteps=1_000_000, num_envs=32),
    "SpaceInvaders-MinAtar": _GAMES.replace(env="SpaceInvaders-MinAtar"),
    "Swimmer-misc": PPOConfig(
        env="Swimmer-misc",
        total_timesteps=1_000_000,
        num_envs=16,
        num_minibatches=16,
        lr=1e-3,
        normalize_obs=False,
        normalize_reward=False,
    ),
    # Hyperparameters from brax's own training; one seed reached a return of 7,825 on an H200 (`tests/benchmarks/gpu.md`).
    "brax/ant": PPOConfig(
        env="brax/ant",
        env_kwargs=(("backend", "positional"),),
        total_timesteps=30_000_000,
        num_envs=4096,
        num_steps=80,
        num_minibatches=32,
        lr=3e-4,
        lr_schedule="constant",
        gamma=0.97,
        clip_eps=0.3,
        ent_coef=0.0,
        normalize_obs=True,
        normalize_reward=True,
        reward_clip=10.0,
        max_grad_norm=1.0,
        hidden=(256, 256),
        activation="swish",
    ),
    "brax/inverted_pendulum": _SIMULATED.replace(env="brax/inverted_pendulum", num_envs=16, num_steps=128, ent_coef=0.005),
    "brax/reacher": _SIMULATED.replace(env="brax/reacher", gamma=0.95),
    "craftax/Craftax-Classic-Symbolic-v1": _CRAFTAX.replace(env="craftax/Craftax-Classic-Symbolic-v1"),
    # Hyperparameters of Craftax-Classic; no others were tried.
    "craftax/Craftax-Symbolic-v1": _CRAFTAX.replace(env="craftax/Craftax-Symbolic-v1"),
    "jumanji/Game2048-v1": PPOConfig(
        env="jumanji/Game2048-v1",
        total_timesteps=1_000_000,
        num_envs=64,
        num_steps=32,
        num_minibatches=8,
        lr=5e-4,
        gamma=0.997,
        hidden=(256, 256),
        torso="mlp",
        activation="relu",
        value_clip="none",
        normalize_reward=True,  # rewards are the values of merged tiles
    ),
    "jumanji/Snake-v1": PPOConfig(
        env="jumanji/Snake-v1",
        total_timesteps=1_000_000,
        num_envs=64,
        num_steps=32,
        num_minibatches=8,
        lr=1e-3,
        activation="relu",
    ),
    "navix/Navix-DoorKey-5x5-v0": _GRID.replace(env="navix/Navix-DoorKey-5x5-v0", hidden=(64, 64)),
    "pgx/minatar-breakout": PPOConfig(
        env="pgx/minatar-breakout",
        total_timesteps=1_000_000,
        num_envs=32,
        num_steps=64,
        num_epochs=6,
        num_minibatches=16,
        lr=2.5e-3,
        gamma=0.995,
        gae_lambda=0.7,
        clip_eps=0.3,
        ent_coef=0.015,
        vf_coef=1.0,
        value_clip="none",
        torso="mlp",
        hidden=(256, 256),
        activation="relu",
    ),
    "playground/CartpoleBalance": _SIMULATED.replace(env="playground/CartpoleBalance", total_timesteps=1_000_000),
    "playground/CartpoleSwingup": _SIMULATED.replace(env="playground/CartpoleSwingup", total_timesteps=1_000_000),
    "xminigrid/MiniGrid-DoorKey-5x5": _GRID.replace(  # observations do not show the carried object
        env="xminigrid/MiniGrid-DoorKey-5x5", memory="gru", memory_size=64
    ),
}


def preset(name: str) -> PPOConfig:
    """Return the PPO config that was tuned for an environment.

    Raises:
        ConfigError: no preset has this name; the message suggests the nearest name.

    Example:
        >>> purerl.preset("Breakout-MinAtar").hidden
        (128, 64)
    """
    if name not in PRESETS:
        raise ConfigError([Problem("preset", name, f"no such preset; {nearest(str(name), PRESETS)}")])
    return PRESETS[name]
