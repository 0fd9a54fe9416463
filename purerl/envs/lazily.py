"""Modules that are imported when they are first used, and not where a library imports them."""

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any


class _Later(types.ModuleType):
    """Stands for a module until one of its attributes is read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def lazily(*names: str) -> Iterator[None]:
    """What is imported within the block has these modules only when it reads one of their attributes."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update({name: _Later(name) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            if isinstance(sys.modules.get(name), _Later):
                del sys.modules[name]
