"""Checkpoints: all that resuming a run bit-identically needs, as arrays and JSON, written atomically.

A checkpoint holds a tree of arrays and a record: the config, the run, versions, and the shape, dtype and SHA-256 of every array.
It has no pickles and no names of classes; code and environments come from the caller. This is the only module that uses Orbax,
and of it only the v1 interface.
"""

import asyncio
import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import pathlib
import re
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.errors import CheckpointCorrupt, CheckpointError, CheckpointMismatch, ConfigError, DirectoryLocked, Problem
from purerl.core.types import PyTree
from purerl.runs.processes import agreed, is_first, process_count
from purerl.runs.storage.files import read_errors

FORMAT = 2
CLOCK = "['state'].clock"  # the only state leaf without a run axis
UNFINISHED = ".orbax-checkpoint-tmp"  # what Orbax adds to the name of a checkpoint until it is whole
KEY_KINDS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}  # dtypes of keys, and their names
NETWORKS = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "fuse.glusterfs", "9p", "afs"}
KEY_WORDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}
PACKAGES = ("purerl", "jax", "jaxlib", "flax", "optax", "gymnax", "numpy", "orbax-checkpoint")


class Checkpoint(NamedTuple):
    """A saved checkpoint.

    updates: finished updates.
    record: JSON, as it was given to `Store.save`, with "versions" and "leaves" added.
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


def versions() -> dict[str, str]:
    """Return the versions that the bits of a run depend on. Checkpoints record them and do not require them."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    values = jax.config.values
    return {
        **found,
        "platform": jax.default_backend(),
        "prng": f"{values['jax_default_prng_impl']}, partitionable {values['jax_threefry_partitionable']}",
    }


# --- a directory of checkpoints ---------------------------------------------------------------------------------------


def prepare(directory: pathlib.Path) -> None:
    """Makes a directory of checkpoints if it is not there, and removes what a process that was killed left unfinished in it.

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
        """Copies a tree to the host and begins to write it. Waits for the save before.

        Raises:
            CheckpointError: that one, or this, could not be written.
        """
        self.wait()
        self.write(updates, to_arrays(tree), describe(tree), record)

    def write(self, updates: int, arrays: dict[str, np.ndarray], described: dict[str, str], record: dict[str, Any]) -> None:
        """Begins to write arrays, as `to_arrays` and `describe` gave them. Waits for the save before.

        Raises:
            CheckpointError: that one, or this, could not be written.
        """
        self.wait()
        leaves = {path: [described[path], _sha256(x)] for path, x in arrays.items()}
        text = json.dumps({**record, "format": FORMAT, "updates": updates, "versions": versions(), "leaves": leaves})
        # Orbax refuses arrays without elements; their place in the record is enough.
        stored = {path: x for path, x in arrays.items() if x.size}
        metadata = {"record": text, "sha256": _sha256(text.encode())}
        path, self._saving_updates = self._path(updates), updates
        (exists,), _ = agreed(path.exists())  # the first process may remove it before another one looks
        with self._reported():
            self._saving = _orbax().save_async(path, stored, overwrite=bool(exists), custom_metadata=metadata)

    def wait(self) -> None:
        """Returns when what was saved is whole.

        Raises:
            CheckpointError: it could not be written; the checkpoints before it are still there.
        """
        saving, self._saving = self._saving, None
        if saving is None:
            return
        with self._reported():
            saving.result()
            self._forget()

    def _forget(self) -> None:
        """Removes the checkpoints that need not be kept."""
        if not is_first():
            return
        there = self.updates()
        lasting = [updates for updates in there if self._keep_every and updates % self._keep_every == 0]
        for updates in set(there) - {*there[-self._keep :], *lasting}:
            self._remove(updates)

    def _remove(self, updates: int) -> None:
        """Removes a checkpoint in one step."""
        removed = self.directory / f"{updates}{UNFINISHED}-removed"
        os.rename(self._path(updates), removed)
        shutil.rmtree(removed)

    def _reported(self):
        return _Translated(self._failed)

    def _failed(self, error: BaseException) -> CheckpointError:
        self._saving = None
        for unfinished in self.directory.glob(f"{self._saving_updates}{UNFINISHED}*"):
            shutil.rmtree(unfinished, ignore_errors=True)  # on a full disk nothing else would fit
        return CheckpointError(f"update {self._saving_updates} could not be saved to {self.directory}: {_reason(error)}")

    def updates(self) -> list[int]:
        """Return the updates of the checkpoints, the oldest first."""
        return saved_updates(self.directory)

    def clear(self) -> None:
        """Removes all checkpoints."""
        if is_first():
            with self._reported():
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
    with _Translated(lambda error: CheckpointCorrupt(f"the record of {path} cannot be read: {error}")):
        with _alone():
            metadata = _orbax().metadata(path).custom_metadata
        text = metadata.get("record", "") if isinstance(metadata, dict) else ""
        if not text or _sha256(text.encode()) != metadata.get("sha256"):
            raise CheckpointCorrupt(f"the record of {path} is not what was written")
        record = json.loads(text)
    if record["format"] != FORMAT:
        raise CheckpointMismatch(path, [f"format {record['format']}; this version of purerl reads format {FORMAT}"])
    return record


def read(path: pathlib.Path) -> Checkpoint:
    """Read and verify the checkpoint in a directory."""
    record = read_record(path)
    return Checkpoint(record["updates"], record, read_arrays(path, record["leaves"]))


def read_arrays(path: pathlib.Path, leaves: dict[str, list[str]]) -> dict[str, np.ndarray]:
    """Arrays of the checkpoint in a directory, verified: those of `leaves`, all or some of the leaves in its record."""
    orbax = _orbax()
    some = orbax.options.PyTreeOptions(loading=orbax.options.PyTreeOptions.Loading(partial_load=True))
    with _Translated(lambda error: CheckpointCorrupt(f"{path} cannot be read: {error}")), _alone(pytree_options=some):
        stored = orbax.metadata(path).metadata
        sizes = {name: _stored_size(described) for name, (described, _) in leaves.items()}
        for name, size in sizes.items():  # before anything is allocated
            if size and int(np.prod(stored[name].shape, dtype=object)) != size:
                raise CheckpointCorrupt(f"{path}: {name} has the shape {stored[name].shape}, not {leaves[name][0]}")
            if size and stored[name].dtype != _dtype(leaves[name][0]):
                raise CheckpointCorrupt(f"{path}: {name} is of {stored[name].dtype}, not {leaves[name][0]}")
        template = {name: np.empty(x.shape, x.dtype) for name, x in stored.items() if name in leaves}
        arrays = orbax.load(path, template) if template else {}
    for name, (described, expected) in leaves.items():
        array = arrays.setdefault(name, np.empty(shape_of(described), _dtype(described)))
        if _sha256(array) != expected:
            raise CheckpointCorrupt(f"{path}: {name} is not what was written")
    return arrays


def shape_of(described: str) -> tuple[int, ...]:
    """Return the shape in what `describe` gives."""
    return tuple(json.loads(described[described.index("[") :]))


def _dtype(described: str) -> np.dtype:
    name = described[: described.index("[")]
    return jnp.dtype(np.uint32 if name.startswith("key<") else name)


def _stored_size(described: str) -> int:
    """Elements of an array as it is stored; a key is as many words as its kind has."""
    name, size = described[: described.index("[")], int(np.prod(shape_of(described), dtype=object))
    return size * KEY_WORDS[KEY_KINDS[name]] if name in KEY_KINDS else size


class _Translated:
    """Turns any error within into a checkpoint's, whose message has what a user can act on."""

    def __init__(self, translate: Callable[[BaseException], CheckpointError]):
        self._translate = translate

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # One failed write cancels the others, and then the cancellation may be what surfaces.
        failed = isinstance(error, Exception | asyncio.CancelledError)
        if failed and not isinstance(error, CheckpointError):
            raise self._translate(error) from None


def _reason(error: BaseException) -> str:
    """Why a write failed: the system's word for it, if the error has one anywhere."""
    if code := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(code[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).split("\n")[0][:300] or type(error).__name__


# --- Orbax and the terminal -------------------------------------------------------------------------------------------


def _orbax() -> Any:
    """Orbax, its reports kept off the terminal: its errors arrive as exceptions."""
    for logger in ("absl", "asyncio"):  # where one array cannot be read, asyncio would show what became of the others
        logging.getLogger(logger).addFilter(_not_of_orbax)
    if not isinstance(sys.unraisablehook, _Unraisable):
        sys.unraisablehook = _Unraisable(sys.unraisablehook)
        warnings.filterwarnings("ignore", r"coroutine '(\w*Handler\.\w+|_create_paths)' was never awaited", RuntimeWarning)
    from orbax.checkpoint import v1

    return v1


def _alone(**options: Any) -> contextlib.AbstractContextManager:
    """Orbax, with these options, reads in this process alone, without waiting for the others of a job."""
    orbax = _orbax()
    if process_count() > 1:
        here = jax.process_index()
        alone = {"primary_host": here, "active_processes": {here}, "barrier_sync_key_prefix": f"of_{here}"}
        options["multiprocessing_options"] = orbax.options.MultiprocessingOptions(**alone)
    return orbax.Context(**options)


def _not_of_orbax(record: logging.LogRecord) -> bool:
    names = f"{record.pathname} {record.getMessage()}"
    return "orbax" not in names and "tensorstore" not in names


class _Unraisable:
    """A hook for errors that no code can catch.

    Where one array cannot be written, Orbax closes the event loop that the others are about to report to. Each of those then
    would print a traceback, dozens of them, from a thread of TensorStore's.
    """

    def __init__(self, otherwise: Callable[[Any], None]):
        self._otherwise = otherwise

    def __call__(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        if unraisable.object is None and isinstance(error, RuntimeError) and str(error) == "Event loop is closed":
            return
        self._otherwise(unraisable)


# --- the directory of a run -------------------------------------------------------------------------------------------


class Lock:
    """The lock of a directory: one process at a time may write. The death of the process releases it.

    Between hosts it holds only if the disk's file system says so, which those of networks do not always do. There it warns of a
    process of another host that has not released it: that one may still run, or was killed.

    Raises:
        DirectoryLocked: another process has it.
    """

    def __init__(self, directory: pathlib.Path):
        self._lock, self._holder = filelock.FileLock(directory / ".lock"), directory / ".holder"
        here, other = socket.gethostname(), ""
        with contextlib.suppress(OSError):
            other = self._holder.read_text()
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise DirectoryLocked(f"{directory} is being written to by {other or 'another process'}") from None
        if other and not other.endswith(f" on {here}") and (kind := file_system(directory)) in NETWORKS:
            hint = f"locks of {kind} may not hold between hosts, and {other} has not ended there, or was killed: make sure of it"
            warnings.warn(f"{directory}: {hint}", stacklevel=5)
        with contextlib.suppress(OSError):  # without it, the messages above have no holder
            self._holder.write_text(f"process {os.getpid()} on {here}")

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._holder.unlink()
        self._lock.release()


def file_system(directory: pathlib.Path) -> str:
    """Return the kind of file system that a directory is on, such as `ext4` or `nfs4`; "" where it is not known."""
    try:
        mounts = [line.split()[1:3] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    inside = [(len(place), kind) for place, kind in mounts if directory.is_relative_to(place)]
    return max(inside, default=(0, ""))[1]


def run_directory(directory: Any) -> pathlib.Path:
    """Return a writable directory: its absolute path, created if needed, and tested by a write.

    Raises:
        ConfigError: it cannot be one.
    """
    wrong = lambda hint: ConfigError([Problem("directory", directory, hint)])
    if not isinstance(directory, str | os.PathLike) or not str(directory):
        raise wrong("must be a path")
    text = os.fspath(directory)
    if any(ord(character) < 32 for character in text):
        raise wrong("must not contain control characters such as a new line")
    if "://" in text:
        raise wrong("must be on a local or mounted file system")
    path = pathlib.Path(text).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, delete=False) as probe:
            probe.write(b"probe")
            os.fsync(probe.fileno())
        moved = f"{probe.name}.moved"  # a name that no other process has
        os.replace(probe.name, moved)
        os.unlink(moved)
    except OSError as error:
        raise wrong(f"cannot be written to: {error.strerror}") from error
    return path
