"""Checkpoints: everything needed to resume a run bit for bit, as arrays and JSON, written atomically.

A checkpoint holds a tree of arrays and a JSON record: config, seeds, versions, and the shape, dtype and SHA-256 of every array.
Reading a checkpoint unpickles and imports nothing; the caller passes code and environments. Only Orbax's v1 interface is used.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from purerl.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointMismatch,
    Problem,
    config_error,
    raise_if_any,
    warn,
)
from purerl.core.types import PyTree
from purerl.runs.devices.processes import broadcast_from_first, call_in_first, is_first
from purerl.runs.storage.arrays import describe, dtype_of, leaf_differences, shape_of, to_arrays
from purerl.runs.storage.files import read_errors
from purerl.runs.storage.orbax_v1 import in_this_process, orbax

FORMAT = 2
CLOCK = "['state'].clock"  # the only state leaf without a run axis
UNFINISHED = ".orbax-checkpoint-tmp"  # Orbax adds this to the name of an unfinished checkpoint
OF_ORBAX = {"state", "_CHECKPOINT_METADATA", "commit_success.txt", "orbax.checkpoint"}  # the contents of a checkpoint
REPLACED = ".replaced"  # the name of a checkpoint ends in this while another of the same update is written


class Checkpoint(NamedTuple):
    """A saved checkpoint.

    Attributes:
        updates: finished updates.
        record: the JSON record passed to `Store.save`, with "format", "updates" and "leaves" added.
        arrays: a dict from the path in the saved tree to the array, on the host.
    """

    updates: int
    record: dict[str, Any]
    arrays: dict[str, np.ndarray]


def broadcast_checkpoint(saved: Checkpoint | None) -> Checkpoint | None:
    """Return, in every process, the checkpoint that the first process has read; None if that process has none."""
    record = {} if saved is None else {"updates": saved.updates, "record": saved.record}
    arrays, record = broadcast_from_first(None if saved is None else saved.arrays, record)
    return None if arrays is None else Checkpoint(record["updates"], record["record"], arrays)


# --- a directory of checkpoints ---------------------------------------------------------------------------------------


def prepare(directory: pathlib.Path) -> None:
    """Create a directory of checkpoints if it is missing. Put back and remove what a killed process left unfinished.

    Raises:
        ConfigError: the path is that of a file, the directory cannot be written to, or has other folders named by numbers.
    """
    try:
        directory.mkdir(exist_ok=True)
        for unfinished in directory.glob(f"*{UNFINISHED}*"):
            shutil.rmtree(unfinished)
        for aside in directory.glob(f"*{REPLACED}"):
            _restore_or_remove(aside)
        inside = {x: {path.name for path in (directory / str(x)).iterdir()} for x in saved_updates(directory)}
    except OSError as error:
        raise config_error("directory", str(directory), f"is not writable: {error.strerror}") from None
    hint = "contains the folder {}, which is no checkpoint but has the name of one; choose another directory"
    foreign = [x for x, names in inside.items() if names and not names & OF_ORBAX]
    raise_if_any([Problem("directory", str(directory), hint.format(x)) for x in foreign[:1]])


def _restore_or_remove(aside: pathlib.Path) -> None:
    """Rename a replaced checkpoint back if its replacement does not exist, else remove it."""
    path = aside.with_name(aside.name.removesuffix(REPLACED))
    if path.exists():
        shutil.rmtree(aside)
    else:
        os.rename(aside, path)


class Store:
    """The checkpoints in a directory, by number of updates.

    In a job of several processes, every process calls the same methods with the same arrays, in the same order; only the first
    process writes. The directory must be on a file system that all processes share.

    Args:
        directory: absolute path of an existing directory, see `prepare`; None saves nothing.
        keep: keep this many of the newest checkpoints.
        keep_every: also keep every checkpoint whose number of updates is a multiple of `keep_every`; 0 keeps none of these. Those
          that an earlier call kept in this way stay, too.
    """

    def __init__(self, directory: pathlib.Path | None, keep: int = 3, keep_every: int = 0):
        self.directory, self.is_kept = directory or pathlib.Path(os.devnull), directory is not None
        self._keep, self._keep_every = keep, keep_every
        self._saving, self._saving_updates = None, 0
        self._for_ever: dict[int, bool] = {}

    def save(self, updates: int, tree: PyTree, record: dict[str, Any]) -> None:
        """Wait for the previous save, then copy a tree to the host and begin to write the copy.

        Raises:
            CheckpointError: the previous save or this one failed.
        """
        self.wait()
        if self.is_kept:
            self.write(updates, to_arrays(tree), describe(tree), record)

    def write(self, updates: int, arrays: dict[str, np.ndarray], described: dict[str, str], record: dict[str, Any]) -> None:
        """Wait for the previous save, then begin to write arrays from `to_arrays`, with their descriptions from `describe`.

        Raises:
            CheckpointError: the previous save or this one failed.
        """
        self.wait()
        leaves = {path: [described[path], _sha256(x)] for path, x in arrays.items()}
        text = json.dumps({"keep_every": self._keep_every, **record, "format": FORMAT, "updates": updates, "leaves": leaves})
        # Orbax refuses arrays without elements; their entries in the record are enough to restore them.
        stored = {path: x for path, x in arrays.items() if x.size}
        metadata = {"record": text, "sha256": _sha256(text.encode())}
        path, self._saving_updates = self._path(updates), updates
        with _translate(self._discard_unfinished):
            call_in_first(lambda: path.exists() and os.rename(path, f"{path}{REPLACED}"))
            self._saving = orbax().save_async(path, stored, custom_metadata=metadata)

    def wait(self) -> None:
        """Wait until the previous save is complete, and remove the checkpoints that need not be kept.

        Raises:
            CheckpointError: the save failed, which leaves earlier checkpoints unchanged, or a checkpoint could not be removed.
        """
        saving, self._saving = self._saving, None
        if saving is None:
            return
        with _translate(self._discard_unfinished):
            saving.result()
            self._put_back()
            there = [updates for updates in self.updates() if updates <= self._saving_updates]  # later ones are damaged
            for updates in there[: -self._keep] if is_first() else ():
                if not self._stays(updates):
                    self._remove(updates)

    def _put_back(self) -> None:
        """Remove the checkpoint that the last save replaced; rename it back if the save failed."""
        aside = pathlib.Path(f"{self._path(self._saving_updates)}{REPLACED}")
        if is_first() and aside.exists():
            _restore_or_remove(aside)

    def _stays(self, updates: int) -> bool:
        """Return True if a checkpoint is kept for ever, by `keep_every` now or when it was saved."""
        is_due = lambda every: bool(every) and updates % every == 0
        if updates not in self._for_ever:
            before = 0
            with contextlib.suppress(CheckpointError):  # a damaged record
                before = read_record(self._path(updates)).get("keep_every")
            self._for_ever[updates] = is_due(self._keep_every) or is_due(before)
        return self._for_ever[updates]

    def _remove(self, updates: int) -> None:
        """Remove a checkpoint in one step, by renaming it before its files are deleted."""
        removed = self.directory / f"{updates}{UNFINISHED}-removed"
        os.rename(self._path(updates), removed)
        shutil.rmtree(removed)

    def _discard_unfinished(self, error: BaseException) -> CheckpointError:
        self._saving = None
        for unfinished in self.directory.glob(f"{self._saving_updates}{UNFINISHED}*"):
            shutil.rmtree(unfinished, ignore_errors=True)  # otherwise nothing else would fit on a full disk
        with contextlib.suppress(OSError):
            self._put_back()
        return CheckpointError(f"update {self._saving_updates} could not be saved to {self.directory}: {_reason(error)}")

    def updates(self) -> list[int]:
        """Return the number of updates of each checkpoint, in ascending order."""
        return saved_updates(self.directory)

    def clear(self) -> None:
        """Remove all checkpoints."""
        if is_first():
            with _translate(self._discard_unfinished):
                for updates in self.updates():
                    self._remove(updates)

    def load(self, updates: int) -> Checkpoint:
        """Return a checkpoint, read and verified.

        Raises:
            CheckpointCorrupt: the checkpoint is damaged.
        """
        return read(self._path(updates))

    def newest_like(self, wanted: dict[str, str]) -> Checkpoint | None:
        """Return the newest readable checkpoint if its arrays match `wanted`, a result of `describe`; otherwise None."""
        try:
            there = self.updates()
            # All processes must load, since Orbax compares the numbers of operations of the processes.
            saved = first_readable(there, self.load) if there else None
        except CheckpointError as error:
            warn(f"{error}; earlier best states are ignored")
            return None
        fits = saved and not leaf_differences({path: x for path, (x, _) in saved.record["leaves"].items()}, wanted)
        return saved if fits else None

    def _path(self, updates: int) -> pathlib.Path:
        return self.directory / str(updates)


@read_errors()
def saved_updates(directory: pathlib.Path) -> list[int]:
    """Return the number of updates of each checkpoint in a directory, in ascending order. The directory is not locked."""
    is_number = lambda name: name.isascii() and name.isdecimal() and name == str(int(name))
    whole = [path for path in directory.iterdir() if is_number(path.name)] if directory.is_dir() else []
    return sorted(int(path.name) for path in whole if path.is_dir())


@read_errors()
def newest_readable(directory: pathlib.Path, updates: int | None = None) -> Checkpoint:
    """Return the newest intact checkpoint in a directory of checkpoints, or the checkpoint after `updates` updates.

    If the newest checkpoint is damaged, warn and read the previous one.

    Raises:
        CheckpointError: the directory has no such checkpoint.
        CheckpointCorrupt: the checkpoint after `updates` updates, or every checkpoint, is damaged.
    """
    while True:
        there = saved_updates(directory) if updates is None else [updates]
        if not there or not (directory / str(there[-1])).is_dir():
            left = [f"; {x.name} is put back by the next fit or save" for x in directory.glob(f"*{REPLACED}")]
            which = "" if updates is None else f" is from update {updates}"
            raise CheckpointError(f"no checkpoint in {directory}{which}{''.join(left)}")
        try:
            return first_readable(there, lambda number: read(directory / str(number)))
        except CheckpointCorrupt:
            if saved_updates(directory) == there or updates is not None:
                raise  # otherwise another process has replaced the checkpoints by newer ones


def first_readable(there: list[int], read: Callable[[int], Any]) -> Any:
    """Return `read(there[-1])`; if this checkpoint is damaged, warn and read the previous one. `there`: ascending update numbers.

    Raises:
        CheckpointCorrupt: all checkpoints are damaged.
    """
    try:
        return read(there[-1])
    except CheckpointCorrupt as error:
        if len(there) == 1:
            raise
        warn(f"{error}; reading the previous checkpoint")
    return first_readable(there[:-1], read)


def newest_record(directory: pathlib.Path) -> dict[str, Any]:
    """Return the record of a run's newest readable checkpoint, without reading its arrays.

    Raises:
        CheckpointError: the run has no readable checkpoint.
    """
    folder = directory / "checkpoints"
    if not (there := saved_updates(folder)):
        raise CheckpointError(f"no checkpoint in {folder}")
    return first_readable(there, lambda number: read_record(folder / str(number)))


def read_record(path: pathlib.Path) -> dict[str, Any]:
    """Read and verify the record of the checkpoint at `path`."""
    with _translate(lambda error: CheckpointCorrupt(f"the record of {path} cannot be read: {error}")):
        with in_this_process():
            metadata = orbax().metadata(path).custom_metadata
        text = metadata.get("record", "") if isinstance(metadata, dict) else ""
        if not text or _sha256(text.encode()) != metadata.get("sha256"):
            raise CheckpointCorrupt(f"the record of {path} does not match its checksum")
        record = json.loads(text)
    if record["format"] != FORMAT:
        raise CheckpointMismatch(path, [f"format {record['format']}; this version of purerl reads format {FORMAT}"])
    return record


def read(path: pathlib.Path) -> Checkpoint:
    """Read and verify the checkpoint at `path`."""
    record, v1 = read_record(path), orbax()
    with _translate(lambda error: CheckpointCorrupt(f"{path} cannot be read: {error}")), in_this_process():
        stored = v1.metadata(path).metadata
        for name, (described, _) in record["leaves"].items():  # checked before memory is allocated
            shape, is_key = shape_of(described), described.startswith("key<")
            if 0 in shape:
                continue
            found, dtype = stored[name].shape[:-1] if is_key else stored[name].shape, stored[name].dtype
            if (found, dtype) != (shape, dtype_of(described)):
                raise CheckpointCorrupt(f"{path}: {name} has the shape {found} and the dtype {dtype}, not {described}")
        arrays = v1.load(path, {name: np.empty(x.shape, x.dtype) for name, x in stored.items()}) if stored else {}
    for name, (described, expected) in record["leaves"].items():
        array = arrays.setdefault(name, np.empty(shape_of(described), dtype_of(described)))
        if _sha256(array) != expected:
            raise CheckpointCorrupt(f"{path}: {name} does not match its checksum")
    return Checkpoint(record["updates"], record, arrays)


def _sha256(data: bytes | np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).tobytes() if isinstance(data, np.ndarray) else data).hexdigest()


@contextlib.contextmanager
def _translate(to_error: Callable[[BaseException], CheckpointError]) -> Iterator[None]:
    """Turn any error from Orbax into a CheckpointError with a message for the user."""
    try:
        yield
    except CheckpointError:
        raise
    except (Exception, asyncio.CancelledError) as error:  # after a failed write, a cancelled write can report first
        raise to_error(error) from None


def _reason(error: BaseException) -> str:
    """Return the reason for a failed write: the operating system's message or, without one, the error's first line."""
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).split("\n")[0][:300] or type(error).__name__
