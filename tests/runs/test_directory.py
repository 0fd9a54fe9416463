"""A run that is stopped and resumed ends bit for bit like an uninterrupted run."""

import os
import re
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.runs.directory import Lock, run_directory
from purerl.runs.logging.recorders import Csv, JsonLines, TensorBoard
from purerl.runs.storage import checkpoint
from tests.helpers.interrupted import UPDATES, fitted, stopped
from tests.helpers.probes import Varied
from tests.helpers.programs import compiles
from tests.helpers.tiny import CFG, digest, tiny


@pytest.fixture(scope="module")
def whole():
    """Train the run without interruption."""
    return fitted(chunk_seconds=1e-9)


@pytest.mark.long
def test_run_stopped_after_every_update_ends_bit_for_bit_the_same(whole, tmp_path):
    for update in range(1, UPDATES):
        stopped(tmp_path, update)
        with open(tmp_path / "curves.jsonl", "ab") as file:
            file.write(bytes(1000))  # rows that a kill would leave after the last checkpoint
    result = fitted(directory=tmp_path)
    assert digest(result.state) == digest(whole.state)
    assert digest(result.metrics) == digest(whole.metrics)
    assert result.progress.began[0] == UPDATES - 1


@pytest.mark.long
def test_seeds_with_multi_update_rows_resume_bit_for_bit(tmp_path):
    several = {"num_seeds": 3, "cfg": CFG.replace(metrics_every=4)}
    uninterrupted = fitted(**several)
    stopped(tmp_path, 6, **several)
    result = fitted(directory=tmp_path, **several)
    assert digest(result.state) == digest(uninterrupted.state)
    assert digest(result.metrics) == digest(uninterrupted.metrics)
    assert result.metrics["lr"].total.shape == (3, 3)
    loaded = purerl.load(tmp_path, env=Varied())
    assert loaded.num_runs == 3
    assert digest(loaded.state) == digest(uninterrupted.state)


@pytest.mark.slow
def test_recorders_evaluations_and_saves_do_not_affect_training(whole, tmp_path):
    recorders = (JsonLines(tmp_path / "a.jsonl"), Csv(tmp_path / "b.csv", every=3), TensorBoard(tmp_path / "c"))
    busy = {"eval_every": 2, "eval_episodes": 3, "eval_max_steps": 20, "save_every": 3, "recorders": recorders}
    assert digest(fitted(directory=tmp_path, **busy).state) == digest(whole.state)


@pytest.mark.slow
def test_longer_run_passes_through_the_state_of_a_shorter_one(tmp_path):
    constant = {"cfg": CFG.replace(lr_schedule="constant")}
    short = fitted(updates=4, **constant)
    fitted(directory=tmp_path, save_every=4, **constant)
    assert digest(purerl.load(tmp_path, env=Varied(), updates=4).state) == digest(short.state)


@pytest.mark.long
@pytest.mark.slow
def test_restored_state_continues_under_another_train(whole, tmp_path):
    """A state from a checkpoint on disk continues under another `Train`, one update at a time."""
    stopped(tmp_path, 7)
    train = tiny(CFG.replace(total_timesteps=64 * UPDATES))
    state, update = purerl.restore(tmp_path, train), jax.jit(train.update)
    assert int(state.clock) == 7
    for _ in range(3):
        state, _ = update(state)
    for got, want in zip(jax.tree.leaves(state.params), jax.tree.leaves(whole.state.params), strict=True):
        # The program differs from that of fit, so the states are equal up to rounding.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    again = purerl.restore(tmp_path, train)
    for _ in range(3):
        again, _ = update(again)
    assert digest(again) == digest(state)


@pytest.mark.long
@pytest.mark.slow
def test_every_saved_leaf_affects_later_updates(tmp_path):
    """A leaf without effect on the next two updates would be superfluous, or show a bug."""
    train = tiny()
    state = jax.jit(train.update)(jax.jit(train.init)(jax.random.key(0)))[0]
    purerl.save(tmp_path, train, state)
    state = purerl.restore(tmp_path, train)

    @jax.jit
    def later(state):
        (state, a), (last, b) = (once := train.update(state)), train.update(once[0])
        return last, a, b

    expected, inert = digest(later(state)), []
    leaves, structure = jax.tree_util.tree_flatten_with_path(state)
    for i, (path, x) in enumerate(leaves):
        other = [leaf for _, leaf in leaves]
        other[i] = perturbed(x)
        if digest(later(structure.unflatten(other))) == expected:
            inert.append(jax.tree_util.keystr(path))
    print("inert leaves:", inert)
    assert inert == [".actor.first"]  # `first` resets a hidden state, and this network has none


def perturbed(x):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.fold_in(x, 1)
    return ~x if x.dtype == bool else x + jnp.ones((), x.dtype)


@pytest.mark.long
@pytest.mark.slow
def test_checkpoint_is_unaffected_by_the_next_chunk(tmp_path):
    """The next chunk takes over the buffers of the state while the checkpoint is still being written."""
    fitted(directory=tmp_path, save_every=1, keep=UPDATES)
    train = tiny(CFG.replace(total_timesteps=64 * UPDATES))
    at = stopped(tmp_path / "other", 5)
    assert digest(purerl.restore(tmp_path, train, updates=5)) == digest(at.state)


def test_last_and_keep_every_checkpoints_are_kept(tmp_path):
    fitted(directory=tmp_path, save_every=3, keep=1, keep_every=6)
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == [6, 10]


def test_checkpoints_of_keep_every_outlast_a_call_without_it(tmp_path):
    saved = lambda: sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    cfg = CFG.replace(lr_schedule="constant")
    fitted(updates=8, cfg=cfg, directory=tmp_path, keep=1, keep_every=4)
    assert saved() == [4, 8]
    fitted(cfg=cfg, directory=tmp_path, keep=1, save_every=1, chunk_seconds=1e-9)
    assert saved() == [4, 8, 10]


@pytest.mark.parametrize("name", ["lr=[1,2]", "a\\b", "**"])
def test_paths_that_orbax_reads_as_patterns_are_refused(name, tmp_path):
    with pytest.raises(purerl.ConfigError, match=r"directory.*must not contain"):
        fitted(directory=tmp_path / name)
    with pytest.raises(purerl.ConfigError, match=r"directory.*must not contain"):
        purerl.load(tmp_path / name)


def test_metrics_of_a_measure_outlast_a_call_without_it(tmp_path):
    options = {"cfg": CFG.replace(lr_schedule="constant"), "directory": tmp_path}
    ones = lambda updates, **given: purerl.summarize(fitted(updates, **options, **given).metrics)["one"]
    measure = lambda state: {"one": 1.0}
    np.testing.assert_array_equal(ones(2, measure=measure), [1, 1])
    np.testing.assert_array_equal(ones(2), [1, 1])  # the finished run
    np.testing.assert_array_equal(ones(4), [1, 1, np.nan, np.nan])
    np.testing.assert_array_equal(ones(6, measure=measure), [1, 1, np.nan, np.nan, 1, 1])


@pytest.mark.long
@pytest.mark.slow
def test_best_state_of_a_run_without_checkpoints_is_replaced(tmp_path):
    """Another run starts in the directory of a run that was killed before its first checkpoint."""
    options = {"directory": tmp_path, "eval_every": 1, "eval_episodes": 2}
    fitted(10, CFG.replace(lr=1e-6), seed=5, **options)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.warns(UserWarning, match="the run has no checkpoint, so that it begins anew"):
        fitted(4, **options)
    best = purerl.load(tmp_path, best=True, env=Varied())
    assert (best.labels, best.cfg.lr) == (("seed 0",), CFG.lr)
    assert best.updates <= 4


@pytest.mark.long
@pytest.mark.slow
def test_resuming_without_evaluations_keeps_the_record_of_earlier_ones(tmp_path):
    constant = CFG.replace(lr_schedule="constant")
    fitted(4, constant, directory=tmp_path, eval_every=2, eval_episodes=3)
    fitted(6, constant, directory=tmp_path)
    evaluated = {"episodes": 3, "deterministic": False, "max_steps": None, "env_params": {}}
    assert checkpoint.newest_readable(tmp_path / "checkpoints").record["evaluated"] == evaluated


@pytest.mark.long
@pytest.mark.slow
def test_save_refuses_the_directory_of_fit(tmp_path):
    result = fitted(2, directory=tmp_path)
    with pytest.raises(purerl.ConfigError, match="belongs to a run of purerl"):
        purerl.save(tmp_path, result.run.train, result.state)
    fitted(2, directory=tmp_path)


def test_rendering_an_unrenderable_environment_is_refused_at_the_start(tmp_path):
    with pytest.raises(purerl.ConfigError, match="does not support rendering"):
        fitted(2, directory=tmp_path / "a", eval_every=1, render_every=1)
    assert not (tmp_path / "a" / "curves.jsonl").exists()


@pytest.mark.long
@pytest.mark.slow
def test_fit_returns_after_the_last_checkpoint_is_complete(fresh_python, tmp_path):
    code = f"""
import os, sys
sys.path.insert(0, ".")
import purerl
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG
purerl.fit(CFG, env=Varied(), directory={str(tmp_path)!r})
os._exit(0)
"""
    fresh_python(code, cwd=None)
    assert purerl.load(tmp_path, env=Varied()).updates == 4


# --- refused inputs ---------------------------------------------------------------------------------------------------


def refused(error, says, **kwargs):
    before = compiles()
    with pytest.raises(error, match=says):
        fitted(**kwargs)
    assert compiles() == before


@pytest.mark.slow
def test_directory_of_another_run_is_a_mismatch(tmp_path):
    fitted(updates=2, directory=tmp_path)
    mismatch = {"error": purerl.CheckpointMismatch, "directory": tmp_path}
    begins = rf"\n  choose another directory for a new run; .*, use init_from={re.escape(repr(str(tmp_path)))} "
    refused(says=r"lr: 0.001 in the checkpoint, 0.01 here" + begins, cfg=CFG.replace(lr=0.01), **mismatch)
    refused(says=r"num_envs: 4 in the checkpoint, 8 here" + begins, cfg=CFG.replace(num_envs=8), **mismatch)
    sizes = r"hidden: \[16, 16\] in the checkpoint, \[8\] here\n  choose another directory for a new run$"
    refused(says=sizes, cfg=CFG.replace(hidden=(8,)), **mismatch)
    refused(says="seed: 0 in the checkpoint, 1 here", seed=1, **mismatch)
    refused(says="num_seeds: 1 in the checkpoint, 2 here", num_seeds=2, **mismatch)
    refused(says=r"env: observations float32\[4\] in the checkpoint, observations float32\[8\] here", env=Wider(), **mismatch)


class Wider(Varied):
    """A task with observations of another size, under the same config."""

    def reset_env(self, key, params):
        obs, state = super().reset_env(key, params)
        return jnp.concatenate([obs, obs]), state

    def step_env(self, key, state, action, params):
        obs, *rest = super().step_env(key, state, action, params)
        return (jnp.concatenate([obs, obs]), *rest)


@pytest.mark.slow
def test_resume_option_decides_about_existing_checkpoints(tmp_path):
    refused(purerl.ConfigError, "no checkpoint to resume from", directory=tmp_path, resume="must")
    refused(purerl.ConfigError, "needs the directory", resume="must")
    constant = {"cfg": CFG.replace(lr_schedule="constant"), "directory": tmp_path}
    fitted(updates=2, resume="never", **constant)
    refused(purerl.ConfigError, "has checkpoints, up to update 2", resume="never", **constant)
    assert fitted(updates=3, resume="must", **constant).progress.began[0] == 2


# --- compilation ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_resumed_run_compiles_nothing_after_its_first_chunk(tmp_path):
    """No program is compiled after the first chunk of a resumed run."""
    stopped(tmp_path, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = []
        fitted(directory=tmp_path, chunk_seconds=1e-9, recorders=(lambda _: compiled.append(compiles()),))
    assert compiled[0] == compiled[-1]


# --- locks and paths --------------------------------------------------------------------------------------------------


def test_locks_work_without_fcntl(fresh_python, tmp_path):
    code = f"""
import sys
sys.modules["fcntl"] = None  # importing it fails, as on Windows
import warnings; warnings.simplefilter("ignore")
import purerl
from purerl.runs.directory import Lock
import pathlib
lock = Lock(pathlib.Path({str(tmp_path)!r}))
try:
    Lock(pathlib.Path({str(tmp_path)!r}))
except purerl.DirectoryLocked as error:
    print("locked", error)
lock.release()
Lock(pathlib.Path({str(tmp_path)!r})).release()
"""
    assert fresh_python(code).startswith("locked")


def test_lock_is_released_after_an_error(tmp_path):
    (tmp_path / "checkpoints").write_text("in the way")
    for _ in range(2):
        with pytest.raises(purerl.ConfigError, match="is not writable"):
            fitted(directory=tmp_path)
    Lock(tmp_path).release()


def test_directory_has_one_writer_and_many_readers(tmp_path):
    seen = []

    def intrude(progress):
        if progress.updates == 3:
            with pytest.raises(purerl.DirectoryLocked, match=f"process {os.getpid()}"):
                fitted(directory=tmp_path)
            seen.append(purerl.load(tmp_path, env=Varied()).updates)

    fitted(directory=tmp_path, save_every=1, recorders=(intrude,))
    assert seen in ([2], [1])


BAD_DIRECTORIES = [
    ("", "must be a path"),
    (7, "must be a path"),
    ("gs://bucket/run", "local or mounted"),
    ("/proc/run", "is not writable"),
    (__file__, "is not writable"),
]


@pytest.mark.parametrize(("directory", "says"), BAD_DIRECTORIES, ids=["empty", "number", "bucket", "proc", "file"])
def test_invalid_directories_are_refused(directory, says):
    with pytest.raises(purerl.ConfigError, match=says):
        fitted(directory=directory)


@pytest.mark.slow
def test_relative_directories_are_resolved_at_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run_directory("a/b") == tmp_path / "a" / "b"
    assert run_directory("~/c") == tmp_path / "home" / "c"
    fitted(updates=3, directory="run", save_every=1, recorders=(lambda _: monkeypatch.chdir("/"),))
    assert purerl.load(tmp_path / "run", env=Varied()).updates == 3
