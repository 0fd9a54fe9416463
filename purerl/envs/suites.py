"""The suites of environments: which adapter an id belongs to. It is imported when one of its environments is made."""

import importlib
import importlib.metadata
from types import ModuleType

import jax

from purerl.core.errors import ConfigError, Problem, nearest

SUITES = {  # the prefix of an id, the package it needs
    "brax": "brax",
    "craftax": "craftax",
    "gymnasium": "gymnasium",
    "jumanji": "jumanji",
    "navix": "navix",
    "pgx": "pgx",
    "playground": "mujoco_playground",
    "xminigrid": "xminigrid",
}
REFUSED = {
    "jaxmarl": "its environments are for several agents, and purerl trains one",
    "kinetix": "kinetix-env cannot be installed beside a JAX of this year: pip finds no set of versions",
    "popgym_arcade": "popgym-arcade installs stable-gymnax, whose package takes gymnax's place",
}


def adapter(env_id: str) -> tuple[ModuleType, str]:
    """The adapter of an id's suite, and what the suite calls the environment: `brax/ant`; without a prefix gymnax's.

    Raises:
        ConfigError: there is no such suite, or it is not installed.
    """
    prefix, slash, name = env_id.partition("/")
    if not slash:
        return _gymnax(env_id), env_id
    if prefix in REFUSED:
        raise ConfigError([Problem("env", env_id, REFUSED[prefix])])
    if prefix == "gymnax":
        raise ConfigError([Problem("env", env_id, f"gymnax's ids have no prefix: {name!r}")])
    if prefix not in SUITES:
        raise ConfigError([Problem("env", env_id, f"no suite of this name; {nearest(prefix, SUITES)}")])
    try:
        return _imported(prefix), name
    except ModuleNotFoundError as error:
        hint = f"needs the package {error.name}, which is not installed: pip install 'purerl[{prefix}]'"
        raise ConfigError([Problem("env", env_id, hint)]) from error


def _imported(name: str) -> ModuleType:
    """The adapter of a suite. Where it is imported under a trace, the arrays of its library's modules must outlive the trace."""
    with jax.ensure_compile_time_eval():
        return importlib.import_module(f"purerl.envs.{name}")


def _gymnax(env_id: str) -> ModuleType:
    try:
        return _imported("gymnax")
    except (ImportError, AttributeError) as error:
        if not _is_installed("stable-gymnax"):
            raise
        hint = "stable-gymnax, which popgym-arcade needs, has taken gymnax's place: pip uninstall stable-gymnax, and then "
        raise ConfigError([Problem("env", env_id, hint + "pip install --force-reinstall gymnax")]) from error


def _is_installed(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.distribution(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False
