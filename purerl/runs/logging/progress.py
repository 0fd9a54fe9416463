"""The progress of a run, and the calls of recorders that receive it."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np

from purerl.core.errors import warn
from purerl.core.plan import Plan


class Progress(NamedTuple):
    """The progress of a run after a chunk.

    Attributes:
        plan: plan of the whole run.
        labels: one label per run, such as "seed 3".
        updates: finished updates.
        seconds: time spent on these updates, over all resumptions, including evaluations and saves but not compilation of
          updates.
        metrics: metrics of this chunk's updates; leaves `[chunk]`, or `[runs, chunk]`.
        began: updates and seconds at which this process started or resumed.
        evaluation: the columns of the latest evaluation, each `[runs]`: `episode_return`, `episode_length`, `finished`, and the
          entries of `info` and `episode_info` that the config names, such as `episode_info/success`; None before any evaluation.
        first_step: environment steps before the first update; above 0 only with `continue_steps` of `fit`.
    """

    plan: Plan
    labels: tuple[str, ...]
    updates: int
    seconds: float
    metrics: dict[str, Any]
    began: tuple[int, float] = (0, 0.0)
    evaluation: dict[str, np.ndarray] | None = None
    first_step: int = 0

    def __repr__(self) -> str:
        """Describe the updates, steps and seconds so far, without arrays."""
        return f"{self.updates:,} of {self.plan.num_updates:,} updates, {self.steps_text}, {self.seconds:.1f} s"

    @property
    def steps(self) -> int:
        """Return the environment steps so far, over all runs."""
        return self.updates * self.plan.batch_size * len(self.labels)

    def steps_of_run(self, updates: int | None = None) -> int:
        """Return the environment steps of one run after `updates` updates, by default all so far, including `first_step`."""
        return self.first_step + (self.updates if updates is None else updates) * self.plan.batch_size

    @property
    def steps_text(self) -> str:
        """Describe the environment steps so far over all runs, and the number of runs: "90,624 steps of 3 runs"."""
        return f"{self.steps:,} steps" + (f" of {len(self.labels)} runs" if len(self.labels) > 1 else "")

    @property
    def is_finished(self) -> bool:
        """Return True after the last update of the plan."""
        return self.updates == self.plan.num_updates

    @property
    def steps_per_second(self) -> float:
        """Return the environment steps per second of this process."""
        updates = self.updates - self.began[0]
        return updates * self.plan.batch_size * len(self.labels) / max(self.seconds - self.began[1], 1e-9)

    @property
    def seconds_left(self) -> float:
        """Return the estimated seconds until the last update."""
        updates = self.updates - self.began[0]
        return (self.seconds - self.began[1]) * (self.plan.num_updates - self.updates) / max(updates, 1)


class Reports:
    """A context manager that calls recorders. A recorder that fails is skipped, with a warning, until the next checkpoint.

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
        """Pass the file of a rendered episode to the recorders."""
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
                warn(f"the recorder {recorder!r} failed and is skipped until the next checkpoint: {error!r}")

    def _error_of(self, recorder: Any, method: str, *args: Any) -> Exception | None:
        try:
            if hasattr(recorder, method):
                getattr(recorder, method)(*args)
        except Exception as error:
            return error
        return None
