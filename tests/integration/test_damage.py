"""Damaged files, full disks, kills, and input that would lose a run.

Tests that take long are marked slow; those that make whole tables are marked long: see `tests.helpers.faults`.
"""

import shutil

import jax
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from tests.helpers.faults import FULL, KILLED_LATE, script
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.probes import Varied
from tests.helpers.programs import compiles
from tests.helpers.tiny import CFG, digest

EVALUATED = {"eval_every": 2, "eval_episodes": 4, "eval_max_steps": 8}


# --- NumPy numbers, and limits beyond int32 --------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_runs_configured_with_numpy_numbers_resume(tmp_path):
    cfg = CFG.replace(num_envs=np.int8(4), num_steps=np.int8(100), total_timesteps=np.int64(1200), num_minibatches=np.uint8(2))
    assert cfg.batch_size == 400
    whole = {"num_seeds": np.int32(2), "exact": np.bool_(True), "save_every": np.int8(1), "keep": np.int64(2)}
    result = purerl.fit(cfg, np.int64(3), tmp_path, env=Varied(), **whole)
    loaded = purerl.load(tmp_path, env=Varied())
    assert digest(loaded.state) == digest(result.state)
    assert loaded.labels == ("seed 3", "seed 4")
    assert PPOConfig.from_json(PPOConfig(env_kwargs=(("size", np.int64(12)),)).to_json()).env_kwargs == (("size", 12),)
    plain = {"num_seeds": 2, "exact": True}
    assert purerl.fit(cfg.replace(num_envs=4), 3, tmp_path, env=Varied(), **plain).progress.began[0] == 3


@pytest.mark.parametrize("limit", [2**31, 2**63, 0, -5, 1.5, float("nan")])
def test_invalid_time_limits_are_refused(limit):
    with pytest.raises(
        purerl.ConfigError, match=r"max_steps_in_episode.*(must be between 1 and 2147483647|a whole number|finite number)"
    ):
        purerl.make_train(PPOConfig(env_params={"max_steps_in_episode": limit}))


def test_largest_int32_time_limit_is_accepted():
    train = purerl.make_train(PPOConfig(env="Pendulum-v1", env_params={"max_steps_in_episode": 2**31 - 1}))
    state = jax.jit(train.init)(jax.random.key(0))
    assert train.env.max_steps == 2**31 - 1
    assert purerl.summarize(jax.jit(train.update)(state)[1])["episodes"] == 0


# --- damage beside the checkpoints --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Return a run stopped after six of ten updates, and the result of the whole run."""
    directory = tmp_path_factory.mktemp("evaluated") / "run"
    whole = fitted(chunk_seconds=1e-9, **EVALUATED)
    stopped(directory, 6, save_every=3, **EVALUATED)
    return directory, whole


def rows_of(result):
    return {name: np.stack([x[..., i] for i in range(10)]) for name, x in purerl.summarize(result.metrics).items()}


DAMAGES = {
    "a row": ("curves.jsonl", lambda data: data[:-200] + bytes([data[-200] ^ 4]) + data[-199:], 1),
    "the first line": ("curves.jsonl", lambda data: b"{" + data, 0),
    "cut": ("curves.jsonl", lambda data: data[:-400], 3),
    "gone": ("curves.jsonl", None, 6),
    "an evaluation": ("evaluations.jsonl", lambda data: data.replace(b"episode_length", b"episode_lenght", 1), 0),
    "no evaluations": ("evaluations.jsonl", None, 0),
}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.each_landing("a row")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_metrics_leave_the_state_and_other_rows_intact(evaluated, tmp_path, damage):
    directory, whole = evaluated
    copy = tmp_path / "run"
    shutil.copytree(directory, copy)
    name, change, most = DAMAGES[damage]
    path = copy / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.warns(UserWarning, match=f"{name}: .* (damaged|missing)"):
        result = fitted(directory=copy, **EVALUATED)
    assert digest(result.state) == digest(whole.state)
    got, want = rows_of(result), rows_of(whole)
    lost = np.isnan(got["loss"])
    assert lost.sum() <= most
    assert not lost[6:].any()
    for metric in want:
        np.testing.assert_array_equal(got[metric][~lost], want[metric][~lost])
    np.testing.assert_array_equal(got["steps"], 64)
    known = dict(zip(whole.evaluations["update"], whole.evaluations["episode_return"][:, 0], strict=True))
    for update, score in zip(result.evaluations["update"], result.evaluations["episode_return"][:, 0], strict=True):
        assert score == known[update]
    again = fitted(directory=copy, **EVALUATED)  # the damage was reported once and is repaired as far as possible
    assert digest(again.metrics) == digest(result.metrics)


@pytest.mark.slow
def test_metrics_damaged_during_a_run_leave_its_result_intact(tmp_path):
    def damage(progress):
        if progress.updates == 5:
            path = tmp_path / "curves.jsonl"
            path.write_bytes(path.read_bytes()[:-100] + bytes(99) + b"\n")

    options = {"directory": tmp_path, "save_every": 1, "chunk_seconds": 1e-9}
    result, whole = fitted(recorders=(damage,), **options), fitted(chunk_seconds=1e-9)
    assert digest(result.state) == digest(whole.state)
    assert digest(result.metrics) == digest(whole.metrics)
    with pytest.warns(UserWarning, match=r"curves\.jsonl: damaged or missing: 1 of 10 records"):
        result = fitted(**options)
    assert np.isnan(purerl.summarize(result.metrics)["loss"]).sum() == 1


# --- a full disk --------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("mode", ["raise", "warn"])
def test_full_disk_follows_on_save_error_and_prints_only_purerls_message(tmp_path, mode):
    code, out = script(FULL, tmp_path / "run", mode=mode, at=12)
    ours = [
        line for line in out if any(says in line for says in ("could not be saved to", "could not be written", "the recorder"))
    ]
    assert ours == [line for line in out if not line.startswith(("writes:", "result:"))]
    assert all("File too large" in line for line in ours)
    assert code == (1 if mode == "raise" else 0)
    assert any("no error is raised" in line for line in ours) == (mode == "warn")
    code, out = script(FULL, tmp_path / "run", mode="raise", at=0)
    whole = script(FULL, tmp_path / "whole", mode="raise", at=0)
    assert (code, out[-1]) == (0, whole[1][-1])


# --- a checkpoint that cannot be read -----------------------------------------------------------------------------


OTHERS = [pytest.param(text, marks=pytest.mark.slow) for text in ("", "null", '{"custom_metadata": 5}', "\\xff")]


@pytest.mark.slow
@pytest.mark.each_landing("null")
@pytest.mark.parametrize("metadata", ["[]", *OTHERS])
def test_unreadable_newest_checkpoint_falls_back_to_the_previous_one(tmp_path, metadata):
    fitted(updates=4, directory=tmp_path, save_every=2)
    path = tmp_path / "checkpoints" / "4" / "_CHECKPOINT_METADATA"
    path.write_text(metadata)
    with pytest.warns(UserWarning, match="reading the previous checkpoint"):
        result = fitted(updates=4, directory=tmp_path)
    assert result.progress.began[0] == 2
    assert purerl.load(tmp_path, env=Varied()).updates == 4  # the checkpoint is rewritten


# --- refused before anything is compiled --------------------------------------------------------------------------


class Endless(Varied):
    """A probe without a known time limit."""

    default_params = None

    def is_truncated(self, state, params):
        return jax.numpy.bool_(False)


LATE = {
    "no limit": ({"env": Endless(), "eval_every": 1}, "max_steps = None: the environment has no known time limit"),
    "params": ({"eval_every": 1, "eval_env_params": {"gravty": 1.0}}, "env_params"),
    "text": ({"eval_every": 1, "eval_max_steps": "x"}, "eval_max_steps = 'x': must be an int of at least 1"),
    "zero": ({"eval_every": 1, "eval_max_steps": 0}, "eval_max_steps = 0: must be an int of at least 1"),
    "negative": ({"eval_max_steps": -1}, "eval_max_steps = -1"),
    "fraction": ({"eval_max_steps": 2.5}, "eval_max_steps = 2.5: must be an int of at least 1"),
    "a flag": ({"exact": "no"}, "exact = 'no': must be True or False"),
    "checkpoints": ({"directory": "checkpoints"}, "is not writable"),
    "curves": ({"directory": "curves.jsonl"}, "is a directory"),
}


@pytest.mark.parametrize("case", LATE)
def test_invalid_fit_options_are_refused_before_compiling(case, tmp_path):
    options, says = LATE[case]
    if name := options.get("directory"):
        (tmp_path / name).mkdir() if name == "curves.jsonl" else (tmp_path / name).write_text("")
        options = {"directory": tmp_path}
    before = compiles()
    with pytest.raises(purerl.ConfigError) as error:
        fitted(**options)
    assert says in str(error.value)
    assert compiles() == before


# --- the best state -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_best_state_is_complete_before_a_later_checkpoint(tmp_path):
    """Kill a run right after a checkpoint, while an earlier best state is still being written."""
    code, _ = script(KILLED_LATE, tmp_path / "run")
    assert code == 9
    code, out = script(FULL, tmp_path / "run", mode="raise", at=0)
    assert code == 0, out
    assert out[-1] == script(FULL, tmp_path / "whole", mode="raise", at=0)[1][-1]
