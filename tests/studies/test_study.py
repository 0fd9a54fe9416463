"""Killed sweeps and studies lose nothing."""

import random
import subprocess
import sys
import time

import pytest

KILLED = """
import sys, signal
import purerl
from tests.helpers.studies import GRID, OPTIONS, SHORT, SPACE, TUNED, without_time
from tests.helpers.probes import ObsDependent, Varied
from tests.helpers.tiny import digest
kind, directory = sys.argv[1:3]
if kind == "sweep":
    options = {"num_seeds": 2, "env": Varied(), "eval_every": 5, "eval_episodes": 2, "eval_max_steps": 8}
    made = purerl.sweep(SHORT.replace(total_timesteps=64 * 60), GRID)
    result = made.fit(3, directory, chunk_seconds=1e-9, save_every=3, **options)
    print([digest((x.state, x.metrics)) for x in result.results])
else:
    found = purerl.tune(TUNED.replace(total_timesteps=64 * 60), SPACE, directory=directory, env=Varied(), **OPTIONS)
    print([(x.number, x.rung, x.scores.tolist()) for x in found.trials], found.summary)
"""


def run_killed(kind, directory, kills, seed=0):
    """Return the output of a sweep or study that is killed up to `kills` times, and the kills before it ended."""
    command, rng, killed = [sys.executable, "-c", KILLED, kind, str(directory)], random.Random(seed), 0
    while killed < kills:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = sum(1 for _ in directory.rglob("*")) if directory.exists() else 0
        while process.poll() is None and (sum(1 for _ in directory.rglob("*")) if directory.exists() else 0) <= before:
            time.sleep(0.05)  # wait until the process writes, and then for a random time
        time.sleep(rng.uniform(0, 3))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        killed += 1
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, killed


@pytest.mark.long
def test_killed_study_ends_with_the_same_result(tmp_path):
    """The study trains its batches as sweeps."""
    assert run_killed("study", tmp_path / "killed", 1)[0] == run_killed("study", tmp_path / "whole", 0)[0]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sweep", "study"])
def test_ten_kills_lose_nothing(kind, tmp_path, record_fault):
    whole, killed, lost = run_killed(kind, tmp_path / "whole", 0)[0], 0, 0
    for i in range(5):
        out, count = run_killed(kind, tmp_path / str(i), 3, seed=i)
        killed, lost = killed + count, lost + (out != whole)
        if killed >= 10:
            break
    record_fault(f"kills of a {kind}", {"kills": killed, "lost": lost})
    assert killed >= 10
    assert lost == 0
