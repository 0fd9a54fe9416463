"""Orbax, kept off the terminal: its errors arrive as exceptions. This is the only module that imports it."""

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax

from purerl.runs.processes import process_count


def orbax() -> Any:
    """Return Orbax's v1 interface, which prints nothing."""
    for logger in ("absl", "asyncio"):  # where one array cannot be read, asyncio would show what became of the others
        logging.getLogger(logger).addFilter(_not_of_orbax)
    if not isinstance(sys.unraisablehook, _Unraisable):
        sys.unraisablehook = _Unraisable(sys.unraisablehook)
        warnings.filterwarnings("ignore", r"coroutine '(\w*Handler\.\w+|_create_paths)' was never awaited", RuntimeWarning)
    from orbax.checkpoint import v1

    return v1


def in_this_process() -> contextlib.AbstractContextManager:
    """Let Orbax read in this process alone, without waiting for the others of a job."""
    v1, options = orbax(), {}
    if process_count() > 1:
        here = jax.process_index()
        alone = {"primary_host": here, "active_processes": {here}, "barrier_sync_key_prefix": f"of_{here}"}
        options["multiprocessing_options"] = v1.options.MultiprocessingOptions(**alone)
    return v1.Context(**options)


def _not_of_orbax(record: logging.LogRecord) -> bool:
    names = f"{record.pathname} {record.getMessage()}"
    return "orbax" not in names and "tensorstore" not in names


class _Unraisable:
    """A hook for errors that no code can catch.

    Where one array cannot be written, Orbax closes the event loop that the others are about to report to. Each of those then
    would print a traceback, dozens of them, from a thread of TensorStore's.
    """

    def __init__(self, otherwise: Callable[[Any], None]):
        self._otherwise = otherwise

    def __call__(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        if unraisable.object is None and isinstance(error, RuntimeError) and str(error) == "Event loop is closed":
            return
        self._otherwise(unraisable)
