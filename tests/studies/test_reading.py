"""Scores of runs."""

import numpy as np
import pytest

import purerl
from purerl.core.metrics import LAST, over_the_last
from purerl.studies.reading import final_returns, runs_below, scored
from tests.helpers.tiny import CFG

CARTPOLE = CFG.replace(env="CartPole-v1", lr_schedule="constant")


@pytest.mark.slow
def test_old_evaluations_are_not_final_scores(tmp_path):
    short, long = (CARTPOLE.replace(total_timesteps=64 * n) for n in (4, 24))
    options = {"directory": tmp_path, "num_seeds": 2, "eval_episodes": 4}
    current = purerl.fit(short, eval_every=4, **options)
    np.testing.assert_array_equal(final_returns(current), current.evaluations["episode_return"][-1])
    old = purerl.fit(long, directory=tmp_path, num_seeds=2)
    np.testing.assert_array_equal(final_returns(old), over_the_last(old.metrics, "episode_return", LAST))
    with pytest.warns(UserWarning, match="the last evaluation was after 4 of 24 updates"):
        scored(tmp_path, "final", "evaluation")
    purerl.fit(long.replace(total_timesteps=64 * 40), eval_every=10, **options)
    with pytest.warns(UserWarning, match="eval_every has changed, and 'auc' gives each evaluation the same weight"):
        scored(tmp_path, "auc", "evaluation")
    with pytest.warns(UserWarning, match="eval_every = 50 is more than the 4 updates"):
        untrained = purerl.fit(short, eval_every=50, eval_episodes=4)
    np.testing.assert_array_equal(final_returns(untrained), over_the_last(untrained.metrics, "episode_return", LAST))


def test_runs_below_include_links_and_runs_inside_of_runs(tmp_path):
    for run in ("runs/a", "runs/a/fine", "elsewhere/b", "runs/best/c"):
        (tmp_path / run / "checkpoints/1").mkdir(parents=True)
    (tmp_path / "runs/link").symlink_to(tmp_path / "elsewhere")
    for name, target in (("back", "runs"), ("above", "."), ("0_latest", "runs/a/fine"), ("link_again", "elsewhere")):
        (tmp_path / "runs" / name).symlink_to(tmp_path / target)
    found = [str(path.relative_to(tmp_path / "runs")) for path in runs_below(tmp_path / "runs")]
    assert found == ["a", "a/fine", "best/c", "link/b"]
    assert runs_below(tmp_path / "runs/a") == [tmp_path / "runs/a"]


@pytest.mark.slow
def test_run_in_the_folder_of_a_sweep_has_no_label_of_the_sweep(tmp_path):
    cfg = CARTPOLE.replace(total_timesteps=128)
    purerl.sweep(cfg, {"lr": [1e-4, 1e-3]}).fit(directory=tmp_path)
    purerl.fit(cfg, directory=tmp_path / "final")
    assert [one.label for one in scored(tmp_path, "final", "training")] == ["lr = 0.0001", "lr = 0.001"]
    assert [one.label for one in scored(tmp_path / "final", "final", "training")] == [""]
