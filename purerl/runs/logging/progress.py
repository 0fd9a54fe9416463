"""The progress of a run, as recorders receive it."""

from typing import Any, NamedTuple

import numpy as np

from purerl.core.plan import Plan


class Progress(NamedTuple):
    """The progress of a run after a chunk.

    plan: the whole run.
    labels: of the runs side by side, one each: "seed 3".
    updates: finished updates.
    seconds: spent on them by all processes, with evaluations and saves, without compiling what trains.
    metrics: of this chunk's updates; leaves `[chunk]`, or `[runs, chunk]`.
    began: the updates and seconds that this process went on from.
    evaluation: the newest one, `episode_return`, `episode_length` and `finished`, each `[runs]`; None if there is none.
    """

    plan: Plan
    labels: tuple[str, ...]
    updates: int
    seconds: float
    metrics: dict[str, Any]
    began: tuple[int, float] = (0, 0.0)
    evaluation: dict[str, np.ndarray] | None = None

    @property
    def steps(self) -> int:
        """Return the environment steps so far, over all runs."""
        return self.updates * self.plan.batch_size * len(self.labels)

    @property
    def steps_per_second(self) -> float:
        """Return the steps per second of this process."""
        updates = self.updates - self.began[0]
        return updates * self.plan.batch_size * len(self.labels) / max(self.seconds - self.began[1], 1e-9)

    @property
    def seconds_left(self) -> float:
        updates = self.updates - self.began[0]
        return (self.seconds - self.began[1]) * (self.plan.num_updates - self.updates) / max(updates, 1)
