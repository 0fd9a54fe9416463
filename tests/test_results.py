"""The statistics of the results, and that all tables are what the recorded numbers say."""

import numpy as np
import pytest

import purerl
from purerl.runs.analysis.statistics import interval, iqm
from tests.benchmarks import results, tables


def test_the_interquartile_mean_is_that_of_the_middle_half():
    assert iqm(np.array([100.0, 1, 2, 3, 4, 5, 6, -100])) == 3.5
    np.testing.assert_allclose(iqm(np.array([0.0, 1, 2, 3, 100])), (0.75 * 1 + 2 + 0.75 * 3) / 2.5)
    np.testing.assert_allclose(iqm(np.arange(5.0)), 2)
    assert iqm(np.array([7.0])) == 7


def test_the_interval_covers_the_mean():
    """Of 200 samples of 8 from a normal distribution, 95 % of intervals contain its mean; a bootstrap of 8 somewhat fewer."""
    rng = np.random.default_rng(0)
    spans = [interval(rng.normal(size=8), resamples=500) for _ in range(200)]
    assert 0.82 < np.mean([low <= 0 <= high for low, high in spans]) < 0.98


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_every_table_is_of_the_recorded_numbers(page):
    assert "<!-- table " in page.read_text()
    assert page.read_text() == tables.rendered(page.read_text())


def resolved(cfg):
    return purerl.make_train(cfg).cfg.to_json()


def test_every_recorded_score_is_of_the_config_that_users_get():
    recorded = results.load()["purerl"]
    assert list(recorded) == list(results.BASELINES)
    for name, row in recorded.items():
        cfg = results.config(name)
        assert resolved(cfg.from_json(results.json.dumps(row["config"]))) == resolved(cfg)
        assert row["seeds"] == list(range(8))
        assert len(row["scores"]) == 8
