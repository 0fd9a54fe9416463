"""Learning curves of runs that `fit` kept in directories."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from purerl import curves, statistics
from purerl.errors import CheckpointError, ConfigError, Problem, nearest
from purerl.metrics import add_up, summarize

CENTRES = {"iqm": ("interquartile mean", statistics.iqm), "mean": ("mean", statistics.mean)}
POINTS = 60  # on a curve, at most


def curve(path: str | os.PathLike, metric: str = "episode_return") -> tuple[np.ndarray, np.ndarray]:
    """A metric of a run over environment steps (of one seed), `[points]`, and its values, `[seeds, points]`.

    Rows are added up to at most 60 points, each the mean over everything counted in it; NaN where nothing was.

    Raises:
        CheckpointError: the directory has no curves.
        ConfigError: no such metric.
    """
    file = pathlib.Path(path).expanduser() / "curves.bin"
    if not file.exists():
        raise CheckpointError(f"no metrics in {path}")
    metrics, _ = curves.read(file)
    if metric not in metrics:
        raise ConfigError([Problem("metric", metric, nearest(metric, metrics))])
    steps, chosen = np.cumsum(np.atleast_2d(metrics["steps"].total)[0], dtype=np.int64), metrics[metric]
    each = -(-len(steps) // POINTS)
    ends = [*range(each, len(steps), each), len(steps)]
    part = lambda begin, end: type(chosen)(**{name: x[..., begin:end] for name, x in vars(chosen).items()})
    rows = [summarize(add_up({metric: part(max(0, end - each), end)}))[metric] for end in ends]
    return steps[np.array(ends) - 1], np.stack([np.atleast_1d(row) for row in rows], axis=-1)


def plot(
    directories: Sequence[str | os.PathLike],
    out: str | os.PathLike,
    *,
    metric: str = "episode_return",
    centre: str = "iqm",
    labels: Sequence[str] = (),
) -> Any:
    """Draws the curves of runs in one picture: over seeds their centre, and its 95 % bootstrap interval as a band.

    Args:
        directories: of the runs to compare.
        out: file to write; its ending says the format.
        metric: any name in a run's metrics.
        centre: `iqm` or `mean`.
        labels: of the runs; the names of their directories by default.

    Returns:
        The matplotlib figure.

    Raises:
        CheckpointError: a directory has no curves.
        ConfigError: no such metric, centre, or number of labels.
    """
    from matplotlib.figure import Figure

    if centre not in CENTRES:
        raise ConfigError([Problem("centre", centre, f"choose from {', '.join(CENTRES)}")])
    if labels and len(labels) != len(directories):
        raise ConfigError([Problem("labels", list(labels), f"as many as directories are needed: {len(directories)}")])
    named, statistic = CENTRES[centre]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    most = 0
    for path, label in zip(directories, labels or [pathlib.Path(path).name for path in directories], strict=True):
        steps, values = curve(path, metric)
        seen = ~np.isnan(values).any(0)
        steps, values = steps[seen], values[:, seen]
        most = max(most, len(values))
        seeds = f"{len(values)} seeds" if len(values) > 1 else "1 seed"
        (line,) = axes.plot(steps, statistic(values), label=f"{label} ({seeds})")
        if len(values) > 1 and steps.size:
            axes.fill_between(steps, *statistics.interval(values, statistic, 1000), color=line.get_color(), alpha=0.25, lw=0)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(metric.replace("_", " "))
    if most > 1:
        axes.set_title(f"{named} over seeds, with 95 % bootstrap interval", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out, dpi=150)
    return figure
