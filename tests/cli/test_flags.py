"""Flags of the fields of a config."""

import contextlib

import numpy as np
import pytest
import tyro

import purerl
from purerl.cli import main
from purerl.cli.flags import base_values, config_of, defaults_of, flags_of, job_arguments, values_of
from purerl.cli.run_options import Training
from purerl.config.algorithms import ALGORITHMS
from purerl.studies.tune import as_toml


def test_preset_sets_the_defaults_that_flags_override():
    base = purerl.preset("Breakout-MinAtar")
    flags = lambda cfg: flags_of("ppo", defaults_of(cfg), purerl.PPOConfig)
    config = lambda cfg, **given: config_of(purerl.PPOConfig, values_of(flags(cfg)(), defaults_of(cfg)) | given)
    assert config(base, lr=1.0, preset="Breakout-MinAtar") == base.replace(lr=1.0)
    curious = base.replace(rnd=purerl.RNDConfig(int_coef=0.5, hidden=(8,)))
    assert config(curious) == curious
    with_arguments = base.replace(env_kwargs=(("size", 5), ("name", "5")), env_params={"limit": 3})
    assert config(with_arguments) == with_arguments


def asked_for(args):
    """Return the config of a command line."""
    base = base_values(args, ALGORITHMS, Training)
    flags = tyro.cli(flags_of("ppo", base, purerl.PPOConfig), args=args[1:], config=(tyro.conf.OmitArgPrefixes,))
    return config_of(purerl.PPOConfig, values_of(flags, base))


def test_constructor_arguments_add_to_those_of_a_preset_and_a_file(tmp_path):
    before = purerl.preset("brax/ant").env_kwargs
    longer = asked_for(["ppo", "--preset", "brax/ant", "--env-kwargs", "episode_length", "500"])
    assert before
    assert longer.env_kwargs == (*before, ("episode_length", 500))
    (tmp_path / "a.toml").write_text("preset = 'brax/ant'\nenv_kwargs = {episode_length = 500}\n")
    assert asked_for(["ppo", "--config", str(tmp_path / "a.toml")]).env_kwargs == longer.env_kwargs


def test_constructor_arguments_may_be_python_constants():
    words = ["a", "False", "b", "true", "c", "None", "d", "1"]
    assert asked_for(["ppo", "--env-kwargs", *words]).env_kwargs == (("a", False), ("b", True), ("c", None), ("d", 1))
    swept = purerl.studies.space.parse(purerl.PPOConfig(), ["env_kwargs.use_minimal_action_set=False,True"], "sweep")
    assert swept == {"env_kwargs.use_minimal_action_set": (False, True)}


def test_sweep_on_the_command_line_replaces_that_of_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = "total_timesteps = 64\nnum_steps = 16\nhidden = [8]\n"
    (tmp_path / "a.toml").write_text(small + "sweep = ['lr=1e-3,1e-4', 'gamma=0.9,0.99']\n")
    assert base_values(["ppo", "--config", "a.toml"], ALGORITHMS, Training)["sweep"]
    assert "sweep" not in base_values(["ppo", "--config", "a.toml", "--sweep", "lr=1e-2,3e-2"], ALGORITHMS, Training)
    assert main(["ppo", "--config", "a.toml", "--lr", "0.01"]) == 2
    assert "--lr = '0.01': has no effect, since --sweep sets the field, too" in capsys.readouterr().err
    assert main(["tune", "ppo", "--rnd", "--rnd-int-coef", "0.5", "--param", "rnd.int_coef=0.1:1"]) == 2
    assert "--rnd-int-coef" in capsys.readouterr().err


def test_flags_of_a_multi_process_job_are_recognised():
    assert job_arguments(["ppo", "--num-processes", "2"]) is not None
    assert job_arguments(["ppo", "--lr", "0.1"]) is None
    assert job_arguments(["ppo", "--coordinator", "", "--num-processes", "0", "--process-id", "-1"]) is None  # the defaults


@pytest.mark.parametrize("args", [["--config"], ["--config", ""], ["--preset"], ["--randomize", "gravity", "8"]])
def test_flags_without_a_value_are_refused(args, capsys):
    with contextlib.suppress(SystemExit):  # of tyro, which has printed the reason
        assert main(["ppo", *args]) == 2
    assert args[0].removeprefix("--") in capsys.readouterr().err


def test_distributions_survive_a_file_of_flags(tmp_path):
    distributions = {"gravity": purerl.Uniform(8, 12), "length": purerl.Normal(0.5, 0.01), "masspole": purerl.Scale(0.8, 1.2)}
    cfg = purerl.PPOConfig(randomize=distributions)
    (tmp_path / "best.toml").write_text(as_toml(cfg))
    found = base_values(["ppo", "--config", str(tmp_path / "best.toml")], ALGORITHMS, Training)
    flags = flags_of("ppo", found, purerl.PPOConfig)
    assert config_of(purerl.PPOConfig, values_of(flags(), found)) == cfg


def test_file_of_a_tuned_config_keeps_defaults_that_a_preset_replaces(tmp_path):
    cfg = purerl.preset("Breakout-MinAtar").replace(gamma=purerl.PPOConfig().gamma)
    assert cfg.gamma != purerl.preset("Breakout-MinAtar").gamma
    (tmp_path / "best.toml").write_text(as_toml(cfg, ["gamma"]))
    assert asked_for(["ppo", "--preset", "Breakout-MinAtar", "--config", str(tmp_path / "best.toml")]) == cfg


def test_flags_of_names_and_values_add_to_those_of_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    params = "env_params = {gravity = 9.0, tau = 0.05}"
    (tmp_path / "a.toml").write_text(f"total_timesteps = 64\nnum_steps = 16\nhidden = [8]\n{params}\n")
    assert main(["ppo", "--config", "a.toml", "--env-params", "force_mag", "5", "tau", "0.01", "--directory", "run"]) == 0
    assert purerl.load("run").cfg.env_params == {"gravity": 9, "force_mag": 5, "tau": np.float32(0.01)}
    capsys.readouterr()
    with contextlib.suppress(SystemExit):  # of tyro, which has printed the reason
        assert main(["ppo", "--env-params", "gravity"]) == 2
    assert "each name needs a value" in capsys.readouterr().err
    with contextlib.suppress(SystemExit):
        assert main(["ppo", "--env-params", "gravity", "9", "gravity", "8"]) == 2
    assert "'gravity' is given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "steps"), [("57k", 57_000), ("0.57M", 570_000), ("5e5", 500_000), ("4611686018427387903", 2**62 - 1)]
)
def test_step_counts_may_end_in_k_or_m(text, steps):
    flags = tyro.cli(flags_of("ppo", {}, purerl.PPOConfig), args=["--total-timesteps", text], config=(tyro.conf.OmitArgPrefixes,))
    assert config_of(purerl.PPOConfig, values_of(flags, {})).total_timesteps == steps


def test_step_count_that_is_no_number_is_refused(capsys):
    assert main(["ppo", "--total-timesteps", "5x"]) == 2
    assert "--total-timesteps" in capsys.readouterr().err
