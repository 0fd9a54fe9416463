"""The exceptions that purerl raises, and the format of their messages."""

import difflib
from typing import Any, NamedTuple

import numpy as np


class Problem(NamedTuple):
    """One thing wrong with a config: the field, its value, and what would work."""

    field: str
    value: Any
    hint: str

    def __str__(self) -> str:
        value = str(self.value) if isinstance(self.value, np.generic) else repr(self.value)
        return f"{self.field} = {value}: {self.hint}"


class ConfigError(ValueError):
    """A config, environment or network that cannot be trained. `problems` lists all that was found."""

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n  ".join([f"{count} with this config:", *map(str, problems)]))


def nearest(name: str, names) -> str:
    """A hint that names what `name` may have meant, or else every choice."""
    names = list(names)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"choose from {', '.join(names)}"


class CheckpointError(RuntimeError):
    """A checkpoint that could not be written or read."""


class CheckpointMismatch(CheckpointError):
    """A checkpoint of another run than the one that asks for it. `differences` lists why."""

    def __init__(self, directory: Any, differences: list[str]):
        self.differences = differences
        shown = differences[:5] + ([f"and {len(differences) - 5} more"] if len(differences) > 5 else [])
        super().__init__("\n  ".join([f"the checkpoint in {directory} is of another run:", *shown]))


class CheckpointCorrupt(CheckpointError):
    """A checkpoint whose files are not what was written."""


class DirectoryLocked(CheckpointError):
    """Another process trains in this directory."""


class NotFiniteError(ArithmeticError):
    """Parameters that are NaN or infinite: the run has diverged."""
