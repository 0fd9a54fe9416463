"""Small sweeps and studies."""

from purerl import Range
from purerl.studies import study as studies
from purerl.studies.rungs import RungTrainer
from purerl.studies.search import Search
from tests.helpers.tiny import CFG

SHORT = CFG.replace(total_timesteps=64 * 4, hidden=(8,))


GRID = {"lr": [1e-3, 1e-2], "ent_coef": [0.0, 0.1], "num_steps": [16, 8]}


TUNED = SHORT.replace(total_timesteps=64 * 8)


SPACE = {"lr": Range(1e-4, 1e-1, log=True), "ent_coef": Range(0.0, 0.1), "num_steps": [16, 8]}


OPTIONS = {"trials": 12, "num_seeds": 2, "at_once": 3, "rungs": 2, "finalists": 2, "final_seeds": 2}


def without_time(step):
    return step._replace(seconds=0.0)


def untrained(score):
    """Return a replacement for `Study._train` that gives each trial the score `score(point)` at every rung."""
    return lambda self, batch: (batch._replace(scores=tuple((score(point),) for point in batch.points)), [])


def study_of(values, trials, options, home=None, pruner=None, objects=None, limit=lambda: None):
    search = Search(TUNED, values, trials, options, None, pruner)
    return studies.Study(search, RungTrainer(TUNED, options, objects or {}, limit), home, 0, limit)


def scored_by(scores, diverged=()):
    """Return a replacement for `Study._train` with `scores[lr]` as the scores of a trial's rungs; rates in `diverged` diverge."""

    def train(self, batch):
        lost = tuple(n for n, point in zip(batch.trials, batch.points, strict=True) if point["lr"] in diverged)
        return batch._replace(scores=tuple(scores[point["lr"]] for point in batch.points), diverged=lost), []

    return train
