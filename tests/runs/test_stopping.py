"""Runs that a rule ends early, after the same update for all chunk lengths and points of resuming."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import purerl
from purerl.cli import main
from purerl.core.metrics import Mean, Sum
from purerl.runs.logging.progress import Progress
from purerl.runs.stopping import Stopping
from purerl.studies.listing import list_overviews
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG, digest

RUN = CFG.replace(total_timesteps=64 * 12, num_epochs=1)


def fit(**options):
    return purerl.fit(RUN, env=Varied(), **options)


def after(updates, seen=None):
    """Return a rule that ends a run after `updates` updates, and appends its inputs to `seen`."""

    def rule(progress):
        if seen is not None:
            metrics = {name: x.tolist() for name, x in purerl.summarize(progress.metrics).items() if name in ("steps", "loss")}
            evaluation = progress.evaluation and progress.evaluation["episode_return"].tolist()
            seen.append((progress.updates, metrics, evaluation))
        return progress.updates >= updates

    return rule


@pytest.mark.slow
def test_stop_rule_is_checked_at_evaluations_and_at_regular_updates():
    seen = []
    result = fit(stop_when=after(8, seen), stop_every=3, eval_every=4, eval_episodes=2, num_seeds=2)
    assert [updates for updates, _, _ in seen] == [3, 4, 6, 8]
    assert [metrics["steps"] for _, metrics, _ in seen] == [[[64 * n]] * 2 for n in (3, 1, 2, 2)]
    assert [evaluation for _, _, evaluation in seen] == [result.evaluations["episode_return"][i].tolist() for i in (0, 1, 1, 2)]
    assert (result.stopped_by, result.progress.updates) == ("stop_when", 8)


@pytest.mark.slow
def test_stop_is_independent_of_chunks_and_resuming(tmp_path):
    whole, pieces = [], []
    expected = fit(stop_when=after(9, whole), stop_every=3, chunk_seconds=1e-9)

    def interrupt(progress):
        if progress.updates == 5:
            raise KeyboardInterrupt

    options = {"stop_when": after(9, pieces), "stop_every": 3, "directory": tmp_path / "run", "save_every": 1}
    with pytest.raises(KeyboardInterrupt):
        fit(recorders=(interrupt,), chunk_seconds=1e-9, **options)
    result = fit(**options)
    assert result.progress.began[0] > 0
    assert pieces == whole
    assert (result.stopped_by, result.progress.updates) == ("stop_when", 9)
    assert digest(result.state) == digest(expected.state)


@pytest.mark.long
@pytest.mark.slow
def test_stopped_run_stays_stopped_until_the_rule_changes(tmp_path):
    stopped = fit(stop_when=after(4), stop_every=2, directory=tmp_path)
    assert [row.state for row in list_overviews(tmp_path)] == ["stopped: stop_when"]
    again = fit(stop_when=after(4), stop_every=2, directory=tmp_path)
    assert (again.stopped_by, again.progress.updates) == ("stop_when", 4)
    assert digest(again.state) == digest(stopped.state)
    later = fit(stop_when=after(6), stop_every=2, directory=tmp_path)
    assert (later.stopped_by, later.progress.updates) == ("stop_when", 6)
    ended = fit(directory=tmp_path)
    assert (ended.stopped_by, ended.progress.updates) == (None, 12)
    assert digest(ended.state) == digest(fit().state)
    assert [row.state for row in list_overviews(tmp_path)] == ["finished"]


@pytest.mark.long
@pytest.mark.slow
def test_at_return_uses_evaluations_otherwise_training_episodes():
    progress = purerl.fit(RUN, env=Varied(), eval_every=12, eval_episodes=2, num_seeds=2).progress
    metrics = {"episode_return": purerl.fit(RUN, env=Varied(), num_seeds=2).metrics["episode_return"]}
    metrics = jax.tree.map(lambda x: x.sum(-1, keepdims=True), metrics)
    trained = float(purerl.summarize(metrics)["episode_return"].mean())
    rows = progress._replace(metrics=metrics, evaluation=None)
    assert purerl.at_return(trained - 0.01)(rows)
    assert not purerl.at_return(trained + 0.01)(rows)
    evaluated = rows._replace(evaluation={"episode_return": np.array([1.0, 2.0])})
    assert purerl.at_return(1.5)(evaluated)
    assert not purerl.at_return(1.6)(evaluated)
    nothing_ended = rows._replace(metrics=jax.tree.map(np.zeros_like, metrics))
    assert not purerl.at_return(-1e9)(nothing_ended)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"stop_when": 475}, "stop_when"),
        ({"stop_when": after(1)}, "stop_when.*never checked"),
        ({"stop_every": 3}, "stop_every.*needs stop_when"),
        ({"stop_when": after(1), "stop_every": -1}, "stop_every.*at least 0"),
    ],
)
def test_invalid_stop_rules_are_refused(options, field):
    with pytest.raises(purerl.ConfigError, match=field):
        fit(**options)


@pytest.mark.slow
def test_rules_see_more_than_two_billion_steps_between_two_calls():
    """2^31 steps are five minutes of a GPU. The row of a checkpoint of before, in 32 bits, is continued."""
    row = np.dtype([("steps/Sum/total", "<i4"), ("reward/Mean/total", "<f4"), ("reward/Mean/count", "<i4")])
    steps = np.full(1000, 65_536, np.int32)
    chunk = {"steps": Sum(steps), "reward": Mean(steps.astype(np.float32), steps)}
    seen, saved = [], SimpleNamespace(arrays={"['asked']['steps'].total": np.full(1, 7, np.int32)}, record={})
    stopping = Stopping(lambda progress: seen.append(purerl.summarize(progress.metrics)), (0, 40_000), row, saved)
    for _ in range(40):
        stopping.append(chunk)
    stopping.is_over(Progress(None, ("seed 0",), 40_000, 1.0, {}))
    assert seen[0]["steps"].item() == 40 * 1000 * 65_536 + 7
    assert seen[0]["reward"].item() == 1


def test_failing_stop_rule_ends_the_run_with_its_error():
    def rule(progress):
        raise ValueError("no such metric")

    with pytest.raises(ValueError, match="no such metric"):
        fit(stop_when=rule, stop_every=1)


@pytest.mark.long
@pytest.mark.slow
def test_command_stops_at_a_return(tmp_path, capsys):
    flags = ["ppo", "--env", "CartPole-v1", "--total-timesteps", "5120", "--directory", str(tmp_path), "--stop-at-return", "1"]
    assert main(flags) == 2
    assert "stop_at_return = 1.0: is never checked" in capsys.readouterr().err
    assert main([*flags, "--stop-every", "2"]) == 0
    assert "Stopped after 2 of 10 updates: the mean return is at least 1." in capsys.readouterr().out


@pytest.mark.slow
def test_evaluations_before_a_resume_are_not_the_newest(tmp_path):
    """A rule without evaluations sees none; evaluations with other settings are refused."""
    options = {"directory": tmp_path / "run", "eval_episodes": 2, "eval_max_steps": 3}
    short = RUN.replace(total_timesteps=64 * 2, lr_schedule="constant")
    purerl.fit(short, env=Varied(), eval_every=1, **options)
    with pytest.raises(purerl.CheckpointMismatch, match="eval_max_steps: 3 in the checkpoint, 2 here"):
        purerl.fit(short, env=Varied(), eval_every=1, **options | {"eval_max_steps": 2})
    seen = []
    longer = short.replace(total_timesteps=64 * 4)
    purerl.fit(longer, env=Varied(), directory=tmp_path / "run", stop_when=after(9, seen), stop_every=1)
    assert [evaluation for _, _, evaluation in seen] == [None] * len(seen) != []


def test_rule_with_one_answer_for_each_run_is_refused():
    rule = lambda progress: progress.evaluation["episode_return"] > 0
    with pytest.raises(purerl.ConfigError, match="stop_when: returned 2 values, not one"):
        fit(num_seeds=2, eval_every=1, eval_episodes=2, stop_when=rule)
    assert fit(eval_every=1, eval_episodes=2, stop_when=rule).stopped_by == "stop_when"


def test_diverged_runs_do_not_disable_at_return():
    progress = lambda *returns: SimpleNamespace(evaluation={"episode_return": np.array(returns)})
    rule = purerl.at_return(100)
    assert rule(progress(500.0, np.nan))
    assert not rule(progress(50.0, np.nan))
    assert not rule(progress(np.nan, np.nan))
    with pytest.raises(purerl.ConfigError, match="value = nan: must be a number"):
        purerl.at_return(np.nan)
