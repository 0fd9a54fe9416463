"""Migration of checkpoints from one format to the next, so that old runs load and resume."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

FORMAT = 2


class Change(NamedTuple):
    """The changes from one format to the next.

    fields: of an algorithm's config, by name, `(config) -> value`, what a field had to be for the numbers that were computed, and
      why it was not what was written.
    paths: of arrays, a regular expression of what they were called, and what they are called now.
    """

    fields: dict[str, dict[str, tuple[Callable[[dict[str, Any]], Any], str]]]
    paths: tuple[tuple[str, str], ...] = ()


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
    ),
}


def migrated(record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A record in the current format, and from the old name of each array to its new name.

    The entry "changed" of the record explains why a field of the config is not what was written.
    """
    names = {path: path for path in record["leaves"]}
    for format_ in range(record["format"], FORMAT):
        change = CHANGES[format_]
        config = record["config"]
        fields = change.fields.get(record["algorithm"], {})
        values = {name: value(config) for name, (value, _) in fields.items()}
        why = {name: why for name, (_, why) in fields.items() if values[name] != config[name]}
        for old, new in change.paths:
            names = {path: re.sub(old, new, name) for path, name in names.items()}
        record = {**record, "config": {**config, **values}, "changed": {**record.get("changed", {}), **why}}
    leaves = {names[path]: leaf for path, leaf in record["leaves"].items()}
    return {**record, "format": FORMAT, "leaves": leaves}, names
