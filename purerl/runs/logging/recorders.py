"""Recorders, which write the metrics of a run to files and services during training.

A recorder is any function of a `Progress`, called after each chunk. It can also have `begin(progress)`, called at the start and
again after a failure; `flush()`, called before each checkpoint; `show(progress, path)`, called with the GIF of each episode that
`render_every` renders; and `close()`.

Example:
    >>> rows = purerl.recorders.Csv("runs/c/metrics.csv")
    >>> seen = []
    >>> watch = lambda progress: seen.append(progress.updates)
    >>> result = purerl.fit(purerl.PPOConfig(total_timesteps=1024), recorders=(rows, watch))
    >>> seen[-1]
    2
"""

import abc
import contextlib
import csv
import functools
import json
import math
import os
import pathlib
import secrets
import time
from typing import Any

import jax
import numpy as np

from purerl.core.errors import config_error, is_int, warn
from purerl.core.metrics import aggregate, summarize
from purerl.runs.logging.progress import Progress
from purerl.runs.storage.files import atomic_write, read_file

TAGS = {  # most of the tags are those of CleanRL
    "episode_return": "charts/episodic_return",
    "episode_length": "charts/episodic_length",
    "steps_per_second": "charts/SPS",
    "lr": "charts/learning_rate",
    "seconds": "charts/seconds",
    "update": "charts/update",
    "policy_loss": "losses/policy_loss",
    "value_loss": "losses/value_loss",
    "loss": "losses/loss",
    "entropy": "losses/entropy",
    "approx_kl": "losses/approx_kl",
    "clip_fraction": "losses/clipfrac",
    "explained_variance": "losses/explained_variance",
    "evaluation": "evaluation",
}


def row_of(progress: Progress, metrics: dict[str, Any], updates: int) -> dict[str, Any]:
    """Return one flat row of plain numbers, aggregated from `metrics`, which end at the update `updates`.

    For one run, the row has one value per metric: `{"episode_return": 21.0}`. For several runs, `episode_return` is the mean,
    beside `episode_return/min`, `/max`, `/std`, and each run's value, such as `episode_return/seed 3`. The first four leave out
    runs without a value. Every row also has the latest evaluation: `evaluation/episode_return`, ...
    """
    steps = progress.steps_of_run(updates)
    row = {"update": updates, "steps": steps, "seconds": round(progress.seconds, 3)}
    row["steps_per_second"] = round(progress.steps_per_second, 1)
    others = {name: metric for name, metric in metrics.items() if name != "steps"}
    newest = {f"evaluation/{name}": x if len(x) > 1 else x[0] for name, x in (progress.evaluation or {}).items()}
    for name, value in {**summarize(aggregate(others)), **newest}.items():
        row.update({name: value.item()} if value.ndim == 0 else columns_of_runs(name, value, progress.labels))
    return row


def columns_of_runs(name: str, values: np.ndarray, labels: tuple[str, ...]) -> dict[str, float]:
    """Return the columns of one metric of several runs. `values`: `[runs]`."""
    seen = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    of = lambda statistic: float(statistic(seen.astype(np.float64))) if seen.size else math.nan
    across = {name: of(np.mean), f"{name}/min": of(np.min), f"{name}/max": of(np.max), f"{name}/std": of(np.std)}
    return across | {f"{name}/{label}": value.item() for label, value in zip(labels, values, strict=True)}


ROWS = 5_000  # rows of a recorder without `every` while the duration of the run grows by a factor of e


class Rows(abc.ABC):
    """The base class of recorders that write rows. A subclass writes each row. If `self.sink` is set, it is flushed and closed.

    Args:
        path: the file; for TensorBoard, the directory.
        every: updates per row. 0 writes one row per chunk, and in a long run one row each time that the training time has grown
          by 1/5,000, so that files grow more and more slowly. A row also ends at each checkpoint, so that a run that is killed
          and resumed neither loses nor repeats a row.

    Raises:
        ConfigError: `every` is not an int of at least 0, or `path` is not a path.
    """

    def __init__(self, path: str | os.PathLike, every: int = 0):
        if not (is_int(every) and every >= 0):
            raise config_error("every", every, "must be an int of at least 0")
        if not isinstance(path, str | os.PathLike):
            raise config_error("path", path, "must be a path")
        self.path = pathlib.Path(path).expanduser()
        self.sink, self._every, self._pending, self._written = None, every, None, 0.0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def begin(self, progress: Progress) -> None:
        """Create the folder. Subclasses open the file, and drop rows after the update from which the run resumes."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.sink is not None:  # left open by a failure
            with contextlib.suppress(OSError):
                self.sink.close()
        self.sink, self._pending, self._written, self._evaluation = None, None, 0.0, progress.evaluation

    def __call__(self, progress: Progress) -> None:
        rows = progress.metrics
        if self._pending is not None:
            rows = jax.tree.map(lambda *x: np.concatenate(x, -1), self._pending[1], rows)
        if not self._every and progress.seconds - self._written < progress.seconds / ROWS:
            self._pending = (progress, rows)
            return
        self._written = progress.seconds
        count = jax.tree.leaves(rows)[0].shape[-1]
        every, before, start = self._every or count, progress.updates - count, 0
        earlier = progress._replace(evaluation=self._evaluation)  # evaluations are at the ends of chunks
        for end in range(every - before % every if self._every else count, count + 1, every):
            part = jax.tree.map(lambda x: x[..., start:end], rows)  # noqa: B023
            self.write(row_of(progress if end == count else earlier, part, before + end))
            start = end
        self._evaluation = progress.evaluation
        self._pending = (progress, jax.tree.map(lambda x: x[..., start:], rows)) if start < count else None

    def flush(self) -> None:
        """Write all pending rows to the file."""
        if self._pending is not None:
            progress, rest = self._pending
            self._pending = None
            self.write(row_of(progress, rest, progress.updates))
        if self.sink is not None:
            self.sink.flush()

    @abc.abstractmethod
    def write(self, row: dict[str, Any]) -> None:
        """Add a row to the file."""

    def close(self) -> None:
        self.flush()
        if self.sink is not None:
            self.sink.close()


class TextRows(Rows):
    """Rows in a text file, one per line."""

    def begin(self, progress: Progress) -> None:
        super().begin(progress)
        lines = [line for line in read_file(self.path).splitlines(keepends=True) if line.endswith(b"\n")]
        kept = self.lines_to_keep(lines, progress.updates)
        is_row = lambda line: line[:1].isdigit() or line[:1] == b"{"  # of a CSV file, or of JSON lines
        if not progress.updates and any(map(is_row, lines)):
            warn(f"{self.path} has rows of an earlier run or start, which are replaced; give each run a file of its own")
        atomic_write(self.path, b"".join(kept))
        self.sink = open(self.path, "a")  # noqa: SIM115

    @abc.abstractmethod
    def lines_to_keep(self, lines: list[bytes], updates: int) -> list[bytes]:
        """Return the lines to keep: those of rows up to this update, and a header line if rows have one."""


class JsonLines(TextRows):
    """One JSON object per row; NaN and infinity are written as null."""

    def lines_to_keep(self, lines: list[bytes], updates: int) -> list[bytes]:
        return [line for line in lines if _update_of(line) <= updates]

    def write(self, row: dict[str, Any]) -> None:
        finite = {name: x if math.isfinite(x) else None for name, x in row.items()}
        self.sink.write(json.dumps(finite) + "\n")


class Csv(TextRows):
    """One line per row, below a header line of names; NaN is written as an empty cell."""

    def begin(self, progress: Progress) -> None:
        self._names, self._lost = list[str](), list[str]()
        super().begin(progress)

    def lines_to_keep(self, lines: list[bytes], updates: int) -> list[bytes]:
        found = [next(csv.reader([line.decode(errors="replace")])) for line in lines]  # quoted labels may contain commas
        is_row = lambda row: len(row) == len(found[0]) and row[0].isdigit() and int(row[0]) <= updates
        rows = [line for line, row in zip(lines, found, strict=True) if is_row(row)]
        self._names = found[0] if rows else []  # without rows, this run can write other names
        return [lines[0], *rows] if rows else []

    def write(self, row: dict[str, Any]) -> None:
        writer = csv.writer(self.sink, lineterminator="\n")
        if not self._names:
            self._names = list(row)
            writer.writerow(self._names)
        if lost := [name for name in row if name not in self._names and name not in self._lost]:
            warn(f"{self.path} has no columns for {', '.join(lost)}, which are left out; write to another file")
            self._lost += lost
        # If the run resumes without `measure=`, the columns of `measure` stay empty.
        values = [row.get(name, math.nan) for name in self._names]
        writer.writerow(["" if math.isnan(x) else x for x in values])


class TensorBoard(Rows):
    """Scalars over the environment steps of one run, under tags such as `charts/episodic_return`, as in CleanRL.

    A resumed run begins a new file. The first event of that file makes TensorBoard discard later steps of earlier files.
    """

    def begin(self, progress: Progress) -> None:
        super().begin(progress)
        # tensorboardX's `SummaryWriter` writes in its own thread, where errors are lost.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog  # pyright: ignore[reportAttributeAccessIssue]

        self.path.mkdir(exist_ok=True)
        steps = progress.steps_of_run()
        self.sink = EventsWriter(str(self.path / "events"), f".{steps:020}")  # distinguishes files made in the same second
        self._add(steps + 1, session_log=SessionLog(status=SessionLog.START))

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        self.sink.write_event(Event(wall_time=time.time(), step=step, **content))

    def write(self, row: dict[str, Any]) -> None:
        from tensorboardX.summary import Summary, scalar  # pyright: ignore[reportAttributeAccessIssue]

        values = []
        for name, value in row.items():
            if name != "steps" and not math.isnan(value):
                base, _, rest = name.partition("/")
                values += scalar(TAGS.get(base, f"metrics/{base}") + (f"/{rest}" if rest else ""), value).value
        self._add(row["steps"], summary=Summary(value=values))

    def show(self, progress: Progress, path: pathlib.Path) -> None:
        """Add the GIF of a rendered episode to the images."""
        from PIL import Image
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        with Image.open(path) as opened:
            width, height = opened.size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes())
        self._add(progress.steps_of_run(), summary=Summary(value=[Summary.Value(tag="episode", image=image)]))


class Wandb(Rows):
    """Rows in Weights & Biases, over environment steps. The W&B run begins when training begins.

    Args:
        every: updates per row; 0 writes one row per chunk, and fewer in a long run.
        directory: run directory, where `wandb.id` keeps the id of the W&B run, so that a resumed run continues the same W&B run.
        **init: arguments of `wandb.init`.

    Raises:
        ImportError: wandb is not installed.
    """

    def __init__(self, every: int = 0, directory: str | os.PathLike | None = None, **init: Any):
        if isinstance(every, str):
            raise config_error("project", every, f"must be a keyword argument: Wandb(project={every!r})")
        super().__init__("." if directory is None else pathlib.Path(directory) / "wandb.id", every)
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError("Weights & Biases needs the package wandb; run pip install '.[wandb]'") from error
        self._start = functools.partial(wandb.init, **{"resume": "allow", **init})
        self._run: Any = None
        self._keeps_id = directory is not None and "id" not in init

    def begin(self, progress: Progress) -> None:
        super().begin(progress)
        if self._run is not None or progress.is_finished:
            return
        if self._keeps_id and not (progress.updates and self.path.exists()):
            atomic_write(self.path, secrets.token_hex(4).encode())
        self._run = self._start(**({"id": self.path.read_text()} if self._keeps_id else {}))

    def write(self, row: dict[str, Any]) -> None:
        self._run.log({TAGS.get(name, name): x for name, x in row.items() if not math.isnan(x)}, step=row["steps"])

    def show(self, progress: Progress, path: pathlib.Path) -> None:
        """Log a rendered episode."""
        import wandb  # pyright: ignore[reportMissingImports]

        self._run.log({"episode": wandb.Video(str(path), format="gif")}, step=progress.steps_of_run())

    def close(self) -> None:
        super().close()
        if self._run is not None:
            self._run.finish()
            self._run = None


def _update_of(line: bytes) -> float:
    """Return the update of a row, or infinity if the line is not a row."""
    try:
        return int(json.loads(line)["update"])
    except (ValueError, KeyError, TypeError):
        return math.inf
