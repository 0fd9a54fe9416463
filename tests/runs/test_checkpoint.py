"""Checkpoints on disk: whole, damaged and foreign ones."""

import gc
import json
import os
import pathlib
import re
import shutil
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.core.keys import clock_at
from purerl.runs.storage import checkpoint
from purerl.runs.storage.checkpoint import Store, saved_updates
from tests.helpers.interrupted import StopAt, fitted
from tests.helpers.probes import Varied
from tests.helpers.tiny import digest, tiny


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


@pytest.fixture
def failing(monkeypatch):
    """Return a function that lets the saves with these numbers fail, as on a full disk."""
    real, calls = checkpoint.orbax(), []

    class Failed:
        def result(self):
            raise OSError(28, "No space left on device")

    def let_fail(*numbers, at_once=False):
        def save_async(*args, **options):
            calls.append(1)
            if at_once and len(calls) in numbers:
                raise OSError(28, "No space left on device")
            return Failed() if len(calls) in numbers else real.save_async(*args, **options)

        proxy = types.SimpleNamespace(save_async=save_async, metadata=real.metadata, load=real.load)
        monkeypatch.setattr(checkpoint, "orbax", lambda: proxy)

    return let_fail


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("failed", "there"), [(2, [3, 9, 10]), (4, [3, 6, 9, 10])])
def test_save_that_fails_prevents_no_other(failed, there, at_once, failing, tmp_path):
    failing(failed, at_once=at_once)
    with pytest.warns(UserWarning, match="could not be saved .* No space left on device; with on_save_error='warn'"):
        fitted(directory=tmp_path, save_every=3, keep=9, on_save_error="warn")
    assert saved_updates(tmp_path / "checkpoints") == there


def test_checkpoint_stays_if_its_replacement_cannot_be_written(failing, tmp_path):
    train = tiny()
    state = train.init(jax.random.key(0))
    purerl.save(tmp_path, train, state)
    failing(1)
    with pytest.raises(purerl.CheckpointError, match="update 0 could not be saved"):
        purerl.save(tmp_path, train, train.init(jax.random.key(1)))
    assert digest(purerl.restore(tmp_path, train)) == digest(state)
    place = tmp_path / "checkpoints"
    (place / "0").rename(place / "0.replaced")  # as if the process had been killed before the new checkpoint was complete
    with pytest.raises(purerl.CheckpointError, match=r"no checkpoint in .*; 0\.replaced is put back by the next fit or save"):
        purerl.restore(tmp_path, train)
    purerl.save(tmp_path, train, train.init(jax.random.key(2)))
    assert digest(purerl.restore(tmp_path, train)) == digest(train.init(jax.random.key(2)))
    assert [path.name for path in place.iterdir()] == ["0"]


def test_new_checkpoint_outlasts_a_damaged_later_one(tmp_path):
    store = Store(tmp_path, keep=1)
    (tmp_path / "17" / "state").mkdir(parents=True)
    store.save(14, {"x": np.zeros(3)}, {})
    store.wait()
    assert saved_updates(tmp_path) == [14, 17]


def test_folders_of_the_user_with_names_of_checkpoints_are_left_alone(tmp_path):
    for name in ("1", "2", "007"):
        (tmp_path / "best" / name).mkdir(parents=True)
    (tmp_path / "best" / "2" / ".hidden").write_text("mine")
    with pytest.raises(purerl.ConfigError, match="contains the folder 2, which is no checkpoint"):
        fitted(directory=tmp_path)
    assert (tmp_path / "best" / "2" / ".hidden").read_text() == "mine"


def test_metrics_without_checkpoints_are_not_replaced_silently(tmp_path):
    fitted(2, directory=tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.warns(UserWarning, match="the run has no checkpoint, so that it begins anew, and replaces its metrics"):
        fitted(2, directory=tmp_path)


def test_states_with_other_keys_are_restored_and_two_axes_are_refused(tmp_path):
    train = tiny()
    state = train.init(jax.random.key(0, impl="rbg"))
    purerl.save(tmp_path / "rbg", train, state)
    assert digest(purerl.restore(tmp_path / "rbg", train)) == digest(state)
    keys = jax.random.split(jax.random.key(0), (2, 3))
    stacked = jax.vmap(jax.vmap(train.init))(keys)
    purerl.save(tmp_path / "two", train, stacked)
    with pytest.raises(purerl.ConfigError, match=r"has states with axes \[2, 3\]; read them by purerl\.restore"):
        purerl.load(tmp_path / "two", env=train.given["env"])
    apart = jax.tree.map(lambda *x: jnp.stack(x), train.init(keys[0, 0]), train.init(keys[0, 0]).replace(clock=clock_at(2)))
    with pytest.raises(purerl.ConfigError, match="has runs with different numbers of updates"):
        purerl.save(tmp_path / "apart", train, apart)


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
