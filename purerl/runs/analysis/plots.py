"""Learning curves of runs in directories."""

import contextlib
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from purerl.core.errors import CheckpointError, Problem, config_error, nearest, raise_if_any
from purerl.core.metrics import Sum, aggregate, summarize
from purerl.runs.analysis import statistics
from purerl.runs.evaluations import read_evaluations
from purerl.runs.storage import curves
from purerl.runs.storage.checkpoint import newest_record
from purerl.runs.storage.files import write_errors

CENTRES = {"iqm": ("interquartile mean", statistics.iqm), "mean": ("mean", functools.partial(np.mean, axis=0))}
POINTS = 60  # maximum number of points of a curve


class Curve(NamedTuple):
    """A metric over environment steps, for each seed of one config.

    Attributes:
        label: name of the directory and, with several configs, how this config differs.
        steps: `[points]` environment steps of one seed.
        values: `[seeds, points]`, NaN where nothing was counted.
        diverged: `[seeds]`, True for a seed that counted NaN, or whose learnt values are not finite.
    """

    label: str
    steps: np.ndarray
    values: np.ndarray
    diverged: np.ndarray


def curves_of(path: str | os.PathLike, metric: str = "episode_return") -> list[Curve]:
    """Return a metric of a run over environment steps, one curve per config.

    Rows are aggregated to at most 60 points. A point of a sum is the mean sum of a row. A point of a mean is NaN if nothing was
    counted in its rows. A metric of evaluations, such as "evaluation/episode_return", has a point for each evaluation.

    Raises:
        CheckpointError: the directory has no curves or, for a metric of evaluations, no evaluations; or a header is damaged.
        ConfigError: the run has no such metric.
    """
    directory = pathlib.Path(path).expanduser()
    return curves_in(directory, *curves.read(directory), metric)


def curves_in(directory: pathlib.Path, metrics: dict[str, Any], header: curves.Header, metric: str) -> list[Curve]:
    """Return the curves of a directory, as `curves_of` does, from metrics that have already been read."""
    is_evaluated = metric.startswith("evaluation/")
    steps, values = _evaluation_points(directory, header, metric) if is_evaluated else _training_points(metrics, header, metric)
    diverged = np.zeros(len(header.runs), bool)
    if not is_evaluated:
        diverged |= np.isnan(np.atleast_2d(jax.tree.leaves(metrics[metric])[0])).max(-1)
    with contextlib.suppress(CheckpointError):  # curves without a checkpoint can be plotted, too
        diverged = diverged | ~np.array(newest_record(directory).get("finite", ~diverged))
    configs = [config for config, _ in header.runs]
    label = lambda config: directory.name if config is None else f"{directory.name}: {header.configs[config]}"
    rows_of = {config: [i for i, other in enumerate(configs) if other == config] for config in configs}
    return [Curve(label(config), steps, values[rows], diverged[rows]) for config, rows in rows_of.items()]


def _evaluation_points(directory: pathlib.Path, header: curves.Header, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps `[evaluations]` and the values `[runs, evaluations]` of a metric of evaluations."""
    table = read_evaluations(directory / "evaluations.jsonl", len(header.runs))
    if not len(updates := table.pop("update")):
        raise CheckpointError(f"{directory} has no evaluations; train with eval_every (--eval-every)")
    if (name := metric.partition("/")[2]) not in table:
        raise config_error("metric", metric, nearest(metric, [f"evaluation/{name}" for name in table]))
    return updates * (header.steps // header.every) + header.first_step, table[name].T


def _training_points(metrics: dict[str, Any], header: curves.Header, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps `[points]` and the values `[runs, points]` of a metric of training."""
    if metric not in metrics:
        raise config_error("metric", metric, nearest(metric, metrics))
    steps, chosen = np.cumsum(np.atleast_2d(metrics["steps"].total)[0], dtype=np.int64) + header.first_step, metrics[metric]
    each = -(-len(steps) // POINTS) or 1
    ends = range(len(steps) % each or each, len(steps) + 1, each)  # the first point may have fewer rows
    part = lambda begin, end: type(chosen)(**{name: x[..., begin:end] for name, x in vars(chosen).items()})
    rows = [np.atleast_1d(summarize(aggregate({metric: part(max(0, end - each), end)}))[metric]) for end in ends]
    values = np.stack(rows, axis=-1) if rows else np.zeros((max(1, len(header.runs)), 0), np.float32)
    values = values / np.diff([0, *ends]) if isinstance(chosen, Sum) else values
    return steps[np.array(ends, np.int64) - 1], values


def fill_gaps(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    """Return steps `[points]` and values `[seeds, points]` without gaps, from the first point by which all seeds have a value.

    Seeds that have diverged, or have no value, are left out. Missing values of a seed are interpolated linearly. The last value
    of a seed is repeated up to the end.
    """
    known = [x for x, lost in zip(curve.values, curve.diverged, strict=True) if not (lost or np.isnan(x).all())]
    if not known:
        return curve.steps[:0], np.zeros((0, 0))
    begin = int((~np.isnan(known)).argmax(1).max())
    return curve.steps[begin:], statistics.interpolate(np.array(known), curve.steps, curve.steps)[:, begin:]


def as_label(text: str) -> str:
    """Return a text as a label of a picture: in matplotlib, `$` begins a formula, and a leading `_` hides a label."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def plot(
    directories: Sequence[str | os.PathLike],
    out: str | os.PathLike,
    *,
    metric: str = "episode_return",
    centre: str = "iqm",
    labels: Sequence[str] = (),
) -> Any:
    """Plot the learning curves of runs: for each config, a line for the statistic over its seeds and a band for its interval.

    Args:
        directories: directories of the runs to compare.
        out: file to write; its suffix chooses the format.
        metric: any metric of the runs; of evaluations, such as "evaluation/episode_return".
        centre: the statistic over seeds, `iqm` or `mean`; the band is its 95 % bootstrap interval.
        labels: labels of the lines; by default the names of their directories and, with several configs, how each config differs.

    Returns:
        The matplotlib figure.

    Raises:
        CheckpointError: a directory has no curves, or no evaluations.
        ConfigError: the metric, the statistic, the suffix of `out`, the directories or the number of labels is wrong.

    Example:
        >>> figure = purerl.plot(["runs/a"], "curves.png")
    """
    from matplotlib.figure import Figure

    is_path = lambda x: isinstance(x, str | os.PathLike)
    if is_path(directories) or not isinstance(directories, Sequence) or not directories or not all(map(is_path, directories)):
        raise config_error("directories", directories, "must be a list of at least one directory")
    found = [] if is_path(out) else [Problem("out", out, "must be a path")]
    raise_if_any(found + ([] if isinstance(metric, str) else [Problem("metric", metric, "must be the name of a metric")]))
    if centre not in CENTRES:
        raise config_error("centre", centre, f"choose from {', '.join(CENTRES)}")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    suffixes = sorted(f".{suffix}" for suffix in figure.canvas.get_supported_filetypes())
    if pathlib.Path(out).suffix not in suffixes:
        raise config_error("out", str(out), f"must end in {', '.join(suffixes)}")
    lines, names = [], [pathlib.Path(path).name for path in directories]
    for path, name in zip(directories, names, strict=True):
        own = str(path) if names.count(name) > 1 else name
        lines += [line._replace(label=own + line.label.removeprefix(name)) for line in curves_of(path, metric)]
    labels = [] if labels is None else list(labels)
    if labels and len(labels) != len(lines):
        raise config_error("labels", labels, f"must have one label per line, {len(lines)} in total")
    centre_name, statistic = CENTRES[centre]
    axes, counts = figure.add_subplot(), []
    for curve, label in zip(lines, labels or [as_label(line.label) for line in lines], strict=True):
        steps, values = fill_gaps(curve)
        count, every = len(values), len(curve.values)
        counts.append(count)
        seeds = f"{count} of {every} seeds" if count < every else f"{count} seeds" if count > 1 else "1 seed"
        shown = f"{' ' * label.startswith('_')}{label} ({seeds})"  # a label of the user's may have formulas
        (line,) = axes.plot(steps, statistic(values) if steps.size else [], label=shown)
        if len(values) > 1 and steps.size:
            axes.fill_between(steps, *statistics.interval(values, statistic, 1000), color=line.get_color(), alpha=0.25, lw=0)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(metric.replace("_", " "))
    if any(len(curve.values) > 1 for curve in lines):
        note = statistics.few_seeds(counts)
        title = f"{centre_name} over seeds, with 95 % bootstrap interval"
        axes.set_title("\n".join([title, *([f"few seeds: {note}"] if note else [])]), fontsize="medium", wrap=True)
    axes.grid(alpha=0.3)
    axes.legend()
    with write_errors(out):
        figure.savefig(pathlib.Path(out).expanduser(), dpi=150)
    return figure
