"""Several processes that train one agent together, as the command line starts them, over gloo on this machine."""

import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import purerl
from purerl.runs.storage.checkpoint import newest_readable, saved_updates

FLAGS = ("ppo", "--env", "CartPole-v1", "--num-envs", "8", "--num-steps", "16", "--hidden", "8", "--normalize-obs", "True")
FLAGS += ("--lr-schedule", "constant", "--total-timesteps")
SHORT, LONG = "1280", "128000"


@dataclasses.dataclass
class Job:
    """A job of one process or several."""

    processes: list
    logs: list

    def ends(self, seconds=120, but=()):
        """Return the exit statuses, and the seconds until the last process ended."""
        start, waited = time.monotonic(), [p for i, p in enumerate(self.processes) if i not in but]
        while any(p.poll() is None for p in waited) and time.monotonic() - start < seconds:
            time.sleep(0.05)
        return [p.poll() for p in waited], time.monotonic() - start

    def said(self, process=0):
        return self.logs[process].read_text()

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def job(tmp_path):
    """Start jobs that train in the folder `run`; kill their remaining processes at the end."""
    jobs = []

    def start(count, steps, *flags, devices=1):
        processes, logs, port = [], [], free_port()
        for i in range(count):
            place = ("--coordinator", f"127.0.0.1:{port}", "--num-processes", str(count), "--process-id", str(i))
            command = [sys.executable, "-m", "purerl", *FLAGS, steps, "--directory", str(tmp_path / "run"), *flags]
            command += place if count > 1 else ()
            logs.append(tmp_path / f"{len(jobs)}-{i}.log")
            env = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
            with logs[-1].open("w") as out:
                processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT))
        jobs.append(Job(processes, logs))
        return jobs[-1]

    yield start
    for each in jobs:
        each.kill()


def wait_for_checkpoint(path, after=0, seconds=90):
    start = time.monotonic()
    while not (there := saved_updates(path / "run" / "checkpoints")) or there[-1] <= after:
        assert time.monotonic() - start < seconds
        time.sleep(0.05)
    return there[-1]


def params_of(path):
    arrays = newest_readable(path / "run" / "checkpoints").arrays
    return {name: x for name, x in arrays.items() if name.startswith("['state'].params")}


@pytest.mark.long
@pytest.mark.slow  # half a minute if other tests run at the same time
def test_two_processes_train_one_agent(job, tmp_path):
    """Only the first process writes."""
    two = job(2, SHORT, "--devices-per-run", "2", "--json-lines")
    assert two.ends()[0] == [0, 0], two.said(0) + two.said(1)
    assert "1,280 steps" in two.said(0)
    assert "steps" not in two.said(1)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["steps"] == 1280
    assert len({row["update"] for row in rows}) == len(rows)
    assert purerl.load(tmp_path / "run").updates == 10


@pytest.mark.long
@pytest.mark.parametrize(("seeds", "devices"), [(1, 1), (4, 4)])
def test_devices_of_two_processes_equal_devices_of_one(seeds, devices, job, tmp_path):
    """Train one seed over two processes, or four seeds of two devices each over two processes of four devices each."""
    flags = ("--devices-per-run", "2", "--num-seeds", str(seeds), "--eval-every", "5", "--eval-episodes", "4")
    two = job(2, SHORT, *flags, devices=devices)
    assert two.ends()[0] == [0, 0], two.said(0) + two.said(1)
    run = purerl.load(tmp_path / "run")
    one = purerl.fit(run.cfg, num_seeds=seeds, devices_per_run=2)
    for got, want in zip(*(map(np.asarray, jax.tree.leaves(state.params)) for state in (run.state, one.state)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_runs_are_spread_over_the_devices_of_all_processes(job, tmp_path):
    two = job(2, SHORT, "--num-seeds", "4")
    assert two.ends()[0] == [0, 0], two.said(0) + two.said(1)
    run = purerl.load(tmp_path / "run")
    one = purerl.fit(run.cfg, num_seeds=4)
    for got, want in zip(*(map(np.asarray, jax.tree.leaves(state.params)) for state in (run.state, one.state)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "status"),
    [
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, 138, marks=pytest.mark.long),
    ],
)
def test_signal_to_one_process_ends_all_with_a_checkpoint(how, status, job, tmp_path):
    two = job(2, LONG, "--devices-per-run", "2", "--save-seconds", "1")
    wait_for_checkpoint(tmp_path)
    two.processes[1].send_signal(how)
    statuses, seconds = two.ends()
    assert statuses == [status, status]
    assert seconds < 30
    assert "Stopped after" in two.said(0)


@pytest.mark.long
def test_time_limit_ends_a_job_with_a_checkpoint(job, tmp_path):
    two = job(2, LONG, "--devices-per-run", "2", "--max-hours", "0.003")
    assert two.ends()[0] == [75, 75]
    assert saved_updates(tmp_path / "run" / "checkpoints")


@pytest.mark.long
@pytest.mark.parametrize(("processes", "updates"), [(2, 400), (4, 60)])
def test_killed_job_resumes_bit_for_bit(processes, updates, job, tmp_path):
    flags = ("--devices-per-run", str(processes), "--save-every", "5")
    steps = str(128 * updates)
    whole = job(processes, steps, *flags)
    assert set(whole.ends(600)[0]) == {0}
    want = params_of(tmp_path)
    (tmp_path / "run").rename(tmp_path / "whole")
    saved = 0
    for victims in ([0], [1], range(processes)):
        killed = job(processes, steps, *flags)
        saved = wait_for_checkpoint(tmp_path, saved)
        for victim in victims:
            killed.processes[victim].kill()
        statuses, seconds = killed.ends()
        assert None not in statuses
        assert 0 not in statuses
        assert seconds < 10
        saved = saved_updates(tmp_path / "run" / "checkpoints")[-1]
    last = job(processes, steps, *flags)
    assert set(last.ends(600)[0]) == {0}
    got = params_of(tmp_path)
    assert all((got[name] == want[name]).all() for name in want)
    steps_of = lambda folder: purerl.load(tmp_path / folder).updates
    assert steps_of("run") == steps_of("whole") == updates


@pytest.mark.long
@pytest.mark.parametrize("frozen", [0, 1])
def test_frozen_process_ends_the_others(frozen, job, tmp_path):
    two = job(2, LONG, "--devices-per-run", "2", "--save-seconds", "1")
    wait_for_checkpoint(tmp_path)
    two.processes[frozen].send_signal(signal.SIGSTOP)
    (status,), seconds = two.ends(but=(frozen,))
    assert status not in (None, 0)
    assert seconds < 100
    assert saved_updates(tmp_path / "run" / "checkpoints")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the resumed run may not be bit-identical")
def test_run_resumes_with_another_number_of_processes(job, tmp_path):
    assert job(2, SHORT, "--devices-per-run", "2").ends()[0] == [0, 0]
    before = params_of(tmp_path)
    assert job(1, SHORT, "--devices-per-run", "1").ends()[0] == [0]
    assert all((before[name] == x).all() for name, x in params_of(tmp_path).items())
    four = job(4, "2560", "--devices-per-run", "4")
    assert four.ends(400)[0] == [0] * 4, four.said()
    assert "may not be bit-identical" in four.said()
    assert purerl.load(tmp_path / "run").updates == 20


OF_A_MESH = """
import sys
from purerl.runs.devices.processes import join, on_host
join(sys.argv[1], 2, int(sys.argv[2]))
import jax, numpy as np, purerl
from tests.helpers.tiny import CFG, digest
spread = purerl.data_parallel(purerl.make_train(CFG), jax.sharding.Mesh(np.array(jax.devices()), ("data",)))
update = jax.jit(spread.update)
state, _ = update(jax.jit(spread.init)(jax.random.key(0)))
purerl.save(sys.argv[3], spread, state)
restored = purerl.restore(sys.argv[3], spread)
print(digest(on_host(update(restored)[0])) == digest(on_host(update(state)[0])), restored.actor.obs.sharding.spec)
"""


@pytest.mark.long
def test_state_on_devices_of_two_processes_is_saved_and_restored(tmp_path):
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    words = (sys.executable, "-c", OF_A_MESH, f"127.0.0.1:{free_port()}")
    start = lambda i: subprocess.Popen([*words, str(i), str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True)
    for process in [start(i) for i in range(2)]:
        assert process.communicate(timeout=120)[0].splitlines()[-1] == "True P('data',)"


@pytest.mark.long
def test_errors_of_a_job_are_reported_by_its_processes(job, tmp_path):
    (tmp_path / "run").touch()  # the first process alone writes there
    file = job(2, SHORT)
    assert file.ends(60)[0] == [2, 1]
    assert "is not writable" in file.said()
    assert "in the first process: " in file.said(1)
    (tmp_path / "run").unlink()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best").touch()
    inside = job(2, SHORT, "--devices-per-run", "2")
    assert inside.ends(60)[0] == [2, 1]
    (tmp_path / "run" / "best").unlink()
    idle = job(2, SHORT, "--devices-per-run", "1")
    assert idle.ends()[0] == [2, 2]
    assert "devices_per_run = 1: leaves some of the 2 devices of 2 processes idle; 2 would use all" in idle.said()
    lonely = job(1, SHORT, "--distributed")
    assert lonely.ends()[0] == [2]
    assert "set coordinator, num_processes, process_id" in lonely.said()
    half = job(1, SHORT, "--coordinator", "127.0.0.1:1")
    assert half.ends()[0] == [2]
    assert "num_processes: is missing; coordinator, num_processes, process_id must be given together" in half.said()


FAILING = """
import sys, jax
jax.distributed.initialize("127.0.0.1:" + sys.argv[2], 2, int(sys.argv[1]))
import purerl

def rule(progress):  # the first process alone calls it
    raise ZeroDivisionError("of the rule")

cfg = purerl.PPOConfig(env="CartPole-v1", hidden=(8,), total_timesteps=128 * 2000, num_steps=16, num_envs=8)
purerl.fit(cfg, num_seeds=2, stop_when=rule, stop_every=2, progress=False)
"""


@pytest.mark.long
def test_error_of_the_first_process_alone_ends_all():
    port, env = str(free_port()), {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    start = lambda i: subprocess.Popen([sys.executable, "-c", FAILING, str(i), port], env=env, stderr=subprocess.PIPE, text=True)
    first, second = start(0), start(1)
    assert "of the rule" in first.communicate(timeout=120)[1]
    assert "in the first process: of the rule" in second.communicate(timeout=120)[1]


@pytest.mark.long
def test_twenty_kills_of_a_job_lose_nothing(job, tmp_path, record_fault):
    """One or both processes are killed at any moment, most while a checkpoint is written."""

    flags, steps = ("--devices-per-run", "2", "--save-every", "1", "--keep", "2", "--num-seeds", "1"), str(128 * 400)
    rng, during, kills = random.Random(0), 0, 0
    whole = job(2, steps, *flags)
    assert whole.ends(300)[0] == [0, 0]
    want = params_of(tmp_path)
    (tmp_path / "run").rename(tmp_path / "whole")
    while kills < 20:
        killed = job(2, steps, *flags)
        folder = tmp_path / "run" / "checkpoints"
        wait_for_checkpoint(tmp_path, saved_updates(folder)[-1] if folder.exists() and saved_updates(folder) else 0)
        time.sleep(rng.random())
        for victim in rng.choice(([0], [1], [0, 1])):
            killed.processes[victim].kill()
        during += any(".orbax-checkpoint-tmp" in path.name for path in folder.iterdir())
        assert None not in killed.ends(90)[0]
        kills += 1
        if 0 in killed.ends(90)[0]:
            break
    last = job(2, steps, *flags)
    assert last.ends(300)[0] == [0, 0], last.said()
    got = params_of(tmp_path)
    lost = sum(not (got[name] == want[name]).all() for name in want)
    record_fault(
        "kills of a job of two processes", {"kills": kills, "while a checkpoint was being written": during, "lost": lost}
    )
    assert lost == 0
