"""Predicates of numbers, divisors and neighbours."""

import numpy as np

from purerl.core.numbers import divisors, is_count, is_flag, is_int, is_number, neighbours


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
