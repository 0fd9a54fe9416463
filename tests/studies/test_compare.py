"""Comparisons over seeds and tasks."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, trim_mean

import purerl
from purerl import cli
from purerl.runs.analysis import statistics
from purerl.studies.compare import _add
from purerl.studies.comparison import Comparison
from purerl.studies.reading import RunScores
from purerl.studies.tasks import Task
from tests.helpers.tiny import CFG


@pytest.mark.parametrize("entries", [5, [5], {"a": 5}, {"a": []}])
def test_invalid_entries_are_refused(entries):
    with pytest.raises(purerl.ConfigError, match="entries"):
        purerl.compare(entries)


def test_nan_score_gives_a_nan_aggregate():
    assert np.isnan(purerl.iqm([1, 2, 3, np.nan]))
    assert purerl.iqm([1, 2, 3, 4]) == 2.5
    assert purerl.interval([1.0, 2.0, 3.0])[0] >= 1


def test_statistics_match_their_definitions():
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=8), rng.normal(1, 2, size=12), rng.normal(size=4)]
    every = np.concatenate(scores)
    np.testing.assert_allclose(statistics.iqm(every), trim_mean(every, 0.25), rtol=1e-12)
    low, high = statistics.stratified_interval(scores)
    resampled = [trim_mean(np.concatenate([rng.choice(x, len(x)) for x in scores]), 0.25) for _ in range(4000)]
    np.testing.assert_allclose([low, high], np.percentile(resampled, [2.5, 97.5]), atol=0.05)
    assert statistics.stratified_interval(scores[:1]) == statistics.interval(scores[0])
    thresholds = np.linspace(-2, 2, 9)
    by_hand = [np.mean([sum(s > t for s in x) / len(x) for x in scores]) for t in thresholds]
    np.testing.assert_allclose(statistics.profile(scores, thresholds), by_hand, rtol=1e-12)
    others = [rng.normal(0.5, size=8), rng.normal(size=6), np.round(scores[2])]
    by_rank = [mannwhitneyu(x, y).statistic / (len(x) * len(y)) for x, y in zip(scores, others, strict=True)]
    np.testing.assert_allclose(statistics.improvement(scores, others), np.mean(by_rank), rtol=1e-12)
    low, high = statistics.improvement_interval(scores, others)
    assert low < np.mean(by_rank) < high
    assert statistics.improvement(others, others) == 0.5


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory):
    """Train two methods on two tasks, with evaluations."""
    home = tmp_path_factory.mktemp("compared")
    small = {"total_timesteps": 256, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "hidden": (8,)}
    options = {"num_seeds": 2, "eval_every": 2, "eval_episodes": 4, "eval_deterministic": True}
    for task in ("CartPole-v1", "Catch-bsuite"):
        cfg = purerl.PPOConfig(env=task, **small)
        for name, seed in (("quick", 0), ("slow", 7)):
            purerl.fit(cfg, seed, directory=home / name / task, **options)
    return home


def test_seeds_of_different_hyperparameters_are_not_pooled():
    one = RunScores("", "ppo", Task("T"), (0, 1), np.ones(2), np.arange(3), np.ones((2, 3)), "a", None)
    read = {}
    _add(read, "x", "T", one, Path("first"))
    _add(read, "x", "T", one._replace(seeds=(2, 3)), Path("second"))
    assert read["x"]["T"].seeds == (0, 1, 2, 3)
    with pytest.raises(
        purerl.ConfigError, match="x would have runs of T with different hyperparameters or objects; use different"
    ):
        _add(read, "x", "T", one._replace(seeds=(4,), settings="b"), Path("third"))
    for steps, says in (([0, 1, 4], "lengths"), ([0, 2], "intervals of metrics or evaluations")):
        with pytest.raises(purerl.ConfigError, match=f"x would have runs of T with different {says}; use different names"):
            _add(read, "x", "T", one._replace(seeds=(4,), steps=np.array(steps)), Path("fifth"))
    with pytest.raises(purerl.ConfigError, match="x would have runs of T with different evaluations; use different names"):
        _add(read, "x", "T", one._replace(seeds=(4,), evaluated={"episodes": 4}), Path("fourth"))


def unclipped(weight):
    def loss(outputs, old, advantage, cfg):
        return -weight * advantage * outputs.policy.log_prob(old.action)

    return loss


@pytest.mark.slow
def test_seeds_with_other_objects_or_another_start_are_not_pooled(tmp_path):
    cfg = CFG.replace(env="CartPole-v1", total_timesteps=128)
    purerl.fit(cfg, directory=tmp_path / "plain/a")
    purerl.fit(cfg, 1, directory=tmp_path / "warm/a", init_from=tmp_path / "plain/a")
    for seed, weight in ((2, 1.0), (3, 2.0)):
        purerl.fit(cfg, seed, directory=tmp_path / f"own/{seed}", policy_loss=unclipped(weight))
    assert "warm began with the parameters of other runs" in purerl.compare([tmp_path / "plain", tmp_path / "warm"]).unequal
    for other in ("warm", "own"):
        with pytest.raises(purerl.ConfigError, match="with different hyperparameters or objects"):
            purerl.compare({"x": [tmp_path / "plain", tmp_path / other]})
    with pytest.warns(UserWarning, match=r"own: runs of CartPole-v1 differ in policy_loss\.weight: 1, 2; are they one algorithm"):
        purerl.compare([tmp_path / "own"])


@pytest.mark.slow
def test_seeds_that_recorded_kernels_as_auto_are_pooled_and_resumed(tmp_path, monkeypatch):
    cfg, resolved = CFG.replace(env="CartPole-v1", total_timesteps=128), purerl.PPOConfig.resolve
    with monkeypatch.context() as earlier:
        earlier.setattr(purerl.PPOConfig, "resolve", lambda self, env: resolved(self, env).replace(kernels="auto"))
        purerl.fit(cfg, directory=tmp_path / "0")
    purerl.fit(cfg, 1, directory=tmp_path / "1")
    assert purerl.compare({"x": [tmp_path / "0", tmp_path / "1"]}).scores("x", "CartPole-v1").shape == (2,)
    with pytest.warns(UserWarning, match="schedules that depend on it"):
        assert purerl.fit(cfg.replace(total_timesteps=192), directory=tmp_path / "0").progress.updates == 3


def test_unequal_training_lengths_are_noted_first_in_every_format(tmp_path):
    of = lambda steps: {
        "T": RunScores("x", "ppo", Task("T"), (0, 1), np.ones(2), np.array(steps), np.ones((2, len(steps))), "", None)
    }
    same = Comparison({"a": of([64, 128]), "b": of([128])}, None, "protocol")
    assert same.unequal == ""
    longer = Comparison({"a": of([64]), "b": of([1024])}, None, "protocol")
    said = "Entries were trained for different numbers of steps: T 64 or 1,024."
    assert str(longer).startswith(f"{said}\n\n|")
    assert rf"\caption{{{said} protocol}}" in longer.latex()
    assert json.loads(longer.to_json())["protocol"] == f"{said} protocol"
    assert longer.draw(tmp_path / "a.png").get_suptitle().startswith(said)


def test_different_kinds_of_evaluations_are_noted():
    scored = lambda likely: RunScores(
        "x", "ppo", Task("T"), (0, 1), np.ones(2), np.array([64]), np.ones((2, 1)), "", {"deterministic": likely}
    )
    assert Comparison({"a": {"T": scored(True)}, "b": {"T": scored(True)}}, None, "").unequal == ""
    both = Comparison({"a": {"T": scored(False)}, "b": {"T": scored(True)}}, None, "")
    assert both.unequal == "Evaluations of b take the most likely actions, all others sample actions."


def test_files_to_write_may_begin_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    one = {"T": RunScores("x", "ppo", Task("T"), (0, 1), np.ones(2), np.array([64]), np.ones((2, 1)), "", None)}
    for name in ("a.md", "a.png"):
        Comparison({"a": one}, None, "protocol").write(f"~/{name}")
        assert (tmp_path / name).exists()
    assert purerl.recorders.Csv("~/a.csv").path == tmp_path / "a.csv"


@pytest.mark.long
@pytest.mark.slow
def test_compare_aggregates_over_tasks_and_writes_every_format(two_tasks, tmp_path, capsys):
    folders = [two_tasks / "quick", two_tasks / "slow"]
    raw = purerl.compare(folders)
    assert list(raw.entries) == ["quick", "slow"]
    assert raw.tasks == ("CartPole-v1", "Catch-bsuite")
    with pytest.raises(purerl.ConfigError, match="aggregate scores of several tasks"):
        raw.aggregate("quick")
    (tmp_path / "reference.toml").write_text('CartPole-v1 = [20.0, 500.0]\n"Catch-bsuite" = [-1, 1]\n')
    found = purerl.compare(folders, reference=tmp_path / "reference.toml")
    normal = [(raw.scores("quick", "CartPole-v1") - 20) / 480, (raw.scores("quick", "Catch-bsuite") + 1) / 2]
    np.testing.assert_allclose(found.aggregate("quick")[0], trim_mean(np.concatenate(normal), 0.25), rtol=1e-6)
    evaluated = purerl.compare(folders, episodes="evaluation", score="auc")
    table = [json.loads(line) for line in (two_tasks / "slow/CartPole-v1/evaluations.jsonl").read_text().splitlines()]
    weights = np.diff([row["update"] for row in table], prepend=0)  # the curve before each evaluation
    means = np.average([row["episode_return"] for row in table], axis=0, weights=weights)
    np.testing.assert_allclose(evaluated.scores("slow", "CartPole-v1"), means, rtol=1e-6)
    assert "4 evaluation episodes, the most likely actions" in evaluated.protocol
    assert "CartPole-v1 256 steps" in evaluated.protocol
    files = [str(tmp_path / f"out.{kind}") for kind in ("md", "tex", "json", "csv", "png")]
    args = ["compare", *map(str, folders), "--reference", str(tmp_path / "reference.toml"), "--out", *files]
    assert cli.main(args) == 0
    assert "probability of improvement" in capsys.readouterr().out
    exported = json.loads((tmp_path / "out.json").read_text())
    assert exported["scores"]["quick"]["Catch-bsuite"]["seeds"] == [0, 1]
    assert exported["all"]["quick"][0] == pytest.approx(found.aggregate("quick")[0])
    assert (tmp_path / "out.csv").read_text().count("\n") == 1 + 2 * 2 * 2
    assert r"\toprule" in (tmp_path / "out.tex").read_text()
    assert "| quick | 2 |" in (tmp_path / "out.md").read_text()
    assert (tmp_path / "out.png").stat().st_size > 10_000


@pytest.mark.long
@pytest.mark.slow
def test_incomparable_runs_are_refused(two_tasks, tmp_path):
    with pytest.raises(purerl.ConfigError, match=r"has no run of Catch-bsuite"):
        purerl.compare({"a": [two_tasks / "quick"], "b": [two_tasks / "slow" / "CartPole-v1"]})
    with pytest.raises(purerl.ConfigError, match="seed 0 of CartPole-v1 twice"):
        purerl.compare({"a": [two_tasks / "quick", two_tasks / "quick"]})
    together = purerl.compare({"a": [two_tasks / "quick", two_tasks / "slow"]})
    assert together.entries["a"]["Catch-bsuite"].seeds == (0, 1, 7, 8)
    with pytest.raises(purerl.CheckpointError, match="no run in"):
        purerl.compare([tmp_path])
    with pytest.raises(purerl.CheckpointError, match="no directory"):
        purerl.compare([tmp_path / "nowhere"])
    low, swapped = "needs a low and a high score per task", {"CartPole-v1": (500, 20), "Catch-bsuite": (-1, 1)}
    for options, says in (({"score": "best"}, "choose from"), ({"reference": {}}, low), ({"reference": swapped}, low)):
        with pytest.raises(purerl.ConfigError, match=says):
            purerl.compare([two_tasks / "quick"], **options)
    assert cli.main(["compare", str(two_tasks / "quick"), "--out", str(tmp_path / "a.doc")]) == 2


@pytest.mark.long
def test_coarse_metrics_are_warned_of(tmp_path):
    small = {"total_timesteps": 256, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "hidden": (8,)}
    purerl.fit(purerl.PPOConfig(env="Catch-bsuite", metrics_every=2, **small), directory=tmp_path / "a", num_seeds=5)
    with pytest.warns(UserWarning, match="with metrics_every=2, scores are from more than the last tenth of training"):
        purerl.compare([tmp_path / "a"])
