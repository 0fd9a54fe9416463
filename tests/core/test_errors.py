"""Messages of errors, and errors of custom code."""

import jax
import numpy as np
import pytest

import purerl
from purerl.core.errors import (
    CheckpointMismatch,
    ConfigError,
    Problem,
    convert_errors,
    divisors,
    guard,
    is_count,
    is_flag,
    is_int,
    is_number,
    nearest,
    neighbours,
    raise_if_any,
    warn,
    would_work,
)


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
    assert nearest("x", [f"field{i}" for i in range(100)]).endswith("field59 and 40 more")
    assert nearest("x", ["num_envs"], "none") == "none"
    assert (would_work([4, 8]), would_work([])) == ("; 4 or 8 would work", "")


def test_error_in_custom_code_names_its_argument():
    def fails():
        raise KeyError("x")

    with pytest.raises(ConfigError, match="env: fails raised KeyError: 'x'") as error:
        guard("env", fails)()
    assert isinstance(error.value.__cause__, KeyError)
    with pytest.raises(ConfigError) as same, convert_errors("network", "init"):
        raise error.value
    assert same.value is error.value


def test_warnings_point_to_the_callers_line():
    with pytest.warns(UserWarning, match="once") as found:
        jax.eval_shape(lambda: warn("once"))
    assert found[0].filename == __file__
    with pytest.warns(UserWarning, match="actions are random until the end") as found:
        purerl.fit(purerl.PPOConfig(env="Catch-bsuite", total_timesteps=512, warmup_steps=512))
    assert found[0].filename == __file__


def test_a_bool_is_neither_an_integer_nor_a_number():
    kinds = lambda x: [is_int(x), is_count(x), is_flag(x), is_number(x)]
    assert kinds(True) == kinds(np.bool_(True)) == [False, False, True, False]
    assert kinds(3) == kinds(np.int32(3)) == [True, True, False, True]
    assert kinds(0) == [True, False, False, True]
    assert kinds(0.5) == kinds(np.float32(0.5)) == [False, False, False, True]
    assert kinds("3") == kinds(None) == [False] * 4


def test_divisors_are_complete_and_neighbours_are_the_nearest_choices():
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(49) == [1, 7, 49]
    assert neighbours(7, divisors(512)) == [4, 8]
    assert neighbours(4, [4, 8]) == [4]
    assert neighbours(3, [2, 100]) == [2]
    assert neighbours(3, [100]) == [100]
