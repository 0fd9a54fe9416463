"""A batch of gravities, from training that is killed and resumed to an exported policy, each step in its own process."""

import json
import os
import re
import subprocess
import sys

import jax
import numpy as np
import PIL.Image
import pytest

import purerl
from purerl.runs.analysis.rendering import render
from tests.helpers.bare import bare_python
from tests.helpers.faults import ROOT, committed, wait_for

TRAIN = """
import sys, jax, numpy as np, purerl
cfg = purerl.PPOConfig(env="Pendulum-v1", total_timesteps=60 * 512, num_envs=4, num_steps=128, gamma=0.95, hidden=(32,))
cfgs = jax.vmap(lambda g: cfg.replace(env_params={"g": g}))(np.array([10.0, 5.0, 0.0], np.float32))
purerl.fit(cfgs, directory=sys.argv[1], num_seeds=2, eval_every=20, eval_episodes=64, save_every=10, chunk_seconds=0.1)
"""
RUNS = 6


def process(*words):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "2", "COLUMNS": "160"}
    return subprocess.Popen([sys.executable, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def command(*words):
    done = process("-m", "purerl", *map(str, words))
    out = done.communicate(timeout=300)[0]
    assert done.returncode == 0, out
    return out


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return the directory of a run that was killed after its first checkpoint, and resumed to the end."""
    home = tmp_path_factory.mktemp("gravities") / "run"
    killed = process("-c", TRAIN, str(home))
    wait_for(lambda: 10 <= committed(home) < 50, killed)
    killed.kill()
    killed.communicate()
    assert 10 <= committed(home) < 60
    resumed = process("-c", TRAIN, str(home))
    out = resumed.communicate(timeout=300)[0]
    assert resumed.returncode == 0, out
    return home


@pytest.mark.long
def test_every_run_is_evaluated_in_its_own_environment(directory):
    """The command's evaluation of each run agrees, within the noise of both, with training's evaluation of the same state."""
    run = purerl.load(directory)
    trained = [row for row in map(json.loads, (directory / "evaluations.jsonl").read_text().splitlines()) if row["update"] == 60]
    rows = [line.split("│")[1:-1] for line in command("eval", directory, "--num-episodes", "64").splitlines() if "seed" in line]
    assert [row[0].strip() for row in rows] == list(run.labels)
    means, deviations = (np.array([float(row[i]) for row in rows]) for i in (1, 2))
    noise = 4 * deviations * np.sqrt(2 / 64)
    assert (np.abs(means - trained[0]["episode_return"]) < noise).all()
    # In another gravity one policy's evaluations would differ by more than that noise.
    first, last = run.select(config=0, seed=0), run.select(config=2, seed=0)
    elsewhere = last.train.evaluate(first.state, jax.random.key(0), 64).returns.mean()
    assert abs(elsewhere - means[0]) > noise[0]


@pytest.mark.long
def test_commands_plot_render_and_export_one_run(directory, tmp_path, fresh_python):
    assert "a.png" in command("plot", directory, "--out", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    out = command("render", directory, "--run", "env_params.g = 0, seed 1", "--out", tmp_path / "a.gif")
    assert "an episode of env_params.g = 0, seed 1" in out
    with PIL.Image.open(tmp_path / "a.gif") as picture:
        assert picture.n_frames > 1
    one = purerl.load(directory).select("env_params.g = 0, seed 1")
    assert float(re.search(r"return (-?[\d.]+)", out)[1]) == pytest.approx(one_return(one), abs=0.1)
    command("export", directory, "--run", "env_params.g = 0, seed 1", "--out", tmp_path / "policy")
    obs = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    np.save(tmp_path / "obs.npy", obs)
    code = f"""
import jax, jax.export, numpy as np
act = jax.export.deserialize(bytearray(open({str(tmp_path / "policy")!r}, "rb").read())).call
obs = np.load({str(tmp_path / "obs.npy")!r})
print(*act((), obs, np.zeros(3, bool), jax.random.PRNGKey(0), np.array(True))[0].ravel())
"""
    said = np.array(bare_python(fresh_python, code, tmp_path).split(), np.float32)
    wanted = one.train.policy(one.state)((), obs, np.zeros(3, bool), jax.random.key(0), deterministic=True)[0]
    np.testing.assert_allclose(said, wanted.ravel(), rtol=1e-4)


def one_return(run):
    """Return the return of the rendered episode."""
    return render(run.train, run.state, run.directory / "again.gif")
