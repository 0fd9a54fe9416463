"""Configs that were tuned for one environment each, on seeds that no published score uses."""

from purerl.config import PPOConfig
from purerl.errors import ConfigError, Problem, nearest

_MINATAR = PPOConfig(
    total_timesteps=1_000_000,
    num_envs=64,
    num_minibatches=8,
    lr=3e-3,
    gamma=0.995,
    torso="mlp",
    activation="relu",
)

PRESETS = {
    "Breakout-MinAtar": _MINATAR.replace(env="Breakout-MinAtar"),
}


def preset(name: str) -> PPOConfig:
    """The config that was tuned for this environment; PPO.

    Raises:
        ConfigError: there is none, with the nearest name that has one.
    """
    if name not in PRESETS:
        raise ConfigError([Problem("preset", name, f"no such preset; {nearest(name, PRESETS)}")])
    return PRESETS[name]
