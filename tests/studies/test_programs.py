"""Programs of a sweep: how many configs are trained side by side."""

import numpy as np
import pytest

import purerl
from purerl.studies import programs
from tests.helpers.probes import Varied
from tests.helpers.studies import SHORT


def test_smallest_program_does_not_limit_the_others():
    made = purerl.sweep(SHORT, [{"lr": 1e-3}, {"lr": 2e-3}, {"num_steps": 2 * SHORT.num_steps}])
    sizes = [len(program.places) for program in made.programs()]
    counts = [programs.count_fitting(programs.runs_of(x, 0, 1, {"env": Varied()}), most=3) for x in made.programs()]
    assert (sizes, counts) == ([2, 1], [3, 3])


def test_names_of_programs_are_valid_names_of_directories():
    assert programs.name_of(2, {"hidden": (64, 64), "activation": "relu"}) == "2-hidden=64x64,activation=relu"
    assert programs.name_of(0, {"env": "brax/ant"}) == "0-env=brax_ant"
    assert programs.name_of(1, {}) == "1"


@pytest.mark.long
def test_sweep_too_large_for_memory_is_trained_in_batches(tmp_path, monkeypatch):
    made = purerl.sweep(SHORT, {"lr": [1e-3, 2e-3, 3e-3, 4e-3]})
    runs = programs.runs_of(made.programs()[0], 0, 2, {"env": Varied()})
    runs.compile(runs.template())
    monkeypatch.setattr(programs, "available_bytes", lambda: 0.6 * runs.needed_bytes() / programs.MEMORY_FRACTION)
    result = made.fit(0, tmp_path, num_seeds=2, env=Varied())
    assert [program.places for program in result.programs] == [(0, 1), (2, 3)]
    monkeypatch.undo()
    again = made.fit(0, tmp_path, num_seeds=2, env=Varied())  # the sweep keeps the batches of its first call
    assert [program.places for program in again.programs] == [(0, 1), (2, 3)]
    np.testing.assert_array_equal(again.returns, result.returns)
