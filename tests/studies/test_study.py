"""Sweeps, comparisons, tuning and the list of runs."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import optuna
import pytest
from scipy.stats import mannwhitneyu, trim_mean

import purerl
from purerl import Range, cli
from purerl.runs.analysis import statistics
from purerl.runs.storage.files import checksum
from purerl.runs.trainer import Trainer
from purerl.studies import space
from purerl.studies import study as studies
from purerl.studies import sweep as sweeps
from purerl.studies.reading import listed
from purerl.studies.rungs import RungTrainer, check_rungs, going_on
from purerl.studies.search import Search
from purerl.studies.steps import Step, step_of
from purerl.studies.tasks import names_of, task_of
from tests.benchmarks import pruning
from tests.helpers.probes import ObsDependent, Varied
from tests.helpers.tiny import CFG, digest

SHORT = CFG.replace(total_timesteps=64 * 4, hidden=(8,))
GRID = {"lr": [1e-3, 1e-2], "ent_coef": [0.0, 0.1], "num_steps": [16, 8]}


class StopAt:
    """A recorder that ends a run after so many updates."""

    def __init__(self, updates):
        self._updates = updates

    def __call__(self, progress):
        if progress.updates >= self._updates:
            os.kill(os.getpid(), signal.SIGTERM)


# --- which configs ----------------------------------------------------------------------------------------------------


def test_a_grid_has_all_combinations_and_a_program_for_each_static_choice():
    made = purerl.sweep(CFG, GRID)
    assert len(made.points) == 8
    assert made.labels[:3] == (
        "lr = 0.001, ent_coef = 0, num_steps = 16",
        "lr = 0.001, ent_coef = 0, num_steps = 8",
        "lr = 0.001, ent_coef = 0.1, num_steps = 16",
    )
    first, second = made.programs()
    assert (first.places, second.places) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert (first.cfg.num_steps, second.cfg.num_steps) == (16, 8)
    np.testing.assert_array_equal(first.cfg.lr, np.float32([1e-3, 1e-3, 1e-2, 1e-2]))
    assert np.ndim(first.cfg.gamma) == 0  # what is not swept stays a part of the program
    assert [program.places for program in made.programs(at_once=3)] == [(0, 2, 4), (6,), (1, 3, 5), (7,)]
    for i, cfg in enumerate(made.configs):
        assert (cfg.lr, cfg.ent_coef, cfg.num_steps) == tuple(made.points[i].values())


def test_points_and_draws():
    points = purerl.sweep(CFG, [{"lr": 1e-3}, {"gamma": 0.9, "hidden": (8, 8)}, {"lr": 1e-3}])
    assert points.labels == ("lr = 0.001", "gamma = 0.9, hidden = 8x8")  # each once
    values = {"lr": Range(1e-5, 1e-1, log=True), "num_epochs": Range(1, 4), "optimizer": ["adam", "sgd"]}
    for method in ("sobol", "random"):
        drawn = purerl.sweep(CFG, values, draws=64, method=method, seed=1)
        assert drawn.labels == purerl.sweep(CFG, values, draws=64, method=method, seed=1).labels
        assert drawn.labels != purerl.sweep(CFG, values, draws=64, method=method, seed=2).labels
        rates, epochs, optimizers = zip(*(point.values() for point in drawn.points), strict=True)
        assert 1e-5 <= min(rates) < 1e-4 < 1e-2 < max(rates) <= 1e-1
        assert set(epochs) == {1, 2, 3, 4}
        assert set(optimizers) == {"adam", "sgd"}
    decades = np.histogram(np.log10([p["lr"] for p in purerl.sweep(CFG, values, draws=64).points]), [-5, -4, -3, -2, -1])[0]
    assert decades.tolist() == [16, 16, 16, 16]  # a low-discrepancy sequence


def test_values_of_the_command_line():
    cfg = CFG.replace(rnd=purerl.RNDConfig(), env_params={"g": 10.0})
    texts = ["reward_clip=10,auto", "hidden=64x64,8", "num-steps=16,1e2", "normalize_obs=auto,false", "rnd-int-coef=0.5"]
    more = ["env_params.g=5,10", "env_kwargs.size=5,name", "gamma=0.9:0.99", "ent_coef=1e-4:1e-2:log", "arch=shared"]
    found = space.parsed(cfg, [*texts, *more], "sweep")
    assert found == {
        "reward_clip": (10.0, -math.inf),
        "hidden": ((64, 64), (8,)),
        "num_steps": (16, 100),
        "normalize_obs": ("auto", False),
        "rnd.int_coef": (0.5,),
        "env_params.g": (5.0, 10.0),
        "env_kwargs.size": (5, "name"),
        "gamma": Range(0.9, 0.99),
        "ent_coef": Range(1e-4, 1e-2, log=True),
        "arch": ("shared",),
    }
    changed = space.with_values(cfg, {"rnd.int_coef": 0.5, "env_params.g": 5.0, "env_kwargs.size": 5, "lr": 1.0})
    assert (changed.rnd.int_coef, changed.env_params, changed.env_kwargs, changed.lr) == (0.5, {"g": 5.0}, (("size", 5),), 1.0)


WRONG = {
    "no such field": ({"lrr": [1.0]}, {}, "lrr = '': no such field; did you mean 'lr'"),
    "another system's": ({"learning_rate": [1.0]}, {}, "`lr`"),
    "no values": ({"lr": []}, {}, "must be a list of values"),
    "one value": ({"lr": 1e-3}, {}, "must be a list of values"),
    "a range": ({"lr": Range(1e-4, 1e-3)}, {}, "a range needs draws"),
    "a range of words": ({"optimizer": Range(0, 1)}, {"draws": 4}, "its values are no numbers"),
    "backwards": ({"lr": Range(1e-3, 1e-4)}, {"draws": 4}, "from a number to a larger one"),
    "log of nothing": ({"ent_coef": Range(0, 1, log=True)}, {"draws": 4}, "both above 0"),
    "without rnd": ({"rnd.int_coef": [1.0]}, {}, "changes nothing without rnd"),
    "a whole field": ({"env_params": [1.0]}, {}, "name one of them"),
    "draws": ({"lr": [1.0]}, {"draws": -1}, "must be an int of at least 0"),
    "a method": ({"lr": [1.0]}, {"method": "grid"}, "choose from sobol, random"),
    "nothing": ({}, {}, "must be a dict from fields"),
    "points with draws": ([{"lr": 1.0}], {"draws": 2}, "without draws"),
    "a name that is none": ({3: [1.0]}, {}, "must be the name of a field"),
    "a seed of draws": ({"lr": Range(1e-4, 1e-3)}, {"draws": 2, "seed": -1}, "seed = -1: must be an int from 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_sweep_is_refused(case):
    values, options, says = WRONG[case]
    with pytest.raises(purerl.ConfigError) as refused:
        purerl.sweep(CFG, values, **options)
    assert says in str(refused.value)


WRONG_VALUES = {
    "a float": {"num_steps": [16, 8], "lr": [1e-3, -1.0]},
    "a choice": {"activation": ["tanh", "tahn"]},
    "a word": {"lr": ["a"]},
    "nothing": {"lr": [None, 1e-3]},
    "a range": {"clip_eps": Range(-1.0, 0.2)},
    "a range of words": {"lr": Range("a", "b")},
    "half a number": {"num_epochs": Range(0.5, 3, log=True)},
    "one number": {"lr": np.array(1e-3)},
    "a parameter": {"env_params.g": ["x"]},
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_wrong_values_are_refused_before_anything_is_trained(case):
    name = list(WRONG_VALUES[case])[-1]
    with pytest.raises(purerl.ConfigError, match=f"{name} = "):
        purerl.sweep(SHORT, WRONG_VALUES[case], draws=2)
    with pytest.raises(purerl.ConfigError, match=f"{name} = "):
        purerl.tune(SHORT, WRONG_VALUES[case], trials=2)


def test_all_programs_and_options_are_checked_before_the_first_is_trained(tmp_path):
    made = purerl.sweep(SHORT, {"env": ["CartPole-v1", "CartPol-v1"]})
    for options in ({"at_once": 1}, {"at_once": None}, {"at_once": 1, "max_hours": "x"}, {"seed": None}, {"at_once": 0}):
        with pytest.raises(purerl.ConfigError):
            made.fit(**{"seed": 0, "directory": tmp_path, **options})
    made = purerl.sweep(SHORT, {"env": ["CartPole-v1", "Acrobot-v1"]})
    with pytest.raises(purerl.ConfigError, match="length"):
        made.fit(0, tmp_path, eval_every=1, eval_env_params={"length": 1.0})
    assert list(tmp_path.iterdir()) == []  # so that the right call is not refused


def test_the_directory_of_a_run_is_none_for_a_sweep(tmp_path):
    purerl.fit(SHORT, directory=tmp_path, env=Varied())
    with pytest.raises(purerl.CheckpointMismatch, match="it has a run, and no sweep"):
        purerl.sweep(SHORT, {"gamma": [0.9, 0.95]}).fit(directory=tmp_path, env=Varied())
    assert not (tmp_path / "sweep.json").exists()


def test_in_place_of_a_sweep_that_kept_nothing_another_one_may_begin(tmp_path):
    (tmp_path / "sweep.json").write_text('{"at_once": 1, "seed": 7}')
    stop = lambda *_: (StopAt(4),)  # in the last chunk of the last program, which ends nothing early
    result = purerl.sweep(SHORT, {"gamma": [0.9, 0.95]}).fit(directory=tmp_path, env=Varied(), recorders=stop)
    assert result.results[0].progress.updates == 4
    assert result.stopped_by is None


def test_values_that_six_digits_do_not_tell_apart():
    made = purerl.sweep(SHORT, {"gamma": [0.9999991, 0.9999992]})
    assert made.labels == ("gamma = 0.9999991", "gamma = 0.9999992")


# --- training them ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Eight configs of two seeds, exact, in a directory."""
    home = tmp_path_factory.mktemp("sweeps") / "s"
    return home, purerl.sweep(SHORT, GRID).fit(3, home, num_seeds=2, exact=True, env=Varied())


def test_results_are_ranked_by_their_returns(trained):
    _, result = trained
    assert result.returns.shape == (8, 2)
    assert np.isfinite(result.returns).all()
    ranked = result.summary()
    assert [row.iqm for row in ranked] == sorted((row.iqm for row in ranked), reverse=True)
    assert result.sweep.labels[result.returns.mean(1).argmax()] == ranked[0].label
    assert space.in_words({path: getattr(result.best, path) for path in GRID}) == ranked[0].label


@pytest.mark.slow
@pytest.mark.as_users
def test_every_row_has_the_bits_of_its_run_alone(trained):
    """As users compile: without optimisation XLA sums in another order where a program has more in it."""
    _, result = trained
    cfg, row = result.sweep.configs[5], result.results[1].run.select(config=2, seed=4)
    assert result.programs[1].places[2] == 5
    alone = purerl.sweep(cfg, [{"lr": cfg.lr, "ent_coef": cfg.ent_coef}]).fit(4, exact=True, env=Varied())
    assert digest(row.state.params) == digest(alone.results[0].run.select(0).state.params)


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_to_the_same_bits(trained, tmp_path):
    _, whole = trained
    options = {"num_seeds": 2, "exact": True, "env": Varied(), "chunk_seconds": 1e-9}
    made = purerl.sweep(SHORT, GRID)
    seen = []

    def stopping(path, cfg):
        seen.append(path.name)
        return (StopAt(2),) if cfg.num_steps == 8 else ()

    part = made.fit(3, tmp_path / "s", recorders=stopping, **options)
    assert part.stopped_by == signal.SIGTERM
    assert seen == ["0-num_steps=16", "1-num_steps=8"]
    assert part.results[1].progress.updates == 2
    rest = made.fit(3, tmp_path / "s", **options)
    for got, want in zip(rest.results, whole.results, strict=True):
        assert digest(got.state) == digest(want.state)
        assert digest(got.metrics) == digest(want.metrics)
    with pytest.raises(purerl.CheckpointMismatch, match=r"points: .* in sweep\.json, .* here"):
        purerl.sweep(SHORT, {"lr": [1e-3, 1e-1]}).fit(3, tmp_path / "s", **options)
    (tmp_path / "s" / "sweep.json").write_text("{")
    with pytest.raises(purerl.CheckpointCorrupt, match="is damaged"):
        made.fit(3, tmp_path / "s", **options)


@pytest.mark.slow
def test_configs_that_memory_cannot_hold_are_trained_in_batches(tmp_path, monkeypatch):
    made = purerl.sweep(SHORT, {"lr": [1e-3, 2e-3, 3e-3, 4e-3]})
    runs = Trainer(made.programs()[0].cfg, 0, 2, False, {"env": Varied()}, 1)
    runs.compile(runs.template())
    monkeypatch.setattr(sweeps, "available_bytes", lambda: 0.6 * runs.needed_bytes() / sweeps.MOST_OF_MEMORY)
    result = made.fit(0, tmp_path, num_seeds=2, env=Varied())
    assert [program.places for program in result.programs] == [(0, 1), (2, 3)]
    monkeypatch.undo()
    again = made.fit(0, tmp_path, num_seeds=2, env=Varied())  # it goes on with the batches that it began with
    assert [program.places for program in again.programs] == [(0, 1), (2, 3)]
    np.testing.assert_array_equal(again.returns, result.returns)


@pytest.mark.slow
def test_a_run_that_diverges_has_no_score_and_the_others_go_on(tmp_path, capsys):
    made = purerl.sweep(SHORT, {"lr": [1e38, 1e-3]})
    result = made.fit(0, tmp_path, num_seeds=2, env=Varied())
    assert np.isnan(result.returns).tolist() == [[True, True], [False, False]]
    assert result.diverged == 2
    assert [row.label for row in result.summary()] == ["lr = 0.001", "lr = 1e+38"]
    assert result.best.lr == 1e-3
    again = made.fit(0, tmp_path, num_seeds=2, env=Varied())  # which is finished
    assert again.results[0].progress.updates == again.results[0].progress.began[0] == 4
    np.testing.assert_array_equal(again.returns, result.returns)
    with pytest.raises(purerl.NotFiniteError, match="config 0, seed 0"):
        made.fit(0, num_seeds=2, env=Varied(), on_nonfinite="raise")
    with pytest.raises(purerl.NotFiniteError, match="config 0, seed 0 had diverged when"):
        made.fit(0, tmp_path, num_seeds=2, env=Varied(), on_nonfinite="raise")
    with pytest.warns(UserWarning, match=r"lr = 1e\+38: 2 of 2 runs diverged and are left out"):
        assert [name.split(": ")[1] for name in purerl.compare([tmp_path]).entries] == ["lr = 0.001"]
    flags = ("--total-timesteps", "256", "--num-envs", "4", "--num-steps", "16", "--num-seeds", "2", "--sweep", "lr=1e-3,1e38")
    assert cli.main(["ppo", *flags]) == 0
    assert "2 of 4 runs diverged and have no score." in capsys.readouterr().out


class Lured(Varied):
    """Pays for the first action, which is the one that a policy of NaN takes."""

    def step_env(self, key, state, action, params):
        obs, state, _, done, info = super().step_env(key, state, action, params)
        return obs, state, jnp.float32(action == 0), done, info


@pytest.mark.slow
def test_a_run_that_diverged_has_no_best_state_and_is_finished(tmp_path):
    made = purerl.sweep(SHORT, [{"lr": 1e38, "gamma": 0.9}, {"lr": 1e-3, "gamma": 0.9}])
    made.fit(0, tmp_path / "a", env=Lured(), eval_every=2, eval_episodes=2)
    best = purerl.load(tmp_path / "a", best=True, env=Lured())
    assert best.finished[0] == 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(best.state.params)))
    (row,) = listed(tmp_path / "a")
    table = [json.loads(line)["episode_return"] for line in (tmp_path / "a" / "evaluations.jsonl").read_text().splitlines()]
    assert row.best == max(both[1] for both in table) < max(both[0] for both in table)
    alone = purerl.sweep(SHORT, [{"lr": 1e38}])
    for _ in range(2):
        result = alone.fit(0, tmp_path / "b", env=Varied())
    assert result.results[0].progress.began[0] == 4
    with pytest.raises(ValueError, match="no config has a score"):
        _ = result.best


def test_a_config_without_the_score_of_a_seed_is_not_the_best():
    made = purerl.sweep(SHORT, {"lr": [1e-2, 1e-3]})
    returns = np.array([[np.nan, 9.0], [1.0, 2.0]])
    result = sweeps.SweepResult(made, made.programs(), (), 2, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps.SweepResult, "returns", returns)
        assert [(row.label, row.seeds) for row in result.summary()] == [("lr = 0.001", 2), ("lr = 0.01", 1)]


def test_a_batch_of_configs_is_no_base_of_a_sweep():
    with pytest.raises(purerl.ConfigError, match=r"lr = .*must be one number here"):
        purerl.sweep(CFG.replace(lr=np.float32([1e-3, 1e-1])), {"gamma": [0.9, 0.99]})


def test_points_with_different_parameters_of_the_environment_are_programs_of_their_own():
    assert len(purerl.sweep(CFG, [{"env_params.gravity": 9.8}, {"lr": 1e-3}, {"lr": 1e-2}]).programs()) == 2


def test_recorders_of_a_sweep_are_a_function():
    with pytest.raises(purerl.ConfigError, match="recorders"):
        purerl.sweep(CFG, {"lr": [1e-3]}).fit(recorders=(print,))


def test_a_sweep_that_was_begun_may_have_to_resume(tmp_path):
    made = purerl.sweep(SHORT, {"num_steps": [16, 8]})
    with pytest.raises(purerl.ConfigError, match="no checkpoint to resume from"):
        made.fit(0, tmp_path, resume="must", env=Varied())
    stopped = made.fit(0, tmp_path, max_hours=1e-9, env=Varied())
    assert stopped.stopped_by == "max_hours"
    purerl.fit(made.programs()[0].cfg, 0, tmp_path / made.programs()[0].name, env=Varied())
    assert len(made.fit(0, tmp_path, resume="must", env=Varied()).results) == 2


def test_two_sweeps_do_not_plan_in_one_directory(tmp_path):
    """Another one, while the first trains and has no checkpoint yet."""

    def meanwhile(progress):
        try:
            purerl.sweep(SHORT, {"lr": [5e-3, 6e-3]}).fit(0, tmp_path, env=Varied())
        except purerl.DirectoryLocked as error:
            refused.append(error)

    refused, first = [], purerl.sweep(SHORT, {"lr": [1e-3, 2e-3]})
    first.fit(0, tmp_path, env=Varied(), recorders=lambda path, cfg: (meanwhile,))
    assert refused
    assert json.loads((tmp_path / "sweep.json").read_text())["labels"] == list(first.labels)


def test_what_is_not_swept_is_no_argument_of_the_program():
    """So that what is off costs nothing in a sweep either."""
    same = jax.vmap(lambda lr: SHORT.replace(lr=lr))(np.float32([1e-3, 1e-2]))  # with all leaves as arrays
    assert Trainer(same, 0, 1, False, {"env": Varied()}, 1).cfgs.keys() == {"lr"}
    made = SHORT.replace(lr=np.float32([1e-3, 1e-2]), gamma=np.float32([0.99, 0.99]))
    again = Trainer(made, 0, 2, False, {"env": Varied()}, 1)
    assert again.cfgs.keys() == {"lr", "gamma"}
    other = again.with_configs(made.replace(gamma=np.float32([0.5, 0.9])))
    assert other.cfgs["gamma"].tolist() == np.float32([0.5, 0.5, 0.9, 0.9]).tolist()
    assert again.cfgs["gamma"].tolist() == np.float32([0.99] * 4).tolist()


# --- comparisons ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [5, [5], {"a": 5}, {"a": []}])
def test_entries_that_are_no_folders_are_refused(entries):
    with pytest.raises(purerl.ConfigError, match="entries"):
        purerl.compare(entries)


def test_a_score_that_is_not_a_number_is_not_the_best():
    assert np.isnan(purerl.iqm([1, 2, 3, np.nan]))
    assert purerl.iqm([1, 2, 3, 4]) == 2.5
    assert purerl.interval([1.0, 2.0, 3.0])[0] >= 1


def test_statistics_are_those_of_the_paper():
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=8), rng.normal(1, 2, size=12), rng.normal(size=4)]
    every = np.concatenate(scores)
    np.testing.assert_allclose(statistics.pooled(scores), trim_mean(every, 0.25), rtol=1e-12)
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
    """Two entries on two tasks, with evaluations."""
    home = tmp_path_factory.mktemp("compared")
    small = {"total_timesteps": 256, "num_envs": 4, "num_steps": 16, "num_minibatches": 2, "hidden": (8,)}
    options = {"num_seeds": 2, "eval_every": 2, "eval_episodes": 4, "eval_deterministic": True}
    for task in ("CartPole-v1", "Catch-bsuite"):
        cfg = purerl.PPOConfig(env=task, **small)
        for name, seed in (("quick", 0), ("slow", 7)):
            purerl.fit(cfg, seed, directory=home / name / task, **options)
    return home


@pytest.mark.slow
def test_comparisons_over_tasks(two_tasks, tmp_path, capsys):
    folders = [two_tasks / "quick", two_tasks / "slow"]
    raw = purerl.compare(folders)
    assert list(raw.entries) == ["quick", "slow"]
    assert raw.tasks == ("CartPole-v1", "Catch-bsuite")
    with pytest.raises(purerl.ConfigError, match="normalised"):
        raw.aggregate("quick")
    (tmp_path / "reference.toml").write_text('CartPole-v1 = [20.0, 500.0]\n"Catch-bsuite" = [-1, 1]\n')
    found = purerl.compare(folders, reference=tmp_path / "reference.toml")
    normal = [(raw.scores("quick", "CartPole-v1") - 20) / 480, (raw.scores("quick", "Catch-bsuite") + 1) / 2]
    np.testing.assert_allclose(found.aggregate("quick")[0], trim_mean(np.concatenate(normal), 0.25), rtol=1e-6)
    evaluated = purerl.compare(folders, episodes="evaluation", score="auc")
    table = [json.loads(line) for line in (two_tasks / "slow/CartPole-v1/evaluations.jsonl").read_text().splitlines()]
    means = np.mean([row["episode_return"] for row in table], axis=0)
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


@pytest.mark.slow
def test_what_cannot_be_compared_is_refused(two_tasks, tmp_path):
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
    for options, says in (({"score": "best"}, "choose from"), ({"reference": {}}, "no scores of this task")):
        with pytest.raises(purerl.ConfigError, match=says):
            purerl.compare([two_tasks / "quick"], **options)
    assert cli.main(["compare", str(two_tasks / "quick"), "--out", str(tmp_path / "a.doc")]) == 2


def test_configs_of_a_sweep_are_compared_and_listed(trained, capsys):
    home, result = trained
    found = purerl.compare([home])
    assert set(found.entries) == {f"s: {label}" for label in result.sweep.labels}
    for label, scores in zip(result.sweep.labels, result.returns, strict=True):
        np.testing.assert_allclose(found.scores(f"s: {label}", found.tasks[0]), scores, rtol=1e-6)
    rows = listed(home.parent)
    assert [(row.directory.name, row.runs, row.state) for row in rows] == [
        ("0-num_steps=16", 8, "finished"),
        ("1-num_steps=8", 8, "finished"),
    ]
    assert rows[0].best == pytest.approx(result.returns[[0, 2, 4, 6]].max())
    assert cli.main(["runs", str(home.parent)]) == 0
    assert "2 runs in" in capsys.readouterr().out


@pytest.mark.slow
def test_parameters_of_an_environment_are_tasks_of_their_own(tmp_path):
    """Longer episodes have higher returns, and no better config."""
    made = purerl.sweep(SHORT, {"env_params.max_steps_in_episode": [5, 50]})
    evaluation = {"eval_every": 2, "eval_episodes": 2, "eval_max_steps": 50, "eval_env_params": {"gravity": 5.0}}
    made.fit(0, tmp_path / "s", num_seeds=2, **evaluation)
    names = [f"CartPole-v1 (env_params.max_steps_in_episode = {n})" for n in (5, 50)]
    found = purerl.compare([tmp_path / "s"])
    assert (list(found.entries), list(found.tasks)) == (["s"], names[::-1] if names[0] > names[1] else names)
    assert np.mean(found.scores("s", names[0])) <= 5 < np.mean(found.scores("s", names[1]))
    for task in purerl.compare([tmp_path / "s"], episodes="evaluation").tasks:
        assert task.startswith("CartPole-v1 (env_params.gravity = 5, env_params.max_steps_in_episode = ")
        assert task.endswith(", eval_max_steps = 50)")
    assert [row.task for row in listed(tmp_path)] == names
    first, second = sorted((tmp_path / "s").glob("[01]-*"))
    with pytest.raises(purerl.ConfigError, match=r"has no run of CartPole-v1 \(.* = 50\), which others have"):
        purerl.compare({"a": [first], "b": [second]})


def test_a_task_is_all_that_makes_the_environment():
    record = lambda **fields: {"config": json.loads(CFG.replace(**fields).to_json())}
    name = lambda **fields: task_of(record(**fields)).name
    assert name() == "CartPole-v1"
    assert name(env="DeepSea-bsuite", env_kwargs=(("size", 10),)) == "DeepSea-bsuite (env_kwargs.size = 10)"
    assert name(num_levels=7, env_params={"g": 9.8}) == name(num_levels=7, env_params={"g": np.float32(9.8)})
    assert name(num_levels=7, env_params={"g": 9.8}) == "CartPole-v1 (env_params.g = 9.8, num_levels = 7)"
    batch = record(env_params={"g": np.float32([1, 2])})
    assert [task_of(batch, i).name for i in (1, None)] == ["CartPole-v1 (env_params.g = 2)", "CartPole-v1 (env_params.g = 1, 2)"]
    evaluated = {"env_params": {"g": 3.0}, "max_steps": 40}
    assert task_of(record(), None, evaluated).name == "CartPole-v1 (env_params.g = 3, eval_max_steps = 40)"
    own = lambda **env: task_of(record() | {"objects": {"env": {"is": "my.Env", **env}}})
    short, long, other = (
        own(max_steps="5", actions="Discrete n=2"),
        own(max_steps="50", actions="Discrete n=2"),
        task_of(record()),
    )
    assert names_of([short, other]) == {short: "my.Env", other: "CartPole-v1"}
    assert list(names_of([short, long, short]).values()) == ["my.Env (max_steps = 5)", "my.Env (max_steps = 50)"]


def test_a_best_config_is_of_one_task():
    made = purerl.sweep(CFG, {"num_levels": [0, 8], "lr": [1e-3, 1e-2]})
    result = sweeps.SweepResult(made, made.programs(), (), 2, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps.SweepResult, "returns", np.array([[1.0, 1.0], [2.0, 2.0], [8.0, 8.0], [7.0, 7.0]]))
        assert [row.iqm for row in result.summary()] == [2.0, 1.0, 8.0, 7.0]  # each task by itself
        with pytest.raises(purerl.ConfigError, match="num_levels = 'swept': is a part of the task"):
            _ = result.best


def test_environments_of_a_sweep_are_tasks(tmp_path):
    made = purerl.sweep(SHORT, {"env": ["CartPole-v1", "Catch-bsuite"], "lr": [1e-3, 1e-2]})
    result = made.fit(0, tmp_path / "s")
    found = purerl.compare([tmp_path / "s"])
    assert found.tasks == ("CartPole-v1", "Catch-bsuite")
    assert list(found.entries) == ["s: lr = 0.001", "s: lr = 0.01"]
    scores = [found.scores(entry, task) for task in found.tasks for entry in found.entries]
    np.testing.assert_allclose(scores, result.returns, rtol=1e-6)


def test_a_sweep_from_a_file_and_the_command_line(tmp_path, capsys):
    small = ["--total-timesteps", "128", "--num-envs", "4", "--num-steps", "16", "--hidden", "8"]
    (tmp_path / "flags.toml").write_text("csv = true\n[sweep]\nlr = [1e-3, 1e-2]\n")
    assert cli.main(["ppo", *small, "--config", str(tmp_path / "flags.toml"), "--directory", str(tmp_path / "s")]) == 0
    assert "2 configs, 1 programs" in capsys.readouterr().out
    assert (tmp_path / "s" / "metrics.csv").exists()
    assert cli.main(["ppo", *small, "--sweep", "lr=x"]) == 2
    assert "'x' is no number" in capsys.readouterr().err
    assert cli.main(["ppo", *small, "--draws", "4"]) == 2
    assert "needs --sweep" in capsys.readouterr().err


# --- tuning -----------------------------------------------------------------------------------------------------------

TUNED = SHORT.replace(total_timesteps=64 * 8)
SPACE = {"lr": Range(1e-4, 1e-1, log=True), "ent_coef": Range(0.0, 0.1), "num_steps": [16, 8]}
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
OPTIONS = {"trials": 12, "num_seeds": 2, "at_once": 3, "rungs": 2, "finalists": 2, "final_seeds": 2}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    home, steps = tmp_path_factory.mktemp("study") / "t", []
    return home, purerl.tune(TUNED, SPACE, directory=home, env=Varied(), watch=steps.append, **OPTIONS), steps


def without_time(step):
    return step._replace(seconds=0.0)


@pytest.mark.slow
def test_tuning_tries_every_trial_once_and_stops_the_worse_half(study):
    home, found, steps = study
    begun = [number for step in steps if step.rung == 0 for number in step.trials]
    assert sorted(begun) == list(range(12))
    later = [number for step in steps if step.rung == 1 for number in step.trials]
    assert sorted(later) == sorted(number for step in steps if step.rung == 0 for number in step.kept)
    first = [step.static["num_steps"] for step in steps if step.rung == 0][:2]
    assert set(first) == {16, 8}  # each choice of what is static is tried
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


def test_lists_are_tried_once_each():
    """And finalists are different points."""
    found = purerl.tune(TUNED, {"lr": [1e-3, 1e-2], "gamma": [0.9]}, trials=8, **QUICK)
    assert sorted(trial.point["lr"] for trial in found.trials) == [1e-3, 1e-2]
    assert {row.label for row in found.finalists} == {"lr = 0.001, gamma = 0.9", "lr = 0.01, gamma = 0.9"}


def test_narrow_ranges_have_many_points():
    assert Range(0.999, 0.9999).digits == 6
    assert Range(1e-4, 1e-2, log=True).digits == 3
    assert Range(1000, 1004).digits == 6


def untrained(score):
    """In place of `Study._train`: each trial has the score of its point at every rung."""
    return lambda self, batch: (batch._replace(scores=tuple((score(point),) for point in batch.points)), [])


def study_of(values, trials, options, home=None, pruner=None, objects=None, limit=lambda: None):
    search = Search(TUNED, values, trials, options, None, pruner)
    return studies.Study(search, RungTrainer(TUNED, options, objects or {}, limit), home, 0, limit)


class NeverStops(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        return False


def scored_by(scores, diverged=()):
    """In place of `Study._train`: each trial has the scores of its rate, at every rung."""

    def train(self, batch):
        lost = tuple(n for n, point in zip(batch.trials, batch.points, strict=True) if point["lr"] in diverged)
        return batch._replace(scores=tuple(scores[point["lr"]] for point in batch.points), diverged=lost), []

    return train


def test_a_trial_that_ended_no_episode_goes_on_and_one_that_diverged_stops(monkeypatch, tmp_path):
    """Also where one seed alone did; and a study that is read again has the same trials."""
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
        assert [trial.point["lr"] for trial in study.best(4)] == [0.4, 0.3, 0.1]  # those with the score of every seed first
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
    """64 environments x 3,800 steps: the first of 3 rungs has 950 steps of each, and the first of 2 has 1,900."""
    cfg = CFG.replace(env="Pendulum-v1", num_envs=64, num_steps=19, num_minibatches=4, total_timesteps=64 * 3800)
    cfg = cfg.replace(env_params={"max_steps_in_episode": 1000})
    with pytest.raises(purerl.ConfigError, match=r"rungs = 3: an episode may take 1,000 steps, .* has 950 .*; 2 would do"):
        purerl.tune(cfg, {"lr": Range(1e-4, 1e-2)})
    train = purerl.make_train(cfg)
    assert check_rungs([train], 2) == ""
    longer = purerl.make_train(cfg.replace(env_params={"max_steps_in_episode": 4000}))
    assert "an episode may take 4,000 steps, and training has 3,800" in check_rungs([longer], 2)
    with pytest.raises(purerl.ConfigError, match="2 would do"):
        check_rungs([longer, train], 3)


def test_trials_below_the_median_of_their_rung_stop():
    values = [1.0, 2.0, 3.0, 4.0, 10.0, 20.0, math.nan]
    assert going_on(values, [0, 0, 0, 0, 1, 1, 0]).tolist() == [False, False, True, True, False, True, True]
    assert going_on([math.nan], [0]).tolist() == [True]


def test_of_equally_good_trials_noisy_ones_go_on_no_more_often():
    assert abs(pruning.compared(pruning.shipped, 10)[3]) < 0.05
    assert pruning.compared(pruning.both_optimistic, 10)[3] > 0.3


def test_new_trials_are_drawn_where_those_before_were_good(monkeypatch):
    """Those that wait for their next rung count, and do so as good ones: without them there would be random draws alone."""
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
    """The states that its trials had are gone by then: they are trained again."""
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
    (tmp_path / "winner").unlink()  # as if it was stopped before
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
    """The metrics of four rates, each with two seeds, trained without rungs: `[rates, seeds, updates]`."""
    metric = purerl.sweep(TUNED, {"lr": RATES}).fit(num_seeds=2, env=Varied()).results[0].metrics["episode_return"]
    return metric.total.reshape(4, 2, -1), metric.count.reshape(4, 2, -1)


@pytest.mark.slow
@pytest.mark.parametrize("from_disk", [False, True])
def test_a_trial_has_the_scores_of_its_run_alone_in_every_rung(from_disk, alone, tmp_path):
    """Two of four trials are trained side by side, and each goes on from a state of its own."""
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


@pytest.mark.filterwarnings("ignore:an episode may take 500 steps:UserWarning")  # and takes fewer
@pytest.mark.slow
def test_tuning_from_the_command_line(tmp_path, capsys):
    small = ["--total-timesteps", "512", "--num-envs", "4", "--num-steps", "16", "--hidden", "8", "--rungs", "2"]
    more = ["--trials", "4", "--num-seeds", "2", "--finalists", "1", "--final-seeds", "2", "--directory", str(tmp_path)]
    assert cli.main(["tune", "ppo", *small, *more, "--param", "lr=1e-4:1e-1:log"]) == 0
    out = capsys.readouterr().out
    assert "With 2 seeds that no choice has seen" in out
    assert cli.main(["ppo", "--config", str(tmp_path / "best.toml"), "--seed", "9"]) == 0
    with pytest.raises(SystemExit):
        cli.main(["tune", "ppo", "--help"])
    out = capsys.readouterr().out
    assert "purerl tune ppo --env Acrobot-v1" in out
    assert "--finalists" in out
    assert "--eval-every" not in out


# --- kills ------------------------------------------------------------------------------------------------------------

KILLED = """
import sys, signal
import purerl
from tests.studies.test_study import GRID, OPTIONS, SHORT, SPACE, TUNED, without_time
from tests.helpers.probes import ObsDependent, Varied
from tests.helpers.tiny import digest
kind, directory = sys.argv[1:3]
if kind == "sweep":
    options = {"num_seeds": 2, "env": Varied(), "eval_every": 5, "eval_episodes": 2, "eval_max_steps": 8}
    made = purerl.sweep(SHORT.replace(total_timesteps=64 * 60), GRID)
    result = made.fit(3, directory, chunk_seconds=1e-9, save_every=3, **options)
    print([digest((x.state, x.metrics)) for x in result.results])
else:
    found = purerl.tune(TUNED.replace(total_timesteps=64 * 60), SPACE, directory=directory, env=Varied(), **OPTIONS)
    print([(x.number, x.rung, x.scores.tolist()) for x in found.trials], found.summary)
"""


def run_killed(kind, directory, kills, seed=0):
    """What a sweep or a study gives that is killed so many times, and how often it was killed before it ended."""
    command, rng, killed = [sys.executable, "-c", KILLED, kind, str(directory)], random.Random(seed), 0
    while killed < kills:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = sum(1 for _ in directory.rglob("*")) if directory.exists() else 0
        while process.poll() is None and (sum(1 for _ in directory.rglob("*")) if directory.exists() else 0) <= before:
            time.sleep(0.05)  # until it writes, and then for a while
        time.sleep(rng.uniform(0, 3))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        killed += 1
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, killed


@pytest.mark.long
def test_a_kill_loses_nothing(tmp_path):
    """Of a study, whose batches are sweeps."""
    assert run_killed("study", tmp_path / "killed", 1)[0] == run_killed("study", tmp_path / "whole", 0)[0]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sweep", "study"])
def test_ten_kills_lose_nothing(kind, tmp_path, record_fault):
    whole, killed, lost = run_killed(kind, tmp_path / "whole", 0)[0], 0, 0
    for i in range(5):
        out, count = run_killed(kind, tmp_path / str(i), 3, seed=i)
        killed, lost = killed + count, lost + (out != whole)
        if killed >= 10:
            break
    record_fault(f"kills of a {kind}", {"kills": killed, "lost": lost})
    assert killed >= 10
    assert lost == 0
