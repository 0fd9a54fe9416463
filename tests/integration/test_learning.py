"""Learning results, which take minutes each. `python -m pytest -m slow -s` prints every seed."""

import numpy as np
import pytest

from purerl.config.algorithms import ALGORITHMS
from purerl.runs.analysis.statistics import interval, iqm
from tests.benchmarks import results
from tests.benchmarks.scores import score

pytestmark = [pytest.mark.slow, pytest.mark.as_users]


def scores_of(cfg):
    scores = score(cfg, range(8))
    low, high = interval(scores)
    print(f"\n{cfg.env}: IQM {iqm(scores):.1f} ({low:.1f} to {high:.1f}); seeds 0 - 7: {np.round(scores, 1).tolist()}")
    return scores


@pytest.mark.each_landing("ppo", "ppg")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_default_configs_solve_cartpole(algorithm):
    scores = scores_of(ALGORITHMS[algorithm]())
    assert (scores >= 475).sum() >= 7
    assert scores.mean() >= 475


@pytest.mark.long
def test_recorded_results_are_reproduced():
    assert results.check(results.CHECKED) == []


def test_doubled_learning_rate_disagrees_with_the_record():
    cfg, row = results.config("Acrobot-v1"), results.load()["purerl"]["Acrobot-v1"]
    doubled = cfg.replace(lr=2 * cfg.lr)
    scores = score(doubled, results.CHECKED_SEEDS)
    found = results.disagreements(doubled, scores, row, row["platform"])
    assert [text.split(":")[0] for text in found] == ["lr", "seed 0", "seed 1"]
