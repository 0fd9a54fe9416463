"""Rules for the arguments of `fit`."""

import pytest

import purerl
from tests.helpers.interrupted import fitted

BAD_OPTIONS = [
    ({"save_every": -1}, "save_every = -1: must be an int of at least 0"),
    ({"eval_every": 2.5}, "eval_every = 2.5: must be an int of at least 0"),
    ({"keep": 0}, "keep = 0: must be an int of at least 1"),
    ({"save_seconds": 0}, "save_seconds = 0: must be a number above 0"),
    ({"resume": "maybe"}, "resume = 'maybe': choose from 'auto', 'must', 'never'"),
    ({"render_every": 1}, "render_every = 1: needs eval_every and a directory"),
]


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS, ids=[next(iter(options)) for options, _ in BAD_OPTIONS])
def test_invalid_options_are_refused(options, says):
    with pytest.raises(purerl.ConfigError) as error:
        fitted(**options)
    assert says in str(error.value)


def test_zero_seeds_are_refused():
    with pytest.raises(purerl.ConfigError, match="num_seeds"):
        fitted(num_seeds=0)
