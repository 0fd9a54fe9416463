"""Sweeps: their configs, their compilations and their results."""

import json
import os
import shutil
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import cli
from purerl.studies import space
from purerl.studies import sweep as sweeps
from purerl.studies.listing import list_overviews
from purerl.studies.programs import save_plan
from purerl.studies.reading import final_returns
from tests.helpers.probes import Varied
from tests.helpers.studies import GRID, SHORT, study_of
from tests.helpers.tiny import CFG, digest


class StopAt:
    """A recorder that ends a run after `updates` updates."""

    def __init__(self, updates):
        self._updates = updates

    def __call__(self, progress):
        if progress.updates >= self._updates:
            os.kill(os.getpid(), signal.SIGTERM)


def test_grid_has_all_combinations_and_one_program_per_static_choice():
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
    assert np.ndim(first.cfg.gamma) == 0  # a field that is not swept stays a part of the program
    assert [program.places for program in made.programs(at_once=3)] == [(0, 2, 4), (6,), (1, 3, 5), (7,)]
    for i, cfg in enumerate(made.configs):
        assert (cfg.lr, cfg.ent_coef, cfg.num_steps) == tuple(made.points[i].values())


def test_all_programs_and_options_are_checked_before_training(tmp_path):
    made = purerl.sweep(SHORT, {"env": ["CartPole-v1", "CartPol-v1"]})
    for options in ({"at_once": 1}, {"at_once": None}, {"at_once": 1, "max_hours": "x"}, {"seed": None}, {"at_once": 0}):
        with pytest.raises(purerl.ConfigError):
            made.fit(**{"seed": 0, "directory": tmp_path, **options})
    made = purerl.sweep(SHORT, {"env": ["CartPole-v1", "Acrobot-v1"]})
    with pytest.raises(purerl.ConfigError, match="gravity"):
        made.fit(0, tmp_path, eval_every=1, eval_env_params={"gravity": 1.0})
    assert list(tmp_path.iterdir()) == []  # otherwise a later correct call would be refused


def test_configs_trained_for_different_steps_and_diverged_runs_are_noted(monkeypatch):
    made = purerl.sweep(SHORT, {"num_steps": [16, 24]})
    ended = lambda steps, finite: types.SimpleNamespace(
        progress=types.SimpleNamespace(is_finished=True, updates=steps, plan=types.SimpleNamespace(batch_size=1)),
        finite=np.array(finite),
        stopped_by=None,
    )
    monkeypatch.setattr(sweeps, "has_current_evaluation", lambda result: False)
    monkeypatch.setattr(sweeps.SweepResult, "returns", np.ones((2, 2)))
    note = lambda *results: sweeps.SweepResult(made, made.programs(), results, 2, None).note
    assert note(ended(6400, [True, True]), ended(6500, [True, True])) == ""
    found = note(ended(64, [True, False]), ended(96, [True, True]))
    assert found.startswith("1 of 4 runs diverged and have no score; configs were trained for 64 or 96 steps")


def test_sweep_continued_from_another_start_or_order_is_refused(tmp_path):
    made = purerl.sweep(SHORT, {"gamma": [0.9, 0.95]})
    made.fit(directory=tmp_path / "s", env=Varied())
    with pytest.raises(purerl.CheckpointMismatch, match=r"init_from: None in sweep\.json, a run, init_groups = \[\], .* here"):
        made.fit(directory=tmp_path / "s", env=Varied(), init_from=tmp_path / "a")
    plan = json.loads((tmp_path / "s" / "sweep.json").read_text())
    del plan["init_from"]  # as written by older versions
    (tmp_path / "s" / "sweep.json").write_text(json.dumps(plan))
    made.fit(directory=tmp_path / "s", env=Varied())
    saved, other = ({"programs": {f"0-{name}": [0], f"1-{name}": [1]}} for name in ("a=1,b=2", "b=2,a=1"))
    with pytest.raises(purerl.CheckpointMismatch, match="give the swept fields in the order of the first call"):
        save_plan(tmp_path, saved, other)


@pytest.mark.slow
def test_programs_that_stop_after_different_steps_warn():
    made = purerl.sweep(SHORT.replace(total_timesteps=256), {"num_steps": [16, 32]})
    with pytest.warns(UserWarning, match="stop_when ended programs: their configs were trained for 64, 128 steps"):
        result = made.fit(env=Varied(), stop_when=lambda progress: True, stop_every=1)
    assert result.note in repr(result)


@pytest.mark.slow
def test_sweep_refuses_the_directory_of_a_run(tmp_path):
    purerl.fit(SHORT, directory=tmp_path, env=Varied())
    with pytest.raises(purerl.CheckpointMismatch, match="the directory contains a run, not a sweep"):
        purerl.sweep(SHORT, {"gamma": [0.9, 0.95]}).fit(directory=tmp_path, env=Varied())
    assert not (tmp_path / "sweep.json").exists()


@pytest.mark.long
@pytest.mark.slow
def test_sweep_may_replace_one_without_checkpoints(tmp_path):
    (tmp_path / "sweep.json").write_text('{"at_once": 1, "seed": 7}')
    stop = lambda *_: (StopAt(4),)  # a stop in the last chunk of the last program ends nothing early
    result = purerl.sweep(SHORT, {"gamma": [0.9, 0.95]}).fit(directory=tmp_path, env=Varied(), recorders=stop)
    assert result.results[0].progress.updates == 4
    assert result.stopped_by is None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train eight configs of two seeds, exact, in a directory."""
    home = tmp_path_factory.mktemp("sweeps") / "s"
    return home, purerl.sweep(SHORT, GRID).fit(3, home, num_seeds=2, exact=True, env=Varied())


@pytest.mark.slow
def test_results_are_ranked_by_their_returns(trained):
    _, result = trained
    assert result.returns.shape == (8, 2)
    assert np.isfinite(result.returns).all()
    ranked = result.summary()
    assert [row.iqm for row in ranked] == sorted((row.iqm for row in ranked), reverse=True)
    assert result.sweep.labels[result.returns.mean(1).argmax()] == ranked[0].label
    assert space.format_point({path: getattr(result.best, path) for path in GRID}) == ranked[0].label
    first, second, *_ = str(result).split("\n")
    assert first.startswith("8 configs for tests.helpers.probes.Varied, 2 seeds each")
    assert second.startswith(f"{ranked[0].label}: ")


@pytest.mark.slow
@pytest.mark.as_users
def test_every_row_equals_a_single_run_bit_for_bit(trained):
    """The sweep is compiled with optimisation, as by users: without it, XLA sums in another order in a larger program."""
    _, result = trained
    cfg, row = result.sweep.configs[5], result.results[1].run.select(config=2, seed=4)
    assert result.programs[1].places[2] == 5
    alone = purerl.sweep(cfg, [{"lr": cfg.lr, "ent_coef": cfg.ent_coef}]).fit(4, exact=True, env=Varied())
    assert digest(row.state.params) == digest(alone.results[0].run.select(0).state.params)


@pytest.mark.long
@pytest.mark.slow
def test_interrupted_sweep_resumes_bit_for_bit(trained, tmp_path):
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


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:lr = .*Adam moves")
def test_diverged_run_has_no_score_and_the_others_continue(tmp_path):
    made = purerl.sweep(SHORT, {"lr": [1e38, 1e-3]})
    lost = lambda: pytest.warns(UserWarning, match="2 of 4 runs diverged and have no score")
    with lost():
        result = made.fit(0, tmp_path, num_seeds=2, env=Varied())
    assert np.isnan(result.returns).tolist() == [[True, True], [False, False]]
    assert result.diverged == 2
    assert [row.label for row in result.summary()] == ["lr = 0.001", "lr = 1e+38"]
    assert result.best.lr == 1e-3
    with lost():
        again = made.fit(0, tmp_path, num_seeds=2, env=Varied())  # the sweep is finished
    assert again.results[0].progress.updates == again.results[0].progress.began[0] == 4
    np.testing.assert_array_equal(again.returns, result.returns)
    with pytest.raises(purerl.NotFiniteError, match=r"lr = 1e\+38, seed 0"):
        made.fit(0, num_seeds=2, env=Varied(), on_nonfinite="raise")
    with pytest.raises(purerl.NotFiniteError, match=r"lr = 1e\+38, seed 0 has diverged in"):
        made.fit(0, tmp_path, num_seeds=2, env=Varied(), on_nonfinite="raise")
    with pytest.warns(UserWarning, match=r"lr = 1e\+38: 2 of 2 runs diverged and are left out"):
        assert [name.split(": ")[1] for name in purerl.compare([tmp_path]).entries] == ["lr = 0.001"]
    flags = ("--total-timesteps", "256", "--num-envs", "4", "--num-steps", "16", "--num-seeds", "2", "--sweep", "lr=1e-3,1e38")
    with lost():
        assert cli.main(["ppo", *flags]) == 0


class Lured(Varied):
    """A task that pays for the first action, which a policy with NaN outputs takes."""

    def step_env(self, key, state, action, params):
        obs, state, _, done, info = super().step_env(key, state, action, params)
        return obs, state, jnp.float32(action == 0), done, info


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:lr = .*Adam moves")
def test_diverged_run_has_no_best_state_and_counts_as_finished(tmp_path):
    made = purerl.sweep(SHORT, [{"lr": 1e38, "gamma": 0.9}, {"lr": 1e-3, "gamma": 0.9}])
    with pytest.warns(UserWarning, match="1 of 2 runs diverged"):
        made.fit(0, tmp_path / "a", env=Lured(), eval_every=2, eval_episodes=2)
    best = purerl.load(tmp_path / "a", best=True, env=Lured())
    assert best.finished[0] == 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(best.state.params)))
    (row,) = list_overviews(tmp_path / "a")
    table = [json.loads(line)["episode_return"] for line in (tmp_path / "a" / "evaluations.jsonl").read_text().splitlines()]
    assert row.best == max(both[1] for both in table) < max(both[0] for both in table)
    alone = purerl.sweep(SHORT, [{"lr": 1e38}])
    for _ in range(2):
        with pytest.warns(UserWarning, match="1 of 1 runs diverged"):
            result = alone.fit(0, tmp_path / "b", env=Varied())
    assert result.results[0].progress.began[0] == 4
    with pytest.raises(ValueError, match="no config has a score"):
        _ = result.best


def test_config_with_a_missing_score_is_ranked_last():
    made = purerl.sweep(SHORT, {"lr": [1e-2, 1e-3]})
    returns = np.array([[np.nan, 9.0], [1.0, 2.0]])
    result = sweeps.SweepResult(made, made.programs(), (), 2, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps.SweepResult, "returns", returns)
        assert [(row.label, row.seeds) for row in result.summary()] == [("lr = 0.001", 2), ("lr = 0.01", 1)]


def test_points_with_different_environment_parameters_compile_separately():
    assert len(purerl.sweep(CFG, [{"env_params.gravity": 9.8}, {"lr": 1e-3}, {"lr": 1e-2}]).programs()) == 2


def test_recorders_of_a_sweep_must_be_a_function():
    with pytest.raises(purerl.ConfigError, match="recorders"):
        purerl.sweep(CFG, {"lr": [1e-3]}).fit(recorders=(print,))


@pytest.mark.long
def test_resuming_a_sweep_requires_an_existing_one(tmp_path):
    made = purerl.sweep(SHORT, {"num_steps": [16, 8]})
    with pytest.raises(purerl.ConfigError, match="no checkpoint to resume from"):
        made.fit(0, tmp_path, resume="must", env=Varied())
    stopped = made.fit(0, tmp_path, max_hours=1e-9, env=Varied())
    assert stopped.stopped_by == "max_hours"
    assert "stopped by max_hours: " in str(stopped).splitlines()[-1]
    purerl.fit(made.programs()[0].cfg, 0, tmp_path / made.programs()[0].name, env=Varied())
    assert len(made.fit(0, tmp_path, resume="must", env=Varied()).results) == 2


@pytest.mark.long
@pytest.mark.slow
def test_second_sweep_in_a_locked_directory_is_refused(tmp_path):
    """The second sweep begins while the first trains and has no checkpoint yet."""

    def meanwhile(progress):
        try:
            purerl.sweep(SHORT, {"lr": [5e-3, 6e-3]}).fit(0, tmp_path, env=Varied())
        except purerl.DirectoryLocked as error:
            refused.append(error)

    refused, first = [], purerl.sweep(SHORT, {"lr": [1e-3, 2e-3]})
    first.fit(0, tmp_path, env=Varied(), recorders=lambda path, cfg: (meanwhile,))
    assert refused
    assert json.loads((tmp_path / "sweep.json").read_text())["labels"] == list(first.labels)


@pytest.mark.slow
def test_configs_of_a_sweep_are_compared_and_listed(trained, capsys):
    home, result = trained
    found = purerl.compare([home])
    assert set(found.entries) == {f"s: {label}" for label in result.sweep.labels}
    for label, scores in zip(result.sweep.labels, result.returns, strict=True):
        np.testing.assert_allclose(found.scores(f"s: {label}", found.tasks[0]), scores, rtol=1e-6)
    rows = list_overviews(home.parent)
    assert [(row.directory.name, row.runs, row.state) for row in rows] == [
        ("0-num_steps=16", 8, "finished"),
        ("1-num_steps=8", 8, "finished"),
    ]
    assert rows[0].best == pytest.approx(result.returns[[0, 2, 4, 6]].max())
    assert cli.main(["runs", str(home.parent)]) == 0
    assert "2 runs in" in capsys.readouterr().out


def test_sweep_over_tasks_has_no_single_best_config():
    made = purerl.sweep(CFG, {"num_levels": [0, 8], "lr": [1e-3, 1e-2]})
    result = sweeps.SweepResult(made, made.programs(), (), 2, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps.SweepResult, "returns", np.array([[1.0, 1.0], [2.0, 2.0], [8.0, 8.0], [7.0, 7.0]]))
        assert [row.iqm for row in result.summary()] == [2.0, 1.0, 8.0, 7.0]  # each task by itself
        with pytest.raises(purerl.ConfigError, match="best = 'num_levels': changes the task"):
            _ = result.best


def test_sweep_over_time_limits_can_be_evaluated():
    cfg = CFG.replace(env="CartPole-v1")
    for program in purerl.sweep(cfg, {"env_params.max_steps_in_episode": [5, 50]}).programs():
        assert isinstance(program.cfg.env_params["max_steps_in_episode"], int)


@pytest.mark.slow
def test_scores_of_a_sweep_are_all_of_one_kind():
    made = purerl.sweep(SHORT, {"num_steps": [16, 8]})
    first, second = made.configs
    evaluated = purerl.fit(first, env=Varied(), eval_every=4, eval_episodes=2)
    results = (evaluated, purerl.fit(second, env=Varied()))
    found = sweeps.SweepResult(made, made.programs(), results, 1, None)
    np.testing.assert_array_equal(found.returns[0], final_returns(evaluated, evaluated=False))
    assert "some programs have no current evaluation, so all scores are of training episodes" in repr(found)
    alone = sweeps.SweepResult(made, made.programs(), results[:1], 1, None)
    np.testing.assert_array_equal(alone.returns[0], evaluated.evaluations["episode_return"][-1])
    assert alone.note == ""


def reach(goal):
    env = Varied()
    env.goal = goal
    return env


@pytest.mark.slow
def test_sweep_continued_with_other_objects_warns_and_numbers_may_be_of_numpy(tmp_path):
    made, options = purerl.sweep(SHORT.replace(total_timesteps=64), {"num_steps": [16, 8]}), {"progress": False}
    options |= {"seed": np.int64(0), "num_seeds": np.int64(1), "directory": tmp_path}
    made.fit(env=reach(2), **options)
    with pytest.warns(UserWarning, match=r"env\.goal 2 before, 9 now"):
        made.fit(env=reach(9), **options)
    for owner, name in (("sweep", "sweep.json"), ("study", "study.json")):
        (tmp_path / name).touch()
        with pytest.raises(purerl.ConfigError, match=f"belongs to a {owner}; choose another directory"):
            purerl.fit(SHORT, directory=tmp_path, env=Varied())
    (tmp_path / "study.json").unlink()
    with pytest.raises(purerl.CheckpointMismatch, match="the directory contains a run or a sweep, not a study"):
        study_of({"lr": (1e-3, 1e-2)}, 2, {"num_seeds": 1, "rungs": 1, "at_once": 1, "seed": 0}, tmp_path)
    shutil.rmtree(tmp_path / "1-num_steps=8")
    with pytest.warns(UserWarning, match="1 of 2 programs of the sweep have no checkpoint yet, and are left out"):
        purerl.compare([tmp_path])
