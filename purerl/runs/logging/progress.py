"""The progress of a run, as passed to recorders."""

from typing import Any, NamedTuple

import numpy as np

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
          entries of `info` and `episode_info` that the config names, such as `episode_info/success`; None if there is none yet.
        first_step: environment steps before the first update, with `continue_steps` of `fit`.
    """

    plan: Plan
    labels: tuple[str, ...]
    updates: int
    seconds: float
    metrics: dict[str, Any]
    began: tuple[int, float] = (0, 0.0)
    evaluation: dict[str, np.ndarray] | None = None
    first_step: int = 0

    @property
    def steps(self) -> int:
        """Return the environment steps so far, over all runs."""
        return self.updates * self.plan.batch_size * len(self.labels)

    def steps_of_run(self, updates: int | None = None) -> int:
        """Return the environment steps of one run after so many updates, by default now, counted from `first_step`."""
        return self.first_step + (self.updates if updates is None else updates) * self.plan.batch_size

    @property
    def steps_in_words(self) -> str:
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
