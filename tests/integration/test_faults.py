"""Faults of the real world, on the real command: kills, signals, full disks, flipped bits.

A few run with the normal tests; `python -m pytest -m long -s tests/integration/test_faults.py` makes the tables.
"""

import contextlib
import gc
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest

import purerl
from purerl.runs.storage import curves
from tests.helpers import faults
from tests.helpers.faults import committed, wait_for
from tests.helpers.interrupted import fitted
from tests.helpers.probes import Varied
from tests.helpers.tiny import digest

ROOT = pathlib.Path(__file__).parent.parent.parent
COMMAND = "ppo --total-timesteps 6400 --num-envs 4 --num-steps 16 --hidden 8 --save-every 5 --save-seconds 1000 --seed 11"
UPDATES = 100


def start(directory, *more, code=None):
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": os.environ["PURERL_TESTS_CACHE"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
    }
    command = [sys.executable, *(("-c", code) if code else ("-m", "purerl")), *COMMAND.split(), "--directory", str(directory)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*command, *more], env=env, **pipes)


def finish(directory, *more, **kwargs):
    process = start(directory, *more, **kwargs)
    out = process.communicate(timeout=300)[0]
    return process.returncode, out


def committing(directory):
    folder = directory / "checkpoints"
    return folder.is_dir() and any("tmp" in path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted")
    code, out = finish(directory)
    assert code == 0, out
    return result_of(directory)


def result_of(directory):
    """Return the hash of the final state, and the metrics history."""
    loaded = purerl.load(directory)
    assert loaded.updates == UPDATES
    return digest(loaded.state), digest(curves.read(directory)[0])


def kill(begin, directory, kills, in_commit, seed=0):
    """Kill a process that begins again and again; return the number of kills, and the number of kills in a commit."""
    rng, killed, during = random.Random(seed), 0, 0
    while killed < kills:
        process, before = begin(), committed(directory)
        if killed < in_commit:
            wait_for(lambda: committed(directory) > before and committing(directory), process)  # noqa: B023
        else:
            wait_for(lambda: committed(directory) > before, process)  # noqa: B023
            time.sleep(rng.uniform(0, 0.3))
        writing = committing(directory)
        process.kill()
        process.communicate()
        if process.returncode == 0:  # the process ended before it could be killed
            raise AssertionError("the run is too short for so many kills")
        assert committed(directory) >= before
        killed, during = killed + 1, during + writing
    return killed, during


def kill_and_resume(directory, kills, in_commit, seed=0):
    """Kill the command repeatedly, then let it end."""
    counts = kill(lambda: start(directory), directory, kills, in_commit, seed)
    code, out = finish(directory, "--resume", "must")
    assert code == 0, out
    return counts


@pytest.mark.slow
def test_killed_run_ends_bit_for_bit_the_same(uninterrupted, tmp_path):
    kill_and_resume(tmp_path / "run", kills=3, in_commit=1)
    assert result_of(tmp_path / "run") == uninterrupted


@pytest.mark.long
def test_thirty_kills_lose_nothing(uninterrupted, tmp_path, record_fault):
    killed = during = lost = 0
    for i in range(3):
        more, writing = kill_and_resume(tmp_path / str(i), kills=10, in_commit=5, seed=i)
        killed, during, lost = killed + more, during + writing, lost + (result_of(tmp_path / str(i)) != uninterrupted)
    print(f"\nkills: {killed}, of which while a checkpoint was being written: {during}, lost: {lost}")
    record_fault("kills", {"kills": killed, "while a checkpoint was being written": during, "lost": lost})
    assert during >= 15
    assert lost == 0


CRASH = """
import os, sys
calls, fatal = 0, int(os.environ["CRASH_AT"])

def dangerous(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == fatal:
            os._exit(9)
        return function(*args, **kwargs)
    return call

from purerl import cli
from purerl.runs.storage import checkpoint
checkpoint.orbax()
for module, names in ((os, ("rename", "replace", "mkdir", "fsync", "truncate", "unlink", "rmdir")),):
    for name in names:
        setattr(module, name, dangerous(getattr(module, name)))
code = cli.main(sys.argv[1:])
print("calls:", calls)
sys.exit(code)
"""


def killed_batch(directory, kills, seed=0):
    """Kill a batch of configs with evaluations and best states; return the kills, the kills in a commit, and the result."""
    begin = lambda: faults.started(faults.WHOLE, directory, name="batch", at=90)
    counts = kill(begin, directory, kills, kills // 2, seed)
    code, out = faults.script(faults.WHOLE, directory, name="batch", at=90)
    assert code == 0, out
    return *counts, out[-1]


@pytest.fixture(scope="module")
def whole_batch(tmp_path_factory):
    code, out = faults.script(faults.WHOLE, tmp_path_factory.mktemp("batch") / "run", name="batch", at=90)
    assert code == 0, out
    return out[-1]


@pytest.mark.long
def test_killed_batch_of_configs_ends_bit_for_bit_the_same(whole_batch, tmp_path):
    assert killed_batch(tmp_path / "run", 2)[2] == whole_batch


@pytest.mark.long
def test_forty_kills_of_a_batch_lose_nothing(whole_batch, tmp_path, record_fault):
    rows = [killed_batch(tmp_path / str(i), 10, seed=i) for i in range(4)]
    killed, during, lost = sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] != whole_batch for row in rows)
    print(f"\nkills of a batch: {killed}, of which while a checkpoint was being written: {during}, lost: {lost}")
    record_fault("kills of a batch", {"kills": killed, "while a checkpoint was being written": during, "lost": lost})
    assert during >= 15
    assert lost == 0


@pytest.mark.long
def test_four_hundred_bit_flips_never_change_results_silently(tmp_path, record_fault):
    outcomes = faults.outcomes_of_flips(400, tmp_path)
    print(f"\n{outcomes}")
    record_fault("flips", outcomes)
    assert outcomes["bits flipped"] == 400
    assert outcomes["other numbers"] == outcomes["raw errors"] == outcomes["lost states"] == 0


@pytest.mark.long
def test_disk_that_fills_at_any_of_twenty_writes_loses_nothing(tmp_path, record_fault):
    outcomes = faults.disks_that_fill(20, tmp_path)
    print(f"\n{outcomes}")
    record_fault("full disks", outcomes)
    assert outcomes["not as asked"] == outcomes["not our message alone"] == outcomes["lost"] == 0


@pytest.mark.long
def test_crash_at_any_file_system_call_loses_nothing(uninterrupted, tmp_path, monkeypatch, record_fault):
    monkeypatch.setenv("CRASH_AT", "0")
    code, out = finish(tmp_path / "count", code=CRASH)
    assert code == 0, out
    calls = int(out.rsplit("calls: ", 1)[1])
    last = calls - 20  # threads make a few more or fewer calls in each run
    points = sorted({*range(1, 25), *range(25, last, last // 12), last})
    for point in points:
        monkeypatch.setenv("CRASH_AT", str(point))
        code, out = finish(tmp_path / str(point), code=CRASH)
        assert code == 9, (point, out)
        ended = committed(tmp_path / str(point)) == UPDATES  # the last calls come after the last checkpoint
        code, out = finish(tmp_path / str(point))
        assert code == 0, (point, out)
        assert ("this run finished" in out) == ended
        assert result_of(tmp_path / str(point)) == uninterrupted, point
    print(f"\ncrash points: {len(points)} of {calls} calls, lost: 0")
    record_fault("crashes", {"calls that touch the file system": calls, "crashes": len(points), "lost": 0})


@pytest.mark.slow
def test_sigterm_saves_the_run_and_sets_the_exit_status(uninterrupted, tmp_path):
    process = start(tmp_path / "run")
    wait_for(lambda: committed(tmp_path / "run") > 0, process)
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + signal.SIGTERM, out
    assert time.monotonic() - asked < 20
    assert 0 < committed(tmp_path / "run") < UPDATES
    code, out = finish(tmp_path / "run")
    assert code == 0, out
    assert result_of(tmp_path / "run") == uninterrupted


FULL = """
import resource, signal, sys, warnings
import purerl
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
directory, on_save_error = sys.argv[-1], {mode!r}
cfg = purerl.PPOConfig(total_timesteps=640, num_envs=4, num_steps=16, hidden=(256, 256))

def fill(progress):
    room = 65536 if progress.updates in (4, 5) else -1
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, -1))

purerl.fit(cfg, directory=directory, save_every=1, keep=10, on_save_error=on_save_error, recorders=(fill,))
"""


@pytest.mark.slow
def test_full_disk_ends_the_run_and_keeps_earlier_checkpoints(tmp_path):
    code, out = finish(tmp_path, code=FULL.format(mode="raise"))
    assert code == 1
    assert "CheckpointError: update " in out, out[-3000:]
    failed = int(out.split("CheckpointError: update ")[1].split(" could not be saved")[0])
    assert failed in (3, 4)  # the third save may still be under way when the disk fills
    assert "File too large" in out
    assert purerl.load(tmp_path).updates == failed - 1


@pytest.mark.long
@pytest.mark.slow
def test_full_disk_only_warns_if_on_save_error_is_warn(tmp_path):
    code, out = finish(tmp_path, code=FULL.format(mode="warn"))
    assert code == 0, out
    assert "no error is raised" in out
    assert purerl.load(tmp_path).updates == 10
    assert not (tmp_path / "checkpoints" / "4").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax leaves its event loops behind
def test_vanished_directory_is_reported(tmp_path):
    def vanish(progress):
        if progress.updates == 4:
            while not (tmp_path / "run").is_file():  # a save that is being written makes its folder again
                os.rename(tmp_path / "run", tmp_path / f"elsewhere{time.perf_counter_ns()}")
                with contextlib.suppress(IsADirectoryError):
                    (tmp_path / "run").write_text("in the way")

    with pytest.raises(purerl.CheckpointError, match="could not be saved"):
        fitted(directory=tmp_path / "run", save_every=1, recorders=(vanish,))
    gc.collect()


class Breaking(Varied):
    """An environment that fails in a Python callback in the middle of a run."""

    calls = 0

    def step_env(self, key, state, action, params):
        obs, after, reward, ends, info = super().step_env(key, state, action, params)
        return (
            obs,
            after,
            jax.pure_callback(self.fail, jax.ShapeDtypeStruct((), jnp.float32), reward, vmap_method="sequential"),
            ends,
            info,
        )

    def fail(self, reward):
        self.calls += 1
        if self.calls > 64 * 5:
            raise OSError("the simulator is gone")
        return reward


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_environment_error_ends_the_run_and_keeps_earlier_checkpoints(tmp_path):
    with pytest.raises(Exception, match="the simulator is gone"):
        fitted(directory=tmp_path, save_every=1, env=Breaking())
    assert purerl.load(tmp_path, env=Breaking()).updates in (4, 5)
    gc.collect()
