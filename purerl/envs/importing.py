"""How other libraries are imported: some of their modules when they are first used, and quietly."""

import builtins
import contextlib
import importlib
import sys
import types
import warnings
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


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Within it a library is imported without its warnings, and as if outside of a notebook, whose pictures it would change."""
    notebook = vars(builtins).pop("__IPYTHON__", None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if notebook is not None:
            builtins.__IPYTHON__ = notebook
