"""Scores of runs."""

import numpy as np
import pytest

import purerl
from purerl.core.metrics import LAST, over_the_last
from purerl.studies.reading import _mean_of_curve, final_returns, has_current_evaluation, read_scores, runs_below
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.tiny import CFG

CARTPOLE = CFG.replace(env="CartPole-v1", lr_schedule="constant")


@pytest.mark.slow
def test_old_evaluations_are_not_final_scores(tmp_path):
    short, long = (CARTPOLE.replace(total_timesteps=64 * n) for n in (4, 24))
    options = {"directory": tmp_path, "num_seeds": 2, "eval_episodes": 4}
    current = purerl.fit(short, eval_every=4, **options)
    np.testing.assert_array_equal(
        final_returns(current, has_current_evaluation(current)), current.evaluations["episode_return"][-1]
    )
    old = purerl.fit(long, directory=tmp_path, num_seeds=2)
    assert not has_current_evaluation(old)
    np.testing.assert_array_equal(final_returns(old, evaluated=False), over_the_last(old.metrics, "episode_return", LAST))
    with pytest.warns(UserWarning, match="the last evaluation was after 4 of 24 updates"):
        read_scores(tmp_path, "final", "evaluation")
    table = purerl.fit(long.replace(total_timesteps=64 * 40), eval_every=30, **options).evaluations
    assert table["update"].tolist() == [0, 4, 30, 40]
    (one,) = read_scores(tmp_path, "auc", "evaluation")
    np.testing.assert_allclose(one.scores, np.trapezoid(table["episode_return"].T, table["update"]) / 40, rtol=1e-6)


def test_curves_are_interpolated_where_no_episode_ended():
    """Both seeds return t after t steps; most updates of the second one end no episode."""
    steps = np.arange(1.0, 11)
    values = np.stack([steps, np.where(np.isin(steps, [1, 2, 10]), steps, np.nan), np.full(10, np.nan)])
    np.testing.assert_allclose(_mean_of_curve(values, steps, False), [5.5, 5.5, np.nan])


@pytest.mark.parametrize("count", [2, 3, 101])
def test_mean_of_evaluations_is_independent_of_their_number(count):
    line = np.linspace(0, 1, count)
    np.testing.assert_allclose(_mean_of_curve(line[None], 640 * line, True), [0.5])
    np.testing.assert_allclose(_mean_of_curve(line[None, :1], np.zeros(1), True), [0])


def test_unfinished_runs_are_named_and_not_mixed_with_runs_of_another_total(tmp_path):
    stopped(tmp_path / "a", 4)
    fitted(updates=4, directory=tmp_path / "b", seed=1)
    with pytest.warns(UserWarning, match="a: only 256 of 640 steps have been trained"):
        purerl.compare([tmp_path / "a"])
    with pytest.warns(UserWarning, match="only 256"), pytest.raises(purerl.ConfigError, match="different hyperparameters"):
        purerl.compare({"both": [tmp_path / "a", tmp_path / "b"]})


def test_entries_that_were_evaluated_at_other_steps_are_named(tmp_path):
    for every in (1, 2):
        fitted(updates=2, directory=tmp_path / str(every), eval_every=every, eval_episodes=2)
    folders = [tmp_path / "1", tmp_path / "2"]
    with pytest.warns(UserWarning, match="entries were evaluated after different numbers of steps"):
        purerl.compare(folders, score="auc", episodes="evaluation")
    purerl.compare(folders, episodes="evaluation")


def test_programs_of_a_sweep_are_ranked_by_evaluations_at_the_end_of_training():
    cfg = CARTPOLE.replace(total_timesteps=64 * 10)
    result = purerl.sweep(cfg, {"num_steps": [8, 16]}).fit(eval_every=11, eval_episodes=4)
    assert [each.evaluations["update"].tolist() for each in result.results] == [[0, 11, 20], [0, 10]]
    final = [each.evaluations["episode_return"][-1] for each in result.results]
    np.testing.assert_array_equal(result.returns, final)


@pytest.mark.slow
def test_score_that_ended_a_run_is_said_to_be_biased(tmp_path):
    purerl.fit(CARTPOLE, directory=tmp_path, eval_every=1, eval_episodes=4, stop_when=lambda _: True)
    with pytest.warns(UserWarning, match="a high score ended the run"):
        read_scores(tmp_path, "final", "evaluation")


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
    assert [one.label for one in read_scores(tmp_path, "final", "training")] == ["lr = 0.0001", "lr = 0.001"]
    assert [one.label for one in read_scores(tmp_path / "final", "final", "training")] == [""]
