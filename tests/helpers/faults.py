"""Deliberate faults: full disks, flipped bits, kills.

Each script prints the messages that a terminal would show, and at the end the hash of its results.
"""

import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
import warnings

import jax
import numpy as np

import purerl
from purerl.runs.analysis import plots
from purerl.runs.logging.recorders import Csv, JsonLines, TensorBoard
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG, digest

ROOT = pathlib.Path(__file__).parent.parent.parent
EVALUATED = {"eval_every": 2, "eval_episodes": 4, "eval_max_steps": 8, "save_every": 3, "chunk_seconds": 1e-9}
CONFIGS = {
    "ppo": lambda: CFG,
    "appo": lambda: purerl.APPOConfig(
        **{name: getattr(CFG, name) for name in ("num_envs", "num_steps", "num_epochs", "hidden", "lr")},
        num_minibatches=2,
        replay=3,
        lag=2,
        lr_schedule="constant",
    ),
    "batch": lambda: jax.vmap(lambda lr: CFG.replace(lr=lr))(np.array([1e-3, 3e-3], np.float32)),
}


def committed(directory):
    folder = directory / "checkpoints"
    return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0) if folder.is_dir() else 0


def wait_for(condition, process):
    while not condition() and process.poll() is None:
        time.sleep(0.0005)


def trained(name, directory, updates=30, **options):
    """Train a run that writes every kind of file."""
    home = pathlib.Path(directory)
    files = (JsonLines(home / "metrics.jsonl"), Csv(home / "metrics.csv"), TensorBoard(home / "tensorboard"))
    cfg = CONFIGS[name]().replace(total_timesteps=64 * updates)
    more = {"num_seeds": 2} if name == "batch" else {}
    options = {**EVALUATED, **more, **options, "recorders": (*files, *options.get("recorders", ()))}
    return purerl.fit(cfg, directory=directory, env=Varied(), **options)


def result_of(result, directory):
    """Return the hash of all results of a run: state, metrics, evaluations, and each run's best state."""
    best = purerl.load(directory, best=True, env=Varied())
    table = json.dumps({name: x.tolist() for name, x in result.evaluations.items()})
    parts = (digest(result.state), digest(result.metrics), table, digest(best.state.params), str(getattr(best, "finished", "")))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


# --- processes --------------------------------------------------------------------------------------------------------

COMMON = """
import os, resource, signal, sys, warnings
warnings.formatwarning = lambda message, *_: f"{message}\\n"  # one line each
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import purerl
from tests.helpers.faults import result_of, trained
name, directory, mode, at = sys.argv[1:4] + [int(sys.argv[4])]
"""

FULL = (
    COMMON
    + """
writes, full_at = 0, None

def limit(room):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, -1))

def count():
    global writes
    writes += 1
    if writes == at:
        limit(0)

def opened(event, args):
    if event == "open" and str(args[0]).startswith(directory) and args[2] & (os.O_WRONLY | os.O_RDWR):
        count()

def room_again(progress):  # three updates later
    global full_at
    if writes >= at > 0 and mode == "warn":
        full_at = full_at or progress.updates
        if progress.updates >= full_at + 3:
            limit(-1)

try:
    from purerl.runs.storage import files
    flush = files.AppendOnlyFile.flush
    files.AppendOnlyFile.flush = lambda self: (count() if getattr(self, "_new", b"") else None, flush(self))[1]
except ImportError:
    pass
sys.addaudithook(opened)
try:
    result = trained(name, directory, on_save_error=mode, recorders=(room_again,))
except (purerl.CheckpointError, purerl.ConfigError) as error:
    print(error, file=sys.stderr)
    sys.exit(1)
limit(-1)
print("writes:", writes)
print("result:", result_of(result, directory))
"""
)

KILLED_LATE = (
    COMMON
    + """
from purerl.runs.storage.checkpoint import Store
from purerl.runs.directory import Directory

# Best states are written only in `wait`, and the process dies after the last checkpoint but one.
late, wait, write = {}, Store.wait, "write" if hasattr(Store, "write") else "save"
begin = getattr(Store, write)

def delayed(self, *args):
    if self.directory.name == "best":
        late[self.directory] = args
    else:
        begin(self, *args)
        if args[0] == 27:
            wait(self)
            os._exit(9)

def waited(self):
    if self.directory in late:
        begin(self, *late.pop(self.directory))
    wait(self)

setattr(Store, write, delayed)
Store.wait = waited
trained(name, directory)
"""
)

WHOLE = (
    COMMON
    + """
result = trained(name, directory, updates=at)
print("result:", result_of(result, directory))
"""
)


def started(code, directory, name="ppo", mode="raise", at=0):
    """Start a process that runs one of these scripts."""
    # On a full disk, a cache of compiled programs could not be written either, and JAX would report that.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "2", "PURERL_CACHE": "off"}
    if code is WHOLE:
        cache = {"COMPILATION_CACHE_DIR": env["PURERL_TESTS_CACHE"], "PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3"}
        env |= {f"JAX_{name}": value for name, value in cache.items()}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, name, str(directory), mode, str(at)], env=env, **pipes)


def script(code, directory, **kwargs):
    """Return the exit status of a script, and the lines that it printed."""
    process = started(code, directory, **kwargs)
    out = process.communicate(timeout=300)[0]
    return process.returncode, out.splitlines()


def disks_that_fill(points, directory):
    """Fill the disk from each of `points` writes on, for both values of `on_save_error`; count the outcomes by kind."""
    _, out = script(FULL, directory / "whole")
    writes, wanted = int(out[-2].split()[1]), out[-1]
    outcomes = {"writes": writes, "filled": 0, "not as asked": 0, "not our message alone": 0, "lost": 0}
    for mode in ("raise", "warn"):
        for at in np.linspace(3, writes, points).astype(int):  # the first two writes only test the directory
            home = directory / f"{mode} {at}"
            code, out = script(FULL, home, mode=mode, at=at)
            ours = [line for line in out if any(says in line for says in OURS)]
            outcomes["filled"] += 1
            outcomes["not as asked"] += code != (1 if mode == "raise" and not only_recorders(ours) else 0)
            outcomes["not our message alone"] += not ours or ours != [
                line for line in out if not line.startswith(("writes", "result"))
            ]
            if mode == "raise":
                code, out = script(FULL, home)
            if code != 0 or out[-1] != wanted:
                outcomes["lost"] += 1
                print(mode, at, code, out)
    return outcomes


OURS = ("could not be saved to", "could not be written", "is not writable", "the recorder")


def only_recorders(lines):
    """Return True if only recorders complained. Recorders never end a run, so these runs succeed."""
    return all("the recorder" in line for line in lines)


# --- flipped bits -----------------------------------------------------------------------------------------------------


def flipped(data, bit=None):
    """Return bytes with one bit flipped, by default the fifth of the middle byte."""
    place, bit = divmod(len(data) // 2 * 8 + 4 if bit is None else bit, 8)
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def numbers_of(name, directory):
    """Return all numbers that purerl reads from a finished run: by loading it, plotting it, and running it again."""
    options = {"env": Varied()}
    loaded, best = (purerl.load(directory, best=which, **options) for which in (False, True))
    curves = plots.curves_of(directory, "value_loss")
    again = trained(name, directory)
    return {
        "loaded": digest(loaded.state),
        "best": digest(best.state),
        "curves": [curve.values for curve in curves],
        "steps": [curve.steps for curve in curves],
        "state": digest(again.state),
        "metrics": purerl.summarize(again.metrics),
        "evaluations": again.evaluations,
    }


def outcomes_of_flips(count, directory):
    """Flip `count` single bits, spread over all files of three runs; count the outcomes by kind."""
    runs = {}
    for name in CONFIGS:
        trained(name, directory / name)
        trained(name, directory / name)  # the finished run is read again, which adds files
        files = [path.relative_to(directory / name) for path in sorted((directory / name).rglob("*")) if path.is_file()]
        files = [path for path in files if not path.name.startswith(".") and (directory / name / path).stat().st_size]
        runs[name] = files, numbers_of(name, directory / name)
    outcomes = {"bits flipped": 0, "told": 0, "no difference": 0, "other numbers": 0, "raw errors": 0, "lost states": 0}
    rng = random.Random(0)
    for i in range(count):
        name = list(CONFIGS)[i % len(CONFIGS)]
        files, wanted = runs[name]
        copy, file = directory / "copy", files[i // len(CONFIGS) % len(files)]
        shutil.copytree(directory / name, copy)
        data = (copy / file).read_bytes()
        (copy / file).write_bytes(flipped(data, rng.randrange(len(data) * 8)))
        outcome = outcome_of(name, copy, wanted)
        if outcome not in ("told", "no difference"):
            print(f"{name}: {file}, flip {i}: {outcome}")
        outcomes[outcome] += 1
        outcomes["bits flipped"] += 1
        shutil.rmtree(copy)
    return outcomes


def outcome_of(name, directory, wanted):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            got = numbers_of(name, directory)
        except purerl.CheckpointError as error:
            if "first line" not in str(error):  # the plot is refused, but the run itself must still load
                return "lost states"
            caught.append(error)
            got = {**wanted, "state": digest(trained(name, directory).state)}
        except Exception as error:  # any error that purerl does not raise itself
            print(f"{type(error).__name__}: {error}")
            return "raw errors"
    messages = [str(getattr(warning, "message", warning)) for warning in caught]
    if any("the recorder" in message for message in messages):
        return "raw errors"
    if got["state"] != wanted["state"]:
        return "lost states"
    same = all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f")
        for a, b in zip(*map(_leaves, (got, wanted)), strict=False)
    )
    return "told" if messages else "no difference" if same and len(_leaves(got)) == len(_leaves(wanted)) else "other numbers"


def _leaves(numbers):
    return [np.asarray(x) for x in jax.tree.leaves(numbers)]
