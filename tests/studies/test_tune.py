"""Tuning: new trials, stopped trials and the winner."""

import json
import math
import os
import signal
import tomllib

import numpy as np
import pytest

import purerl
from purerl import Range, cli
from purerl.runs.trainer import Trainer
from purerl.studies import study as studies
from purerl.studies.tune import as_toml
from tests.helpers.probes import ObsDependent, Varied
from tests.helpers.studies import OPTIONS, SHORT, SPACE, TUNED, scored_by, study_of, without_time


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    home, steps = tmp_path_factory.mktemp("study") / "t", []
    return home, purerl.tune(TUNED, SPACE, directory=home, env=Varied(), watch=steps.append, **OPTIONS), steps


@pytest.mark.slow
def test_tuning_tries_every_trial_once_and_stops_the_worse_half(study):
    home, found, steps = study
    begun = [number for step in steps if step.rung == 0 for number in step.trials]
    assert sorted(begun) == list(range(12))
    later = [number for step in steps if step.rung == 1 for number in step.trials]
    assert sorted(later) == sorted(number for step in steps if step.rung == 0 for number in step.kept)
    first = [step.static["num_steps"] for step in steps if step.rung == 0][:2]
    assert set(first) == {16, 8}  # each choice of a static field is tried
    seen = []
    for step in steps:
        if step.rung == 0:
            means = [np.mean(x) for x in step.scores]
            seen += means
            kept = tuple(number for number, x in zip(step.trials, means, strict=True) if x >= np.median(seen))
            assert step.kept == kept
    completed = [trial for trial in found.trials if trial.completed]
    assert found.trials[: len(completed)] == tuple(sorted(completed, key=lambda x: -x.score))
    # The winner was chosen and scored on other seeds.
    paths = *(home / "best").iterdir(), *sorted((home / "finalists").glob("*/[0-9]*"))
    runs = [purerl.load(path, env=Varied()) for path in paths]
    assert runs[0].labels[0].endswith("seed 4")
    assert found.summary.seeds == 2
    text = (home / "best.toml").read_text()
    assert text.startswith("# with env = tests.helpers.probes.Varied, which a file cannot hold\n")
    assert tomllib.loads(text)["lr"] == found.point["lr"]
    assert purerl.PPOConfig.from_json((home / "best.json").read_text()) == found.cfg
    assert str(found).startswith(f"best config {found.summary.label}: ")
    assert found.env_steps > sum(step.env_steps for step in steps)


@pytest.mark.long
def test_interrupted_study_continues_with_the_same_trials(study, tmp_path):
    _, whole, steps = study
    again = []

    def interrupting(step):
        again.append(step)
        if len(again) in (1, 4):
            os.kill(os.getpid(), signal.SIGINT)

    for _ in range(2):
        part = purerl.tune(TUNED, SPACE, directory=tmp_path, env=Varied(), watch=interrupting, **OPTIONS)
        assert part.stopped_by == signal.SIGINT
        assert part.cfg is None
    found = purerl.tune(TUNED, SPACE, directory=tmp_path, env=Varied(), watch=again.append, **OPTIONS)
    assert list(map(without_time, again)) == list(map(without_time, steps))
    assert (found.point, found.summary, found.finalists) == (whole.point, whole.summary, whole.finalists)
    with pytest.raises(purerl.CheckpointMismatch, match=r"num_seeds: 2 in study\.json, 3 here"):
        purerl.tune(TUNED, SPACE, directory=tmp_path, env=Varied(), **{**OPTIONS, "num_seeds": 3})


QUICK = {"num_seeds": 1, "rungs": 1, "finalists": 2, "final_seeds": 1, "env": Varied()}


@pytest.mark.long
def test_listed_values_are_tried_once():
    """Each value of a list is tried once, and finalists are different points."""
    found = purerl.tune(TUNED, {"lr": [1e-3, 1e-2], "gamma": [0.9]}, trials=8, **QUICK)
    assert sorted(trial.point["lr"] for trial in found.trials) == [1e-3, 1e-2]
    assert {row.label for row in found.finalists} == {"lr = 0.001, gamma = 0.9", "lr = 0.01, gamma = 0.9"}


def test_trial_without_episodes_continues_and_diverged_trial_stops(monkeypatch, tmp_path):
    """One seed without episodes, or with divergence, is enough. A resumed study has the same trials."""
    nan = math.nan
    scores = {0.1: (nan, 9.0), 0.2: (nan, nan), 0.3: (1.0, 2.0), 0.4: (2.0, 3.0), 0.5: (9.0, nan), 0.6: (0.0, 0.0)}
    monkeypatch.setattr(studies.Study, "_train", scored_by(scores, diverged=(0.5,)))
    options = {"num_seeds": 2, "rungs": 2, "at_once": 6, "seed": 0, "objects": {}}
    for _ in range(2):
        study = study_of({"lr": tuple(scores)}, 6, options, home=tmp_path)
        while study.next():
            pass
        status = {trial.point["lr"]: trial.status for trial in study.trials()}
        kept = dict.fromkeys((0.1, 0.2, 0.3, 0.4), "completed")
        assert status == {**kept, 0.5: "diverged", 0.6: "stopped"}
        assert [trial.point["lr"] for trial in study.best(4)] == [0.4, 0.3, 0.1]  # trials with a score for every seed first
        assert sum(len(step.unknown) for step in study.steps) == 4
        study.close()


@pytest.mark.filterwarnings("ignore:2 times, a trial without a score was kept:UserWarning")
@pytest.mark.parametrize("score", [(math.nan,), (1.0,)])
def test_tuning_without_a_winner_is_an_error(score, monkeypatch):
    """Either no episode ends, or all trials diverge."""
    rates = (0.1, 0.2)
    monkeypatch.setattr(studies.Study, "_train", scored_by(dict.fromkeys(rates, score), () if math.isnan(score[0]) else rates))
    says = "none has a score: 2 finished no episode" if math.isnan(score[0]) else "none has a score: 2 diverged"
    with pytest.raises(purerl.ConfigError, match=says):
        purerl.tune(TUNED, {"lr": rates}, trials=2, **QUICK)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:an episode may take 1,000 steps:UserWarning")  # an episode takes fewer steps here
def test_study_does_not_resume_with_other_objects(tmp_path):
    purerl.tune(TUNED, {"lr": [1e-3]}, trials=1, directory=tmp_path, **QUICK)
    with pytest.raises(purerl.CheckpointMismatch, match="objects"):
        purerl.tune(TUNED, {"lr": [1e-3]}, trials=1, directory=tmp_path, **{**QUICK, "env": ObsDependent()})


@pytest.mark.long
def test_study_with_a_damaged_journal_line_resumes(tmp_path):
    """The trials are trained again, since their states are gone by then."""
    options = {**QUICK, "rungs": 2, "at_once": 2, "directory": tmp_path}
    whole = purerl.tune(TUNED, {"lr": SPACE["lr"]}, trials=4, **options)
    journal = tmp_path / "trials.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    (later,) = [i for i, line in enumerate(lines) if json.loads(line)["rung"] == 1][:1]
    journal.write_bytes(b"".join([*lines[:later], lines[later].replace(b'"rung"', b'"rong"'), *lines[later + 1 :]]))
    with pytest.warns(UserWarning, match="a line is damaged"):
        again = purerl.tune(TUNED, {"lr": SPACE["lr"]}, trials=4, **options)
    assert again.point == whole.point
    assert str(again.summary) == str(whole.summary)  # one seed has no interval: its bounds are NaN


@pytest.mark.slow
def test_sampled_parameters_are_saved_with_all_digits(study):
    home, _, _ = study
    lines = [json.loads(line) for line in (home / "trials.jsonl").read_bytes().splitlines()]
    drawn = [(x["lr"], point["lr"]) for line in lines for x, point in zip(line["drawn"], line["points"], strict=False)]
    assert any(exact != rounded for exact, rounded in drawn)
    np.testing.assert_allclose(*zip(*drawn, strict=True), rtol=5e-3)


@pytest.mark.long
def test_finished_study_accepts_more_trials_and_seeds(tmp_path):
    options = {"num_seeds": 1, "rungs": 1, "finalists": 2, "final_seeds": 1, "directory": tmp_path, "env": Varied()}
    few = purerl.tune(TUNED, {"lr": SPACE["lr"]}, trials=4, **options)
    more = purerl.tune(TUNED, {"lr": SPACE["lr"]}, trials=10, **options)
    assert {trial.number for trial in few.trials} == set(range(4))
    assert {trial.number for trial in more.trials} == set(range(10))
    assert [trial for trial in more.trials if trial.number < 4] == list(few.trials)
    better = purerl.tune(TUNED, {"lr": SPACE["lr"]}, trials=10, **options | {"final_seeds": 3})
    assert (better.trials, better.point, better.summary.seeds) == (more.trials, more.point, 3)
    (entry,) = purerl.compare([tmp_path]).entries.values()
    np.testing.assert_allclose(purerl.iqm(next(iter(entry.values())).scores), better.summary.iqm, rtol=1e-6)
    (tmp_path / "winner").unlink()  # as if the study had been stopped before
    with pytest.raises(purerl.CheckpointError, match="the study has no winner yet"):
        purerl.compare([tmp_path])


@pytest.mark.slow
def test_compare_uses_the_winner_of_a_study(study):
    home, found, _ = study
    (entry,) = purerl.compare([home]).entries.values()
    (scored,) = entry.values()
    assert scored.seeds == (4, 5)
    np.testing.assert_allclose(purerl.iqm(scored.scores), found.summary.iqm, rtol=1e-6)
    chosen_from = next(path for path in (home / "finalists").iterdir() if path.is_dir())
    assert len(purerl.compare([chosen_from]).entries) == 2


@pytest.mark.parametrize(
    ("values", "options", "says"),
    [
        ({"lr": Range(1e-4, 1e-2)}, {"trials": 0}, "trials = 0: must be an int of at least 1"),
        ({"lr": Range(1e-4, 1e-2)}, {"rungs": 9}, "needs at least 256 updates"),
        ({"lrr": Range(1e-4, 1e-2)}, {}, "did you mean 'lr'"),
        ({"lr": Range(1e-4, 1e-2)}, {"speed": 1}, "tune has no such argument"),
        ({"env_params.limit": [5, 50], "lr": [1e-3]}, {}, "env_params.limit = (5, 50): changes the task"),
        ({"env": ["CartPole-v1", "Acrobot-v1"]}, {}, "changes the task"),
        ({"num_levels": Range(1, 8)}, {}, "num_levels = '1:8': changes the task"),
        ({"clip_eps": [0.1, -1.0]}, {}, "clip_eps"),
        ({"lr": Range(1e-4, 1e-2)}, {"max_hours": math.nan}, "max_hours = nan: must be a number of at least 0"),
        ({"lr": Range(1e-4, 1e-2)}, {"search_hours": -1}, "search_hours = -1: must be a number of at least 0"),
        ({"lr": Range(1e-4, 1e-2)}, {"seed": 2**32 - 1}, "must be below 2**32"),
        ({"hidden": [(8,), (16,)], "num_minibatches": [2, 7]}, {}, "num_minibatches = 7"),
    ],
)
def test_invalid_studies_are_refused(values, options, says):
    with pytest.raises(purerl.ConfigError) as refused:
        purerl.tune(SHORT, values, env=Varied(), **{"trials": 2, "num_seeds": 1, **options})
    assert says in str(refused.value)


@pytest.mark.long
def test_no_trial_begins_after_search_hours():
    steps = []
    options = {**OPTIONS, "rungs": 1, "search_hours": 1e-9}
    found = purerl.tune(TUNED, {"lr": SPACE["lr"]}, env=Varied(), watch=steps.append, **options)
    assert len(steps) == 1
    assert len(found.trials) == 3


@pytest.mark.long
def test_small_batches_are_not_padded_with_many_copies(monkeypatch):
    rows, chunk = set(), Trainer.chunk
    monkeypatch.setattr(Trainer, "chunk", lambda runs, *args: (rows.add(len(runs.labels)), chunk(runs, *args))[1])
    options = OPTIONS | {"trials": 3, "at_once": 16, "num_seeds": 1, "finalists": 1, "final_seeds": 1}
    purerl.tune(TUNED, {"lr": SPACE["lr"]}, env=Varied(), **options)
    assert max(rows) == 4


@pytest.mark.long
@pytest.mark.slow
def test_study_without_scores_has_no_winner(capsys):
    small = ["--env", "Acrobot-v1", "--total-timesteps", "256", "--num-envs", "4", "--num-steps", "16", "--hidden", "8"]
    options = ["--trials", "2", "--num-seeds", "1", "--rungs", "2", "--param", "lr=1e-3:1e-2"]
    with (
        pytest.warns(UserWarning, match="an episode may take 500 steps, but training has only 64"),
        pytest.warns(UserWarning, match="4 times, a trial without a score was kept"),
    ):
        assert cli.main(["tune", "ppo", *small, *options]) == 2
    assert "none has a score: 2 finished no episode" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow
def test_study_whose_trials_all_diverge_fails_and_keeps_its_directory(tmp_path):
    for _ in range(2):  # once trained, once read from the directory
        with pytest.raises(purerl.ConfigError, match=f"none has a score: 2 diverged; .* the study is saved in {tmp_path}"):
            purerl.tune(TUNED, {"lr": [1e38, 2e38]}, directory=tmp_path, **{**QUICK, "rungs": 2})
    assert (tmp_path / "trials.jsonl").exists()


def test_numbers_of_numpy_in_a_config_can_be_written_as_toml():
    params, kwargs = {"g": np.float64(9.5), "max_speed": np.float32(8)}, (("size", np.int64(3)), ("part", (0, 1)), ("none", None))
    text = as_toml(purerl.PPOConfig(env_params=params, env_kwargs=kwargs, lr=np.float32(0.5)))
    found = tomllib.loads(text)
    assert found == {"lr": 0.5, "env_params": {"g": 9.5, "max_speed": 8.0}, "env_kwargs": {"size": 3, "part": [0, 1]}}
    assert "# with env_kwargs none = None, which TOML cannot hold" in text
