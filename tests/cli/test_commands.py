"""The commands for finished runs, and a run from a config file."""

import PIL.Image
import pytest

import purerl
from purerl.cli import main

FLAGS = """
env = "Catch-bsuite"
total_timesteps = 1e3
num_envs = 4
num-steps = 16
hidden = [8]
max_grad_norm = inf
num_seeds = 2
eval_every = 4
eval_episodes = 3
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "flags.toml").write_text(FLAGS)
    command = ["ppo", "--config", str(folder / "flags.toml"), "--lr", "0.01", "--csv", "--json-lines"]
    assert main([*command, "--directory", str(folder / "ours")]) == 0
    return folder


@pytest.mark.long
@pytest.mark.slow
def test_command_line_flags_override_the_config_file(run):
    cfg = purerl.load(run / "ours").cfg
    assert (cfg.env, cfg.hidden, cfg.num_steps, cfg.lr, cfg.max_grad_norm) == ("Catch-bsuite", (8,), 16, 0.01, float("inf"))
    assert {path.name for path in (run / "ours").iterdir()} >= {"metrics.jsonl", "metrics.csv", "tensorboard", "best"}


def test_unknown_name_in_a_config_file_is_refused_with_the_nearest_name(run, capsys):
    (run / "wrong.toml").write_text("learning_rte = 1\ngama = 2")
    assert main(["ppo", "--config", str(run / "wrong.toml")]) == 2
    assert "did you mean 'gamma'" in capsys.readouterr().err
    assert main(["ppo", "--config", str(run / "nowhere.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_eval_scores_every_seed(run, capsys):
    assert main(["eval", str(run / "ours"), "--num-episodes", "7"]) == 0
    out = capsys.readouterr().out
    assert "7 episodes after 16 updates" in out
    assert "seed 1" in out
    assert "7 of 7" in out
    assert main(["eval", str(run / "ours"), "--best", "--deterministic", "--num-episodes", "2"]) == 0


@pytest.mark.slow
def test_plot_render_and_export_write_files(run):
    ours = str(run / "ours")
    assert main(["plot", ours, ours, "--out", str(run / "a.png"), "--centre", "mean", "--metric", "value_loss"]) == 0
    assert main(["render", ours, "--out", str(run / "a.gif")]) == 0
    assert main(["export", ours, "--out", str(run / "policy")]) == 0
    with PIL.Image.open(run / "a.gif") as picture:
        assert picture.n_frames > 1
    assert (run / "a.png").stat().st_size > 10_000
    assert (run / "policy").stat().st_size > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plot", "render", "export"])
def test_unwritable_output_is_reported_without_a_traceback(command, run, capsys):
    place = run / "a directory.gif"
    place.mkdir(exist_ok=True)
    assert main([command, str(run / "ours"), "--out", str(place)]) == 1
    assert "could not be written" in capsys.readouterr().err


def test_errors_of_commands_are_reported_without_a_traceback(run, capsys):
    assert main(["eval", str(run / "nowhere")]) == 1
    assert "no checkpoint" in capsys.readouterr().err
    again = ["ppo", "--config", str(run / "flags.toml"), "--lr", "0.01", "--directory", str(run / "ours")]
    assert main([*again, "--total-timesteps", "2e3", "--gamma", "0.5"]) == 1
    assert "gamma: 0.99 in the checkpoint, 0.5 here" in capsys.readouterr().err
    assert main(["plot", str(run / "ours"), "--metric", "episode_retrun", "--out", str(run / "b.png")]) == 2
    assert "did you mean 'episode_return'" in capsys.readouterr().err
