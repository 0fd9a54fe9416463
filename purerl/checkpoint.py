"""Checkpoints: all that a run needs to go on to the same bits, as arrays and JSON in one atomic commit.

A checkpoint holds a tree of arrays and a record: the config, the run, versions, and the shape, dtype and SHA-256 of every
array. There are no pickles and no names of classes in it; code and environments come from the caller. The only module that
knows Orbax, and of it only the v1 interface.
"""

import asyncio
import fcntl
import hashlib
import importlib.metadata
import json
import logging
import os
import pathlib
import socket
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.errors import CheckpointCorrupt, CheckpointError, CheckpointMismatch, ConfigError, DirectoryLocked, Problem

PyTree = Any
FORMAT = 1
KEY_KINDS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}  # dtypes of keys, and their names
KEY_WORDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}
PACKAGES = ("purerl", "jax", "jaxlib", "flax", "optax", "gymnax", "numpy", "orbax-checkpoint")


class Checkpoint(NamedTuple):
    """What was saved.

    updates: finished updates.
    record: JSON, as it was given to `Store.save`, with "versions" and "leaves" added.
    arrays: from a path in the saved tree to an array on the host.
    """

    updates: int
    record: dict[str, Any]
    arrays: dict[str, np.ndarray]


# --- trees and arrays -------------------------------------------------------------------------------------------------


def to_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Every leaf of a tree by its path, as a copy on the host; keys as their data."""

    def copied(x):
        # On a CPU `np.asarray` may be a view of memory that the next chunk of training writes to.
        return np.array(jax.random.key_data(x) if _is_key(x) else x)

    return {jax.tree_util.keystr(path): copied(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def to_tree(arrays: dict[str, np.ndarray], template: PyTree) -> PyTree:
    """The tree whose leaves `to_arrays` gave; `template` has its structure, shapes and dtypes."""

    def leaf(path, like):
        x = jnp.asarray(arrays[jax.tree_util.keystr(path)])
        return jax.random.wrap_key_data(x, impl=KEY_KINDS[str(like.dtype)]) if _is_key(like) else x

    return jax.tree_util.tree_map_with_path(leaf, template)


def describe(tree: PyTree) -> dict[str, str]:
    """From the path of every leaf to its dtype and shape: `float32[64, 4]`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}" for path, x in leaves}


def differences(saved: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """Where two trees that `describe` described are not alike, in words."""
    missing = [f"{path}: {wanted[path]} is not in the checkpoint" for path in wanted if path not in saved]
    surplus = [f"{path}: {saved[path]} is only in the checkpoint" for path in saved if path not in wanted]
    both = [path for path in wanted if path in saved and saved[path] != wanted[path]]
    return [f"{path}: {saved[path]} in the checkpoint, {wanted[path]} here" for path in both] + missing + surplus


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _sha256(data: bytes | np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).tobytes() if isinstance(data, np.ndarray) else data).hexdigest()


def versions() -> dict[str, str]:
    """What the bits of a run depend on beside its config, and which checkpoints only note."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        **found,
        "platform": jax.default_backend(),
        "prng": f"{jax.config.jax_default_prng_impl}, partitionable {jax.config.jax_threefry_partitionable}",
    }


# --- a directory of checkpoints ---------------------------------------------------------------------------------------


class Store:
    """The checkpoints in a directory, by number of updates.

    Args:
        directory: absolute; made if it is not there.
        keep: newest checkpoints to keep.
        keep_every: keep those of every k-th update as well; 0 keeps none of them.
    """

    def __init__(self, directory: pathlib.Path, keep: int = 3, keep_every: int = 0):
        training = _orbax().training
        policies = training.preservation_policies
        kept = [policies.LatestN(keep)] + ([policies.EveryNSteps(keep_every)] if keep_every else [])
        self.directory, self._saving, self._saving_updates = directory, None, None
        self._checkpointer = training.Checkpointer(
            directory,
            cleanup_tmp_directories=True,
            save_decision_policy=None,
            preservation_policy=policies.AnyPreservationPolicy(kept),
        )

    def save(self, updates: int, tree: PyTree, record: dict[str, Any]) -> None:
        """Copies a tree to the host and begins to write it. Waits for the save before.

        Raises:
            CheckpointError: that one, or this, could not be written.
        """
        self.wait()
        arrays = to_arrays(tree)
        dtypes = describe(tree)
        leaves = {path: [dtypes[path], _sha256(x)] for path, x in arrays.items()}
        text = json.dumps({**record, "format": FORMAT, "updates": updates, "versions": versions(), "leaves": leaves})
        # Orbax refuses arrays without elements; their place in the record is enough.
        written = {path: x for path, x in arrays.items() if x.size}
        metadata = {"record": text, "sha256": _sha256(text.encode())}
        self._saving_updates = updates
        with self._reported():
            self._saving = self._checkpointer.save_async(
                updates, written, force=True, overwrite=updates in self.updates(), custom_metadata=metadata
            )

    def wait(self) -> None:
        """Returns when nothing is being written.

        Raises:
            CheckpointError: what was being written could not be.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            with self._reported():
                saving.result()

    def close(self) -> None:
        """Waits for the last save.

        Raises:
            CheckpointError: it could not be written.
        """
        try:
            self.wait()
        finally:
            with self._reported():
                self._checkpointer.close()

    def _reported(self):
        return _Translated(lambda error: CheckpointError(f"update {self._saving_updates} could not be saved: {error}"))

    def updates(self) -> list[int]:
        """Which checkpoints there are, the oldest first."""
        return sorted(checkpoint.step for checkpoint in self._checkpointer.checkpoints)

    def record(self, updates: int) -> dict[str, Any]:
        """The record of a checkpoint, without its arrays.

        Raises:
            CheckpointCorrupt: it is not what was written.
        """
        return read_record(self.directory / str(updates))

    def load(self, updates: int) -> Checkpoint:
        """A checkpoint, verified.

        Raises:
            CheckpointCorrupt: it is not what was written.
        """
        return read(self.directory / str(updates))


def read_record(path: pathlib.Path) -> dict[str, Any]:
    """The record of the checkpoint in a directory, verified."""
    with _Translated(lambda error: CheckpointCorrupt(f"the record of {path} cannot be read: {error}")):
        metadata = _orbax().metadata(path).custom_metadata
        text, expected = metadata["record"], metadata["sha256"]
        if _sha256(text.encode()) != expected:
            raise CheckpointCorrupt(f"the record of {path} is not what was written")
        record = json.loads(text)
    if record["format"] != FORMAT:
        raise CheckpointMismatch(path, [f"format {record['format']}; this version of purerl reads {FORMAT}"])
    return record


def read(path: pathlib.Path) -> Checkpoint:
    """The checkpoint in a directory, with every array held against its hash."""
    record = read_record(path)
    orbax, leaves = _orbax(), record["leaves"]
    with _Translated(lambda error: CheckpointCorrupt(f"{path} cannot be read: {error}")):
        stored = orbax.metadata(path).metadata
        sizes = {name: _stored_size(described) for name, (described, _) in leaves.items()}
        for name, size in sizes.items():  # before anything is allocated
            if size and int(np.prod(stored[name].shape, dtype=object)) != size:
                raise CheckpointCorrupt(f"{path}: {name} has the shape {stored[name].shape}, not {leaves[name][0]}")
        template = {name: np.empty(x.shape, x.dtype) for name, x in stored.items() if name in leaves}
        arrays = orbax.load(path, template) if template else {}
    for name, (described, expected) in leaves.items():
        array = arrays.setdefault(name, np.empty(shape_of(described), _dtype(described)))
        if _sha256(array) != expected:
            raise CheckpointCorrupt(f"{path}: {name} is not what was written")
    return Checkpoint(record["updates"], record, arrays)


def newest(directory: pathlib.Path) -> pathlib.Path | None:
    """The newest whole checkpoint below a directory of them. Reads only, and takes no lock."""
    whole = [path for path in directory.iterdir() if path.name.isdigit()] if directory.is_dir() else []
    return max(whole, key=lambda path: int(path.name), default=None)


def shape_of(described: str) -> tuple[int, ...]:
    """The shape in what `describe` gives."""
    return tuple(json.loads(described[described.index("[") :]))


def _dtype(described: str) -> np.dtype:
    name = described[: described.index("[")]
    return jnp.dtype(np.uint32 if name.startswith("key<") else name)


def _stored_size(described: str) -> int:
    """Elements of an array as it is stored; a key is as many words as its kind has."""
    name, size = described[: described.index("[")], int(np.prod(shape_of(described), dtype=object))
    return size * KEY_WORDS[KEY_KINDS[name]] if name in KEY_KINDS else size


class _Translated:
    """Turns any error within into a checkpoint's, with the first one as its cause."""

    def __init__(self, translate: Callable[[Exception], CheckpointError]):
        self._translate = translate

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        # One failed write cancels the others, and then the cancellation may be what surfaces.
        failed = isinstance(error, Exception | asyncio.CancelledError)
        if failed and not isinstance(error, CheckpointError):
            raise self._translate(error) from error


def _orbax() -> Any:
    logging.getLogger("absl").addFilter(_quiet)
    from orbax.checkpoint import v1

    return v1


def _quiet(record: logging.LogRecord) -> bool:
    """Keeps Orbax's reports off the terminal; its errors arrive as exceptions."""
    return "orbax" not in record.pathname


# --- the directory of a run -------------------------------------------------------------------------------------------


class Lock:
    """The right to write to a directory; one process at a time, and freed by its death.

    Raises:
        DirectoryLocked: another process has it.
    """

    def __init__(self, directory: pathlib.Path):
        self._file = open(directory / ".lock", "a+")  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "another process"
            self._file.close()
            raise DirectoryLocked(f"{directory} is being written to by {holder}") from error
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def run_directory(directory: Any) -> pathlib.Path:
    """A directory to write to, absolute, made and tried.

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
        os.replace(probe.name, path / ".probe")
        (path / ".probe").unlink()
    except OSError as error:
        raise wrong(f"cannot be written to: {error.strerror}") from error
    return path
