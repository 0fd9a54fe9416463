"""The runs in folders, and what they scored."""

import json
import os
import pathlib
import re
import warnings
from typing import Any, NamedTuple

import numpy as np

from purerl.core.errors import CheckpointError
from purerl.core.metrics import LAST, over_the_last
from purerl.runs.analysis.plots import curves_in
from purerl.runs.evaluations import read_evaluations
from purerl.runs.storage import curves
from purerl.runs.storage.checkpoint import first_readable, read_record, saved_updates
from purerl.runs.storage.files import read_errors, read_file
from purerl.studies.tasks import Task, is_of_task, task_of

SCORES = ("final", "auc")
EPISODES = ("training", "evaluation")
WINNER = "winner"  # the file of a study that says in which of its folders the runs of its winner are


class Scored(NamedTuple):
    """The scores of the seeds of one config on one task.

    label: how the config differs from others in its directory, but for the task; "" if it is the only one.
    algorithm: of the config.
    task: the environment, with its parameters.
    seeds: which.
    scores: `[seeds]`.
    steps: `[points]` environment steps of one seed.
    curve: `[seeds, points]` mean returns after so many steps, NaN where no episode ended.
    evaluated: of scores of evaluations how many episodes each had, whether actions were the most likely ones, and how the
      environment differed; None if the scores are those of training.
    """

    label: str
    algorithm: str
    task: Task
    seeds: tuple[int, ...]
    scores: np.ndarray
    steps: np.ndarray
    curve: np.ndarray
    evaluated: dict[str, Any] | None


@read_errors()
def runs_below(folder: str | os.PathLike) -> list[pathlib.Path]:
    """Return the directories of runs in a folder and the folders inside it, in order; that folder alone if it is one itself."""
    top = pathlib.Path(folder).expanduser()
    if not top.is_dir():
        raise CheckpointError(f"there is no directory {folder}")
    found = []
    for place, folders, files in os.walk(top):
        if "checkpoints" in folders or curves.FILE in files:
            found.append(pathlib.Path(place))
            folders.clear()
        folders.sort()
    return sorted(found)


def runs_to_compare(folder: str | os.PathLike) -> list[pathlib.Path]:
    """Return `runs_below`, but of a study in it the winner alone: the choice among its finalists flatters their scores.

    Raises:
        CheckpointError: there are none.
    """
    top, studies = pathlib.Path(folder).expanduser(), {}

    def is_compared(directory: pathlib.Path) -> bool:
        for home in directory.parents[: len(directory.relative_to(top).parts)]:
            if home not in studies:
                studies[home] = home / read_file(home / WINNER).decode() if (home / "trials.jsonl").exists() else None
            if studies[home] is not None:
                return directory == studies[home]
        return True

    found = [directory for directory in runs_below(folder) if is_compared(directory)]
    if not found:
        raise CheckpointError(f"no run in {folder}" + (", whose study has no winner yet" if studies.values() else ""))
    return found


def newest_record(directory: pathlib.Path) -> dict[str, Any]:
    """Return the record of the newest readable checkpoint of a run; its arrays are not read.

    Raises:
        CheckpointError: there is none.
    """
    folder = directory / "checkpoints"
    if not (there := saved_updates(folder)):
        raise CheckpointError(f"no checkpoint in {folder}")
    return first_readable(there, lambda number: read_record(folder / str(number)))


@read_errors()
def scored(directory: pathlib.Path, score: str, episodes: str) -> list[Scored]:
    """Return the scores of a run's directory, one for each of its configs. Runs that diverged are left out, with a warning.

    Args:
        directory: of the run.
        score: `final`, the last tenth of training, or the last evaluation; `auc`, the mean over the curve.
        episodes: `training` or `evaluation`.

    Raises:
        CheckpointError: something that is needed is not there.
    """
    record = newest_record(directory)
    if not (directory / curves.FILE).exists():
        raise CheckpointError(f"no metrics in {directory}")
    metrics, header = curves.read(directory)
    lines = curves_in(directory, metrics, header, "episode_return")
    values = np.concatenate([line.values for line in lines])
    pairs, differ = header.runs, header.configs
    steps, final = lines[0].steps, over_the_last(metrics["episode_return"], LAST)
    if episodes == "evaluation":
        table = read_evaluations(directory / "evaluations.jsonl", len(pairs))
        if not len(table["update"]):
            raise CheckpointError(f"{directory} has no evaluations; train with --eval-every, or compare training episodes")
        steps = table["update"] * (header.steps // header.every)
        values, final = table["episode_return"].T.astype(np.float64), table["episode_return"][-1].astype(np.float64)
    scores = final if score == "final" else _mean_of_seen(values)
    labels = tuple(map(_without_task, _labels_in_sweep(directory) or differ))
    found, configs = [], [config for config, _ in pairs]
    for config in dict.fromkeys(configs):
        every = [i for i, other in enumerate(configs) if other == config]
        label = "" if config is None and not labels else labels[config or 0]
        places = [i for i in every if record["finite"][i]] if "finite" in record else every
        if len(places) < len(every):
            which = f"{directory}, {label}" if label else directory
            warnings.warn(f"{which}: {len(every) - len(places)} of {len(every)} runs diverged and are left out", stacklevel=4)
        if not places:
            continue
        seeds = tuple(pairs[i][1] for i in places)
        evaluated = record.get("evaluated") or {} if episodes == "evaluation" else None
        task = task_of(record, config, evaluated)
        found.append(Scored(label, record["algorithm"], task, seeds, scores[places], steps, values[places], evaluated))
    return found


def _mean_of_seen(values: np.ndarray) -> np.ndarray:
    """Return the mean of each row without what is NaN; NaN where all is."""
    count = (~np.isnan(values)).sum(1)
    return np.divide(np.nansum(values, axis=1), count, out=np.full(len(values), np.nan), where=count > 0)


def _without_task(label: str) -> str:
    """Return a label without the parts that belong to the task, by which compared runs are told apart anyway."""
    parts = re.split(r", (?=[\w.]+ = )", label)  # a value may have commas as well
    return ", ".join(part for part in parts if not is_of_task(part.partition(" = ")[0]))


def _labels_in_sweep(directory: pathlib.Path) -> tuple[str, ...]:
    """Return what the configs of a program of a sweep are called there; () if it is none of a sweep's."""
    for home, name in ((directory, None), (directory.parent, directory.name)):
        file = home / "sweep.json"
        if not file.exists():
            continue
        try:
            saved = json.loads(read_file(file))
            programs = saved["programs"]
            places = programs[name] if name in programs else next(iter(programs.values())) if len(programs) == 1 else []
            return tuple(saved["labels"][i] for i in places)
        except (ValueError, TypeError, KeyError, IndexError):
            return ()
    return ()
