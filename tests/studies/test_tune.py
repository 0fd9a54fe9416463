"""Tuning: which trials are tried, which stop, and which wins."""

import json
import math
import os
import signal
import tomllib

import numpy as np
import optuna
import pytest

import purerl
from purerl import Range, cli
from purerl.runs.storage.files import checksum
from purerl.runs.trainer import Trainer
from purerl.studies import study as studies
from purerl.studies.rungs import RungTrainer, check_rungs, going_on
from purerl.studies.search import Search
from purerl.studies.steps import Step, step_of
from tests.benchmarks import pruning
from tests.helpers.probes import ObsDependent, Varied
from tests.helpers.studies import OPTIONS, SHORT, SPACE, TUNED, without_time
from tests.helpers.tiny import CFG

RATES = (1e-3, 3e-3, 1e-2, 3e-2)


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
    assert tomllib.loads((home / "best.toml").read_text())["lr"] == found.point["lr"]
    assert purerl.PPOConfig.from_json((home / "best.json").read_text()) == found.cfg
    assert found.preset_line().startswith('"CartPole-v1": PPOConfig(')
    assert found.env_steps > sum(step.env_steps for step in steps)


@pytest.mark.slow
def test_an_interrupted_study_goes_on_with_the_same_trials(study, tmp_path):
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


@pytest.mark.slow
def test_lists_are_tried_once_each():
    """Each value of a list is tried once, and finalists are different points."""
    found = purerl.tune(TUNED, {"lr": [1e-3, 1e-2], "gamma": [0.9]}, trials=8, **QUICK)
    assert sorted(trial.point["lr"] for trial in found.trials) == [1e-3, 1e-2]
    assert {row.label for row in found.finalists} == {"lr = 0.001, gamma = 0.9", "lr = 0.01, gamma = 0.9"}


def test_narrow_ranges_have_many_points():
    assert Range(0.999, 0.9999).digits == 6
    assert Range(1e-4, 1e-2, log=True).digits == 3
    assert Range(1000, 1004).digits == 6


def untrained(score):
    """Replace `Study._train`: each trial has the score of its point at every rung."""
    return lambda self, batch: (batch._replace(scores=tuple((score(point),) for point in batch.points)), [])


def study_of(values, trials, options, home=None, pruner=None, objects=None, limit=lambda: None):
    search = Search(TUNED, values, trials, options, None, pruner)
    return studies.Study(search, RungTrainer(TUNED, options, objects or {}, limit), home, 0, limit)


class NeverStops(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        return False


def scored_by(scores, diverged=()):
    """Replace `Study._train`: each trial has the scores of its rate, at every rung."""

    def train(self, batch):
        lost = tuple(n for n, point in zip(batch.trials, batch.points, strict=True) if point["lr"] in diverged)
        return batch._replace(scores=tuple(scores[point["lr"]] for point in batch.points), diverged=lost), []

    return train


def test_a_trial_that_ended_no_episode_goes_on_and_one_that_diverged_stops(monkeypatch, tmp_path):
    """One such seed alone has the same effect; a study that is read again has the same trials."""
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
        assert study.unjudged == 4
        study.close()


def test_studies_of_0_3_stopped_every_trial_without_a_score():
    step = Step(0, {}, (0, 1), ({"lr": 0.1}, {"lr": 0.2}), ((1.0,), (math.nan,)), (0,), 0, 0.0)
    found = step._asdict() | {"scores": [[1.0], [None]], "drawn": []}
    del found["diverged"]
    line = json.dumps(found | {"check": checksum(json.dumps(found).encode()).hex()}).encode()
    assert step_of(line).diverged == (1,)


@pytest.mark.filterwarnings("ignore:2 times a trial went on unjudged:UserWarning")
@pytest.mark.parametrize("score", [(math.nan,), (1.0,)])
def test_tuning_without_a_winner_is_an_error(score, monkeypatch):
    """Either no episode ends, or all trials diverge."""
    rates = (0.1, 0.2)
    monkeypatch.setattr(studies.Study, "_train", scored_by(dict.fromkeys(rates, score), () if math.isnan(score[0]) else rates))
    says = "none has a score: 2 ended no episode" if math.isnan(score[0]) else "none has a score: 2 diverged"
    with pytest.raises(purerl.ConfigError, match=says):
        purerl.tune(TUNED, {"lr": rates}, trials=2, **QUICK)


def test_rungs_are_as_long_as_an_episode():
    """With 64 environments x 3,800 steps, the first of 3 rungs has 950 steps of each, and the first of 2 has 1,900."""
    cfg = CFG.replace(env="Pendulum-v1", num_envs=64, num_steps=19, num_minibatches=4, total_timesteps=64 * 3800)
    cfg = cfg.replace(env_params={"max_steps_in_episode": 1000})
    with pytest.raises(purerl.ConfigError, match=r"rungs = 3: an episode may take 1,000 steps, .* has only 950 .*; use rungs=2"):
        purerl.tune(cfg, {"lr": Range(1e-4, 1e-2)})
    train = purerl.make_train(cfg)
    assert check_rungs([train], 2) == ""
    longer = purerl.make_train(cfg.replace(env_params={"max_steps_in_episode": 4000}))
    assert "an episode may take 4,000 steps, and training has 3,800" in check_rungs([longer], 2)
    with pytest.raises(purerl.ConfigError, match="use rungs=2"):
        check_rungs([longer, train], 3)


def test_trials_below_the_median_of_their_rung_stop():
    values = [1.0, 2.0, 3.0, 4.0, 10.0, 20.0, math.nan]
    assert going_on(values, [0, 0, 0, 0, 1, 1, 0]).tolist() == [False, False, True, True, False, True, True]
    assert going_on([math.nan], [0]).tolist() == [True]


def test_of_equally_good_trials_noisy_ones_go_on_no_more_often():
    assert abs(pruning.compared(pruning.shipped, 10)[3]) < 0.05
    assert pruning.compared(pruning.both_optimistic, 10)[3] > 0.3


def test_new_trials_are_drawn_where_those_before_were_good(monkeypatch):
    """Trials that wait for their next rung count as good: else there would be random draws alone."""
    values = {"lr": Range(1e-4, 1e-2, log=True), "gamma": Range(0.9, 1.0), "gae_lambda": Range(0.8, 1.0)}
    far = lambda point: (
        abs(math.log10(point["lr"] / 2.5e-3)) / 2 + abs(point["gamma"] - 0.98) / 0.1 + abs(point["gae_lambda"] - 0.9) / 0.2
    )
    monkeypatch.setattr(studies.Study, "_train", untrained(lambda point: -far(point)))
    first, last = [], []
    for seed in range(5):
        options = {"num_seeds": 1, "rungs": 3, "at_once": 8, "seed": seed}
        study = study_of(values, 32, options)
        while study.next():
            pass
        distances = [far(trial.point) for trial in sorted(study.trials(), key=lambda trial: trial.number)]
        first, last = first + distances[:8], last + distances[24:]
    assert np.mean(last) < 0.6 * np.mean(first)


@pytest.mark.parametrize("values", [{"num_epochs": Range(1, 2**30), "lr": Range(1e-4, 1e-1)}, {"num_epochs": Range(1, 8)}])
def test_of_more_programs_than_batches_not_the_first_are_tried(values, monkeypatch):
    tried = []
    monkeypatch.setattr(studies.Study, "_train", untrained(lambda point: tried.append(point["num_epochs"]) or 1.0))
    limit = lambda: "enough" if len(tried) >= 6 else None
    options = {"num_seeds": 1, "rungs": 1, "at_once": 1, "seed": 0}
    study = study_of(values, 6, options, limit=limit)
    while study.next():
        pass
    assert tried != [1, 2, 3, 4, 5, 6]
    assert len(set(tried)) == len(tried) == 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:an episode may take 1,000 steps:UserWarning")  # and takes fewer
def test_a_study_of_other_objects_is_another_one(tmp_path):
    purerl.tune(TUNED, {"lr": [1e-3]}, trials=1, directory=tmp_path, **QUICK)
    with pytest.raises(purerl.CheckpointMismatch, match="objects"):
        purerl.tune(TUNED, {"lr": [1e-3]}, trials=1, directory=tmp_path, **{**QUICK, "env": ObsDependent()})


@pytest.mark.slow
def test_a_study_with_a_damaged_line_goes_on(tmp_path):
    """The states of the trials are gone by then: the trials are trained again."""
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
def test_what_optuna_drew_is_kept_with_all_digits(study):
    home, _, _ = study
    lines = [json.loads(line) for line in (home / "trials.jsonl").read_bytes().splitlines()]
    drawn = [(x["lr"], point["lr"]) for line in lines for x, point in zip(line["drawn"], line["points"], strict=False)]
    assert any(exact != rounded for exact, rounded in drawn)
    np.testing.assert_allclose(*zip(*drawn, strict=True), rtol=5e-3)


@pytest.mark.slow
def test_more_trials_and_seeds_may_be_asked_for_after_the_end(tmp_path):
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
    (tmp_path / "winner").unlink()  # as if the study was stopped before
    with pytest.raises(purerl.CheckpointError, match="whose study has no winner yet"):
        purerl.compare([tmp_path])


@pytest.mark.slow
def test_of_a_study_the_winner_is_compared(study):
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
        ({"lr": Range(1e-4, 1e-2)}, {"rungs": 9}, "too few for so many rungs"),
        ({"lrr": Range(1e-4, 1e-2)}, {}, "did you mean 'lr'"),
        ({"lr": Range(1e-4, 1e-2)}, {"speed": 1}, "no argument of tune"),
        ({"env_params.limit": [5, 50], "lr": [1e-3]}, {}, "env_params.limit = (5, 50): is a part of the task"),
        ({"env": ["CartPole-v1", "Acrobot-v1"]}, {}, "is a part of the task"),
        ({"num_levels": Range(1, 8)}, {}, "num_levels = '1:8': is a part of the task"),
        ({"clip_eps": [0.1, -1.0]}, {}, "clip_eps"),
        ({"lr": Range(1e-4, 1e-2)}, {"max_hours": math.nan}, "max_hours = nan: must be at least 0"),
        ({"lr": Range(1e-4, 1e-2)}, {"search_hours": -1}, "search_hours = -1: must be at least 0"),
        ({"lr": Range(1e-4, 1e-2)}, {"seed": 2**32 - 1}, "must leave room below 2**32"),
        ({"hidden": [(8,), (16,)], "num_minibatches": [2, 7]}, {}, "num_minibatches = 7"),
    ],
)
def test_what_cannot_be_tuned_is_refused(values, options, says):
    with pytest.raises(purerl.ConfigError) as refused:
        purerl.tune(SHORT, values, env=Varied(), **{"trials": 2, "num_seeds": 1, **options})
    assert says in str(refused.value)


@pytest.mark.slow
def test_no_trial_begins_after_the_hours_of_the_search():
    steps = []
    options = {**OPTIONS, "rungs": 1, "search_hours": 1e-9}
    found = purerl.tune(TUNED, {"lr": SPACE["lr"]}, env=Varied(), watch=steps.append, **options)
    assert len(steps) == 1
    assert len(found.trials) == 3


@pytest.mark.slow
def test_few_trials_are_not_trained_beside_many_copies(monkeypatch):
    rows, chunk = set(), Trainer.chunk
    monkeypatch.setattr(Trainer, "chunk", lambda runs, *args: (rows.add(len(runs.labels)), chunk(runs, *args))[1])
    options = OPTIONS | {"trials": 3, "at_once": 16, "num_seeds": 1, "finalists": 1, "final_seeds": 1}
    purerl.tune(TUNED, {"lr": SPACE["lr"]}, env=Varied(), **options)
    assert max(rows) == 4


@pytest.mark.slow
def test_a_study_without_scores_has_no_winner(capsys):
    small = ["--env", "Acrobot-v1", "--total-timesteps", "256", "--num-envs", "4", "--num-steps", "16", "--hidden", "8"]
    options = ["--trials", "2", "--num-seeds", "1", "--rungs", "2", "--param", "lr=1e-3:1e-2"]
    with (
        pytest.warns(UserWarning, match="an episode may take 500 steps, and training has 64 of each"),
        pytest.warns(UserWarning, match="4 times a trial went on unjudged"),
    ):
        assert cli.main(["tune", "ppo", *small, *options]) == 2
    assert "none has a score: 2 ended no episode" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_that_diverges_says_so_and_keeps_its_directory(tmp_path):
    for _ in range(2):  # trained, and read again
        with pytest.raises(purerl.ConfigError, match=f"none has a score: 2 diverged; .* the study is kept in {tmp_path}"):
            purerl.tune(TUNED, {"lr": [1e38, 2e38]}, directory=tmp_path, **{**QUICK, "rungs": 2})
    assert (tmp_path / "trials.jsonl").exists()


@pytest.fixture(scope="module")
def alone():
    """Return the metrics of four rates, each with two seeds, trained without rungs: `[rates, seeds, updates]`."""
    metric = purerl.sweep(TUNED, {"lr": RATES}).fit(num_seeds=2, env=Varied()).results[0].metrics["episode_return"]
    return metric.total.reshape(4, 2, -1), metric.count.reshape(4, 2, -1)


@pytest.mark.slow
@pytest.mark.parametrize("from_disk", [False, True])
def test_a_trial_has_the_scores_of_its_run_alone_in_every_rung(from_disk, alone, tmp_path):
    """Two of four trials are trained side by side, and each goes on from its own state."""
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
