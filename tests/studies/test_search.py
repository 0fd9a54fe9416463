"""Proposals of new trials."""

import math

import numpy as np
import pytest

from purerl import Range
from purerl.studies import study as studies
from tests.helpers.studies import study_of, untrained


def test_new_trials_are_sampled_near_good_ones(monkeypatch):
    """Trials that wait for their next rung count as good; otherwise all new trials would be random."""
    values = {"lr": Range(1e-4, 1e-2, log=True), "gamma": Range(0.9, 1.0), "gae_lambda": Range(0.8, 1.0)}
    far = lambda point: (
        abs(math.log10(point["lr"] / 2.5e-3)) / 2 + abs(point["gamma"] - 0.98) / 0.1 + abs(point["gae_lambda"] - 0.9) / 0.2
    )
    monkeypatch.setattr(studies.Study, "_train", untrained(lambda point: -far(point)))
    first, last = [], []
    for seed in range(5):
        options = {"num_seeds": 1, "rungs": 3, "at_once": 8, "seed": seed}
        study = study_of(values, 32, options)
        while study.next():
            pass
        distances = [far(trial.point) for trial in sorted(study.trials(), key=lambda trial: trial.number)]
        first, last = first + distances[:8], last + distances[24:]
    assert np.mean(last) < 0.6 * np.mean(first)


@pytest.mark.parametrize("values", [{"num_epochs": Range(1, 2**30), "lr": Range(1e-4, 1e-1)}, {"num_epochs": Range(1, 8)}])
def test_static_choices_are_sampled_if_they_outnumber_the_trials(values, monkeypatch):
    tried = []
    monkeypatch.setattr(studies.Study, "_train", untrained(lambda point: tried.append(point["num_epochs"]) or 1.0))
    limit = lambda: "enough" if len(tried) >= 6 else None
    options = {"num_seeds": 1, "rungs": 1, "at_once": 1, "seed": 0}
    study = study_of(values, 6, options, limit=limit)
    while study.next():
        pass
    assert tried != [1, 2, 3, 4, 5, 6]
    assert len(set(tried)) == len(tried) == 6
