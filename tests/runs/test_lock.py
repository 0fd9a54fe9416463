"""Locks of run directories."""

import os

import pytest

import purerl
from purerl.runs.storage.lock import Lock, run_directory
from tests.helpers.interrupted import fitted
from tests.helpers.probes import Varied


def test_locks_work_without_fcntl(fresh_python, tmp_path):
    code = f"""
import sys
sys.modules["fcntl"] = None  # importing it fails, as on Windows
import warnings; warnings.simplefilter("ignore")
import purerl
from purerl.runs.storage.lock import Lock
import pathlib
lock = Lock(pathlib.Path({str(tmp_path)!r}))
try:
    Lock(pathlib.Path({str(tmp_path)!r}))
except purerl.DirectoryLocked as error:
    print("locked", error)
lock.release()
Lock(pathlib.Path({str(tmp_path)!r})).release()
"""
    assert fresh_python(code).startswith("locked")


def test_lock_is_released_after_an_error(tmp_path):
    (tmp_path / "checkpoints").write_text("in the way")
    for _ in range(2):
        with pytest.raises(purerl.ConfigError, match="is not writable"):
            fitted(directory=tmp_path)
    Lock(tmp_path).release()


def test_directory_has_one_writer_and_many_readers(tmp_path):
    seen = []

    def intrude(progress):
        if progress.updates == 3:
            with pytest.raises(purerl.DirectoryLocked, match=f"process {os.getpid()}"):
                fitted(directory=tmp_path)
            seen.append(purerl.load(tmp_path, env=Varied()).updates)

    fitted(directory=tmp_path, save_every=1, recorders=(intrude,))
    assert seen in ([2], [1])


BAD_DIRECTORIES = [
    ("", "must be a path"),
    (7, "must be a path"),
    ("a\nb", "control characters"),
    ("gs://bucket/run", "local or mounted"),
    ("/proc/run", "is not writable"),
    (__file__, "is not writable"),
]


@pytest.mark.parametrize(("directory", "says"), BAD_DIRECTORIES, ids=["empty", "number", "newline", "bucket", "proc", "file"])
def test_invalid_directories_are_refused(directory, says):
    with pytest.raises(purerl.ConfigError, match=says):
        fitted(directory=directory)


def test_relative_directories_are_resolved_at_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run_directory("a/b") == tmp_path / "a" / "b"
    assert run_directory("~/c") == tmp_path / "home" / "c"
    fitted(updates=3, directory="run", save_every=1, recorders=(lambda _: monkeypatch.chdir("/"),))
    assert purerl.load(tmp_path / "run", env=Varied()).updates == 3
