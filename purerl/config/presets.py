"""Configs of environments by id, read from `presets.toml`."""

import functools
import importlib.resources
import tomllib
from typing import Any

from purerl.config.algorithms import PPOConfig
from purerl.config.fields import as_tuples
from purerl.core.errors import config_error, nearest


@functools.cache
def presets() -> dict[str, PPOConfig]:
    """Return a dict from name to preset. The first call reads the file, so that importing purerl takes no longer."""
    tables = tomllib.loads(importlib.resources.files("purerl.config").joinpath("presets.toml").read_text())

    def values(name: str) -> dict[str, Any]:
        """Return the values of a table, which override the values of the table named in `like`."""
        own = {"like": "", **tables[name]}
        like = own.pop("like")
        return (values(like) if like else {}) | own

    make = lambda name: PPOConfig(**{field: as_tuples(value) for field, value in {"env": name, **values(name)}.items()})
    # An environment's id has a dash or a slash. A table that only serves as `like` of other tables has neither.
    return {name: make(name) for name in tables if "-" in name or "/" in name}


def preset(name: str) -> PPOConfig:
    """Return the PPO config that is tuned, or was published, for an environment.

    Raises:
        ConfigError: no preset has this name; the message suggests the nearest name.

    Example:
        >>> purerl.preset("Breakout-MinAtar").hidden
        (128, 64)
    """
    if name not in presets():
        raise config_error("preset", name, f"no such preset; {nearest(str(name), presets())}")
    return presets()[name]
