"""Warnings of what metrics count while a run trains, and what is wrong whenever it is not 0."""

import warnings
from typing import Any

import numpy as np

from purerl.core.masks import VALUES

FAULTS = {
    "empty_masks": "observations have an action mask without a valid action, and any action was taken; purerl.check_env tells",
    "malformed_masks": f"observations have an action mask with values other than 0 and 1. {VALUES[:1].upper()}{VALUES[1:]}",
}


def warn_of_faults(rows: dict[str, Any], told: set[str]) -> None:
    """Warn of each fault that these rows of metrics count, once; `told` remembers which."""
    for name in FAULTS.keys() & rows.keys() - told:
        if count := int(np.sum(rows[name].total)):
            told.add(name)
            warnings.warn(f"{name}: {count:,} {FAULTS[name]}", stacklevel=3)
