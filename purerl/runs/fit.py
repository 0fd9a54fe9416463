"""`fit`: training with logging, evaluation and checkpoints between chunks of updates."""

import inspect
import pathlib
import signal
import time
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from purerl.checks.check_arguments import check_type
from purerl.config.base import OnPolicyConfig
from purerl.core.errors import raise_if_any
from purerl.core.types import TrainState
from purerl.runs.analysis.rendering import check_drawing
from purerl.runs.compile_cache import compile_cache
from purerl.runs.directory import Directory
from purerl.runs.identity import identity
from purerl.runs.logging.progress import Progress
from purerl.runs.options import wrong_options
from purerl.runs.processes import agreed, by_first, is_first, process_count
from purerl.runs.run import Run, saved_layout
from purerl.runs.session import Session
from purerl.runs.stopping import Rule
from purerl.runs.storage.lock import run_directory
from purerl.runs.trainer import Trainer

MANY_ROWS = 1_000_000  # of metrics: hundreds of megabytes


class FitResult(NamedTuple):
    """The result of a run, finished or interrupted.

    state: after the last finished chunk. With several runs its leaves have a leading axis, but for the clock.
    metrics: as in `TrainResult`, on the host, from the first update on; leaves `[rows]`, or `[runs, rows]`.
    evaluations: `update [n]`, and `episode_return`, `episode_length` and `finished`, means over episodes, `[n, runs]`.
    progress: where the run stood at the end; its `began` is where this call went on from.
    stopped_by: the signal that ended it early, "max_hours", "stop_when", or None.
    run: the state with its config, as `load` gives it; `run.select` takes one run out of several.
    finite: `[runs]`, of each whether all that it has learnt is finite; False only with `on_nonfinite="ignore"`.

    Example:
        >>> result = purerl.fit(purerl.PPOConfig(total_timesteps=1024), num_seeds=2)
        >>> result.run.select(seed=1).labels
        ('seed 1',)
    """

    state: TrainState
    metrics: dict[str, Any]
    evaluations: dict[str, np.ndarray]
    progress: Progress
    stopped_by: signal.Signals | str | None
    run: Run
    finite: np.ndarray


def fit(
    cfg: OnPolicyConfig,
    seed: int = 0,
    directory: Any = None,
    *,
    num_seeds: int = 1,
    exact: bool = False,
    devices_per_run: int | None = None,
    resume: str = "auto",
    init_from: Any = None,
    save_seconds: float = 30.0,
    save_every: int = 0,
    keep: int = 3,
    keep_every: int = 0,
    on_save_error: str = "raise",
    eval_every: int = 0,
    eval_episodes: int = 128,
    eval_deterministic: bool = False,
    eval_max_steps: int | None = None,
    eval_env_params: dict[str, float] | None = None,
    render_every: int = 0,
    stop_when: Rule | None = None,
    stop_every: int = 0,
    on_nonfinite: str = "raise",
    chunk_seconds: float = 1.0,
    max_hours: float = 0.0,
    recorders: tuple[Callable[[Progress], None], ...] = (),
    **objects: Any,
) -> FitResult:
    """Train in chunks of updates, with logging, evaluation and, in a directory, checkpoints between them.

    A run that is killed at any moment and resumed, any number of times, ends bit-identical to an uninterrupted run. SIGINT
    (Ctrl-C), SIGTERM or SIGUSR1 ends the run after the current chunk: it is saved, and the result so far is returned. A second
    signal has its usual effect. The result of a run that is already finished is returned at once.

    In a job of several processes (`jax.distributed`) all of them call it alike, and runs are spread over the devices of all. The
    first process alone reads and writes the directory, calls the recorders and has the metrics. A signal to one ends all.

    Args:
        cfg: the config; or a batch of configs, with leaves `[configs]`, to train side by side.
        seed: of the first run. Run i starts from `jax.random.key(seed + i)`.
        directory: for checkpoints, metrics and evaluations; None keeps nothing.
        num_seeds: runs of each config, side by side in one program, spread over the devices; on a CPU over its cores.
        exact: each of several runs has the bits of the same run alone: see `over_devices`.
        devices_per_run: devices that the environments of one agent are spread over: see `data_parallel`. If None, as many as the
          directory's run had, else 1. With another number than before a run goes on with the same parameters and statistics, and
          its environments are dealt out anew.
        resume: `auto` resumes from the directory's newest checkpoint if there is one, `must` requires one, `never` refuses one.
          Everything but `total_timesteps` and the arguments below must be the same. Objects of your own are compared by name,
          shapes and values.
          It warns if a schedule depends on `total_timesteps` and that has changed.
        init_from: a directory of another run, whose parameters this one starts from.
        save_seconds: approximate seconds between two checkpoints.
        save_every: also saves a checkpoint at each k-th update; 0 for none.
        keep: number of newest checkpoints to keep.
        keep_every: saves a checkpoint at each k-th update too, and keeps those for ever; 0 for none.
        on_save_error: if a file cannot be written, `raise`, or `warn` and try again when the next checkpoint is due.
        eval_every: evaluates before the first update and after each k-th; 0 for never.
        eval_episodes, eval_deterministic, eval_max_steps, eval_env_params: as `Train.evaluate` takes them.
        render_every: every k-th evaluation also renders an episode of the first run into the directory; 0 for none.
        stop_when: a rule, `(Progress) -> bool`, that ends the run, saved, where it returns True; see `purerl.at_return`. The rule
          is asked after each evaluation but the one before the first update, and after each `stop_every`-th update: so the run
          ends after the same update on every machine. Its `Progress` has the newest `evaluation`. The `metrics` there are one row
          of all updates since the rule was last asked, leaves `[1]` or `[runs, 1]`. The same call does not continue a run that
          its rule ended; a call without the rule, or with one that returns False, does.
        stop_every: asks `stop_when` after each k-th update too; 0 for at evaluations alone.
        on_nonfinite: `raise` if a run has diverged, or no step of an update was finite, or `ignore` it: other runs go on. Where
          none is left, a checkpoint is made only at the end.
        chunk_seconds: approximate seconds of a chunk, 15 at most, so that a signal is answered soon.
        max_hours: ends the run, saved, after this many hours of this call; 0 for no limit.
        recorders: called with a `Progress` after each chunk; see `purerl.recorders`. One that fails is reported, and tried again
          after the next checkpoint.
        **objects: `env`, `network`, `measure` and the others, as `make_train` takes them.

    Returns:
        `FitResult`: state, metrics, evaluations, progress, the signal that stopped it, and the `Run`.

    Raises:
        ConfigError: as `make_train`, for the arguments, for a directory that cannot be written to, and, before the first save,
          where what all devices of a run should have alike differs.
        CheckpointMismatch: the directory's run is another one.
        CheckpointError: a file of the directory could not be written or read.
        DirectoryLocked: another process trains there.
        NotFiniteError: a run has diverged, or its environments are not finite.

    Example:
        >>> cfg = purerl.PPOConfig(env="CartPole-v1", total_timesteps=1024)
        >>> result = purerl.fit(cfg, directory="runs/a", num_seeds=2, eval_every=1)
        >>> result.progress.updates
        2
        >>> purerl.summarize(result.metrics)["loss"].shape
        (2, 2)
    """
    check_type(cfg)
    arguments = dict(locals())
    raise_if_any(wrong_options(arguments))
    # Numbers of NumPy would overflow where Python's do not, and are no JSON.
    asked = types.SimpleNamespace(**{name: x.item() if isinstance(x, np.generic) else x for name, x in arguments.items()})
    asked.entered = time.perf_counter()
    asked.recorders = recorders if is_first() else ()
    asked.on_save_error = on_save_error if process_count() == 1 else "raise"  # the others would wait for ever
    path = None
    if directory is not None:
        path = by_first(lambda: run_directory(directory)) or pathlib.Path(directory).expanduser().absolute()
    if devices_per_run is None:
        (asked.devices_per_run,), _ = agreed(by_first(lambda: saved_layout(path)) or 0)
    runs = Trainer(cfg, asked.seed, asked.num_seeds, asked.exact, objects, asked.devices_per_run)
    updates = runs.here.plan.num_updates
    if path is not None and (rows := updates // cfg.metrics_every) > MANY_ROWS:
        fewer = -(-updates // (MANY_ROWS // 10))
        warnings.warn(f"{rows:,} rows of metrics will be kept; metrics_every={fewer} keeps {MANY_ROWS // 10:,}", stacklevel=2)
    score = evaluation_of(runs, vars(asked))
    layout = {"exact": asked.exact, "share": 1 if asked.exact else runs.share, "devices_per_run": asked.devices_per_run}
    who = identity(runs.train, runs.cfg, asked.seed, asked.num_seeds, **layout)
    with compile_cache(), Directory(path, who, type(cfg), asked.keep, asked.keep_every) as home:
        session = Session(runs, home, score, asked)
        session.train()
        run = Run(runs, session.state, (session.updates,) * len(runs.labels), path)
        metrics, evaluations = session.curves.whole(), session.evaluations.table()
        return FitResult(session.state, metrics, evaluations, session.report.latest, session.stopped_by, run, session.finite)


def evaluation_of(runs: Trainer, options: dict[str, Any]) -> Callable | None:
    """Return `Trainer.evaluation` for arguments of `fit`, by name; None without evaluations. Nothing is compiled.

    Raises:
        ConfigError: the runs cannot be evaluated or drawn like this.
    """
    asked = {name: parameter.default for name, parameter in inspect.signature(fit).parameters.items()} | options
    if not asked["eval_every"]:
        return None
    if asked["render_every"]:
        check_drawing(runs.train.env, runs.train.env.max_steps)
    how = {name: asked[f"eval_{name}"] for name in ("deterministic", "max_steps", "env_params")}
    return runs.evaluation(asked["eval_episodes"], **how)


def check_arguments(*arguments: Any, **options: Any) -> None:
    """Raise a ConfigError where `fit` would refuse such arguments, whatever the config."""
    bound = inspect.signature(fit).bind(*arguments, **options)
    bound.apply_defaults()
    raise_if_any(wrong_options(bound.arguments))
