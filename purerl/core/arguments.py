"""Functions of users, which may have some parameters and leave out others."""

import inspect
from collections.abc import Callable
from typing import Any


def accepted(function: Callable, **values: Any) -> dict[str, Any]:
    """Return the keyword arguments that a function accepts."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function of C has none that can be read
        return {}
    return {name: x for name, x in values.items() if name in names}
