"""Configs of environments by id, read from `presets.toml`."""

import importlib.resources
import tomllib
from typing import Any

from purerl.config.algorithms import PPOConfig
from purerl.config.fields import as_tuples
from purerl.core.errors import ConfigError, Problem, nearest

_TABLES = tomllib.loads(importlib.resources.files("purerl.config").joinpath("presets.toml").read_text())


def _values(name: str) -> dict[str, Any]:
    """Return the values of a table, on top of those of the table that it is like."""
    values = {"like": "", **_TABLES[name]}
    like = values.pop("like")
    return (_values(like) if like else {}) | values


# An environment's id has a dash or a slash, and a table that only others are like has neither.
PRESETS = {
    name: PPOConfig(env=name, **{field: as_tuples(value) for field, value in _values(name).items()})
    for name in _TABLES
    if "-" in name or "/" in name
}


def preset(name: str) -> PPOConfig:
    """Return the PPO config of an environment: tuned for it, or published for it.

    Raises:
        ConfigError: no preset has this name; the message suggests the nearest name.

    Example:
        >>> purerl.preset("Breakout-MinAtar").hidden
        (128, 64)
    """
    if name not in PRESETS:
        raise ConfigError([Problem("preset", name, f"no such preset; {nearest(str(name), PRESETS)}")])
    return PRESETS[name]
