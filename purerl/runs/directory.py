"""The directory of a run: all that resuming it bit-identically needs.

checkpoints/       the newest and the lasting ones, by number of updates
best/              the state of each run at its best evaluation
curves.jsonl       metrics, see `purerl.runs.storage.curves`
evaluations.jsonl  evaluations
renders/           drawings of evaluations

A directory is data: nothing in it is ever imported, called or executed.
"""

import contextlib
import functools
import pathlib
import warnings
from typing import Any, Self

from purerl.config.base import OnPolicyConfig
from purerl.core.errors import CheckpointError, CheckpointMismatch, ConfigError, Problem
from purerl.core.plan import Plan
from purerl.core.types import PyTree
from purerl.runs.identity import begin_anew, changes_of_numbers, differences
from purerl.runs.processes import by_first, is_first
from purerl.runs.storage.checkpoint import (
    Checkpoint,
    Store,
    first_readable,
    leaf_differences,
    prepare,
)
from purerl.runs.storage.curves import FILE
from purerl.runs.storage.files import read_errors
from purerl.runs.storage.lock import Lock


class Directory:
    """A directory that this process trains in, locked while it is entered; with None nothing is kept, and every save is none.

    In a job of several processes only the first one writes anything but its part of a checkpoint.

    Args:
        path: absolute, as `checkpoint.run_directory` gives it.
        identity: what must be the same for a run to resume: see `identity`.
        cls: the class of its config.
        keep, keep_every: as `Store` takes them.
    """

    def __init__(
        self, path: pathlib.Path | None, identity: dict[str, Any], cls: type[OnPolicyConfig], keep: int, keep_every: int
    ):
        self.path, self.identity, self._cls, self._keep, self._keep_every = path, identity, cls, keep, keep_every
        self._checkpoints = self.best = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if (path := self.path) is None:
            return self
        with read_errors(), contextlib.ExitStack() as entered:
            if lock := by_first(read_errors()(lambda: Lock(path))):
                entered.callback(lock.release)
            for name in ("checkpoints", "best"):
                by_first(functools.partial(prepare, path / name))
            self._checkpoints = Store(path / "checkpoints", self._keep, self._keep_every)
            self.best = Store(path / "best", keep=2)
            for name in (FILE, "evaluations.jsonl"):
                if (path / name).is_dir():
                    raise ConfigError([Problem("directory", str(path), f"{name} in it is a directory")])
            self._open = entered.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with self._open:
            for store in (self._checkpoints, self.best):
                try:
                    if store is not None:
                        store.wait()
                except CheckpointError as other:
                    if error is None:
                        raise
                    error.add_note(f"A checkpoint failed as well: {other}")

    def file(self, name: str) -> pathlib.Path | None:
        """Return the path of a file; None if nothing is kept, or another process keeps it."""
        return self.path / name if self.path is not None and is_first() else None

    def saved(self, resume: str, plan: Plan, wanted: dict[str, str]) -> Checkpoint | None:
        """Return the checkpoint to resume from, if any, read and verified. Nothing is compiled.

        Args:
            resume: `auto`, `must` or `never`.
            plan: of the run that resumes.
            wanted: what its state is like, from `checkpoint.describe`.

        Raises:
            ConfigError: there is a checkpoint and should be none, or the other way round.
            CheckpointMismatch: it is of another run, or of a later update than the last one asked for.
            CheckpointCorrupt: it cannot be read; with `auto` none of them can.
        """
        # All processes read, and not the first alone: Orbax counts what each does, and waits for ever where the counts differ.
        store = self._checkpoints
        there = store.updates() if store is not None else []
        if there and resume == "never":
            hint = f"has checkpoints, up to update {there[-1]}; resume='auto' resumes from them"
            raise ConfigError([Problem("directory", str(self.path), hint)])
        if store is None or not there:
            if resume == "must":
                raise ConfigError([Problem("directory", str(self.path), "has no checkpoint to resume from")])
            return None
        saved = store.load(there[-1]) if resume == "must" else first_readable(there, store.load)
        self._check(saved, plan, wanted)
        return saved

    def _check(self, saved: Checkpoint, plan: Plan, wanted: dict[str, str]) -> None:
        leaves = {path: described for path, (described, _) in saved.record["leaves"].items() if path.startswith("['state']")}
        shapes = leaf_differences(leaves, wanted)
        if found := differences(saved.record, self.identity, self._cls) or shapes:
            raise CheckpointMismatch(self.path, found, begin_anew(self.path, [*found, *shapes]))
        if saved.updates > plan.num_updates:
            text = f"the run is at update {saved.updates} already, and {plan.num_updates} are asked for"
            raise CheckpointMismatch(self.path, [f"total_timesteps: {text}; ask for more, or choose another directory"])
        for text in changes_of_numbers(saved.record, self.identity, self._cls) if is_first() else ():
            warnings.warn(text, stacklevel=5)

    def save(self, updates: int, tree: PyTree, more: dict[str, Any]) -> None:
        """Begin to write a checkpoint, with more entries in its record than the run's identity.

        Raises:
            CheckpointError: the one before could not be written, or this one.
        """
        if self._checkpoints is not None:
            self._checkpoints.save(updates, tree, {**self.identity, **more})

    def wait(self) -> None:
        """Wait until the newest checkpoint is written.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._checkpoints is not None:
            self._checkpoints.wait()
