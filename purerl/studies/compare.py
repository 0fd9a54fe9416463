"""Comparisons of runs over seeds and tasks."""

import dataclasses
import itertools
import json
import math
import os
import pathlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from purerl.config.rules import one_of
from purerl.core.errors import CheckpointError, Problem, config_error, is_number, raise_if_any, warn
from purerl.runs.options import wrong_values
from purerl.runs.storage.files import read_errors
from purerl.studies.comparison import Comparison
from purerl.studies.reading import RunScores, read_scores, runs_to_compare
from purerl.studies.tasks import Task, names_of

RULES = {("score",): one_of("final", "auc"), ("episodes",): one_of("training", "evaluation")}


def compare(
    entries: Mapping[str, Sequence[str | os.PathLike]] | Sequence[str | os.PathLike],
    *,
    score: str = "final",
    episodes: str = "training",
    reference: Any = None,
) -> Comparison:
    """Compare entries, such as algorithms, over seeds and over tasks.

    Args:
        entries: a dict from names to lists of folders; or a list of folders, where each folder is an entry with the folder's
          name. An entry has all runs in its folders and their subfolders; of a study, only the winner's final runs. If these runs
          have several configs, each config becomes an entry of its own. A task is an environment with its `env_kwargs`,
          `env_params`, `randomize` and `num_levels`, and has its own column. All entries need the same tasks.
        score: `final`, the mean over the last tenth of training (over the last fifth, and so on, if no episode ended in it), or
          the last evaluation; `auc`, the mean over the learning curve.
        episodes: `training`, whose episodes sample actions while the agent learns; or `evaluation`.
        reference: a dict from each task to a pair of scores, which are normalised to 0 and 1; or a TOML or JSON file of such a
          dict. Scores of several tasks are pooled only with a reference.

    Raises:
        ConfigError: an argument is wrong, or the entries cannot be compared.
        CheckpointError: a folder has no runs, a run cannot be read or has no score, or all runs diverged.

    Example:
        >>> print(purerl.compare(["runs/a"]).rows()[0])
        ['', 'seeds', 'CartPole-v1']
    """
    found, is_path = wrong_values({"score": score, "episodes": episodes}, RULES), lambda x: isinstance(x, str | os.PathLike)
    named: Any = entries
    if isinstance(entries, list | tuple):
        short = [pathlib.Path(str(path)).expanduser().absolute().name for path in entries]
        names = short if len(set(short)) == len(short) else [str(path) for path in entries]
        found += [Problem("entries", name, "is given twice") for name in set(names) if names.count(name) > 1]
        named = dict(zip(names, entries, strict=True))
    lists = {str(name): [x] if is_path(x) else x for name, x in named.items()} if isinstance(named, Mapping) else {}
    if not lists or not all(isinstance(x, list | tuple) and x and all(map(is_path, x)) for x in lists.values()):
        found.append(Problem("entries", entries, "must be a list of run folders, or a dict from names to such lists"))
    raise_if_any(found)
    found = []
    for name, folders in lists.items():
        for directory in itertools.chain(*map(runs_to_compare, folders)):
            for one in read_scores(directory, score, episodes):
                found.append((f"{name}: {one.label}" if one.label else name, one, directory))
    if not found:
        raise CheckpointError("every run of every entry diverged, so there is no score to compare")
    names, read = names_of(one.task for _, one, _ in found), {}
    for name, one, directory in found:
        _add(read, name, names[one.task], one, directory)
    _warn_of_other_numbers([(name, one) for name, one, _ in found])
    tasks = sorted(set(names.values()))
    missing = [(name, [task for task in tasks if task not in of_tasks]) for name, of_tasks in read.items()]
    hint = "has no run of {}, unlike other entries; all entries need the same environments and environment parameters"
    raise_if_any([Problem("entries", name, hint.format(", ".join(lacking))) for name, lacking in missing if lacking])
    read = {name: {task: of_tasks[task] for task in tasks} for name, of_tasks in read.items()}
    comparison = Comparison(read, None if reference is None else _reference_of(reference, tasks), "")
    places = lambda task: {of_tasks[task].steps.tobytes() for of_tasks in read.values()}
    if (score, episodes) == ("auc", "evaluation") and any(len(places(task)) > 1 for task in tasks):
        warn("entries were evaluated after different numbers of steps; between evaluations, scores are interpolated")
    return dataclasses.replace(comparison, protocol=_protocol(comparison, score, episodes))


def _warn_of_other_numbers(scored: list[tuple[str, RunScores]]) -> None:
    """Warn if environments of one task, or other custom objects of one entry and task, have other numbers."""
    found: dict[tuple[Task, str, str], set[str]] = {}
    for entry, one in scored:
        for path, number in one.numbers.items():
            found.setdefault((one.task, "" if path.startswith("env.") else entry, path), set()).add(number)
    for (task, entry, path), numbers in found.items():
        if len(numbers) > 1:
            which = f"{entry}: runs of {task.name}" if entry else f"runs of {task.name}"
            doubt = "are they one algorithm?" if entry else "is it one task?"
            warn(f"{which} differ in {path}: {', '.join(sorted(numbers))}; {doubt}")


def _add(read: dict[str, dict[str, RunScores]], entry: str, task: str, one: RunScores, directory: pathlib.Path) -> None:
    """Add scores to an entry; if the entry already has the task, append the new seeds to it."""
    of_tasks = read.setdefault(entry, {})
    if np.isnan(one.scores).any():
        raise CheckpointError(f"{directory}: {int(np.isnan(one.scores).sum())} runs have no score, since no episode ended")
    before = of_tasks.get(task)
    if before is not None:
        twice = set(before.seeds) & set(one.seeds)
        alike = {
            "lengths": before.steps[-1:].tolist() == one.steps[-1:].tolist(),
            "intervals of metrics or evaluations": before.steps.tolist() == one.steps.tolist(),
            "hyperparameters or objects": before.settings == one.settings,
            "evaluations": before.evaluated == one.evaluated,
        }
        faults = [f"seed {seed} of {task} twice" for seed in sorted(twice)]
        faults += [f"runs of {task} with different {what}" for what, same in alike.items() if not same]
        if faults:
            hint = f"{entry} would have {faults[0]}; use different names: a=DIR b=DIR"
            raise config_error("entries", str(directory), hint)
        join = lambda name: np.concatenate([getattr(before, name), getattr(one, name)])
        one = one._replace(seeds=before.seeds + one.seeds, scores=join("scores"), curve=join("curve"))
    of_tasks[task] = one


@read_errors()
def _reference_of(reference: Any, tasks: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the pair of reference scores for each task."""
    table = reference
    if isinstance(reference, str | os.PathLike):
        path = pathlib.Path(reference).expanduser()
        try:
            table = (json if path.suffix == ".json" else tomllib).loads(path.read_text("utf-8"))
        except ValueError as error:
            raise config_error("reference", str(reference), f"cannot be read: {error}") from error
    if not isinstance(table, Mapping):
        raise config_error("reference", reference, "must be a dict from tasks to pairs of scores, or a file of them")
    is_finite = lambda x: is_number(x) and math.isfinite(x)
    is_pair = lambda x: isinstance(x, list | tuple) and len(x) == 2 and all(map(is_finite, x)) and x[0] < x[1]
    hint = 'needs a low and a high score per task, which are normalised to 0 and 1: "CartPole-v1" = [20.0, 500.0]'
    raise_if_any([Problem("reference", {task: table.get(task)}, hint) for task in tasks if not is_pair(table.get(task))])
    return {task: (float(table[task][0]), float(table[task][1])) for task in tasks}


def _protocol(found: Comparison, score: str, episodes: str) -> str:
    what = {"final": "the last tenth of training", "auc": "the whole learning curve"}[score]
    which = "training episodes, actions sampled from the policy as it learns"
    if episodes == "evaluation":
        what = {"final": "the last evaluation", "auc": "all evaluations"}[score]
        evaluated = [one.evaluated or {} for of_tasks in found.entries.values() for one in of_tasks.values()]
        seen = {x.get("deterministic") for x in evaluated}
        mode = "the most likely actions" if seen == {True} else "sampled actions" if seen == {False} else "both kinds of actions"
        counts = sorted({x.get("episodes") or 0 for x in evaluated})
        which = f"{' or '.join(map(str, counts))} evaluation episodes, {mode}"
    steps = "; ".join(f"{task} {found.steps_of(task)} steps" for task in found.tasks)
    over, normal = "seeds", ""
    if found.reference:
        over, normal = "seeds and tasks", " (in the column of all tasks normalised by the reference)"
    note = f" Few seeds: {found.note}." if found.note else ""
    return (
        f"Interquartile mean over {over} and its 95 % interval, by a stratified bootstrap of 10,000 draws. Scores: the mean "
        f"return over {what}{normal}; {which}. {steps}. P(X > Y): the probability that a run of X scores above a run of Y "
        f"(Agarwal et al. 2021), 95 % interval by Newcombe's method 5.{note}"
    )
