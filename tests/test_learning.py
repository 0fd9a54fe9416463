"""What is learnt: minutes each. `python -m pytest -m slow -s` prints every seed."""

import numpy as np
import pytest

import purerl
from purerl.config.algorithms import ALGORITHMS
from purerl.runs.analysis.statistics import interval, iqm
from tests.benchmarks.scores import score

pytestmark = [pytest.mark.slow, pytest.mark.as_users]


def scores_of(cfg):
    scores = score(cfg, range(8))
    low, high = interval(scores)
    print(f"\n{cfg.env}: IQM {iqm(scores):.1f} ({low:.1f} to {high:.1f}); seeds 0 - 7: {np.round(scores, 1).tolist()}")
    return scores


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_cartpole_at_the_defaults(algorithm):
    scores = scores_of(ALGORITHMS[algorithm]())
    assert (scores >= 475).sum() >= 7
    assert scores.mean() >= 475


def test_breakout_with_its_preset():
    cfg = purerl.preset("Breakout-MinAtar")
    assert cfg.total_timesteps == 1_000_000
    assert iqm(scores_of(cfg)) >= 20
