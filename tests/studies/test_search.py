"""Proposals of new trials."""

import math

import numpy as np
import optuna
import pytest

from purerl import ConfigError, Range
from purerl.studies import space
from purerl.studies import study as studies
from purerl.studies.search import Search
from tests.helpers.studies import TUNED, study_of, untrained


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


def batches(values, trials, at_once, **given):
    """Return the points of all trials, each of which is scored and completed."""
    search, steps = Search(TUNED, values, trials, {"num_seeds": 1, "rungs": 1, "at_once": at_once, "seed": 0}, **given), []
    while (batch := search.new_batch(steps)) is not None:
        steps.append(batch._replace(scores=tuple((float(n % 3),) for n in batch.trials), kept=batch.trials))
    return [space.format_point(point, space.EXACT) for step in steps for point in step.points]


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize(
    "sampler", [lambda _: optuna.samplers.RandomSampler(seed=42), lambda seed: optuna.samplers.QMCSampler(seed=seed)]
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_samplers_that_begin_anew_in_each_batch_propose_new_configs(sampler, at_once):
    points = batches({"lr": Range(1e-4, 1e-2, log=True), "gamma": Range(0.9, 0.99)}, 12, at_once, sampler=sampler)
    assert len(set(points)) == len(points) == 12


def test_listed_numbers_are_tried_once_even_if_not_all_are_tried():
    points = batches({"lr": (1e-4, 1e-3, 1e-2), "gamma": (0.9, 0.95, 0.99)}, 8, 3)
    assert len(set(points)) == len(points) == 8


def test_sampler_must_return_a_sampler():
    with pytest.raises(ConfigError, match="sampler = None: must be a function from a seed to an Optuna sampler"):
        batches({"lr": Range(1e-4, 1e-2), "gamma": Range(0.9, 0.99)}, 4, 1, sampler=lambda _: None)


def test_pruners_of_repeated_calls_decide_alike():
    values = {"lr": Range(1e-4, 1e-2, log=True), "gamma": Range(0.9, 0.99)}
    options = {"num_seeds": 1, "rungs": 4, "at_once": 8, "seed": 0}

    def stopped():
        search = Search(TUNED, values, 32, options, None, optuna.pruners.HyperbandPruner(min_resource=1, max_resource=8))
        batch = search.new_batch([])
        return search.trials_to_prune([], batch._replace(scores=tuple((float(n % 5),) for n in batch.trials)))

    assert stopped() == stopped()


def test_study_continued_with_fields_in_another_order_tries_no_config_twice(monkeypatch, tmp_path):
    monkeypatch.setattr(studies.Study, "_train", untrained(lambda point: point["num_epochs"]))
    values, options = (
        {"num_epochs": (1, 2), "activation": ("tanh", "relu")},
        {"num_seeds": 1, "rungs": 1, "at_once": 1, "seed": 0},
    )
    first = study_of(values, 4, options, tmp_path)
    first.next()
    first.next()
    first.close()
    again = study_of(dict(reversed(values.items())), 4, options, tmp_path)
    while again.next():
        pass
    again.close()
    assert {tuple(sorted(trial.point.items())) for trial in again.trials()} == {
        (("activation", a), ("num_epochs", n)) for a in ("tanh", "relu") for n in (1, 2)
    }
    assert len(again.best(9)) == len(again.trials()) == 4
