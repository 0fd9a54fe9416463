"""Fourteen configs end with their recorded parameters after three updates: see `tests.helpers.recorded`."""

import numpy as np
import pytest

from tests.helpers.recorded import CASES, TOLERANCE, circumstances, digest, params, recorded

EVERY_TIME = ("ppo", "ppg", "appo", "gru", "rich")  # the others are slow, and compiled as by users


@pytest.mark.each_landing("daac", "lstm", "rnd", "box")
@pytest.mark.parametrize(
    "name", [name if name in EVERY_TIME else pytest.param(name, marks=[pytest.mark.slow, pytest.mark.as_users]) for name in CASES]
)
def test_parameters_match_the_record(name):
    hashes, numbers = recorded()
    found = params(name)
    # Numbers are compared before hashes, so that a failure says how far apart the two are.
    np.testing.assert_allclose(found, numbers[name], rtol=TOLERANCE, atol=TOLERANCE)
    if here := hashes.get(circumstances(), {}).get(name):
        assert digest(found) == here


def test_every_config_is_recorded():
    hashes, numbers = recorded()
    assert set(numbers) == set(CASES)
    assert all(set(names) <= set(CASES) for names in hashes.values())
