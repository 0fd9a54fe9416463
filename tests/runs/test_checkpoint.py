"""Checkpoints on disk: whole, damaged and foreign ones."""

import gc
import json
import os
import pathlib
import re
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.runs.storage import checkpoint
from purerl.runs.storage.checkpoint import Store
from tests.helpers.interrupted import StopAt, fitted
from tests.helpers.probes import Varied
from tests.helpers.tiny import digest


def test_every_kind_of_array_is_restored_bit_for_bit(tmp_path):
    tree = {
        "nan payload": np.array([0x7FC00001, 0xFFC12345], np.uint32).view(np.float32),
        "zeros": np.array([0.0, -0.0], np.float32),
        "half": jnp.array([1.5, -3], jnp.bfloat16),
        "bytes": jnp.arange(5, dtype=jnp.uint8),
        "flags": jnp.array([True, False]),
        "scalar": jnp.uint32(2**32 - 1),
        "empty": jnp.zeros((0, 3)),
        "nothing": (),
        "key": jax.random.key(7),
        "keys": jax.random.split(jax.random.key(7, impl="rbg"), 3),
    }
    store = Store(tmp_path)
    store.save(0, tree, {"note": "x"})
    store.wait()
    saved = store.load(0)
    back = checkpoint.to_tree(saved.arrays, tree)
    assert digest(back) == digest(tree)
    assert saved.record["note"] == "x"
    assert [str(x.dtype) for x in jax.tree.leaves(back)] == [str(x.dtype) for x in jax.tree.leaves(tree)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_failed_save_raises(tmp_path):
    store = Store(tmp_path / "a")
    store.save(1, {"x": np.zeros(3)}, {})
    store.wait()
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "a").write_text("in the way")

    def save():
        store.save(2, {"x": np.zeros(3)}, {})
        store.wait()

    with pytest.raises(purerl.CheckpointError, match="update 2 could not be saved"):
        save()
    gc.collect()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a directory with checkpoints of updates 3 and 6, the newest to be damaged."""
    directory = tmp_path_factory.mktemp("run")
    fitted(directory=directory, save_every=3, recorders=(StopAt(6),))
    return directory


def files_of(directory):
    newest = directory / "checkpoints" / "6"
    return sorted(path.relative_to(directory) for path in newest.rglob("*") if path.is_file())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves its event loops behind
def test_damaged_checkpoint_is_reported_or_harmless(run, tmp_path):
    """Each file in turn has a bit flipped, is emptied, or is removed: the loaded numbers never change silently."""
    good = digest(purerl.load(run, env=Varied()).state)
    damages = {
        "flipped": lambda path: path.write_bytes(bytes([*(data := bytearray(path.read_bytes()))[:-1], data[-1] ^ 1])),
        "flipped inside": lambda path: path.write_bytes(flipped(path.read_bytes())),
        "cut": lambda path: path.write_bytes(b""),
        "gone": lambda path: path.unlink(),
    }
    told = 0
    for file in files_of(run):
        for damage in damages.values() if (run / file).stat().st_size else [damages["gone"]]:
            copy = tmp_path / "copy"
            shutil.copytree(run, copy)
            damage(copy / file)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                loaded = purerl.load(copy, env=Varied())
            messages = [warning for warning in caught if "reading the previous checkpoint" in str(warning.message)]
            assert loaded.updates == (3 if messages else 6)
            assert messages or digest(loaded.state) == good
            told += bool(messages)
            shutil.rmtree(copy)
    assert told > len(files_of(run))
    gc.collect()  # here, where Orbax's leftovers are expected


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_resuming_falls_back_from_a_damaged_checkpoint(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    data = max((copy / "checkpoints" / "6" / "state").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    data.write_bytes(flipped(data.read_bytes()))
    with pytest.warns(UserWarning, match="reading the previous checkpoint"):
        result = fitted(directory=copy, resume="must")
    assert result.progress.began[0] == 3
    assert digest(result.state) == digest(fitted().state)
    gc.collect()


@pytest.mark.slow
def test_foreign_files_and_modification_times_are_ignored(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    checkpoints = copy / "checkpoints"
    (checkpoints / "evil.pkl").write_bytes(b"cos\nsystem\n(S'touch evil'\ntR.")
    (checkpoints / "..99").mkdir()
    (checkpoints / "passwd").symlink_to("/etc/passwd")
    (checkpoints / "7.orbax-checkpoint-tmp").mkdir()
    os.utime(checkpoints / "6", (1e9, 1e9))  # by its modification time the newest checkpoint is the oldest
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert fitted(directory=copy).progress.began[0] == 6
    assert not (checkpoints / "7.orbax-checkpoint-tmp").exists()
    assert not pathlib.Path("evil").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_record_with_oversized_shapes_is_refused(run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    path = copy / "checkpoints" / "6" / "_CHECKPOINT_METADATA"
    metadata = json.loads(path.read_text())
    record = json.loads(metadata["custom_metadata"]["record"])
    leaf = next(name for name in record["leaves"] if "kernel" in name)
    record["leaves"][leaf][0] = "float32[1000000000, 1000000000]"
    text = json.dumps(record)
    metadata["custom_metadata"] = {"record": text, "sha256": checkpoint._sha256(text.encode())}
    path.write_text(json.dumps(metadata))
    with pytest.raises(purerl.CheckpointCorrupt, match=r"kernel.* has the shape"):
        purerl.load(copy, updates=6, env=Varied())


def test_record_with_a_wrong_checksum_is_refused(run, tmp_path):
    """The record has another `lr` than the run, and the error names the file."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    path = copy / "checkpoints" / "6" / "_CHECKPOINT_METADATA"
    text = path.read_text()
    changed = re.sub(r'(\\"lr\\": )[0-9.e-]+', r"\g<1>0.5", text)
    assert changed != text
    assert json.loads(json.loads(changed)["custom_metadata"]["record"])["config"]["lr"] == 0.5
    path.write_text(changed)
    with pytest.raises(
        purerl.CheckpointCorrupt, match=f"the record of {re.escape(str(path.parent))} does not match its checksum"
    ):
        purerl.load(copy, updates=6, env=Varied())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*float64")
def test_resuming_with_64_bits_enabled_is_a_mismatch(run):
    with jax.enable_x64(True), pytest.raises(purerl.CheckpointMismatch, match="x64: False in the checkpoint, True here"):
        fitted(directory=run)
