"""Number predicates, divisors, and the choices nearest to a number."""

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np


def is_int(value: Any) -> TypeGuard[int]:
    """Return True for an integer that is not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_count(value: Any) -> TypeGuard[int]:
    """Return True for an integer of at least 1 that is not a bool."""
    return is_int(value) and value >= 1


def is_flag(value: Any) -> bool:
    """Return True for a bool."""
    return isinstance(value, bool | np.bool_)


def is_number(value: Any) -> bool:
    """Return True for a number that is not a bool."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive int in ascending order."""
    small = [x for x in range(1, math.isqrt(number) + 1) if number % x == 0]
    return sorted({*small, *(number // x for x in small)})


def neighbours(wanted: int, choices: Iterable[int]) -> list[int]:
    """Return the choices next to `wanted`, below and above. Omit an upper choice over `2 * wanted` if there is a lower choice."""
    choices = sorted(choices)
    below, over = [x for x in choices if x <= wanted][-1:], [x for x in choices if x >= wanted][:1]
    return sorted({*below, *(x for x in over if x <= 2 * wanted or not below)})
