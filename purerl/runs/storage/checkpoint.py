"""Checkpoints: all that resuming a run bit-identically needs, as arrays and JSON, written atomically.

A checkpoint holds a tree of arrays and a record: the config, the run, versions, and the shape, dtype and SHA-256 of every array.
It has no pickles and no names of classes; code and environments come from the caller. Of Orbax only the v1 interface is used.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.errors import CheckpointCorrupt, CheckpointError, CheckpointMismatch, ConfigError, Problem
from purerl.core.types import PyTree
from purerl.runs.processes import agreed, is_first
from purerl.runs.storage.files import read_errors
from purerl.runs.storage.orbax_v1 import in_this_process, orbax

FORMAT = 2
CLOCK = "['state'].clock"  # the only state leaf without a run axis
UNFINISHED = ".orbax-checkpoint-tmp"  # what Orbax adds to the name of a checkpoint until it is whole
KEY_KINDS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}  # dtypes of keys, and their names


class Checkpoint(NamedTuple):
    """A saved checkpoint.

    updates: finished updates.
    record: JSON, as it was given to `Store.save`, with "leaves" added.
    arrays: from a path in the saved tree to an array on the host.
    """

    updates: int
    record: dict[str, Any]
    arrays: dict[str, np.ndarray]


# --- trees and arrays -------------------------------------------------------------------------------------------------


def to_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Return every leaf of a tree by its path, as a copy on the host; keys as their data."""

    def copied(x):
        # On a CPU `np.asarray` may be a view of memory that the next chunk of training writes to.
        return np.array(jax.random.key_data(x) if _is_key(x) else x)

    return {jax.tree_util.keystr(path): copied(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def to_tree(arrays: dict[str, np.ndarray], template: PyTree) -> PyTree:
    """Return the tree whose leaves `to_arrays` gave; `template` has its structure, shapes and dtypes."""

    def leaf(path, like):
        x = jnp.asarray(arrays[jax.tree_util.keystr(path)])
        return jax.random.wrap_key_data(x, impl=KEY_KINDS[str(like.dtype)]) if _is_key(like) else x

    return jax.tree_util.tree_map_with_path(leaf, template)


def describe(tree: PyTree) -> dict[str, str]:
    """Return the dtype and shape of every leaf by its path: `float32[64, 4]`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}


def leaf_differences(saved: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Return the differences between two trees as `describe` gives them, in words."""
    missing = [f"{path}: {wanted[path]} is not in the checkpoint" for path in wanted if path not in saved]
    surplus = [f"{path}: {saved[path]} is only in the checkpoint" for path in saved if path not in wanted]
    both = [path for path in wanted if path in saved and saved[path] != wanted[path]]
    return [f"{path}: {saved[path]} in the checkpoint, {wanted[path]} here" for path in both] + missing + surplus


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _sha256(data: bytes | np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).tobytes() if isinstance(data, np.ndarray) else data).hexdigest()


# --- a directory of checkpoints ---------------------------------------------------------------------------------------


def prepare(directory: pathlib.Path) -> None:
    """Make a directory of checkpoints if it is not there, and remove what a process that was killed left unfinished in it.

    Raises:
        ConfigError: there is a file in its place.
    """
    try:
        directory.mkdir(exist_ok=True)
        for unfinished in directory.glob(f"*{UNFINISHED}*"):
            shutil.rmtree(unfinished)
    except OSError as error:
        raise ConfigError([Problem("directory", str(directory), f"cannot be written to: {error.strerror}")]) from None


class Store:
    """The checkpoints in a directory, by number of updates.

    In a job of several processes all of them save, alike and in the same order, and the first writes. They need a file system
    that they share.

    Args:
        directory: absolute, and there: see `prepare`.
        keep: newest checkpoints to keep.
        keep_every: keep those of every k-th update as well; 0 keeps none of them.
    """

    def __init__(self, directory: pathlib.Path, keep: int = 3, keep_every: int = 0):
        self.directory, self._keep, self._keep_every = directory, keep, keep_every
        self._saving, self._saving_updates = None, 0

    def save(self, updates: int, tree: PyTree, record: dict[str, Any]) -> None:
        """Copy a tree to the host and begin to write it. Wait for the save before.

        Raises:
            CheckpointError: that one, or this, could not be written.
        """
        self.wait()
        self.write(updates, to_arrays(tree), describe(tree), record)

    def write(self, updates: int, arrays: dict[str, np.ndarray], described: dict[str, str], record: dict[str, Any]) -> None:
        """Begin to write arrays, as `to_arrays` and `describe` gave them. Waits for the save before.

        Raises:
            CheckpointError: that one, or this, could not be written.
        """
        self.wait()
        leaves = {path: [described[path], _sha256(x)] for path, x in arrays.items()}
        text = json.dumps({**record, "format": FORMAT, "updates": updates, "leaves": leaves})
        # Orbax refuses arrays without elements; their place in the record is enough.
        stored = {path: x for path, x in arrays.items() if x.size}
        metadata = {"record": text, "sha256": _sha256(text.encode())}
        path, self._saving_updates = self._path(updates), updates
        (exists,), _ = agreed(path.exists())  # the first process may remove it before another one looks
        with _translate(self._failed):
            self._saving = orbax().save_async(path, stored, overwrite=bool(exists), custom_metadata=metadata)

    def wait(self) -> None:
        """Wait until what was saved is whole.

        Raises:
            CheckpointError: it could not be written; the checkpoints before it are still there.
        """
        saving, self._saving = self._saving, None
        if saving is None:
            return
        with _translate(self._failed):
            saving.result()
            self._forget()

    def _forget(self) -> None:
        """Remove the checkpoints that need not be kept."""
        if not is_first():
            return
        there = self.updates()
        lasting = [updates for updates in there if self._keep_every and updates % self._keep_every == 0]
        for updates in set(there) - {*there[-self._keep :], *lasting}:
            self._remove(updates)

    def _remove(self, updates: int) -> None:
        """Remove a checkpoint in one step."""
        removed = self.directory / f"{updates}{UNFINISHED}-removed"
        os.rename(self._path(updates), removed)
        shutil.rmtree(removed)

    def _failed(self, error: BaseException) -> CheckpointError:
        self._saving = None
        for unfinished in self.directory.glob(f"{self._saving_updates}{UNFINISHED}*"):
            shutil.rmtree(unfinished, ignore_errors=True)  # on a full disk nothing else would fit
        return CheckpointError(f"update {self._saving_updates} could not be saved to {self.directory}: {_reason(error)}")

    def updates(self) -> list[int]:
        """Return the updates of the checkpoints, the oldest first."""
        return saved_updates(self.directory)

    def clear(self) -> None:
        """Remove all checkpoints."""
        if is_first():
            with _translate(self._failed):
                for updates in self.updates():
                    self._remove(updates)

    def load(self, updates: int) -> Checkpoint:
        """Return a checkpoint, verified.

        Raises:
            CheckpointCorrupt: it is not what was written.
        """
        return read(self._path(updates))

    def _path(self, updates: int) -> pathlib.Path:
        return self.directory / str(updates)


@read_errors()
def saved_updates(directory: pathlib.Path) -> list[int]:
    """Return the updates of the checkpoints in a directory of checkpoints, the oldest first. Reads only, and takes no lock."""
    whole = [path for path in directory.iterdir() if path.name.isascii() and path.name.isdecimal()] if directory.is_dir() else []
    return sorted(int(path.name) for path in whole if path.is_dir())


@read_errors()
def newest_readable(directory: pathlib.Path, updates: int | None = None) -> Checkpoint:
    """Return the newest intact checkpoint in a directory of checkpoints, or the one of this update.

    Of one that is damaged it warns, and takes the one before.

    Raises:
        CheckpointError: there is none.
        CheckpointCorrupt: it is damaged, and there is no other.
    """
    while True:
        there = saved_updates(directory) if updates is None else [updates]
        if not there or not (directory / str(there[-1])).is_dir():
            raise CheckpointError(f"no checkpoint in {directory}" + ("" if updates is None else f" of update {updates}"))
        try:
            return first_readable(there, lambda number: read(directory / str(number)))
        except CheckpointCorrupt:
            if saved_updates(directory) == there or updates is not None:
                raise  # and else another process has removed them for newer ones


def first_readable(there: list[int], read: Callable[[int], Any]) -> Any:
    """Return the result of reading the last of these updates, or the one before with a warning, if it is damaged.

    Raises:
        CheckpointCorrupt: all are.
    """
    for number in reversed(there):
        try:
            return read(number)
        except CheckpointCorrupt as error:
            if number == there[0]:
                raise
            warnings.warn(f"{error}; taking the one before", stacklevel=5)
    raise ValueError("no checkpoint to read")


def read_record(path: pathlib.Path) -> dict[str, Any]:
    """Return the record of the checkpoint in a directory, verified."""
    with _translate(lambda error: CheckpointCorrupt(f"the record of {path} cannot be read: {error}")):
        with in_this_process():
            metadata = orbax().metadata(path).custom_metadata
        text = metadata.get("record", "") if isinstance(metadata, dict) else ""
        if not text or _sha256(text.encode()) != metadata.get("sha256"):
            raise CheckpointCorrupt(f"the record of {path} is not what was written")
        record = json.loads(text)
    if record["format"] != FORMAT:
        raise CheckpointMismatch(path, [f"format {record['format']}; this version of purerl reads format {FORMAT}"])
    return record


def read(path: pathlib.Path) -> Checkpoint:
    """Read and verify the checkpoint in a directory."""
    record, v1 = read_record(path), orbax()
    with _translate(lambda error: CheckpointCorrupt(f"{path} cannot be read: {error}")), in_this_process():
        stored = v1.metadata(path).metadata
        for name, (described, _) in record["leaves"].items():  # before anything is allocated
            shape, is_key = shape_of(described), described.startswith("key<")
            if 0 in shape:
                continue
            found = stored[name].shape[:-1] if is_key else stored[name].shape
            if found != shape:
                raise CheckpointCorrupt(f"{path}: {name} has the shape {found}, not {described}")
            if stored[name].dtype != _dtype(described):
                raise CheckpointCorrupt(f"{path}: {name} is of {stored[name].dtype}, not {described}")
        arrays = v1.load(path, {name: np.empty(x.shape, x.dtype) for name, x in stored.items()}) if stored else {}
    for name, (described, expected) in record["leaves"].items():
        array = arrays.setdefault(name, np.empty(shape_of(described), _dtype(described)))
        if _sha256(array) != expected:
            raise CheckpointCorrupt(f"{path}: {name} is not what was written")
    return Checkpoint(record["updates"], record, arrays)


def shape_of(described: str) -> tuple[int, ...]:
    """Return the shape in what `describe` gives."""
    return tuple(json.loads(described[described.index("[") :]))


def _dtype(described: str) -> np.dtype:
    name = described[: described.index("[")]
    return jnp.dtype(np.uint32 if name.startswith("key<") else name)


@contextlib.contextmanager
def _translate(to_error: Callable[[BaseException], CheckpointError]) -> Iterator[None]:
    """Turn any error of Orbax into one whose message has what a user can act on."""
    try:
        yield
    except CheckpointError:
        raise
    except (Exception, asyncio.CancelledError) as error:  # a failed write cancels the others, whose error may come first
        raise to_error(error) from None


def _reason(error: BaseException) -> str:
    """Return why a write failed: the system's word for it, if the error has one anywhere."""
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).split("\n")[0][:300] or type(error).__name__
