"""An overview of the runs in a folder: their progress, their best returns, and how they ended."""

import contextlib
import os
import pathlib
import socket
from typing import NamedTuple

import numpy as np

from purerl.core.errors import CheckpointError
from purerl.core.metrics import LAST, over_the_last
from purerl.runs.evaluations import is_current, read_evaluations
from purerl.runs.identity import num_runs
from purerl.runs.storage import curves
from purerl.runs.storage.checkpoint import newest_record
from purerl.runs.storage.files import read_errors
from purerl.studies.reading import runs_below
from purerl.studies.tasks import task_of


class RunOverview(NamedTuple):
    """Overview of a run's directory.

    Attributes:
        directory: path of the directory.
        algorithm, task: algorithm and task of the run; "" if no checkpoint can be read. The task includes changed parameters.
        runs: number of runs side by side, over seeds and configs.
        steps: finished environment steps of one run.
        total_steps: requested environment steps of one run.
        best: highest mean return of any run, on any task: in an evaluation, or, without a current evaluation, in the last tenth
          of training; NaN if unknown.
        state: `finished`, `running`, `stopped: ` with what ended the run, such as SIGTERM or stop_when, `stopped` if the run was
          killed, or the reason why the run cannot be read.
        size: bytes of all files.
    """

    directory: pathlib.Path
    algorithm: str
    task: str
    runs: int
    steps: int
    total_steps: int
    best: float
    state: str
    size: int


def list_overviews(folder: str | os.PathLike) -> list[RunOverview]:
    """Return an overview of each run in a folder and its subfolders.

    Raises:
        CheckpointError: the folder does not exist.
    """
    return [_overview(directory) for directory in runs_below(folder)]


@read_errors()
def _overview(directory: pathlib.Path) -> RunOverview:
    files = (os.path.join(place, name) for place, _, names in os.walk(directory) for name in names)
    size = sum(os.path.getsize(file) for file in files if os.path.exists(file))
    running = _is_running(directory)
    try:
        record = newest_record(directory)
    except CheckpointError as error:
        return RunOverview(directory, "", "", 0, 0, 0, np.nan, "running" if running else str(error).split(" in ")[0], size)
    header = curves.read_header(directory / curves.FILE)
    runs = len(header.runs) if header is not None else num_runs(record)
    values = record["config"]
    steps, total = record["updates"] * values["num_envs"] * values["num_steps"], int(values["total_timesteps"])
    ended = f"stopped: {record['stopped_by']}" if record.get("stopped_by") else "stopped"
    state = "finished" if steps >= total else "running" if running else ended
    best = _best(directory, record.get("finite") or [True] * runs, record["updates"])
    return RunOverview(directory, record["algorithm"], task_of(record).name, runs, steps, total, best, state, size)


def _best(directory: pathlib.Path, finite: list[bool], updates: int) -> float:
    """Return the highest mean return of any run that did not diverge; NaN if no return is known.

    Returns are those of evaluations and, unless an evaluation was in the last tenth of the finished updates, of training.
    """
    table = np.zeros((0, len(finite)))
    with contextlib.suppress(CheckpointError, KeyError):
        evaluations = read_evaluations(directory / "evaluations.jsonl", len(finite))
        table = evaluations["episode_return"]
        if not is_current(evaluations["update"], updates):
            table = np.concatenate([table, [over_the_last(curves.read(directory)[0], "episode_return", LAST)]])
    table = np.where(finite, table, np.nan)
    return float(np.nanmax(table)) if np.isfinite(table).any() else np.nan


def _is_running(directory: pathlib.Path) -> bool:
    """Return True if the process that last wrote to a directory still runs on this machine. This takes no lock."""
    try:
        _, pid, _, host = (directory / ".holder").read_text().split()
        if host != socket.gethostname():
            return False
        os.kill(int(pid), 0)
    except (OSError, ValueError, OverflowError):
        return False
    return True
