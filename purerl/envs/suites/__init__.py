"""The environment suites and their adapters. An adapter is imported when one of its environments is made."""

import difflib
import importlib
import re
from collections.abc import Iterable
from types import ModuleType

import jax

from purerl.core.errors import config_error, nearest
from purerl.envs.importing import import_quietly

NAMES = ("brax", "craftax", "gymnasium", "jumanji", "navix", "pgx", "playground", "xminigrid")
SUITES = dict(zip(NAMES, NAMES, strict=True)) | {"playground": "mujoco_playground"}  # from an id's prefix to the required package
IDS = {  # patterns that recognise a suite's ids without the prefix, so that the suite need not be imported
    "brax": r"ant|fast|halfcheetah|hopper|humanoid(standup)?|inverted_(double_)?pendulum|pusher|reacher|swimmer|walker2d",
    "craftax": r"Craftax-.+",
    "jumanji": r"(BinPack|CVRP|Cleaner|Connector|FlatPack|Game2048|GraphColoring|JobShop|Knapsack|LevelBasedForaging|MMST|Maze|"
    r"Minesweeper|MultiCVRP|PacMan|RobotWarehouse|RubiksCube|SearchAndRescue|SlidingTilePuzzle|Snake|Sokoban|Sudoku|TSP|Tetris)"
    r"(-partly-scrambled|-very-easy)?-v\d+",
    "navix": r"Navix-.+",
    "pgx": r"2048|minatar-.+",
    "playground": r"([A-Z]+[a-z0-9]+){2,}",
    "xminigrid": r"(XLand-)?MiniGrid-.+(?<!-v\d)",
    "gymnasium": r"(ALE/|phys2d/|tabular/)?[^/]+-v\d+",
}
REFUSED = {
    "jaxmarl": "JaxMARL environments have several agents, but purerl trains one agent",
    "kinetix": "kinetix-env is not compatible with current versions of JAX",
    "popgym_arcade": "popgym-arcade installs stable-gymnax, which overwrites gymnax",
}


def adapter(env_id: str) -> tuple[ModuleType, str]:
    """Return the adapter of an id's suite, and the environment's name in the suite. An id without a prefix belongs to gymnax.

    Raises:
        ConfigError: the suite does not exist, is not supported, or is not installed.
    """
    prefix, slash, name = env_id.partition("/")
    if not slash:
        return _import_adapter("gymnax"), env_id
    if prefix in REFUSED:
        raise config_error("env", env_id, REFUSED[prefix])
    if prefix == "gymnax":
        raise config_error("env", env_id, f"gymnax ids have no prefix; use {name!r}")
    if prefix not in SUITES:
        near = next((f"did you mean '{suite}/{name}'?" for suite in SUITES if suite.startswith(prefix)), nearest(prefix, SUITES))
        raise config_error("env", env_id, f"no such suite; {suggest(env_id, (), near)}")
    try:
        return _import_adapter(prefix), name
    except ModuleNotFoundError as error:
        hint = f"needs the package {error.name}, which is not installed; run pip install '.[{prefix}]'"
        raise config_error("env", env_id, hint) from error


def suggest(env_id: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return a hint for an id that a suite does not have.

    Args:
        env_id: the id.
        names: the ids of the suite; similar ids are suggested.
        otherwise: the hint if no id of this or another suite is similar; by default a list of all names.
    """
    names = list(names)
    suite = next((suite for suite, ids in IDS.items() if re.fullmatch(ids, env_id)), "")
    elsewhere = _suggest_gymnasium(env_id) if suite == "gymnasium" else [f"{suite}/{env_id}"] if suite else []
    found = [*difflib.get_close_matches(env_id, names), *elsewhere]
    return f"did you mean {' or '.join(map(repr, found))}?" if found else otherwise or nearest(env_id, names)


def _suggest_gymnasium(env_id: str) -> list[str]:
    """Return gymnasium ids to suggest: this id if it exists or gymnasium is not installed, else the most similar id, if any."""
    try:
        with import_quietly():
            registry = importlib.import_module("gymnasium").registry
    except ImportError:
        return [f"gymnasium/{env_id}"]
    known = env_id in registry or env_id.startswith("ALE/")  # the package `ale_py` registers these ids
    return [f"gymnasium/{x}" for x in ([env_id] if known else difflib.get_close_matches(env_id, registry, n=1))]


def _import_adapter(name: str) -> ModuleType:
    """Import the adapter of a suite outside of any trace, so that arrays in the modules of the suite are concrete."""
    package = "external" if name == "gymnasium" else "suites"
    with jax.ensure_compile_time_eval():
        return importlib.import_module(f"purerl.envs.{package}.{name}")
