import dataclasses
import gc
import os
import pathlib
import signal
import subprocess
import sys
import time
import warnings

import pytest

import purerl
from purerl.cli import main
from purerl.cli.command import short_warnings
from purerl.config.documentation import GROUPS


@pytest.fixture(autouse=True, scope="module")
def imported():
    """Import the flag parser and the suites, as the first command of a process does."""
    assert main(["ppo", "--lr", "-1"]) == 2


def refused(args: list[str]) -> bool:
    """Return True if a command is refused as not understood, within a second of CPU time."""
    gc.collect()  # otherwise garbage of earlier tests could be collected while the command runs
    start = time.thread_time()
    status = main(args)
    assert time.thread_time() - start < 1
    return status == 2


SMALL = ["ppo", "--total-timesteps", "256", "--num-envs", "4", "--num-steps", "16", "--hidden", "8"]


def test_command_trains_and_ends_with_a_table(capsys):
    assert main([*SMALL, "--seed", "3", "--num-seeds", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("compiling PPO on CartPole-v1, 4 environments x 16 steps, 2 seeds\n")
    assert "512 steps of 2 runs in" in out
    assert "steps/s" in out
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert rows == ["seed 3", "seed 4"]


WRONG = {
    "ppo --lr abc": "arguments: Error parsing --lr: could not convert string to float: 'abc'",
    "ppo --memory gruu": "arguments: invalid choice 'gruu' for argument '--memory'",
    "eval runs/a --episodes 8": "--episodes = '8': no such flag; did you mean --num-episodes",
    "eval": "arguments: Missing from purerl eval: DIR Directory of the run.",
    "plot --dir a": "--dir = 'a': no such flag; ",
    "eval runs/a --n-envs 4": "--n-envs = '4': no such flag; did you mean --env?",
    "evl runs/a": "command = 'evl': did you mean 'eval'",
    "tune pp": "command = 'pp': did you mean 'ppo'",
    "plot": "directories = []: must be a list of at least one directory",
}


@pytest.mark.parametrize("command", WRONG)
def test_wrong_arguments_end_with_one_kind_of_message(command, capsys):
    assert main(command.split()) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "1 problem:"
    assert second.startswith(f"  {WRONG[command]}")


@pytest.mark.parametrize("command", ["tune ppo", "eval", ""])
def test_every_command_has_help_and_all_help(command, capsys):
    try:
        status = main([*command.split(), "--help"])
    except SystemExit as ended:
        status = ended.code
    assert status == 0
    short = capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help-all"])
    assert ended.value.code == 0
    assert (len(short) < 25) == (command == "tune ppo")
    assert len(capsys.readouterr().out.splitlines()) >= len(short)


def test_warning_is_one_line_without_file_and_line_number():
    with short_warnings():
        assert warnings.formatwarning("one thing,\n  another", UserWarning, "file.py", 3) == "warning: one thing, another\n"
    assert "file.py" in warnings.formatwarning("one thing", UserWarning, "file.py", 3)


def test_every_kind_of_flag_is_parsed(capsys):
    flags = ["--env", "DeepSea-bsuite", "--env-kwargs", "size", "5", "--env-params", "unscaled_move_cost", "0.02"]
    more = ["--max-grad-norm", "inf", "--lr-schedule", "constant", "--total-timesteps", "1e2", "--hidden", "8,8"]
    assert main([*SMALL, *flags, *more]) == 0
    assert "length" in capsys.readouterr().out


def test_rnd_flag_enables_rnd_and_prefixed_flags_set_its_fields(tmp_path, monkeypatch):
    (tmp_path / "flags.toml").write_text("rnd = true\nrnd_features = 8\n")
    asked = []
    monkeypatch.setattr("purerl.cli.command.run_training", lambda cfg, run: asked.append(cfg) or 0)
    assert main(["appo", "--rnd", "--rnd-int-coef", "0.5", "--replay", "3"]) == 0
    assert main(["ppg", "--config", str(tmp_path / "flags.toml"), "--rnd-init-steps", "1e3"]) == 0
    assert main(["daac", "--value-freq", "2"]) == 0
    appo, ppg, daac = asked
    assert appo == purerl.APPOConfig(replay=3, rnd=purerl.RNDConfig(int_coef=0.5))
    assert ppg == purerl.PPGConfig(rnd=purerl.RNDConfig(features=8, init_steps=1000))
    assert daac == purerl.DAACConfig(value_freq=2)


@pytest.mark.parametrize(
    ("flags", "file", "says"),
    [
        (["ppo", "--rnd-ext-coef", "0"], "", "has no effect without --rnd"),
        (["ppo"], "[rnd]\nint_coef = 7\n", "must be true or false"),
        (["ppo"], "lag = 8\n", "no such flag"),
        (["ppg"], "n_pj = 8\n", "did you mean 'n_pi'"),
        (["ppo", "--env-params", "g", "9", "--env-params", "m", "2"], "", "is given twice; write all its values after one flag"),
        (["ppo", "--env-params", "g", "9", "--env_params", "m", "2"], "", "is given twice; write all its values after one flag"),
        (["ppo", "--info", "a", "--info=b"], "", "is given twice; write all its values after one flag"),
        (["ppo", "--env-params", "length", "0.5", "--sweep", "env_params.length=0.4,0.6"], "", "--sweep sets the field, too"),
    ],
)
def test_flags_without_effect_or_of_unknown_names_are_refused(flags, file, says, tmp_path, capsys):
    (tmp_path / "flags.toml").write_text(file)
    assert refused([*flags, "--config", str(tmp_path / "flags.toml")])
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"hidden = 64", "hidden = 64: must be a tuple of ints"),
        (b"env_params = 3", "env_params = 3: must be a dict"),
        (b"env_kwargs = [1]", "env_kwargs = (1,): must be a tuple of pairs"),
        (b"env = 5", "env = 5: must be a string"),
        (b'env = "tests.ideas.brax_like:hopper"', "a file cannot contain import paths"),
        (b'algorithm = "tests.ideas.spo:spo"', "a file cannot contain import paths"),
        (b'lr = "1e-3"', "lr = '1e-3': must be a number"),
        (b"normalize_obs = 1", "normalize_obs = 1: must be True, False or 'auto'"),
        (b"rnd_features = 0.5", "rnd_features = 0.5"),
        (b'seed = "x"', "seed = 'x': must be an int, not str"),
        (b"directory = 5", "directory = 5: must be a string"),
        (b"exact = 1", "exact = 1: must be True or False"),
        (b"distributed = true", "a file cannot contain this flag"),
        (b"num_processes = 4\nprocess_id = 1", "a file cannot contain this flag"),
        (b'config = "nowhere.toml"', "a file cannot contain this flag"),
        (b"[ppo]\nlr = 1", "ppo = {'lr': 1}: no such flag"),
        (b"learning_rate = 1e-3", "use `lr`"),
        (b"\xff\xfe", "parsing failed"),
        (b"lr = ", "parsing failed"),
    ],
)
def test_invalid_config_files_are_refused(text, says, tmp_path, capsys):
    (tmp_path / "flags.toml").write_bytes(text + b"\n")
    assert refused(["ppo", "--config", str(tmp_path / "flags.toml")])
    assert says in capsys.readouterr().err


def test_auto_is_accepted_in_config_files_and_flags(tmp_path, monkeypatch):
    (tmp_path / "flags.toml").write_text('ent_coef = "auto"\nnormalize_obs = true\n')
    asked = []
    monkeypatch.setattr("purerl.cli.command.run_training", lambda cfg, run: asked.append(cfg) or 0)
    assert main(["ppo", "--config", str(tmp_path / "flags.toml"), "--reward-clip", "auto", "--normalize-reward", "False"]) == 0
    assert main(["ppo", "--normalize-obs", "True", "--normalize-reward", "auto", "--ent-coef", "0.5"]) == 0
    assert asked[0] == purerl.PPOConfig(normalize_obs=True, normalize_reward=False)
    assert asked[1] == purerl.PPOConfig(normalize_obs=True, ent_coef=0.5)


def test_missing_wandb_package_is_reported(capsys):
    assert refused([*SMALL, "--wandb", "project"])
    assert "pip install '.[wandb]'" in capsys.readouterr().err


def test_preset_of_another_algorithm_is_refused(capsys):
    assert refused(["ppg", "--preset", "Breakout-MinAtar"])
    assert "is a preset of ppo" in capsys.readouterr().err


def test_config_problems_are_reported_without_a_traceback(capsys):
    assert refused(["ppo", "--env", "CartPol-v1", "--lr", "-1", "--num-minibatches", "7"])
    err = capsys.readouterr().err
    assert "3 problems" in err
    assert "did you mean 'CartPole-v1'" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(("flag", "meant"), [("--num-evns", "--num-envs"), ("--gama", "--gamma")])
def test_unknown_flag_is_refused_with_the_nearest_name(capsys, flag, meant):
    assert refused(["ppo", flag, "3"])
    assert f"{flag} = '3': no such flag; did you mean {meant}" in capsys.readouterr().err


@pytest.mark.slow
def test_preset_flag_trains_and_unknown_presets_are_refused(capsys):
    small = ["--total-timesteps", "64", "--num-envs", "4", "--num-steps", "16", "--hidden", "8"]
    assert main(["ppo", "--preset", "Breakout-MinAtar", *small]) == 0
    assert "64 steps in" in capsys.readouterr().out
    assert refused(["ppo", "--preset", "Breakuot-MinAtar"])
    assert "did you mean 'Breakout-MinAtar'" in capsys.readouterr().err


def test_help_all_lists_examples_then_every_field_by_group(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main(["appo", "--help-all"])
    out = capsys.readouterr().out
    groups = [group.lower().replace(" ", "-") for group in GROUPS]
    places = [out.index("- purerl appo --env"), *(out.index(f" {group} options ") for group in groups)]
    assert places == sorted(places)
    for field in dataclasses.fields(purerl.APPOConfig):
        assert f" --{field.name.replace('_', '-')}" in out
        assert purerl.APPOConfig.field_docs[field.name].text
    for text in ("--estimator {gae,n_step,td_lambda}", "--num-seeds INT", "Learning rate at the first update", "--rnd-int-coef"):
        assert text in out
    assert "`" not in out
    assert "purerl." not in out


def test_help_is_short(capsys):
    assert main(["ppg", "--help"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 24
    assert "Phasic Policy Gradient (Cobbe et al. 2021" in out
    assert "--total-timesteps" in out
    assert "--help-all lists all flags" in out
    assert "(default: 64 64)" in out
    assert "inf" not in out


def test_version_and_shell_completion_are_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"purerl {purerl.__version__}\n"
    with pytest.raises(SystemExit) as stop:
        main(["--tyro-print-completion", "bash"])
    assert not stop.value.code
    assert "--gae-lambda" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--learning-rate", "1e-3"], "--learning-rate = '1e-3': no such flag; use --lr"),
        (["--env_id=CartPole-v1"], "--env_id = 'CartPole-v1': no such flag; use --env"),
        (["--no-anneal-lr"], "use --lr-schedule"),
        (["--NUM-ENVS"], "use --num-envs"),
    ],
)
def test_flags_of_other_libraries_are_refused_with_their_equivalent(flags, says, capsys):
    assert refused(["ppo", *flags])
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["plot"], "must be a list of at least one directory"),
        (["compare"], "must be a list of run folders"),
        (["plot", "nowhere"], "no metrics in nowhere"),
        (["plot", "nowhere", "--out", "file/a.png"], "the folder cannot be created"),
        (["plot", "nowhere", "--out", "a.zzz"], "must end in"),
        (["render", "nowhere"], "no checkpoint in"),
        (["render", "nowhere", "--out", "file/a.gif"], "the folder cannot be created"),
        (["export", "nowhere"], "no checkpoint in"),
        (["export", "nowhere", "--out", "file/a"], "the folder cannot be created"),
        (["eval", "nowhere"], "no checkpoint in"),
        (["compare", "a=file", "a=nowhere"], "a is given twice"),
        (["compare", "a=file,"], "has an empty folder"),
        (["compare", "old/cli", "cli"], "cli is given twice; give names to the folders"),
        (["compare", "cli=old/cli", "cli"], "cli is given twice; give names to the folders"),
        (["ppo", "--sweep", "lr=1e-4", "--sweep", "lr=3e-4"], "lr is given twice"),
        (["ppo", "--total-timesteps", "1e3", "--directory", "d", "--write-every", "-1"], "every = -1"),
    ],
)
def test_commands_report_unusable_arguments_briefly(command, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(command) in (1, 2)
    err = capsys.readouterr().err
    assert says in err
    assert len(err.strip().splitlines()) <= 2


@pytest.mark.slow
def test_interrupted_command_ends_with_the_table():
    """A real signal stops the real command in a run of hours."""
    root = pathlib.Path(__file__).parent.parent.parent
    command = [sys.executable, "-m", "purerl", "ppo", "--total-timesteps", "1e12", "--hidden", "8"]
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    first = process.stdout.readline()
    while "steps/s" not in first:
        assert process.poll() is None, first
        first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0, rest
    assert time.monotonic() - asked < 20
    assert "episodes" in rest
    assert "Traceback" not in rest


def test_help_exits_silently_if_its_pipe_is_closed():
    command = [sys.executable, "-c", "from purerl.cli import main; raise SystemExit(main(['ppo', '--help-all']))"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait() == 141
        assert process.stderr.read() == b""
