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
    ({"stop_when": purerl.at_return, "stop_every": 1}, "needs a target return: purerl.at_return(475)"),
    ({"render_every": 1}, "render_every = 1: needs eval_every and a directory"),
]


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS, ids=[next(iter(options)) for options, _ in BAD_OPTIONS])
def test_invalid_options_are_refused(options, says):
    with pytest.raises(purerl.ConfigError) as error:
        fitted(**options)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"eval_episodes": 4}, "eval_episodes = 4: has no effect without eval_every"),
        ({"eval_env_params": {"gravityy": 3.0}}, "eval_env_params = .* has no effect without eval_every"),
        ({"best_by": "nonsense"}, "best_by = 'nonsense': has no effect without eval_every"),
        ({"keep_every": 2}, "keep_every = 2: has no effect without directory"),
        ({"on_save_error": "warn"}, "on_save_error = 'warn': has no effect without directory"),
        ({"stop_when": purerl.at_return(9), "stop_every": 9}, "stop_every = 9 is more than the 1 updates"),
    ],
)
def test_options_without_an_effect_warn(options, says):
    with pytest.warns(UserWarning, match=says):
        fitted(updates=1, **options)


def test_zero_seeds_are_refused():
    with pytest.raises(purerl.ConfigError, match="num_seeds"):
        fitted(num_seeds=0)
