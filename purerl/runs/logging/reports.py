"""Calls of recorders during training."""

import pathlib
import warnings
from collections.abc import Callable
from typing import Any, Self

from purerl.runs.logging.progress import Progress


class Reports:
    """Calls recorders. A recorder that fails is skipped, with a warning, until the next checkpoint. Use as a context manager.

    Attributes:
        latest: the `Progress` of the last call.
    """

    def __init__(self, recorders: tuple[Callable[[Progress], None], ...], began: Progress):
        self._recorders, self._failed, self.latest = recorders, set[int](), began

    def __enter__(self) -> Self:
        self._each("begin", self.latest)
        return self

    def __call__(self, progress: Progress) -> None:
        self.latest = progress
        self._each("__call__", progress)

    def show(self, progress: Progress, path: pathlib.Path) -> None:
        """Show recorders the file of a rendered episode."""
        self._each("show", progress, path)

    def flush(self) -> None:
        """Flush recorders before a checkpoint, and restart failed recorders. A restart that fails gives no further warning."""
        failed = set(self._failed)
        self._each("flush")
        self._failed -= {i for i in failed if self._error_of(self._recorders[i], "begin", self.latest) is None}

    def __exit__(self, *_) -> None:
        self._each("close")
        for i in self._failed:
            self._error_of(self._recorders[i], "close")

    def _each(self, method: str, *args: Any) -> None:
        """Call a method of each recorder that has not failed."""
        for i, recorder in enumerate(self._recorders):
            if i not in self._failed and (error := self._error_of(recorder, method, *args)) is not None:
                self._failed.add(i)
                hint = "and is skipped until the next checkpoint"
                warnings.warn(f"the recorder {recorder!r} failed {hint}: {error!r}", stacklevel=4)

    def _error_of(self, recorder: Any, method: str, *args: Any) -> Exception | None:
        try:
            if hasattr(recorder, method):
                getattr(recorder, method)(*args)
        except Exception as error:
            return error
        return None
