"""What earlier versions left on disk still loads, and goes on to the end: see `tests.old_runs`."""

import json
import shutil

import numpy as np
import pytest

import purerl
from tests.old_runs import CASES, HERE, STOPPED, UPDATES, arguments, digest, values

RUNS = sorted(path.relative_to(HERE) for path in HERE.glob("*/*"))
EVERY_TIME = ("batch",)
some_slow = pytest.mark.parametrize(
    "run", [run if run.name in EVERY_TIME else pytest.param(run, marks=pytest.mark.slow) for run in RUNS], ids=str
)


# What a directory was made with is noted where it differs, once a version of anything has changed.
pytestmark = pytest.mark.filterwarnings("ignore:resuming, but not bit-identically")


def objects(options):
    return {name: x for name, x in options.items() if name == "env"}


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_it_loads(run):
    loaded = purerl.load(HERE / run, **objects(arguments(run.name)[1]))
    assert loaded.updates == STOPPED
    assert digest(loaded.state) == json.loads((HERE / run / "expected.json").read_text())["digest"]


@some_slow
def test_it_goes_on_to_the_end(run, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(HERE / run, directory)
    cfg, options = arguments(run.name)
    if str(run) == "0.2.0/ppg":
        with pytest.raises(purerl.CheckpointMismatch, match=r"vf_coef: 1\.0 in the checkpoint, 0\.5 here; purerl 0\.2 gave"):
            purerl.fit(cfg, directory=directory, **options)
        cfg = cfg.replace(vf_coef=1.0)
    result = purerl.fit(cfg, directory=directory, **options)
    assert result.progress.began[0] == STOPPED
    assert result.progress.updates == UPDATES
    with np.load(directory / "ended.npz", allow_pickle=False) as ended:
        for got, want in zip(values(result.state.params), [ended[name] for name in ended.files], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert (purerl.summarize(result.metrics)["steps"].sum(-1) == UPDATES * 64).all()
    assert result.evaluations["update"].tolist() == [0, 2, 4, 6]


def test_there_is_a_run_of_every_kind():
    assert {run.name for run in RUNS} == set(CASES)
