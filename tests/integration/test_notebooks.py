"""Notebooks run in their time, and are committed with their outputs."""

import json
import os
import subprocess
import sys
import time

import pytest

from purerl.envs.suites import SUITES
from tests.helpers.notebooks import NOTEBOOKS, executed

MINUTES = {
    "00_quickstart": 1.5,
    "01_custom_parts": 2,
    "07_your_own_algorithm": 1.5,
    "08_suites": 4,
    "10_tuning": 3,
    "12_populations": 6,
    "13_distillation": 2,
    "14_self_play": 5,
    "16_reference_and_symmetry": 5,
    "17_randomised_parameters": 5,
    "18_several_agents": 5,
    "19_level_replay": 6,
}  # these notebooks compile many programs
SHORTER = {  # what a test of each landing replaces in these notebooks, so that they train for fewer steps
    "00_quickstart": {"500_000": "50_000", "100_000": "20_000", "0), 8": "0), 2", "s), 8": "s), 2", "(5, 8)": "(5, 2)"},
    "15_onnx": {"150_000": "20_000"},
    "08_suites": {"500_000": "50_000", "300_000": "30_000", "200_000": "20_000"},
    "12_populations": {"= 16, 12, 20, 4": "= 4, 4, 20, 1", "trials=20": "trials=4", "of_episodes, 64": "of_episodes, 4"},
    "13_distillation": {"=250_000": "=20_480", "=73_728": "=12_288", "LED = 4": "LED = 2", "key, 32": "key, 4"},
    "14_self_play": {'= "connect_four", 8, 8, 6': '= "tic_tac_toe", 2, 2, 1', "key, 128": "key, 8"},
    "16_reference_and_symmetry": {"=200_000": "=20_480", "key(0), 8": "key(0), 2"},
    "17_randomised_parameters": {"=200_000": "=20_480", "= 8, 6, 14": "= 2, 6, 14", "key, 64": "key, 8"},
    "18_several_agents": {"400_000": "20_000", "= 3, 25, 64, 8": "= 3, 25, 16, 2"},
    "19_level_replay": {"=500_000": "=10_240", "256, 8, 0.3": "256, 2, 0.3", "key, 512": "key, 16"},
}


def check_packages(name):
    """Skip the test of a notebook without the packages that it needs, or if it draws and MuJoCo finds no OpenGL."""
    needed = {"08_suites": SUITES.values(), "14_self_play": ["pgx"], "15_onnx": ["jax2onnx", "onnxruntime", "gymnasium"]}
    for package in needed.get(name, ()):
        pytest.importorskip(package)
    if name != "08_suites":
        return
    code = "import mujoco; mujoco.Renderer(mujoco.MjModel.from_xml_string('<mujoco/>'), 8, 8)"
    if subprocess.run([sys.executable, "-c", code], env={"MUJOCO_GL": "egl", **os.environ}, capture_output=True).returncode:
        pytest.skip("MuJoCo cannot draw here")


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    """Let the kernels of notebooks find purerl, and draw into the notebooks."""
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS[0].parent.parent))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")


@pytest.mark.long
@pytest.mark.as_users
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_within_its_time(path, tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # as a reader runs it
    start = time.perf_counter()
    check_packages(path.stem)
    # If other tests run, a notebook has only a share of the machine; other machines take up to twice as long.
    seconds = 120 * MINUTES.get(path.stem, 1) * int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    executed(path, tmp_path, seconds)
    assert time.perf_counter() - start < seconds
    assert not os.listdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORTER)
def test_notebook_runs_with_fewer_steps(name, tmp_path):
    check_packages(name)
    path = NOTEBOOKS[0].with_stem(name)
    source = path.read_text()
    for long, short in SHORTER[name].items():
        long, short = json.dumps(long)[1:-1], json.dumps(short)[1:-1]
        assert long in source
        source = source.replace(long, short)
    (tmp_path / path.name).write_text(source)
    executed(tmp_path / path.name, tmp_path, 600)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_with_its_outputs(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert path.stat().st_size < 600_000


def test_notebooks_exist():
    assert NOTEBOOKS
