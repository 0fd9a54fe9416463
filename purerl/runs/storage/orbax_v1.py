"""Orbax without terminal output: Orbax reports errors only as exceptions. Only this module imports Orbax."""

import contextlib
import functools
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax

from purerl.runs.devices.processes import process_count


def orbax() -> Any:
    """Return Orbax's v1 interface, silenced."""
    for logger in ("absl", "asyncio"):  # if one array cannot be read, asyncio would log errors of the other arrays
        logging.getLogger(logger).addFilter(_not_of_orbax)
    if getattr(sys.unraisablehook, "func", None) is not _report:
        sys.unraisablehook = functools.partial(_report, sys.unraisablehook)
        warnings.filterwarnings("ignore", r"coroutine '(\w*Handler\.\w+|_create_paths)' was never awaited", RuntimeWarning)
    from orbax.checkpoint import v1

    return v1


def in_this_process() -> contextlib.AbstractContextManager:
    """Let Orbax read in this process alone, without waiting for the other processes of the job."""
    v1, options = orbax(), {}
    if process_count() > 1:
        here = jax.process_index()
        alone = {"primary_host": here, "active_processes": {here}, "barrier_sync_key_prefix": f"of_{here}"}
        options["multiprocessing_options"] = v1.options.MultiprocessingOptions(**alone)
    return v1.Context(**options)


def _not_of_orbax(record: logging.LogRecord) -> bool:
    names = f"{record.pathname} {record.getMessage()}"
    return "orbax" not in names and "tensorstore" not in names


def _report(otherwise: Callable[[Any], None], unraisable: Any) -> None:
    """Pass an error that no code can catch to the hook `otherwise`, unless the error is about a closed event loop.

    If one array cannot be written, Orbax closes the event loop to which the other arrays are about to report. A thread of
    TensorStore would then print a traceback for each of the other arrays, dozens in all.
    """
    if unraisable.object is not None or str(unraisable.exc_value) != "Event loop is closed":
        otherwise(unraisable)
