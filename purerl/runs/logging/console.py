"""Terminal output: a live line during training, a table at the end."""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console as RichConsole
from rich.live import Live
from rich.table import Table
from rich.text import Text

from purerl.acting.evaluate import Episodes
from purerl.core.metrics import LAST, Mean, over_the_last
from purerl.runs.logging.progress import Progress

PLAIN: Any = {"highlight": False, "markup": False, "soft_wrap": True}  # brackets and numbers of a text have no meaning
WIDTH = 200  # width of a line if the width of the output is unknown


class LiveLine:
    """A recorder that shows the progress of a run: one live line in a terminal or a notebook, plain lines elsewhere.

    Plain lines are printed at most every `plain_seconds`.
    """

    def __init__(self, console: RichConsole | None = None, plain_seconds: float = 5.0):
        self.console = console or _console()
        self._plain_seconds, self._printed, self._return = plain_seconds, None, np.nan
        self._live = Live(console=self.console, auto_refresh=False, transient=True) if self.console.is_terminal else None
        self._cell: Any = None  # the output of a notebook's cell

    @property
    def is_live(self) -> bool:
        """Return True in a terminal or a notebook."""
        return self._live is not None or self.console.is_jupyter

    def close(self) -> None:
        """End the live line."""
        if self._live:
            self._live.stop()

    def begin(self, progress: Progress) -> None:
        """Begin the live line; print a note if nothing is left to train, and a note if accelerators are idle."""
        runs, there = len(progress.labels), jax.device_count()
        if jax.default_backend() != "cpu" and runs * progress.plan.devices < there:
            used = f"{runs * progress.plan.devices} of {there} devices are used"
            self.console.print(f"{used}; devices_per_run = {there // runs} spreads each agent's environments over more devices")
        if progress.is_finished:
            self.console.print(f"this run finished after {progress.updates:,} updates; increase total_timesteps to continue")
        elif self._live:
            self._live.start()
            self._live.update(Text("compiling"), refresh=True)
        elif self.console.is_jupyter:
            from IPython.display import display

            self._cell = display({"text/plain": "compiling"}, raw=True, display_id=True)

    def __call__(self, progress: Progress) -> None:
        latest = overall(progress.metrics["episode_return"])
        self._return = self._return if np.isnan(latest) else latest
        line = (
            f"{progress.steps_text:>19}  {progress.steps_per_second:>9,.0f} steps/s  "
            f"latest return {self._return:>9.1f}  {_clock(progress.seconds_left)} left"
        )
        if self._live:
            self._live.update(Text(line), refresh=True)
        elif self._cell:
            self._cell.update({"text/plain": line}, raw=True)
        elif self._printed is None or time.monotonic() - self._printed >= self._plain_seconds:
            if self._printed is not None:
                self.console.print(line, highlight=False)
            self._printed = time.monotonic()


def closing_table(progress: Progress, metrics: dict[str, Any]) -> Table:
    """Return a table of each run's episodes, last entropy, and mean return and length over the last tenth of `metrics`."""
    rate = f", {progress.steps_per_second:,.0f} steps/s" if progress.updates > progress.began[0] else ""
    returns, lengths = (over_the_last(metrics, name, LAST) for name in ("episode_return", "episode_length"))
    episodes = np.atleast_2d(metrics["episodes"].total).sum(1, dtype=np.int64)
    entropies = np.atleast_2d(metrics["entropy"].read())[:, -1]
    columns = zip(progress.labels, episodes, returns, lengths, entropies, strict=True)
    rows = ([label, f"{n:,}", f"{mean:.1f}", f"{length:.1f}", f"{entropy:.3f}"] for label, n, mean, length, entropy in columns)
    title = f"{progress.steps_text} in {_clock(progress.seconds)}{rate}"
    table = table_of(title, ("run", "episodes", "return", "length", "entropy"), rows, left=0)
    table.caption = "return, length: means over the last tenth of training"
    return table


def evaluation_table(episodes: Episodes, labels: tuple[str, ...], finished: tuple[int, ...]) -> Table:
    """Return a table of each run's scores. `episodes`: on the host, leaves `[runs, episodes]`; `finished`: finished updates."""
    count, more = episodes.returns.shape[1], episodes.named_info()
    after = f"{min(finished):,}" + (f" to {max(finished):,}" if len(set(finished)) > 1 else "")
    rows = []
    for i, returns in enumerate(episodes.returns):
        numbers = [returns.mean(), returns.std(), returns.min(), returns.max(), episodes.lengths[i].mean()]
        means = (f"{x[i].mean():.3g}" for x in more.values())
        rows.append([labels[i], *(f"{x:.1f}" for x in numbers), *means, f"{episodes.finished[i].sum()} of {count}"])
    columns = ("run", "return", "std", "min", "max", "length", *more, "finished")
    return table_of(f"{count} episodes after {after} updates", columns, rows, left=0)


def _console() -> RichConsole:
    """Return a console on standard output; in a file or a pipe, its lines are wide enough for a table."""
    console = RichConsole()
    fixed = console.is_terminal or console.is_jupyter or "COLUMNS" in os.environ
    return console if fixed else RichConsole(width=WIDTH)


def table_of(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Table:
    """Return a table of text whose first `left` columns are left-aligned."""
    table = Table(title=Text(title))  # `Text`: brackets in titles and cells are not markup
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def format_count(number: int, noun: str) -> str:
    """Return a number and its noun, "1 run" or "2 runs"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def overall(mean: Mean) -> float:
    """Return the mean over everything counted, on the host; NaN if nothing was counted."""
    count = np.sum(mean.count, dtype=np.int64)
    return float(np.sum(mean.total, dtype=np.float64) / count) if count else float("nan")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
