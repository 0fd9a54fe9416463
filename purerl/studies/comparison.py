"""The scores of entries on tasks: statistics, tables and plots, as recommended by Agarwal et al. 2021 (arXiv:2108.13264)."""

import csv
import dataclasses
import io
import itertools
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from purerl.core.errors import config_error
from purerl.runs.analysis import statistics
from purerl.runs.analysis.plots import as_label
from purerl.runs.storage.files import atomic_write, write_errors
from purerl.studies.reading import RunScores

POINTS = 40  # number of points of a sample-efficiency curve
ENTRIES_IN_PAIRS = 6  # with more entries, only the first is compared with each of the others


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Scores of several entries on the same tasks, as returned by `purerl.compare`. The comparison prints as tables.

    Attributes:
        entries: scores by entry name, then by task.
        reference: for each task, the two scores that are normalised to 0 and 1; None without a reference.
        protocol: a text that says how scores were measured, with a note on intervals over few seeds.

    Example:
        >>> comparison = purerl.compare({"ours": ["runs/a"], "again": ["runs/a"]})
        >>> comparison.improvement("ours", "again")[0]
        0.5
    """

    entries: dict[str, dict[str, RunScores]]
    reference: dict[str, tuple[float, float]] | None
    protocol: str

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks, which all entries share."""
        return tuple(next(iter(self.entries.values())))

    @property
    def note(self) -> str:
        """Return a note on intervals over too few seeds; "" if every entry has enough seeds."""
        return statistics.few_seeds(len(x.scores) for of_tasks in self.entries.values() for x in of_tasks.values())

    @property
    def unequal(self) -> str:
        """Return a note on entries with different steps, seeds, algorithms, starts or evaluations; else ""."""
        steps = [f"{task} {self.steps_of(task)}" for task in self.tasks if " or " in self.steps_of(task)]
        seeds = [name for name, of_tasks in self.entries.items() if len({len(one.scores) for one in of_tasks.values()}) > 1]
        found = [f"Entries were trained for different numbers of steps: {'; '.join(steps)}."] if steps else []
        warm = [name for name, of_tasks in self.entries.items() if any(one.is_warm for one in of_tasks.values())]
        if 0 < len(warm) < len(self.entries):
            found += [f"{', '.join(warm)} began with the parameters of other runs, whose steps are not counted."]
        several = {name: {one.algorithm for one in of_tasks.values()} for name, of_tasks in self.entries.items()}
        found += [f"{name} has runs of several algorithms: {', '.join(sorted(x))}." for name, x in several.items() if len(x) > 1]
        if seeds and self.reference:
            found += [f"Tasks with more seeds count more in the column of all tasks: {', '.join(seeds)}."]
        modes = {name: {(one.evaluated or {}).get("deterministic") for one in of.values()} for name, of in self.entries.items()}
        if len(set().union(*modes.values())) > 1:
            chosen = ", ".join(name for name, seen in modes.items() if True in seen)
            found += [f"Evaluations of {chosen} take the most likely actions, all others sample actions."]
        return " ".join(found)

    @property
    def _caption(self) -> str:
        return f"{self.unequal} {self.protocol}".strip()

    def steps_of(self, task: str) -> str:
        """Return the numbers of steps for which entries were trained on a task, as text: "256 or 1,024"."""
        counts = {int(one[task].steps[-1]) for one in self.entries.values() if len(one[task].steps)}
        return " or ".join(f"{count:,}" for count in sorted(counts))

    @property
    def can_pool(self) -> bool:
        """Return True if scores of all tasks can be pooled: there is one task, or the scores are normalised."""
        return len(self.tasks) == 1 or self.reference is not None

    def scores(self, entry: str, task: str) -> np.ndarray:
        """Return the raw scores of an entry on a task, `[seeds]`."""
        return self.entries[entry][task].scores

    def normalized_scores(self, entry: str) -> list[np.ndarray]:
        """Return the normalised scores of an entry on each task, `[seeds]`; without a reference, the raw scores."""
        return [self._normal(task, self.scores(entry, task)) for task in self.tasks]

    def _normal(self, task: str, scores: np.ndarray) -> np.ndarray:
        low, high = self.reference[task] if self.reference else (0.0, 1.0)
        return (scores - low) / (high - low)

    def aggregate(self, entry: str) -> tuple[float, float, float]:
        """Return the interquartile mean over seeds and tasks, with both ends of its 95 % stratified bootstrap interval.

        Raises:
            ConfigError: scores of several tasks are not normalised.
        """
        if not self.can_pool:
            raise config_error("reference", None, "is required to aggregate scores of several tasks")
        return _with_interval(self.normalized_scores(entry))

    def of_task(self, entry: str, task: str) -> tuple[float, float, float]:
        """Return the interquartile mean of raw scores over one task's seeds, with both ends of its 95 % bootstrap interval."""
        return _with_interval([self.scores(entry, task)])

    def improvement(self, entry: str, other: str) -> tuple[float, float, float]:
        """Return the probability that `entry` scores above `other`, averaged over tasks, and both ends of its 95 % interval."""
        ours, theirs = ([self.scores(name, task) for task in self.tasks] for name in (entry, other))
        return statistics.improvement(ours, theirs), *statistics.improvement_interval(ours, theirs)

    def profile(self, entry: str, thresholds: np.ndarray) -> np.ndarray:
        """Return the share of runs with a normalised score above each threshold, averaged over tasks, `[thresholds]`."""
        return statistics.profile(self.normalized_scores(entry), thresholds)

    def efficiency(self, entry: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return shares of training, the interquartile mean at each share, and both ends of its 95 % interval, each `[points]`.

        Until the first episode of a run has ended, the run's first known value is used.
        """
        shares = np.linspace(0, 1, POINTS + 1)[1:]
        at = [self._normal(task, _at(self.entries[entry][task], shares)) for task in self.tasks]
        return shares, statistics.iqm(np.concatenate(at)), *statistics.stratified_interval(at, resamples=1000)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs of entries that are compared."""
        for i, name in enumerate(list(self.entries)[: None if len(self.entries) <= ENTRIES_IN_PAIRS else 1]):
            yield from ((name, other) for other in list(self.entries)[i + 1 :])

    # --- as text and pictures -----------------------------------------------------------------------------------------

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the table of interquartile means: its columns, and one row per entry."""
        words = lambda numbers: statistics.with_interval(numbers, statistics.format_number)
        pooled = len(self.tasks) > 1 and self.can_pool
        columns = ["", "seeds", *self.tasks, *(["all, normalised"] if pooled else [])]
        rows = []
        for name, of_tasks in self.entries.items():
            seeds = sorted({len(x.scores) for x in of_tasks.values()})
            cells = [words(self.of_task(name, task)) for task in self.tasks]
            rows.append([name, "-".join(map(str, seeds)), *cells, *([words(self.aggregate(name))] if pooled else [])])
        return columns, rows

    def pair_rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the table of probabilities of improvement: its columns, and one row per pair."""
        words = lambda numbers: statistics.with_interval(numbers, "{:.2f}".format)
        rows = [[ours, theirs, words(self.improvement(ours, theirs))] for ours, theirs in self.pairs()]
        return ["X", "Y", "P(X > Y)"], rows

    def markdown(self) -> str:
        """Return the tables and the protocol as Markdown, preceded by the note `unequal` if there is one."""
        line = lambda cells: "| " + " | ".join(" ".join(cell.replace("|", r"\|").split()) for cell in cells) + " |"
        tables = [[line(x), "|" + "---|" * len(x), *map(line, rows), ""] for x, rows in (self.rows(), self.pair_rows()) if rows]
        return "\n".join([*([self.unequal, ""] if self.unequal else []), *itertools.chain(*tables), self.protocol, ""])

    __str__ = markdown

    def latex(self) -> str:
        """Return the table of interquartile means as LaTeX with booktabs; its caption is `unequal` and the protocol."""
        signs = {ord(sign): f"\\{sign}" for sign in "&%_#${}"} | {ord(sign): f"${sign}$" for sign in "<>"}
        signs |= {ord("\\"): r"\textbackslash{}", ord("~"): r"\textasciitilde{}", ord("^"): r"\textasciicircum{}"}
        columns, rows = self.rows()
        head, *body = [" & ".join(cell.translate(signs) for cell in row) + r" \\" for row in (columns, *rows)]
        parts = (
            r"\begin{table}",
            r"\centering",
            r"\begin{tabular}{l" + "r" * (len(columns) - 1) + "}",
            *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
            r"\end{tabular}",
            r"\caption{" + self._caption.translate(signs) + "}",
            r"\end{table}",
        )
        return "\n".join(parts) + "\n"

    def to_json(self) -> str:
        """Return every score, the protocol, the interquartile means and the probabilities of improvement as JSON."""
        raw = {
            name: {task: {"seeds": x.seeds, "scores": x.scores.tolist()} for task, x in of_tasks.items()}
            for name, of_tasks in self.entries.items()
        }
        computed = {name: {task: self.of_task(name, task) for task in self.tasks} for name in self.entries}
        pooled = {name: self.aggregate(name) for name in self.entries} if self.can_pool else None
        pairs = [[ours, theirs, *self.improvement(ours, theirs)] for ours, theirs in self.pairs()]
        found = {"protocol": self._caption, "reference": self.reference, "scores": raw, "iqm": computed, "all": pooled}
        plain = json.loads(json.dumps(found | {"improvement": pairs}), parse_constant=lambda _: None)  # JSON has no NaN
        return json.dumps(plain, indent=1)

    def csv(self) -> str:
        """Return every score as CSV, one score per line."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        every = ((name, task, one) for name, of_tasks in self.entries.items() for task, one in of_tasks.items())
        rows.writerow(["entry", "task", "seed", "score"])
        rows.writerows([name, task, *x] for name, task, one in every for x in zip(one.seeds, one.scores.tolist(), strict=True))
        return text.getvalue()

    def draw(self, out: str | os.PathLike) -> Any:
        """Plot sample efficiency, performance profiles and probabilities of improvement into a file; return the figure."""
        from matplotlib.figure import Figure

        panels = [self._draw_efficiency, self._draw_profiles] if self.can_pool else []
        panels += [self._draw_pairs] if list(self.pairs()) else []
        count = max(1, len(panels))
        figure = Figure(figsize=(4.6 * count, 3.8), layout="constrained")
        for draw, axes in zip(panels, figure.subplots(1, count, squeeze=False)[0], strict=False):
            draw(axes)
        figure.suptitle(as_label(f"{self.unequal} {self.note}".strip()), fontsize="small", color="tab:red", wrap=True)
        with write_errors(out):
            figure.savefig(pathlib.Path(out).expanduser(), dpi=150)
        return figure

    @property
    def _unit(self) -> str:
        return "normalised score" if self.reference else "return"

    def _draw_efficiency(self, axes: Any) -> None:
        for name in self.entries:
            shares, centre, low, high = self.efficiency(name)
            (line,) = axes.plot(shares, centre, label=as_label(name))
            axes.fill_between(shares, low, high, color=line.get_color(), alpha=0.25, lw=0)
        axes.set(xlabel="share of training", ylabel=f"interquartile mean of the {self._unit}")
        axes.set_title("sample efficiency, 95 % interval", fontsize="medium")
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)

    def _draw_profiles(self, axes: Any) -> None:
        every = np.concatenate([x for name in self.entries for x in self.normalized_scores(name)])
        thresholds = np.linspace(every.min(), every.max(), 200)
        for name in self.entries:
            axes.plot(thresholds, self.profile(name, thresholds), drawstyle="steps-post")
        axes.set(xlabel=f"{self._unit} x", ylabel="share of runs above x")
        axes.set_title("performance profile", fontsize="medium")
        axes.grid(alpha=0.3)

    def _draw_pairs(self, axes: Any) -> None:
        pairs = list(self.pairs())[::-1]
        for i, (ours, theirs) in enumerate(pairs):
            middle, low, high = self.improvement(ours, theirs)
            axes.barh(i, high - low, left=low, height=0.5, alpha=0.4)
            axes.plot([middle, middle], [i - 0.25, i + 0.25], color="black")
        axes.set_yticks(range(len(pairs)), [as_label(f"{a}\n> {b}") for a, b in pairs], fontsize="small")
        axes.axvline(0.5, color="grey", lw=1, ls=":")
        axes.set_xlim(0, 1)
        axes.set_title("probability of improvement", fontsize="medium")

    def write(self, out: str | os.PathLike) -> None:
        """Write the comparison to a file: .md, .tex, .json, .csv, or a picture.

        Raises:
            ConfigError: the file has another suffix.
            CheckpointError: the file could not be written.
        """
        from matplotlib.figure import Figure

        texts = {".md": self.markdown, ".tex": self.latex, ".json": self.to_json, ".csv": self.csv}
        suffix = pathlib.Path(out).suffix
        pictures = [f".{x}" for x in Figure().canvas.get_supported_filetypes()]
        if suffix in texts:
            with write_errors(out):
                atomic_write(pathlib.Path(out).expanduser(), texts[suffix]().encode())
        elif suffix in pictures:
            self.draw(out)
        else:
            raise config_error("out", str(out), f"must end in {', '.join([*texts, '.png', '.pdf', '.svg'])}")


def _with_interval(scores: list[np.ndarray]) -> tuple[float, float, float]:
    low, high = statistics.stratified_interval(scores)
    return float(statistics.iqm(np.concatenate(scores))), float(low), float(high)


def _at(one: RunScores, shares: np.ndarray) -> np.ndarray:
    """Return the learning curve of each seed, interpolated at shares of training, `[seeds, points]`."""
    return statistics.interpolate(one.curve, one.steps, shares * one.steps[-1])
