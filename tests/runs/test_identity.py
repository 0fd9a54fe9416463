"""Differences between two runs."""

import numpy as np

from purerl.runs.identity import _same


def test_two_runs_with_other_integers_are_not_the_same():
    assert not _same(16_777_217, 16_777_216)  # the same number in single precision
    assert _same({"lr": 1e-3}, {"lr": float(np.float32(1e-3))})
