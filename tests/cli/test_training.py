"""The commands that train."""

import numpy as np
import pytest

import purerl
from purerl import cli
from purerl.cli import main
from purerl.studies.reading import Summary
from purerl.studies.steps import Trial
from purerl.studies.tune import TuneResult


def test_environment_errors_are_reported_without_a_traceback(capsys, monkeypatch):
    def fails(*_, **__):
        raise purerl.EnvironmentFailed("environment 3, step: it broke")

    monkeypatch.setattr("purerl.cli.training.fit", fails)
    assert main(["ppo", "--env", "Catch-bsuite"]) == 1
    assert capsys.readouterr().err == "environment 3, step: it broke\n"


@pytest.mark.slow
def test_command_sweeps_values_from_a_config_file(tmp_path, capsys):
    small = ["--total-timesteps", "128", "--num-envs", "4", "--num-steps", "16", "--hidden", "8"]
    (tmp_path / "flags.toml").write_text('csv = true\nsweep = ["lr=1e-3,1e-2"]\n')
    assert cli.main(["ppo", *small, "--config", str(tmp_path / "flags.toml"), "--directory", str(tmp_path / "s")]) == 0
    assert "2 configs, 1 program" in capsys.readouterr().out
    assert (tmp_path / "s" / "metrics.csv").exists()
    assert cli.main(["ppo", *small, "--sweep", "lr=x"]) == 2
    assert "lr = 'x': must be a number" in capsys.readouterr().err
    assert cli.main(["ppo", *small, "--draws", "4"]) == 2
    assert "needs --sweep" in capsys.readouterr().err
    assert cli.main(["ppo", *small, "--csv"]) == 2
    assert "csv = True: writes into the run's directory; give --directory" in capsys.readouterr().err


def test_tuning_searches_only_fields_without_a_flag(monkeypatch, tmp_path, capsys):
    searched = []

    def asked(cfg, values, **_):
        searched.append((cfg.lr, set(values)))
        raise purerl.ConfigError([])

    monkeypatch.setattr("purerl.cli.training.tune", asked)
    assert main(["tune", "ppo", "--lr", "0.01", "--num-steps", "64"]) == 2
    assert searched == [(0.01, {"ent_coef", "gamma", "gae_lambda"})]
    (tmp_path / "a.toml").write_text("gamma = 0.8\nnum_steps = 64\n")
    assert main(["tune", "ppo", "--config", str(tmp_path / "a.toml")]) == 2
    assert searched[1] == (2.5e-4, {"lr", "ent_coef", "gae_lambda"})
    all_set = ["--lr", "0.01", "--num-steps", "64", "--ent-coef", "0", "--gamma", "0.9", "--gae-lambda", "0.9"]
    assert main(["tune", "ppo", *all_set]) == 2
    assert "is needed, since flags set all fields that are tuned by default" in capsys.readouterr().err


def test_arguments_of_an_imported_environment_cannot_be_swept(capsys):
    assert main(["ppo", "--env", "tests.helpers.probes:Varied", "--sweep", "env_kwargs.size=3,9"]) == 2
    assert "cannot be swept, since tests.helpers.probes:Varied is made once" in capsys.readouterr().err


def test_table_of_tuning_leaves_out_trials_that_stopped_early(monkeypatch, capsys):
    trial = lambda number, score, status: Trial(number, {"lr": 0.1 * (number + 1)}, 0, status, np.array([score]))
    trials = (trial(0, 1.0, "completed"), trial(1, 9.0, "stopped"))
    summary = Summary("lr = 0.1", 2, 1.0, 0.5, 1.5)
    found = TuneResult(purerl.PPOConfig(), {}, summary, trials, (), {}, env_steps=0, seconds=0.0, stopped_by=None)
    monkeypatch.setattr("purerl.cli.training.tune", lambda *_, **__: found)
    assert main(["tune", "ppo"]) == 0
    out = capsys.readouterr().out
    assert "best completed trials of 2" in out
    assert "lr = 0.1" in out
    assert "lr = 0.2" not in out


@pytest.mark.filterwarnings("ignore:an episode may take 500 steps:UserWarning")  # an episode takes fewer steps here
@pytest.mark.long
def test_command_tunes_and_its_best_config_trains(tmp_path, capsys):
    small = ["--total-timesteps", "512", "--num-envs", "4", "--num-steps", "16", "--hidden", "8", "--rungs", "2"]
    more = ["--trials", "4", "--num-seeds", "2", "--finalists", "1", "--final-seeds", "2", "--directory", str(tmp_path)]
    assert cli.main(["tune", "ppo", *small, *more, "--param", "lr=1e-4:1e-1:log"]) == 0
    out = capsys.readouterr().out
    assert "Return of the winner on 2 new seeds" in out
    assert cli.main(["ppo", "--config", str(tmp_path / "best.toml"), "--seed", "9"]) == 0
    with pytest.raises(SystemExit):
        cli.main(["tune", "ppo", "--help"])
    out = capsys.readouterr().out
    assert "purerl tune ppo --env Acrobot-v1" in out
    assert "--finalists" in out
    assert "--eval-every" not in out
