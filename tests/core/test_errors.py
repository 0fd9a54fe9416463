"""Messages of errors, and errors of custom code."""

import pytest

from purerl.core.errors import CheckpointMismatch, ConfigError, Problem, code_of, guarded, nearest, raise_if_any, would_work


def test_messages_count_problems_and_stay_short():
    raise_if_any([])
    with pytest.raises(ConfigError, match=r"^1 problem:\n  lr = -1\.0: must be at least 0$"):
        raise_if_any([Problem("lr", -1.0, "must be at least 0")])
    with pytest.raises(ConfigError, match=r"^2 problems:\n  a = .{100} \.\.\. \(str\): x\n  b = 1: y$"):
        raise_if_any([Problem("a", "x" * 1000, "x"), Problem("b", 1, "y")])
    lines = str(CheckpointMismatch("runs/a", [*"abcdefg"], "hint")).splitlines()
    assert [line.strip() for line in lines[1:]] == [*"abcde", "and 2 more", "hint"]


def test_hints_propose_values_that_would_work():
    assert nearest("num_evns", ["num_envs", "lr"]) == "did you mean 'num_envs'?"
    assert nearest("x", ["num_envs", "lr"]) == "choose from num_envs, lr"
    assert nearest("x", ["num_envs"], "none") == "none"
    assert (would_work([4, 8]), would_work([])) == ("; 4 or 8 would work", "")


def test_error_in_custom_code_names_its_argument():
    def fails():
        raise KeyError("x")

    with pytest.raises(ConfigError, match="env = 'fails': raised KeyError: 'x'") as error:
        guarded("env", fails)()
    assert isinstance(error.value.__cause__, KeyError)
    with pytest.raises(ConfigError) as same, code_of("network", "init"):
        raise error.value
    assert same.value is error.value
