"""What earlier versions left on disk still loads, and goes on to the end: see `tests.old_runs`."""

import json
import shutil

import numpy as np
import pytest

import purerl
from purerl.acting.bootstrap import final_obs_of
from purerl.runs.storage.migrations import RING, described, fitted
from purerl.studies.listing import listed
from tests.old_runs import CASES, HERE, STOPPED, UPDATES, arguments, digest, values

RUNS = sorted(path.relative_to(HERE) for path in HERE.glob("*/*"))
REFUSED = [run for run in RUNS if run.name == "batch"]  # Pendulum's, in the environment's unit of actions
LOADED = [run for run in RUNS if run not in REFUSED]
EVERY_TIME = ("ppo",)
some_slow = pytest.mark.parametrize(
    "run", [run if run.name in EVERY_TIME else pytest.param(run, marks=pytest.mark.slow) for run in LOADED], ids=str
)


# What a directory was made with is noted where it differs, once a version of anything has changed.
pytestmark = pytest.mark.filterwarnings("ignore:resuming, but not bit-identically")


def objects(options):
    return {name: x for name, x in options.items() if name == "env"}


@pytest.mark.parametrize("run", REFUSED, ids=str)
def test_runs_with_actions_in_the_environments_unit_are_refused(run, tmp_path):
    cfg, options = arguments(run.name)
    shutil.copytree(HERE / run, tmp_path / "run")
    with pytest.raises(purerl.CheckpointMismatch, match="action_unit: 'environment' in the checkpoint, 'bounds' here"):
        purerl.load(HERE / run)
    with pytest.raises(purerl.CheckpointMismatch, match="action_unit"):
        purerl.fit(cfg, directory=tmp_path / "run", **options)


@pytest.mark.parametrize("run", LOADED, ids=str)
def test_it_loads(run):
    loaded = purerl.load(HERE / run, **objects(arguments(run.name)[1]))
    assert loaded.updates == STOPPED
    assert digest(loaded.state) == json.loads((HERE / run / "expected.json").read_text())["digest"]


def test_all_are_listed():
    found = {row.directory.relative_to(HERE): row for row in listed(HERE)}
    assert found.keys() == set(RUNS)
    assert all(row.runs >= 1 and row.steps > 0 and np.isfinite(row.best) for row in found.values())


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


@pytest.mark.parametrize("count", [1, 3])
def test_of_the_observations_before_resets_those_at_time_limits_are_kept(count):
    """A ring of 0.2 has all of them, `[runs, T, R, B]`; how many of them are read depends on the environment."""
    rng, shape = np.random.default_rng(0), (2, 12, 3, 4)
    truncated = rng.permuted(np.arange(12)[None, :, None, None] < count - np.arange(4) % 2, axis=1) & np.ones(shape, bool)
    next_obs = rng.normal(size=(*shape, 5)).astype(np.float32)
    final, flags = f"{RING}.final_obs", f"{RING}.rollout.steps.truncated"
    arrays = {final: next_obs, flags: truncated}
    wanted = {final: f"float32[2, {count}, 3, 4, 5]", flags: "bool[2, 12, 3, 4]"}
    leaves, fewer = fitted({path: described(x) for path, x in arrays.items()}, arrays, wanted)
    assert leaves[final][0] == wanted[final]
    for run in range(2):
        for place in range(3):
            flag, kept = truncated[run, :, place], fewer[final][run, :, place]
            want = final_obs_of(next_obs[run, :, place], flag, count)
            there = np.arange(count)[:, None] < flag.sum(0)
            np.testing.assert_array_equal(kept[there], np.asarray(want)[there])
