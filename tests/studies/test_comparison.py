"""Comparisons of few seeds."""

import numpy as np

import purerl
from purerl.runs.analysis import statistics
from purerl.studies.comparison import Comparison
from purerl.studies.reading import RunScores, summary_of
from purerl.studies.tasks import Task


def scored(scores):
    scores = np.array(scores, float)
    return RunScores(
        "", "ppo", Task("A"), tuple(range(len(scores))), scores, np.arange(1, 3), np.stack([scores, scores], 1), "", None
    )


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
    assert "75 % of intervals from 3 seeds" in few.note
    assert few.draw(tmp_path / "few.png").get_suptitle() == few.note
    assert comparison(a=range(5), b=range(8)).draw(tmp_path / "many.png").get_suptitle() == ""


def test_entries_of_several_algorithms_are_noted():
    one = {"A": scored([1.0] * 5), "B": scored([2.0] * 5)._replace(algorithm="daac", task=Task("B"))}
    assert Comparison({"mine": one}, None, "").unequal == "mine has runs of several algorithms: daac, ppo."


def test_names_with_special_signs_are_shown(tmp_path):
    found = comparison(**{"a|b\nc": [1.0, 2.0], "_hidden $x_$": [3.0, 4.0]})
    assert r"| a\|b c | 2 |" in str(found)
    legend = found.draw(tmp_path / "a.png").axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["a|b\nc", r" _hidden \$x_\$"]
    assert r"\_hidden \$x\_\$" in found.latex()
