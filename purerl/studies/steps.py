"""Batches of trials trained to the end of a rung, the lines that record them in the journal, and the resulting trials."""

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from purerl.config.fields import as_tuples
from purerl.runs.logging.console import PLAIN, LiveLine
from purerl.runs.storage.files import checksum
from purerl.studies import space


class Step(NamedTuple):
    """A batch of trials for one rung, before or after training. Each trained batch is a line of the journal.

    Attributes:
        rung: number of the rung, from 0.
        static: values that are compiled into the program, by field.
        trials: numbers of the trials.
        points: hyperparameters of each trial, by field.
        scores: `[trials][seeds]`, mean returns at the end of the rung; NaN if no episode ended, or the run diverged.
        kept: numbers of the trials that continue to the next rung or, after the last rung, that completed their training.
        env_steps: environment steps in this rung, over all trials and seeds.
        seconds: seconds of compilation and training.
        diverged: numbers of the trials with a diverged run.
        drawn: in the first rung, each trial's parameters as Optuna sampled them; in `points`, floats are rounded.
    """

    rung: int
    static: dict[str, Any]
    trials: tuple[int, ...]
    points: tuple[dict[str, Any], ...]
    scores: tuple[tuple[float, ...], ...] = ()
    kept: tuple[int, ...] = ()
    env_steps: int = 0
    seconds: float = 0.0
    diverged: tuple[int, ...] = ()
    drawn: tuple[dict[str, Any], ...] = ()

    @property
    def values(self) -> list[float]:
        """Return each trial's mean score over seeds; NaN if a seed has no score."""
        return [float(np.mean(scores)) for scores in self.scores]

    @property
    def unknown(self) -> list[int]:
        """Return the numbers of trials that cannot be judged, because some seed finished no episode."""
        return [n for n, value in zip(self.trials, self.values, strict=True) if math.isnan(value) and n not in self.diverged]


def step_printer(line: LiveLine, rungs: int) -> Callable[[Step], None]:
    """Return a function that prints a line for each trained batch of a study."""
    best = np.full(rungs, np.nan)

    def watch(step: Step) -> None:
        best[step.rung] = np.fmax.reduce([best[step.rung], *step.values])  # the largest number that is not NaN
        made = f" ({space.format_point(step.static)})" if step.static else ""
        span = f"trials {step.trials[0]} to {step.trials[-1]}" if step.rung == 0 else f"{len(step.trials)} trials"
        text = f"rung {step.rung + 1} of {rungs}{made}: {span}, {len(step.kept)} kept"
        line.console.print(f"{text}; best score in this rung {best[step.rung]:.1f}; {step.seconds:.1f} s", **PLAIN)

    return watch


class Trial(NamedTuple):
    """A config that was tried.

    Attributes:
        number: number of the trial, from 0.
        point: hyperparameters, by field.
        rung: the last rung that the trial finished, from 0.
        status: `waiting` for its next rung, `stopped` by the pruner, `diverged`, or `completed`.
        scores: `[seeds]` mean returns at the end of that rung; NaN if the seed diverged or none of its episodes ended.
    """

    number: int
    point: dict[str, Any]
    rung: int
    status: str
    scores: np.ndarray

    @property
    def completed(self) -> bool:
        """Return True if the trial was trained to the end."""
        return self.status == "completed"

    @property
    def score(self) -> float:
        """Return the mean over the seeds that have a score; NaN if no seed has a score."""
        known = self.scores[np.isfinite(self.scores)]
        return float(np.mean(known)) if known.size else math.nan

    @property
    def rank(self) -> tuple[bool, float]:
        """Return the key that sorts the best trial first; trials in which every seed has a score come before others."""
        return not np.isfinite(self.scores).all(), -np.nan_to_num(self.score, nan=-np.inf)


def trials_of(steps: Iterable[Step], rungs: int) -> dict[int, Trial]:
    """Return the trials of these batches by number, in the order of each trial's latest training."""
    found = {}
    for step in steps:
        going = "completed" if step.rung + 1 == rungs else "waiting"
        for number, point, scores in zip(step.trials, step.points, step.scores, strict=True):
            status = going if number in step.kept else "diverged" if number in step.diverged else "stopped"
            found.pop(number, None)
            found[number] = Trial(number, point, step.rung, status, np.array(scores))
    return found


def line_of(step: Step) -> bytes:
    """Return a trained batch as a line of the journal, with a checksum."""
    found = step._asdict()
    found["points"] = [{path: space.to_json(x) for path, x in point.items()} for point in step.points]
    found["scores"] = [[x if math.isfinite(x) else None for x in row] for row in step.scores]
    return json.dumps({**found, "check": checksum(json.dumps(found).encode()).hex()}).encode() + b"\n"


def step_of(line: bytes) -> Step | None:
    """Return the trained batch in a line of the journal; None if the line is damaged."""
    try:
        found = json.loads(line)
        mark = found.pop("check")
        if checksum(json.dumps(found).encode()).hex() != mark:
            return None
        scores = np.array(found["scores"], float)  # null becomes NaN
        without = [n for n, row in zip(found["trials"], scores, strict=True) if not np.isfinite(row).all()]
        found |= {"scores": scores.tolist(), "diverged": found.get("diverged", without)}  # v0.3 stopped trials without a score
        found["points"] = [{path: as_tuples(x) for path, x in point.items()} for point in found["points"]]
        return Step(**{name: as_tuples(x) for name, x in found.items()})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
