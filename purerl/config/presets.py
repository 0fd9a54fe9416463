"""Configs of environments by id, read from `presets.toml`."""

import functools
import importlib.resources
import tomllib
from typing import Any

from purerl.config.algorithms import PPOConfig
from purerl.config.fields import as_tuples
from purerl.core.errors import ConfigError, Problem, nearest


@functools.cache
def presets() -> dict[str, PPOConfig]:
    """Return all presets by name. The file is read at the first call, so that importing purerl does not wait for it."""
    tables = tomllib.loads(importlib.resources.files("purerl.config").joinpath("presets.toml").read_text())

    def values(name: str) -> dict[str, Any]:
        """Return the values of a table, on top of those of the table that it is like."""
        own = {"like": "", **tables[name]}
        like = own.pop("like")
        return (values(like) if like else {}) | own

    made = lambda name: PPOConfig(env=name, **{field: as_tuples(value) for field, value in values(name).items()})
    # An environment's id has a dash or a slash, and a table that only others are like has neither.
    return {name: made(name) for name in tables if "-" in name or "/" in name}


def preset(name: str) -> PPOConfig:
    """Return the PPO config of an environment: tuned for it, or published for it.

    Raises:
        ConfigError: no preset has this name; the message suggests the nearest name.

    Example:
        >>> purerl.preset("Breakout-MinAtar").hidden
        (128, 64)
    """
    if name not in presets():
        raise ConfigError([Problem("preset", name, f"no such preset; {nearest(str(name), presets())}")])
    return presets()[name]
