"""Run directories: everything needed to resume a run bit for bit.

checkpoints/       the newest checkpoints, and one every `keep_every` updates; the name is the number of updates
best/              the state of each run at its best evaluation
curves.jsonl       metrics, in the format of `purerl.runs.storage.curves`
evaluations.jsonl  evaluations
renders/           animations of episodes

A directory is data: nothing in it is ever imported, called or executed.
"""

import contextlib
import json
import os
import pathlib
import secrets
import socket
from typing import Any, Self

import filelock

from purerl.config.base import OnPolicyConfig
from purerl.core.errors import CheckpointError, CheckpointMismatch, DirectoryLocked, config_error, warn
from purerl.core.plan import Plan
from purerl.runs.devices.processes import call_in_first, is_first
from purerl.runs.identity import changes_of_numbers, differences, restart_hint
from purerl.runs.storage.arrays import leaf_differences
from purerl.runs.storage.checkpoint import Checkpoint, Store, first_readable, prepare, saved_updates
from purerl.runs.storage.curves import FILE
from purerl.runs.storage.files import atomic_write, read_errors, read_file
from purerl.runs.storage.object_values import other_numbers

STUDY, PLAN = "study.json", "sweep.json"  # the files that make a directory that of a study or of a sweep


def absolute_path(directory: Any) -> pathlib.Path:
    """Return the absolute path of a directory that the user gave.

    Raises:
        ConfigError: this is not a path, or has signs of a pattern.
    """
    if not isinstance(directory, str | os.PathLike) or not str(directory):
        raise config_error("directory", directory, "must be a path")
    path = pathlib.Path(directory).expanduser().absolute()
    if found := [sign for sign in ("[", "\\", "**") if sign in str(path)]:
        hint = f"must not contain {found[0]!r}, since Orbax reads the path as a pattern, and would not find its files again"
        raise config_error("directory", str(path), hint)
    return path


def run_directory(directory: Any) -> pathlib.Path:
    """Return the absolute path of a directory. The first process creates it if needed, and checks that it is writable.

    Raises:
        ConfigError: the path is not valid, or cannot be written to.
    """
    path = absolute_path(directory)
    if "://" in os.fspath(directory):
        raise config_error("directory", directory, "must be on a local or mounted file system")
    call_in_first(lambda: _try_to_write(path, directory))
    return path


def _try_to_write(path: pathlib.Path, directory: Any) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f"probe-{secrets.token_hex(8)}"  # a name that no other process has
        atomic_write(probe, b"probe")
        probe.unlink()
    except (OSError, ValueError) as error:  # a ValueError for a NUL in the path
        raise config_error("directory", directory, f"is not writable: {getattr(error, 'strerror', None) or error}") from error


class Lock:
    """A lock on a directory, which lets one process at a time write to it. The end of the process releases the lock.

    Between hosts, the lock works only if `flock` works between hosts on this file system. On a network disk, start each run only
    once.

    Raises:
        DirectoryLocked: another process holds the lock.
    """

    def __init__(self, directory: pathlib.Path):
        self._lock, self._holder = filelock.FileLock(directory / ".lock"), directory / ".holder"
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            other = "another process"
            with contextlib.suppress(OSError):
                other = self._holder.read_text()
            raise DirectoryLocked(f"{directory} is in use by {other}; choose another directory") from None
        with contextlib.suppress(OSError):  # optional: only the message above reads this file
            self._holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._holder.unlink()
        self._lock.release()


class Directory:
    """A run directory, locked while open. With `path=None` every save is a no-op.

    In a job of several processes, every process calls the saves, but only the first process locks the directory and writes files.

    Attributes:
        checkpoints: the checkpoints of the run, from which it can be resumed.
        best: the state of each run at its best evaluation.

    Args:
        path: absolute path, from `run_directory`.
        identity: the run's record, from `identity`. A checkpoint to resume from must match this record.
        cls: the class of the run's config.
        keep: keep this many of the newest checkpoints.
        keep_every: also keep each checkpoint whose number of updates is a multiple of `keep_every`; 0 for none.
    """

    def __init__(
        self, path: pathlib.Path | None, identity: dict[str, Any], cls: type[OnPolicyConfig], keep: int, keep_every: int
    ):
        self.path, self.identity, self._cls, self._open = path, identity, cls, contextlib.ExitStack()
        self.checkpoints = Store(path and path / "checkpoints", keep, keep_every)
        self.best = Store(path and path / "best", keep=2)

    def __enter__(self) -> Self:
        if (path := self.path) is None:
            return self
        with read_errors(), contextlib.ExitStack() as entered:
            call_in_first(lambda: _refuse_owned(path))
            if lock := call_in_first(read_errors()(lambda: Lock(path))):
                entered.callback(lock.release)
            call_in_first(lambda: [prepare(store.directory) for store in (self.checkpoints, self.best)])
            for name in (FILE, "evaluations.jsonl"):
                if (path / name).is_dir():
                    raise config_error("directory", str(path), f"{name} must be a file, but is a directory")
            self._open = entered.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with self._open:
            for store in (self.checkpoints, self.best):
                try:
                    store.wait()
                except CheckpointError as other:
                    if error is None:
                        raise
                    error.add_note(f"Saving a checkpoint failed too: {other}")

    def file(self, name: str) -> pathlib.Path | None:
        """Return the path of a file in the directory; None without a directory, or in any process except the first."""
        return self.path / name if self.path is not None and is_first() else None

    def saved(self, resume: str, plan: Plan, wanted: dict[str, str]) -> Checkpoint | None:
        """Return the checkpoint to resume from, read and verified; None without a checkpoint. Nothing is compiled.

        Args:
            resume: `auto` (resume if a checkpoint exists), `must` or `never`.
            plan: the plan of the resumed run.
            wanted: dtypes and shapes of the run's state, from `arrays.describe`.

        Raises:
            ConfigError: `resume` is `never` and a checkpoint exists, or `resume` is `must` and no checkpoint exists.
            CheckpointMismatch: the checkpoint is of another run, or has more updates than `plan`.
            CheckpointCorrupt: no checkpoint can be read.
        """
        # Every process reads, not only the first: Orbax counts each process's operations, and hangs if the counts differ.
        store = self.checkpoints
        there = store.updates()
        if there and resume == "never":
            hint = f"already has checkpoints, up to update {there[-1]}; use resume='auto' to resume, or another directory"
            raise config_error("directory", str(self.path), hint)
        if not there:
            if resume == "must":
                raise config_error("directory", str(self.path), "has no checkpoint to resume from; use resume='auto'")
            return None
        saved = first_readable(there, store.load)
        self._check(saved, plan, wanted)
        return saved

    def _check(self, saved: Checkpoint, plan: Plan, wanted: dict[str, str]) -> None:
        leaves = {path: described for path, (described, _) in saved.record["leaves"].items() if path.startswith("['state']")}
        shapes = leaf_differences(leaves, wanted)
        if found := differences(saved.record, self.identity, self._cls) or shapes:
            raise CheckpointMismatch(self.path, found, restart_hint(self.path, [*found, *shapes]))
        if saved.updates > plan.num_updates:
            text = f"the run is already at update {saved.updates}, beyond the requested {plan.num_updates} updates"
            raise CheckpointMismatch(self.path, [f"total_timesteps: {text}; use a larger value, or another directory"])
        is_finished = saved.updates == plan.num_updates
        values = other_numbers(saved.record.get("numbers", {}), self.identity["numbers"])
        texts = values if is_finished else changes_of_numbers(saved.record, self.identity, self._cls)
        for text in texts if is_first() else ():
            warn(text)


def _refuse_owned(path: pathlib.Path) -> None:
    """Raise a ConfigError for the directory of a study, or of a sweep of several programs, that has no checkpoints of its own."""
    programs = ()
    with contextlib.suppress(ValueError, AttributeError):
        programs = json.loads(read_file(path / PLAN) or b"{}").get("programs", ())
    owner = "study" if (path / STUDY).exists() else "sweep" if len(programs) > 1 else ""
    if owner and not saved_updates(path / "checkpoints"):
        raise config_error("directory", str(path), f"belongs to a {owner}; choose another directory")
