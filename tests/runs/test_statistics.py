"""Intervals over seeds, and the reports of few seeds."""

import numpy as np
import pytest

import purerl
from purerl.runs.analysis import plots, statistics
from purerl.runs.analysis.plots import Curve
from purerl.studies.comparison import Comparison
from purerl.studies.reading import Scored, summary_of
from purerl.studies.tasks import Task


def scored(scores):
    scores = np.array(scores, float)
    return Scored("", "ppo", Task("A"), tuple(range(len(scores))), scores, np.arange(1, 3), np.stack([scores, scores], 1), None)


def comparison(**scores):
    return Comparison({name: {"A": scored(x)} for name, x in scores.items()}, None, "")


def test_one_seed_has_no_interval():
    assert np.isnan(purerl.interval(np.array([3.0]))).all()
    assert np.shape(purerl.interval(np.ones((1, 4)))) == (2, 4)
    assert np.isnan(statistics.stratified_interval([np.array([3.0]), np.arange(8.0)])).all()
    assert np.isnan(statistics.improvement_interval([np.array([3.0])], [np.arange(8.0)])).all()
    assert np.isnan(summary_of("a", np.array([3.0]))[3:]).all()
    found = comparison(one=[3.0], many=[1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.rows()[1][0] == ["one", "1", "3"]
    assert found.pair_rows()[1][0] == ["one", "many", "0.50"]


def test_few_seeds_are_noted(tmp_path):
    assert statistics.few_seeds([5, 8]) == statistics.few_seeds([]) == ""
    few = comparison(a=[1.0, 2.0, 3.0], b=[3.0])
    assert few.note == statistics.few_seeds([3, 1])
    assert "one seed has no interval" in few.note
    assert "75 % of intervals of 3 seeds" in few.note
    assert few.draw(tmp_path / "few.png").get_suptitle() == few.note
    assert comparison(a=range(5), b=range(8)).draw(tmp_path / "many.png").get_suptitle() == ""


def test_pictures_note_few_seeds(tmp_path, monkeypatch):
    curve = lambda seeds: [Curve("a", np.arange(4), np.random.default_rng(0).normal(size=(seeds, 4)))]
    titles = {}
    for seeds in (3, 5):
        monkeypatch.setattr(plots, "curves_of", lambda *_, seeds=seeds: curve(seeds))
        titles[seeds] = purerl.plot(["a"], tmp_path / "a.png").axes[0].get_title()
    assert titles[3] == f"{titles[5]}\nfew seeds: {statistics.few_seeds([3])}"


@pytest.mark.parametrize(("seeds", "share"), statistics.COVERAGE.items())
def test_intervals_of_few_seeds_cover_as_often_as_is_said(seeds, share):
    scores = np.random.default_rng(0).normal(size=(seeds, 2000))
    low, high = purerl.interval(scores, resamples=300)
    assert 100 * np.mean((low < 0) & (high > 0)) == pytest.approx(share, abs=3)


@pytest.mark.parametrize("sizes", [(8, 40), (40, 8), (20, 20)])
def test_probability_of_improvement_varies_with_the_seeds_of_both_sides(sizes):
    """The deviation has a closed form (DeLong et al. 1988): the variance of the ranks of each side in the other."""
    rng, widths, known = np.random.default_rng(0), [], []
    for _ in range(6):
        x, y = rng.normal(0.3, 1, sizes[0]), rng.normal(size=sizes[1])
        above = x[:, None] > y
        variance = above.mean(1).var() / len(x) + above.mean(0).var() / len(y)
        low, high = statistics.improvement_interval([x], [y], resamples=500)
        widths.append(high - low)
        known.append(2 * 1.96 * np.sqrt(variance))
    assert np.mean(widths) == pytest.approx(np.mean(known), rel=0.1)
