"""What kind of number a value is."""

from typing import Any

import numpy as np


def is_int(value: Any) -> bool:
    """Whether it is a whole number, and no bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether it is a whole number of at least 1."""
    return is_int(value) and value >= 1


def is_flag(value: Any) -> bool:
    """Whether it is a bool."""
    return isinstance(value, bool | np.bool_)


def is_number(value: Any) -> bool:
    """Whether it is a number, and no bool."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
