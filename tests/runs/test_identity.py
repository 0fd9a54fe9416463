"""Comparison of a resumed run with the saved one."""

import gymnasium
import numpy as np
import pytest

from purerl.runs.identity import differences, identity
from purerl.runs.storage.objects import versions
from tests.helpers.interrupted import fitted
from tests.helpers.tiny import CFG, tiny


def test_integers_are_compared_exactly_and_other_numbers_in_single_precision():
    cfg = CFG.replace(lr_schedule="polynomial", decay_steps=16_777_217)
    record = identity(tiny(cfg), cfg)
    changed = lambda **values: differences({**record, "config": record["config"] | values}, record, type(cfg))
    assert changed(decay_steps=16_777_216)  # equal in single precision
    assert not changed(lr=float(np.float32(cfg.lr)))


@pytest.mark.slow
def test_resuming_with_other_runs_per_device_warns(tmp_path, monkeypatch):
    constant = {"cfg": CFG.replace(lr_schedule="constant"), "directory": tmp_path}
    fitted(updates=2, **constant)
    monkeypatch.setattr("purerl.runs.trainer.Trainer.share", 4)
    with pytest.warns(UserWarning, match="may not be bit-identical: runs per device 1 before, 4 now"):
        fitted(updates=3, **constant)


@pytest.mark.long
def test_extending_a_run_warns_if_its_schedule_follows_total_timesteps(tmp_path):
    says = r"total_timesteps = 256: was 128; the schedules that depend on it \(lr_schedule, ent_schedule\) jump"
    both = {"cfg": CFG.replace(ent_schedule="linear"), "directory": tmp_path / "both"}
    fitted(updates=2, **both)
    with pytest.warns(UserWarning, match=says):
        fitted(updates=4, **both)


@pytest.mark.long
@pytest.mark.slow
def test_extending_a_run_does_not_warn_if_its_schedule_has_fixed_length(tmp_path):
    fixed = {"cfg": CFG.replace(lr_schedule="polynomial", decay_steps=100), "directory": tmp_path / "fixed"}
    fitted(updates=2, **fixed)
    fitted(updates=4, **fixed)  # a warning would be an error here


def test_versions_include_the_packages_of_the_suite():
    assert {"jax", "gymnax"} <= versions("CartPole-v1").keys()
    assert "gymnasium" not in versions("CartPole-v1")
    assert versions("gymnasium/CartPole-v1")["gymnasium"] == gymnasium.__version__
