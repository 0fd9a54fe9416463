"""Programs of a sweep: batches of configs that are trained side by side, and their plan in the sweep's directory."""

import contextlib
import json
import pathlib
import re
from typing import Any, NamedTuple

from purerl.config.base import OnPolicyConfig
from purerl.core.errors import CheckpointMismatch
from purerl.runs.devices.over_devices import available_bytes
from purerl.runs.directory import PLAN, Lock
from purerl.runs.fit import evaluation_of
from purerl.runs.options import OBJECTS
from purerl.runs.storage.checkpoint import saved_updates
from purerl.runs.storage.files import atomic_write, write_errors
from purerl.runs.trainer import Trainer
from purerl.studies import space
from purerl.studies.reading import has_begun, read_plan, refuse_another

MEMORY_FRACTION = 0.8
MAX_BYTES_RATIO = 200  # an update needs less memory than this multiple of its state and rollout


class Program(NamedTuple):
    """Configs that are trained side by side by one compiled program.

    Attributes:
        cfg: a batch of configs, with leaves `[configs]` for the swept floats; a single config if no float is swept.
        places: index of each config in the sweep.
        name: name of the program's directory inside the sweep's directory, if the sweep has several programs.
    """

    cfg: OnPolicyConfig
    places: tuple[int, ...]
    name: str


def name_of(number: int, static: dict[str, Any]) -> str:
    """Return the name of a program's directory: its number, and its static values."""
    words = ",".join(f"{path}={space.format_value(x)}" for path, x in static.items())
    return re.sub(r"[^\w.=,+-]+", "_", f"{number}-{words}" if words else str(number))[:80]


def runs_of(program: Program, seed: int, num_seeds: int, options: dict[str, Any]) -> Trainer:
    """Return the runs of a program. Nothing is compiled.

    Raises:
        ConfigError: as in `make_train`, or the runs cannot be evaluated.
    """
    objects = {name: x for name, x in options.items() if name in OBJECTS}
    runs = Trainer(program.cfg, seed, num_seeds, options.get("exact") or False, objects, options.get("devices_per_run") or 1)
    evaluation_of(runs, options)
    return runs


def count_fitting(runs: Trainer, most: int) -> int:
    """Return the number of configs that fit into memory at once; `most` if the whole program fits.

    Args:
        runs: the runs of the program, which is compiled to estimate its memory, unless it surely fits.
        most: the result if the program fits: the number of configs of the whole sweep, so that a small program limits no other.
    """
    available, plan = MEMORY_FRACTION * available_bytes(), runs.here.plan
    if runs.share * MAX_BYTES_RATIO * (plan.state_bytes + plan.rollout_bytes) < available:
        return most
    runs.compile(runs.template())
    needed = runs.needed_bytes()
    return most if needed <= available else max(1, int(len(runs.configs) * available / needed))


def lock_plan(home: pathlib.Path | None, planning: contextlib.ExitStack) -> None:
    """If a sweep's directory has a plan, lock this directory and those of the sweep's programs until `planning` closes.

    Raises:
        DirectoryLocked: another process holds one of the locks.
    """
    if home is not None and (home / PLAN).exists():
        for folder in (home, *(path.parent for path in home.glob("*/.lock"))):
            planning.callback(Lock(folder).release)


def read_begun(home: pathlib.Path, wanted: dict[str, Any], numbers: dict[str, str]) -> dict[str, Any] | None:
    """Return the plan of the sweep that was begun in a directory; None if no sweep was begun there.

    Warn if values in the custom objects differ from `numbers`.

    Raises:
        CheckpointMismatch: the directory has a run, or a sweep that differs from `wanted`.
    """
    saved = read_plan(home / PLAN)
    if saved is None and saved_updates(home / "checkpoints"):
        raise CheckpointMismatch(home, ["the directory contains a run, not a sweep"])
    if saved is None or not has_begun(home):  # killed before its first checkpoint
        return None
    known = {name: x for name, x in wanted.items() if name in saved or name != "init_from"}  # of older versions
    refuse_another(home / PLAN, saved, known, numbers)
    return saved


def save_plan(home: pathlib.Path, saved: dict[str, Any] | None, plan: dict[str, Any]) -> None:
    """Write the plan of a sweep, unless the directory has the plan `saved`.

    Raises:
        CheckpointMismatch: the programs in the directory have other names.
    """
    if saved is None:
        with write_errors(home / PLAN):
            atomic_write(home / PLAN, json.dumps(plan, indent=1).encode())
    elif len(plan["programs"]) > 1 and list(saved["programs"]) != list(plan["programs"]):
        differ = f"programs: {list(saved['programs'])} in {PLAN}, {list(plan['programs'])} here"
        raise CheckpointMismatch(home, [f"{differ}; give the swept fields in the order of the first call"])
