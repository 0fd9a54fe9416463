"""The runs in folders: the plan of their study or sweep, and their scores."""

import contextlib
import json
import os
import pathlib
import re
from typing import Any, NamedTuple

import numpy as np

from purerl.core.errors import CheckpointCorrupt, CheckpointError, CheckpointMismatch, is_int, warn
from purerl.core.metrics import LAST, over_the_last
from purerl.runs.analysis.plots import curves_in
from purerl.runs.analysis.statistics import format_number, interpolate, interval, iqm, with_interval
from purerl.runs.directory import PLAN
from purerl.runs.evaluations import is_current
from purerl.runs.fit import FitResult
from purerl.runs.identity import KERNELS, schedules_over_training
from purerl.runs.stopping import STOPPED
from purerl.runs.storage import curves
from purerl.runs.storage.checkpoint import newest_record, saved_updates
from purerl.runs.storage.files import read_errors, read_file
from purerl.runs.storage.object_values import other_numbers
from purerl.studies.tasks import Task, is_of_task, task_of

RECORDING = ("total_timesteps", "metrics_every", "info", "episode_info")  # fields that seeds of one entry may differ in
WINNER = "winner"  # the file in which a study names the folder of its winner's runs


class RunScores(NamedTuple):
    """The scores of one config's seeds on one task.

    Attributes:
        label: how the config differs from the others in its directory, apart from the task; "" for a single config.
        algorithm: algorithm of the config.
        task: the environment, with its parameters.
        seeds: seed of each score.
        scores: `[seeds]`.
        steps: `[points]` environment steps of one seed, counted from the first update.
        curve: `[seeds, points]` mean returns after these steps, NaN if no episode ended.
        settings: the algorithm, the hyperparameters and custom objects of the directory, whether it began with the parameters
          of another run, and `total_timesteps` if a schedule depends on it, as JSON.
        evaluated: for scores of evaluations, the number of episodes, whether actions were the most likely actions, and how the
          environment differed from that of training; None for scores of training.
        numbers: the numbers in the objects that the user passed, by path.
        is_warm: True if training began with the parameters of another run.
    """

    label: str
    algorithm: str
    task: Task
    seeds: tuple[int, ...]
    scores: np.ndarray
    steps: np.ndarray
    curve: np.ndarray
    settings: str
    evaluated: dict[str, Any] | None
    numbers: dict[str, str] = {}
    is_warm: bool = False


RUN_FOLDERS = ("checkpoints", "best", "renders")  # the folders that a run makes in its directory


@read_errors()
def runs_below(folder: str | os.PathLike) -> list[pathlib.Path]:
    """Return the sorted directories of all runs in a folder and its subfolders; if the folder is a run, only the folder.

    Symbolic links are followed to places outside of the folder; the folder's own runs have one name each.
    """
    top = pathlib.Path(folder).expanduser()
    if not top.is_dir():
        raise CheckpointError(f"there is no directory {folder}")
    found, seen = [], set()
    for place, folders, files in os.walk(top, followlinks=True):
        here, is_run = pathlib.Path(place), "checkpoints" in folders or curves.FILE in files
        if is_run:
            found.append(here)
            if here == top:
                break
        kept = sorted(name for name in folders if not (is_run and name in RUN_FOLDERS))
        folders[:] = [name for name in kept if _is_new(here / name, top.resolve(), seen)]
    return sorted(found)


def _is_new(folder: pathlib.Path, top: pathlib.Path, seen: set[pathlib.Path]) -> bool:
    """Return True, and remember the folder, unless it was seen, or is a link to a place inside or above of `top`."""
    place = folder.resolve()
    leads_back = folder.is_symlink() and (place.is_relative_to(top) or top.is_relative_to(place))
    if leads_back or place in seen:
        return False
    seen.add(place)
    return True


def runs_to_compare(folder: str | os.PathLike) -> list[pathlib.Path]:
    """Return the directories of runs in a folder; of a study, only the winner's final runs, since the others served to select it.

    Raises:
        CheckpointError: the folder does not exist, or has no such runs.
    """
    top, found, is_study = pathlib.Path(folder).expanduser(), [], False
    for directory in runs_below(folder):
        above = directory.parents[: len(directory.relative_to(top).parts)]
        home = next((home for home in above if (home / "trials.jsonl").exists()), None)
        is_study = is_study or home is not None
        if home is None or directory == home / read_file(home / WINNER).decode():
            found.append(directory)
    if not found:
        raise CheckpointError(f"no run in {folder}" + ("; the study has no winner yet" if is_study else ""))
    for home in dict.fromkeys(directory.parent for directory in found if directory != top):
        names = list((read_plan(home / PLAN) or {}).get("programs", {}))
        if lacking := [name for name in names if not saved_updates(home / name / "checkpoints")]:
            warn(f"{home}: {len(lacking)} of {len(names)} programs of the sweep have no checkpoint yet, and are left out")
    return found


def read_plan(file: pathlib.Path) -> dict[str, Any] | None:
    """Return the saved plan of a study or sweep; None if the file does not exist.

    Raises:
        CheckpointCorrupt: the file is damaged.
    """
    if not file.exists():
        return None
    with contextlib.suppress(ValueError):
        plan = json.loads(read_file(file))
        if isinstance(plan, dict) and is_int(plan.get("at_once")):
            return plan
    raise CheckpointCorrupt(f"{file} is damaged; the directory cannot be resumed without this file")


def has_begun(home: pathlib.Path) -> bool:
    """Return True if a sweep's directory has a checkpoint."""
    return any(saved_updates(folder / "checkpoints") for folder in (home, *home.iterdir()))


def refuse_another(file: pathlib.Path, saved: dict[str, Any], wanted: dict[str, Any], numbers: dict[str, str]) -> None:
    """Raise a CheckpointMismatch if the saved plan of a study or sweep differs from the wanted plan; warn of other `numbers`."""
    wanted = json.loads(json.dumps(wanted))
    if changed := [name for name in wanted if saved.get(name) != wanted[name]]:
        differ = [f"{name}: {saved.get(name)!s:.100} in {file.name}, {wanted[name]!s:.100} here" for name in changed]
        raise CheckpointMismatch(file.parent, differ)
    for text in other_numbers(saved.get("numbers", {}), numbers):
        warn(text)


@read_errors()
def read_scores(directory: pathlib.Path, score: str, episodes: str) -> list[RunScores]:
    """Return the scores of the runs in a directory, one `RunScores` per config. Diverged runs are left out, with a warning.

    Args:
        directory: directory of the runs.
        score: `final`, the mean over the last tenth of training, or the last evaluation; `auc`, the mean over the curve.
        episodes: `training` or `evaluation`.

    Raises:
        CheckpointError: a checkpoint, metrics or evaluations are missing.
    """
    record = newest_record(directory)
    metrics, header = curves.read(directory)
    lines = curves_in(directory, metrics, header, "episode_return" if episodes == "training" else "evaluation/episode_return")
    steps, values = lines[0].steps - header.first_step, np.concatenate([line.values for line in lines], dtype=np.float64)
    pairs, differ, per_update = header.runs, header.configs, header.steps // header.every
    is_evaluated = episodes == "evaluation"
    final = values[:, -1] if is_evaluated else over_the_last(metrics, "episode_return", LAST)
    if is_evaluated:
        if not is_current(steps // per_update, record["updates"]):
            warn(f"{directory}: the last evaluation was after {steps[-1] // per_update:,} of {record['updates']:,} updates")
    elif score == "final" and header.every > 1 and np.shape(metrics["episode_return"].count)[-1] * LAST < 1:
        warn(f"{directory}: with metrics_every={header.every}, scores are from more than the last tenth of training")
    scores = final if score == "final" else _mean_of_curve(values, steps, is_evaluated)
    labels = tuple(map(_without_task, _labels_in_sweep(directory) or differ))
    trained, wanted = record["updates"] * per_update, record["config"]["total_timesteps"]
    is_early = trained < wanted
    if is_early and record.get("stopped_by") != STOPPED:
        warn(f"{directory}: only {trained:,} of {wanted:,} steps have been trained")
    elif is_early and score == "final":
        warn(f"{directory}: a high score ended the run (stop_when), so its final score is biased upwards")
    finite, found = record.get("finite") or [True] * len(pairs), []
    evaluated = record.get("evaluated") or {} if is_evaluated else None
    for config in dict.fromkeys(config for config, _ in pairs):
        every = [i for i, (other, _) in enumerate(pairs) if other == config]
        places, label = [i for i in every if finite[i]], labels[config or 0] if labels else ""
        if lost := len(every) - len(places):
            which = f"{directory}, {label}" if label else directory
            warn(f"{which}: {lost} of {len(every)} runs diverged and are left out")
        if places:
            task, seeds = task_of(record, config, evaluated), tuple(pairs[i][1] for i in places)
            algorithm, config = record["algorithm"], {k: x for k, x in record["config"].items() if k not in RECORDING}
            config["kernels"] = KERNELS.get(chosen := config.get("kernels", "auto"), chosen)
            objects = {name: x for name, x in record["objects"].items() if name not in ("env", "env_params")}
            is_warm, numbers = bool(record.get("init_from")), record.get("numbers", {})
            total = wanted if schedules_over_training(record["config"], objects) else None
            settings = json.dumps([algorithm, config, objects, is_warm, total], sort_keys=True)
            rows = (scores[places], steps, values[places])
            found.append(RunScores(label, algorithm, task, seeds, *rows, settings, evaluated, numbers, is_warm))
    return found


def _mean_of_curve(values: np.ndarray, steps: np.ndarray, is_evaluated: bool) -> np.ndarray:
    """Return the mean of each row over the steps; NaN if all values are NaN.

    A value of training is the mean since the point before. Between evaluations, the curve is linear. Points without a value are
    interpolated. Without them, good agents would lose: their late episodes are long, and few end.
    """
    known = interpolate(values, steps, steps)
    if not is_evaluated:
        return np.average(known, axis=1, weights=np.diff(steps, prepend=0))
    return np.trapezoid(known, steps) / (steps[-1] - steps[0]) if len(steps) > 1 else known[:, 0]


def _without_task(label: str) -> str:
    """Return a label without the parts that describe the task, since comparisons show the task separately."""
    parts = re.split(r", (?=[\w.]+ = )", label)  # values may contain commas, too
    return ", ".join(part for part in parts if not is_of_task(part.partition(" = ")[0]))


def _labels_in_sweep(directory: pathlib.Path) -> tuple[str, ...]:
    """Return the labels that a sweep gave the configs of a program; () if the directory does not belong to a sweep."""
    with contextlib.suppress(CheckpointError, LookupError, TypeError, AttributeError):
        for home in (directory, directory.parent):
            if (plan := read_plan(home / PLAN)) is not None:
                programs = plan["programs"]
                only = next(iter(programs.values())) if len(programs) == 1 else []
                places = only if home == directory else programs.get(directory.name, [])
                return tuple(plan["labels"][i] for i in places)
    return ()


class Summary(NamedTuple):
    """A config's scores over seeds.

    Attributes:
        label: description of the config.
        seeds: number of seeds with a score.
        iqm: the interquartile mean; NaN without a score.
        low, high: 95 % bootstrap interval of `iqm`; NaN with one seed, and too narrow with fewer than five seeds.
    """

    label: str
    seeds: int
    iqm: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the label and the score as text."""
        return f"{self.label}: {self.score}"

    @property
    def score(self) -> str:
        """Return the interquartile mean and its interval as text."""
        return with_interval((self.iqm, self.low, self.high), format_number)


def summary_of(label: str, scores: np.ndarray) -> Summary:
    """Summarise scores `[seeds]`, ignoring NaN."""
    scores = scores[~np.isnan(scores)]
    if not len(scores):
        return Summary(label, 0, np.nan, np.nan, np.nan)
    return Summary(label, len(scores), float(iqm(scores)), *map(float, interval(scores)))


def has_current_evaluation(result: FitResult) -> bool:
    """Return True if the last evaluation was in the last tenth of the finished updates."""
    return is_current(result.evaluations["update"], result.progress.updates)


def final_returns(result: FitResult, evaluated: bool) -> np.ndarray:
    """Return each run's mean return, `[runs]`: if `evaluated`, in the last evaluation, else in the last tenth of training.

    If the run diverged or no episode ended, the result is NaN.
    """
    training = lambda: over_the_last(result.metrics, "episode_return", LAST)
    final = result.evaluations["episode_return"][-1].astype(np.float64) if evaluated else training()
    return np.where(result.finite, final, np.nan)
