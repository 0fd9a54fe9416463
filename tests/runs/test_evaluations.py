"""Evaluations, renderings, plots, and an exported policy."""

import dataclasses
import importlib
import json
import os
import re
import shutil
import socket
import warnings

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import PIL.Image
import pytest

import purerl
from purerl.core.metrics import LAST, over_the_last
from purerl.runs.analysis import plots
from purerl.runs.analysis.export import export
from purerl.runs.evaluations import COLUMNS
from purerl.studies.listing import list_overviews
from tests.helpers.interrupted import StopAt, fitted, stopped
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG

SMALL = purerl.PPOConfig(total_timesteps=2048, num_envs=4, num_steps=16, hidden=(8,), episode_info=("discount",))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Train CartPole with two seeds and evaluations, stopped in the middle and resumed."""
    directory = tmp_path_factory.mktemp("cartpole") / "ours"
    options = {"directory": directory, "num_seeds": 2, "eval_every": 8, "eval_episodes": 5, "render_every": 4}
    assert purerl.fit(SMALL, recorders=(StopAt(17),), chunk_seconds=1e-9, **options).progress.updates == 17
    result = purerl.fit(SMALL, **options)
    return directory, result


@pytest.mark.slow
def test_evaluations_run_before_the_first_and_after_every_kth_update(run):
    directory, result = run
    table = result.evaluations
    assert table["update"].tolist() == [0, 8, 16, 24, 32]
    assert table["episode_return"].shape == (5, 2)
    assert (table["finished"] == 1).all()
    np.testing.assert_array_equal(table["episode_return"], table["episode_length"])
    assert len((directory / "evaluations.jsonl").read_text().splitlines()) == 5


def test_evaluations_have_curves(run):
    directory, result = run
    (curve,) = plots.curves_of(directory, "evaluation/episode_length")
    assert curve.steps.tolist() == [0, 512, 1024, 1536, 2048]
    np.testing.assert_array_equal(curve.values, result.evaluations["episode_length"].T)
    with pytest.raises(purerl.ConfigError, match="did you mean 'evaluation/episode_return'"):
        plots.curves_of(directory, "evaluation/episode_returns")


def test_runs_without_evaluations_have_no_best_state_and_no_curve_of_them(tmp_path):
    fitted(2, directory=tmp_path)
    with pytest.raises(purerl.CheckpointError, match=r"no best state in .*; train with eval_every"):
        purerl.load(tmp_path, best=True, env=Varied())
    with pytest.raises(purerl.CheckpointError, match="has no evaluations; train with eval_every"):
        plots.curves_of(tmp_path, "evaluation/episode_return")


@pytest.mark.slow
def test_evaluations_include_the_configs_episode_info(run):
    table = run[1].evaluations
    assert table["episode_info/discount"].shape == (5, 2)
    assert (table["episode_info/discount"] == 0).all()  # gymnax's discount after the pole has fallen


def test_run_has_the_same_evaluation_episodes_alone_and_in_a_batch(run):
    loaded = purerl.load(run[0])
    together = loaded.evaluate(6, seed=5)
    assert not np.array_equal(together.lengths[0], together.lengths[1])
    for seed in (0, 1):
        np.testing.assert_array_equal(loaded.select(seed=seed).evaluate(6, seed=5).lengths, together.lengths[seed])


def test_results_are_printed_in_a_few_lines(run):
    directory, result = run
    first, steps, *means = str(result).splitlines()
    assert first == f"PPO on CartPole-v1: seed 0, seed 1, 32 updates in {directory}"
    assert str(result.run).splitlines() == [first, "2,048 steps of each run", means[0]]
    one = str(result.run.select(seed=1)).splitlines()
    assert one[1:] == ["2,048 steps", f"return over the last tenth:{means[0].partition(',')[2]}"]
    assert re.fullmatch(r"TrainState with \d+ parameters in policy, value, 2 runs", repr(result.state))
    assert repr(result.run.train.seed_axes) == "TrainState with 1 parameters"  # an object that only `vmap` reads
    best = dataclasses.replace(result.run, finished=(4, 3))
    assert str(best).splitlines()[1:] == ["up to 256 steps of each run"]
    assert repr(result.progress).startswith("32 of 32 updates, 4,096 steps of 2 runs, ")
    assert steps == "4,096 steps of 2 runs"
    assert [line.partition(":")[0] for line in means] == ["return over the last tenth", "return of the last evaluation"]
    assert str(result.run.evaluate(3)).startswith("Episodes of shape (2, 3): return ")


def test_printed_returns_say_that_episodes_were_cut_short():
    result = fitted(updates=1, eval_every=1, eval_episodes=3, eval_max_steps=2)
    assert repr(result).endswith("(33% of episodes finished)")


@pytest.mark.slow
def test_best_by_selects_the_metric_of_the_best_state(tmp_path):
    options = {"directory": tmp_path, "eval_every": 1, "eval_episodes": 3, "updates": 4}
    result = fitted(**options, best_by="episode_length")
    best = result.evaluations["update"][np.argmax(result.evaluations["episode_length"], axis=0)]
    assert purerl.load(tmp_path, best=True, env=Varied()).finished == tuple(best)
    with pytest.raises(purerl.CheckpointMismatch, match="best_by: episode_length in the checkpoint, episode_return here"):
        fitted(**options)
    fitted(updates=4, directory=tmp_path)  # a run without evaluations selects no best state
    assert purerl.load(tmp_path, best=True, env=Varied()).finished == tuple(best)
    with pytest.raises(purerl.ConfigError, match="best_by = 'success': must be one of episode_length, episode_return"):
        fitted(eval_every=1, best_by="success")


class Unmeasured:
    """A time, a reward for the second action, and a score that is infinite at the end of every fifth episode."""

    action_space = purerl.Discrete(2)

    def reset(self, key):
        return (jnp.int32(0), jax.random.randint(key, (), 0, 5) == 0), jnp.zeros(1)

    def step(self, key, state, action):
        time, is_lost = state
        score = jnp.where(is_lost, jnp.inf, 1.0 * action)
        return (time + 1, is_lost), jnp.zeros(1), 1.0 * action, time == 3, False, {"score": score}


@pytest.mark.filterwarnings("ignore:.*score is not finite")
def test_evaluations_leave_out_scores_that_are_not_finite(tmp_path):
    cfg = CFG.replace(nonfinite="reset", episode_info=("score",))
    options = {"eval_every": 1, "eval_episodes": 32, "best_by": "episode_info/score", "directory": tmp_path}
    evaluations = purerl.fit(cfg, env=purerl.wrap_env(Unmeasured(), max_steps=10), **options).evaluations
    scores = evaluations["episode_info/score"]
    assert np.isfinite(scores).all()
    assert 0 < scores.min() <= scores.max() <= 1
    best = evaluations["update"][np.argmax(scores, axis=0)]
    assert purerl.load(tmp_path, best=True, env=purerl.wrap_env(Unmeasured(), max_steps=10)).finished == tuple(best)


def test_runs_without_a_score_have_no_best_state(tmp_path, monkeypatch):
    fit = importlib.import_module("purerl.runs.fit")
    columns = {name: np.array([1.0, np.nan], np.float32) for name in COLUMNS}
    monkeypatch.setattr(fit, "evaluation_of", lambda *_: lambda state: columns)
    options = {"directory": tmp_path, "num_seeds": 2, "eval_every": 1}
    fitted(updates=2, cfg=CFG.replace(lr_schedule="constant"), **options)
    with pytest.warns(UserWarning, match="no evaluation of seed 1 has a score"):
        purerl.load(tmp_path, best=True, env=Varied())
    with pytest.warns(UserWarning, match="eval_episodes: 128 in the checkpoint, 2 here"):
        fitted(updates=3, cfg=CFG.replace(lr_schedule="constant"), eval_episodes=2, **options)


def test_resumed_run_evaluates_at_once_if_it_has_no_evaluation(tmp_path):
    stopped(tmp_path, 3)
    rows = tmp_path / "rows.csv"
    result = fitted(directory=tmp_path, eval_every=4, eval_episodes=2, recorders=(purerl.recorders.Csv(rows, every=1),))
    assert result.evaluations["update"].tolist() == [3, 4, 8, 10]
    assert "evaluation/episode_return" in rows.read_text().splitlines()[0]
    assert fitted(directory=tmp_path).evaluations["update"].tolist() == [3, 4, 8, 10]


def test_first_evaluation_of_a_resumed_run_counts_once_if_the_run_is_killed_after_it(tmp_path):
    options = {"directory": tmp_path, "eval_every": 4, "eval_episodes": 2}
    stopped(tmp_path, 3)
    fitted(chunk_seconds=1e-9, recorders=(StopAt(4),), **options)
    shutil.rmtree(tmp_path / "checkpoints/4")
    assert fitted(**options).evaluations["update"].tolist() == [3, 4, 8, 10]


def killed(directory, checkpoint, updates, **options):
    """Make the directory of a run that was killed after `updates` updates, and saved its last checkpoint after `checkpoint`."""
    fitted(directory=directory, eval_every=1, eval_episodes=8, save_every=checkpoint, stop_when=after(updates), **options)
    shutil.rmtree(directory / f"checkpoints/{updates}")


def after(updates):
    return lambda progress: progress.updates >= updates


def test_best_states_that_the_resumed_run_does_not_reach_are_replaced(tmp_path):
    killed(tmp_path / "a", 4, 7, num_seeds=3)
    best = purerl.load(tmp_path / "a", best=True, env=Varied()).finished
    assert min(best) <= 4 < max(best)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(purerl.CheckpointMismatch, match="best_by: episode_return in the checkpoint, episode_length here"):
        fitted(directory=tmp_path / "a", num_seeds=3, eval_every=1, eval_episodes=8, best_by="episode_length")
    fitted(directory=tmp_path / "a", num_seeds=3)
    assert purerl.load(tmp_path / "a", best=True, env=Varied()).finished == best
    with pytest.warns(
        UserWarning, match=r"the best states of \d runs are from after update 4, which the resumed run does not reach"
    ):
        fitted(updates=4, directory=tmp_path / "b", num_seeds=3)
    with pytest.warns(UserWarning, match="has a score, so the state is not a best one"):
        left = purerl.load(tmp_path / "b", best=True, env=Varied())
    assert left.finished == tuple(min(update, 4) for update in best)


@pytest.mark.parametrize("updates", [6, 12])
def test_best_states_of_a_run_without_schedules_are_kept_up_to_its_end(updates, tmp_path):
    cfg = CFG.replace(lr_schedule="constant")
    killed(tmp_path, 4, 7, num_seeds=3, cfg=cfg)
    best = purerl.load(tmp_path, best=True, env=Varied()).finished
    with warnings.catch_warnings(action="ignore" if max(best) > updates else "error"):
        result = fitted(updates=updates, directory=tmp_path, num_seeds=3, cfg=cfg, eval_every=1, eval_episodes=8)
    wanted = result.evaluations["update"][np.argmax(result.evaluations["episode_return"], axis=0)]
    assert purerl.load(tmp_path, best=True, env=Varied()).finished == tuple(wanted)


def test_evaluations_of_a_call_that_was_killed_before_its_first_checkpoint_are_dropped(tmp_path):
    stopped(tmp_path, 3)
    killed(tmp_path, 10, 5)
    options = {"directory": tmp_path, "eval_every": 4, "eval_episodes": 8}
    result = fitted(**options, eval_max_steps=1, best_by="episode_length")
    assert result.evaluations["update"].tolist() == [3, 4, 8, 10]
    assert (result.evaluations["episode_length"] == 1).all()
    assert purerl.load(tmp_path, best=True, env=Varied()).finished == (3,)


def test_listed_run_names_what_ended_it(tmp_path):
    stopped(tmp_path, 2)
    assert [row.state for row in list_overviews(tmp_path)] == ["stopped: SIGTERM"]
    (tmp_path / ".holder").write_text(f"process {os.getpid()} on {socket.gethostname()}")
    assert [row.state for row in list_overviews(tmp_path)] == ["running"]


def test_evaluation_that_is_not_current_is_named(tmp_path):
    fitted(updates=1, directory=tmp_path, eval_every=1, eval_episodes=2, cfg=CFG.replace(lr_schedule="constant"))
    result = fitted(directory=tmp_path, cfg=CFG.replace(lr_schedule="constant"))
    assert "(after 1 of 10 updates)" in repr(result)
    (row,) = list_overviews(tmp_path)
    returns = result.evaluations["episode_return"].max(), over_the_last(result.metrics, "episode_return", LAST).max()
    assert row.best == pytest.approx(max(returns))


def test_total_that_is_lowered_to_the_finished_updates_is_saved(tmp_path):
    cfg = CFG.replace(lr_schedule="constant")
    stopped(tmp_path, 3, cfg=cfg)
    assert fitted(updates=3, cfg=cfg, directory=tmp_path).progress.is_finished
    run = purerl.load(tmp_path, env=Varied())
    assert (run.updates, run.cfg.total_timesteps) == (3, 3 * 64)


def test_best_evaluated_state_of_each_run_is_kept(run):
    directory, result = run
    best = result.evaluations["update"][np.argmax(result.evaluations["episode_return"], axis=0)]
    loaded = purerl.load(directory, best=True)
    assert loaded.finished == tuple(best)
    kept = sorted(int(path.name) for path in (directory / "best").iterdir())
    assert len(kept) <= 2
    assert kept[-1] == max(best)


def test_evaluations_accept_other_environment_parameters():
    result = fitted(eval_every=5, eval_episodes=3, eval_max_steps=2, eval_env_params={"max_steps_in_episode": 2})
    assert (result.evaluations["episode_length"] <= 2).all()


def test_renderings_are_animations(run):
    directory, _ = run
    pictures = sorted(path.name for path in (directory / "renders").iterdir())
    assert pictures == ["0.gif", "32.gif"]
    with PIL.Image.open(directory / "renders" / "32.gif") as picture:
        assert picture.n_frames > 1


def test_plot_has_axis_labels_a_legend_and_bands(run, tmp_path):
    directory, _ = run
    figure = plots.plot([directory, directory], tmp_path / "a.png", labels=["one", "other"])
    (axes,) = figure.axes
    assert axes.get_xlabel() == "environment steps"
    assert axes.get_ylabel() == "episode return"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one (2 seeds)", "other (2 seeds)"]
    assert len(axes.collections) == 2  # bands
    assert "95 %" in axes.get_title()
    assert matplotlib.image.imread(tmp_path / "a.png").std() > 0.01


def test_curves_equal_the_metrics_of_the_run(run):
    directory, result = run
    (curve,) = plots.curves_of(directory)
    steps, values = curve.steps, curve.values
    wanted = purerl.summarize(result.metrics)["episode_return"]
    np.testing.assert_array_equal(steps, 64 * np.arange(1, 33))
    np.testing.assert_array_equal(values, wanted)
    with pytest.raises(purerl.ConfigError, match="did you mean 'entropy'"):
        plots.curves_of(directory, "entropie")
    with pytest.raises(purerl.CheckpointError, match="no metrics"):
        plots.curves_of(directory / "checkpoints")


def test_damaged_run_is_listed_beside_others(run, tmp_path):
    for name in ("whole", "damaged"):
        shutil.copytree(run[0], tmp_path / name)
    damaged = tmp_path / "damaged"
    (damaged / "curves.jsonl").write_bytes(b"?" + (damaged / "curves.jsonl").read_bytes()[1:])
    (damaged / "evaluations.jsonl").unlink()
    (damaged / "evaluations.jsonl").mkdir()
    bad, good = list_overviews(tmp_path)
    assert (bad.steps, bad.state, good.steps, good.state) == (2048, "finished", 2048, "finished")
    assert np.isnan(bad.best)
    assert good.best > 0


def test_exported_policy_runs_without_purerl(run, tmp_path, fresh_python):
    loaded = purerl.load(run[0]).select(0)
    state = loaded.state
    export(loaded.train, state, tmp_path / "policy")
    obs = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    code = f"""
import sys
sys.modules["purerl"] = sys.modules["flax"] = None  # importing them fails
import json, jax, jax.export, numpy as np
act = jax.export.deserialize(bytearray(open({str(tmp_path / "policy")!r}, "rb").read())).call
obs = np.load({str(tmp_path / "obs.npy")!r})
first, key = np.zeros(7, bool), jax.random.PRNGKey(3)
print(json.dumps([act((), obs, first, key, mode)[0].tolist() for mode in (np.array(True), np.array(False))]))
print(act((), obs[:2], first[:2], key, np.array(True))[0].shape)
"""
    mode, sample, shape = *json.loads((lines := fresh_python(code).splitlines())[0]), lines[1]
    policy, key = loaded.train.policy(state), jax.random.wrap_key_data(jax.random.PRNGKey(3))
    first = np.zeros(7, bool)
    assert mode == policy((), obs, first, key, deterministic=True)[0].tolist()
    assert sample == policy((), obs, first, key)[0].tolist()
    assert shape == "(2,)"
