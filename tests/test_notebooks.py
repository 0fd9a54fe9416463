"""Every notebook runs as it is committed: unmodified, and without outputs."""

import json
import os
import pathlib
import time

import pytest
from nbclient import NotebookClient
from nbformat import NO_CONVERT, read

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
EVERY_TIME = ("00_quickstart",)  # the others with the slow tests
SOME_SLOW = [path if path.stem in EVERY_TIME else pytest.param(path, marks=pytest.mark.slow) for path in NOTEBOOKS]


@pytest.mark.parametrize("path", SOME_SLOW, ids=lambda path: path.stem)
def test_runs_in_a_minute(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(path.parent.parent))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    start = time.perf_counter()
    seconds = 60 * int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))  # beside other tests it has a share of the machine only
    NotebookClient(read(path, NO_CONVERT), timeout=seconds, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert time.perf_counter() - start < seconds
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_without_outputs(path):
    code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert code
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


def test_there_are_notebooks():
    assert NOTEBOOKS
