"""Custom functions that accept only some of the offered arguments."""

import inspect
from collections.abc import Callable
from typing import Any


def accepted(function: Callable, **values: Any) -> dict[str, Any]:
    """Return the keyword arguments that `function` accepts. If its signature cannot be read, return an empty dict."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):  # C functions have no readable signature
        return {}
    return {name: x for name, x in values.items() if name in names}
