"""The contents of the wheel: everything that training needs."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.as_users
def test_wheel_in_a_bare_environment_trains_cartpole(tmp_path):
    run = lambda *words: subprocess.run([*map(str, words)], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("purerl-*.whl")
    run(sys.executable, "-m", "venv", "bare")
    run("bare/bin/python", "-m", "pip", "install", "--quiet", wheel)
    assert "5,120 steps in" in run("bare/bin/purerl", "ppo", "--env", "CartPole-v1", "--total-timesteps", 5120)
