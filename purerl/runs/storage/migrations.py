"""Migration of checkpoints from one format to the next, so that old runs load and resume."""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

FORMAT = 2
RING, BUFFER = "['state'].extra['ring'].batch", "['state'].extra['buffer']"
Arrays = dict[str, np.ndarray]


class Change(NamedTuple):
    """The changes from one format to the next.

    fields: of an algorithm's config, by name, `(config) -> value`, what a field had to be for the numbers that were computed, and
      why it was not what was written.
    paths: of arrays, a regular expression of what they were called, and what they are called now.
    arrays: `(config, number of leading axes, arrays by path) -> arrays by path`, for what changed its shape.
    """

    fields: dict[str, dict[str, tuple[Callable[[dict[str, Any]], Any], str]]]
    paths: tuple[tuple[str, str], ...] = ()
    arrays: Callable[[dict[str, Any], int, Arrays], Arrays] = lambda config, lead, arrays: arrays


def with_an_axis_of_rollouts(config: dict[str, Any], lead: int, arrays: Arrays) -> Arrays:
    """What kept several rollouts as the columns of one has an axis for them, and the ring `final_obs`, a row for each step."""
    columns = {f"{BUFFER}.steps": 1, f"{BUFFER}.carry": 0, f"{RING}.rollout": 1, f"{RING}.last_": 0}

    def parted(path: str, x: np.ndarray) -> np.ndarray:
        axis = next((axis + lead for prefix, axis in columns.items() if path.startswith(prefix)), None)
        return x if axis is None else x.reshape(*x.shape[:axis], -1, config["num_envs"], *x.shape[axis + 1 :])

    found, next_obs = {path: parted(path, x) for path, x in arrays.items()}, f"{RING}.rollout.steps.next_obs"
    final = {path.replace(next_obs, f"{RING}.final_obs"): x for path, x in found.items() if path.startswith(next_obs)}
    keeps_all = config.get("rnd") is not None
    return {path: x for path, x in found.items() if keeps_all or not path.startswith(next_obs)} | final


NO_WEIGHT = "purerl 0.2 gave a value function that learns by itself no weight"
CHANGES = {
    1: Change(  # to purerl 0.3
        fields={
            "daac": {"vf_coef": (lambda config: 1.0, NO_WEIGHT)},
            "ppg": {"vf_coef": (lambda config: config["vf_coef"] if config["e_pi"] == config["e_v"] else 1.0, NO_WEIGHT)},
        },
        paths=(
            (r"(\['memory'\]\['layer_\d+'\])\['read'\]", r"\1['input']"),
            (r"(\['memory'\]\['layer_\d+'\])\['recall'\]", r"\1['recurrent']"),
            (r"(\['memory'\]\['layer_\d+'\])\['recall_bias'\]", r"\1['recurrent_bias']"),
            (r"\.extra\['ring'\]\.kept\b", ".extra['ring'].batch"),
        ),
        arrays=with_an_axis_of_rollouts,
    ),
}


def migrated(record: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
    """A record and its arrays by path in the current format.

    The entry "changed" of the record explains why a field of the config is not what was written.
    """
    leaves = record["leaves"]
    for format_ in range(record["format"], FORMAT):
        change = CHANGES[format_]
        config = record["config"]
        fields = change.fields.get(record["algorithm"], {})
        values = {name: value(config) for name, (value, _) in fields.items()}
        why = {name: why for name, (_, why) in fields.items() if values[name] != config[name]}
        for old, new in change.paths:
            arrays, leaves = ({re.sub(old, new, path): x for path, x in tree.items()} for tree in (arrays, leaves))
        lead = leaves["['state'].key"][0].partition("[")[2] if "['state'].key" in leaves else "]"
        before, arrays = arrays, change.arrays(config, len(json.loads(f"[{lead}")), arrays)
        leaves = {path: leaves[path] if x is before.get(path) else described(x) for path, x in arrays.items()}
        record = {**record, "config": {**config, **values}, "changed": {**record.get("changed", {}), **why}}
    return {**record, "format": FORMAT, "leaves": leaves}, arrays


def fitted(leaves: dict[str, list], arrays: Arrays, wanted: dict[str, str]) -> tuple[dict[str, list], Arrays]:
    """The entries of a record, and arrays, with as few final observations as a state of this shape keeps.

    How few depends on the environment; a ring of purerl 0.2 has a row for each step.
    """
    truncated, changed = arrays.get(f"{RING}.rollout.steps.truncated"), {}
    for path in arrays:
        if path.startswith(f"{RING}.final_obs") and path in wanted and leaves[path][0] != wanted[path]:
            axis = truncated.ndim - 3
            count = json.loads(wanted[path][wanted[path].index("[") :])[axis]
            nth = np.cumsum(truncated, axis) - 1
            rows = [(truncated & (nth == i)).argmax(axis) for i in range(count)]
            rows = np.stack(rows, axis).reshape(*truncated.shape[:axis], count, *truncated.shape[axis + 1 :], *([1] * 8))
            changed[path] = np.take_along_axis(arrays[path], rows.reshape(rows.shape[: arrays[path].ndim]), axis)
    return {**leaves, **{path: described(x) for path, x in changed.items()}}, {**arrays, **changed}


def described(x: np.ndarray) -> list:
    """The entry of a record for an array that was changed; its hash was verified before."""
    return [f"{x.dtype}{list(x.shape)}", None]
