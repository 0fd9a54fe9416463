"""Rungs of a study, and the trials that stop after them."""

import math

import numpy as np
import optuna
import pytest

import purerl
from purerl import Range
from purerl.studies.rungs import check_rungs, is_kept
from tests.benchmarks import pruning
from tests.helpers.probes import Varied
from tests.helpers.studies import TUNED, study_of
from tests.helpers.tiny import CFG

RATES = (1e-3, 3e-3, 1e-2, 3e-2)


class NeverStops(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        return False


def test_rungs_shorter_than_an_episode_are_refused():
    """Divide 3,800 steps in each environment: the first of 3 rungs has 950 steps, the first of 2 has 1,900."""
    cfg = CFG.replace(env="Pendulum-v1", num_envs=64, num_steps=19, num_minibatches=4, total_timesteps=64 * 3800)
    cfg = cfg.replace(env_params={"max_steps_in_episode": 1000})
    with pytest.raises(purerl.ConfigError, match=r"rungs = 3: an episode may take 1,000 steps, .* has only 950 .*; use rungs=2"):
        purerl.tune(cfg, {"lr": Range(1e-4, 1e-2)})
    train = purerl.make_train(cfg)
    assert check_rungs([train], 2) == []
    longer = purerl.make_train(cfg.replace(env_params={"max_steps_in_episode": 4000}))
    assert "an episode may take 4,000 steps, but training has only 3,800" in check_rungs([longer], 2)[0]
    with pytest.raises(purerl.ConfigError, match="use rungs=2"):
        check_rungs([longer, train], 3)
    small, large = (purerl.make_train(CFG.replace(total_timesteps=20_000, num_envs=16, num_steps=n)) for n in (128, 512))
    assert check_rungs([small, small], 1) == []
    assert "rung 1 of 1 ends after 20,480 to 24,576 steps, since batch sizes differ" in check_rungs([small, large], 1)[0]
    longer = purerl.make_train(large.cfg.replace(total_timesteps=30_000))
    assert check_rungs([small, longer], 1) == []  # total_timesteps is tuned


def test_trials_below_the_median_of_their_rung_stop():
    scores = [1.0, 2.0, 3.0, 4.0, math.nan]
    assert [is_kept(x, scores) for x in scores] == [False, False, True, True, True]
    assert is_kept(math.nan, [math.nan])


def test_pruning_does_not_favour_noisy_trials():
    assert abs(pruning.compared(pruning.shipped, 10)[3]) < 0.05
    assert pruning.compared(pruning.both_optimistic, 10)[3] > 0.3


@pytest.fixture(scope="module")
def alone():
    """Return the metrics of four rates, each with two seeds, trained without rungs: `[rates, seeds, updates]`."""
    metric = purerl.sweep(TUNED, {"lr": RATES}).fit(num_seeds=2, env=Varied()).results[0].metrics["episode_return"]
    return metric.total.reshape(4, 2, -1), metric.count.reshape(4, 2, -1)


@pytest.mark.long
@pytest.mark.parametrize("from_disk", [False, True])
def test_trial_scores_equal_those_of_a_single_run_in_every_rung(from_disk, alone, tmp_path):
    """Two of four trials are trained at once, and each resumes from its own state."""
    options = {"num_seeds": 2, "rungs": 2, "at_once": 2, "seed": 0, "objects": {}}
    make = lambda: study_of({"lr": RATES}, 4, options, home=tmp_path, pruner=NeverStops(), objects={"env": Varied()})
    study, steps = make(), []
    while step := study.next():
        steps.append(step)
        if from_disk and len(steps) == 1:
            study.close()
            study = make()
    study.close()
    assert sorted((step.rung, n) for step in steps for n in step.trials) == [(r, n) for r in range(2) for n in range(4)]
    last = {0: slice(3, 4), 1: slice(7, 8)}  # a fifth of a rung of four updates
    for step in steps:
        total, count = (x[..., last[step.rung]].sum(-1) for x in alone)
        for point, scores in zip(step.points, step.scores, strict=True):
            same = [np.allclose(scores, x, rtol=1e-4) for x in total / count]
            assert same == [rate == point["lr"] for rate in RATES], (step.rung, point, scores)
