"""Warm starts: runs that begin with the parameters of another run."""

from typing import Any

import jax
import numpy as np

from purerl.core.errors import CheckpointError, ConfigError, Problem
from purerl.core.types import TrainState
from purerl.runs.identity import WARM, absolute, unit_differences
from purerl.runs.storage.checkpoint import newest_readable, saved_updates

INTRINSIC = "['state'].extra['intrinsic']"


def require_checkpoint(directory: Any) -> None:
    """Raise a CheckpointError if a directory has no checkpoint."""
    folder = absolute(directory) / "checkpoints"
    if not saved_updates(folder):
        raise CheckpointError(f"no checkpoint in {folder}")


def warm_start(state: TrainState, directory: Any, action_unit: str) -> TrainState:
    """Return a state with the parameters and statistics of another run.

    If several runs start from a single run, each of them gets a copy of that run's parameters and statistics.
    If both runs have intrinsic rewards, the state of intrinsic rewards is copied too: a predictor is useless without its target.
    The discounted reward sum of each environment is not copied: the number of environments may differ.

    Raises:
        ConfigError: the parameters, the statistics or the units of actions do not fit.
        CheckpointError: the directory has no checkpoint, or the checkpoint cannot be read.
    """
    saved = newest_readable(absolute(directory) / "checkpoints")
    if found := unit_differences(saved.record, action_unit):
        raise ConfigError([Problem("init_from", str(directory), text) for text in found])
    leaves = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path({"state": state})}
    both = all(any(name.startswith(INTRINSIC) for name in names) for names in (leaves, saved.arrays))
    is_taken = lambda name: name.startswith((*WARM, INTRINSIC) if both else WARM) and not name.endswith(".discounted")
    here, there = ({name: x for name, x in arrays.items() if is_taken(name)} for arrays in (leaves, saved.arrays))
    found = [f"{name} is only in the {'checkpoint' if name in there else 'new run'}" for name in there.keys() ^ here.keys()]
    for name in here.keys() & there.keys():
        if there[name].shape not in (here[name].shape, here[name].shape[state.key.ndim :]):
            found.append(f"{name} is {list(there[name].shape)} in the checkpoint, {list(here[name].shape)} here")
    if found:
        raise ConfigError([Problem("init_from", str(directory), text) for text in sorted(found)])

    def leaf(path, x):
        if (name := jax.tree_util.keystr(path)) not in here:
            return x
        return jax.device_put(np.broadcast_to(there[name], x.shape).astype(x.dtype), x.sharding)

    return jax.tree_util.tree_map_with_path(leaf, {"state": state})["state"]
