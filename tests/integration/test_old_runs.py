"""A directory written by an earlier version loads and resumes: see `tests.helpers.old_runs`."""

import json
import shutil

import numpy as np
import pytest

import purerl
from purerl.studies.listing import list_overviews
from tests.helpers.old_runs import OPTIONS, RUN, STOPPED, UPDATES, configs, digest, values

# If the version of any package has changed, resuming warns that it is not bit-identical.
pytestmark = pytest.mark.filterwarnings("ignore:the resumed run may not be bit-identical")


def test_directory_of_an_earlier_version_loads():
    loaded = purerl.load(RUN)
    assert loaded.updates == STOPPED
    assert digest(loaded.state) == json.loads((RUN / "expected.json").read_text())["digest"]
    assert sum(path.stat().st_size for path in RUN.rglob("*") if path.is_file()) < 100_000


def test_directory_of_an_earlier_version_is_listed_and_compared():
    (row,) = list_overviews(RUN.parent)
    assert (row.runs, row.steps) == (4, STOPPED * 64)
    assert np.isfinite(row.best)
    with pytest.warns(UserWarning, match="only 256 of 384 steps have been trained"):
        found = purerl.compare([RUN], episodes="evaluation")
    assert found.tasks == ("Pendulum-v1 (env_params.g = 0)", "Pendulum-v1 (env_params.g = 10)")


def test_directory_of_an_earlier_version_resumes_to_the_end(tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(RUN, directory)
    result = purerl.fit(configs(), directory=directory, **OPTIONS)
    assert result.progress.began[0] == STOPPED
    assert result.progress.updates == UPDATES
    with np.load(directory / "ended.npz", allow_pickle=False) as ended:
        for got, want in zip(values(result.state.params), [ended[name] for name in ended.files], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert (purerl.summarize(result.metrics)["steps"].sum(-1) == UPDATES * 64).all()
    assert result.evaluations["update"].tolist() == [0, 2, 4, 6]


def test_directory_of_an_earlier_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("purerl.runs.storage.checkpoint.FORMAT", 3)
    with pytest.raises(purerl.CheckpointMismatch, match="format 2; this version of purerl reads format 3"):
        purerl.load(RUN)
