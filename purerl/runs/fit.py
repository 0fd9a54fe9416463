"""`fit`: training with logging, evaluation and checkpoints between chunks of updates."""

import inspect
import signal
import time
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from purerl.checks.check_arguments import check_type
from purerl.config.base import OnPolicyConfig
from purerl.core.errors import config_error, raise_if_any, warn
from purerl.core.metrics import LAST, over_the_last
from purerl.core.types import TrainState
from purerl.runs.analysis.rendering import check_drawing
from purerl.runs.analysis.statistics import format_spread
from purerl.runs.compile_cache import compile_cache
from purerl.runs.devices.processes import agree, call_in_first, is_first, process_count
from purerl.runs.directory import Directory, run_directory
from purerl.runs.evaluations import is_current
from purerl.runs.identity import identity
from purerl.runs.logging.console import LiveLine
from purerl.runs.logging.progress import Progress
from purerl.runs.options import unused_options, wrong_options
from purerl.runs.run import Run, saved_layout
from purerl.runs.session import Session
from purerl.runs.stopping import Rule
from purerl.runs.trainer import Trainer

MANY_ROWS = 1_000_000  # above this number of rows of metrics, `fit` warns: the rows take hundreds of megabytes


class FitResult(NamedTuple):
    """The result of a run, finished or interrupted.

    Attributes:
        state: the training state after the last finished chunk. With several runs, all leaves except the update counter have a
          leading run axis.
        metrics: the metrics of all updates, on the host; leaves `[rows]`, or `[runs, rows]`; one row per `metrics_every` updates.
        evaluations: `update [evaluations]`, and means over episodes, `[evaluations, runs]`: `episode_return`, `episode_length`,
          `finished`, and each scalar entry that the config names in `info` or `episode_info`, such as `episode_info/success`.
        progress: the progress at the end; `progress.began` is the (updates, seconds) at which this call started or resumed.
        stopped_by: what asked the run to end: a signal, "max_hours" or "stop_when", even if the run is finished; or None.
        run: a `Run` of the state and the config, as returned by `load`; `run.select` selects one of several runs.
        finite: `[runs]`, True if all learnt values of a run are finite. False is possible only with `on_nonfinite="ignore"`.

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

    def __repr__(self) -> str:
        """Describe the run, its steps and returns, in a few lines."""
        lines = [repr(self.run), self.progress.steps_text]
        if self.metrics:
            lines += [f"return over the last tenth: {format_spread(over_the_last(self.metrics, 'episode_return', LAST))}"]
        if len(self.evaluations["update"]):
            share = self.evaluations["finished"][-1].mean()
            cut = "" if share == 1 else f" ({share:.0%} of episodes finished)"
            at, done = self.evaluations["update"][-1], self.progress.updates
            old = "" if is_current(self.evaluations["update"], done) else f" (after {at:,} of {done:,} updates)"
            lines += [f"return of the last evaluation: {format_spread(self.evaluations['episode_return'][-1])}{cut}{old}"]
        stopped = self.stopped_by and not self.progress.is_finished
        lines += [f"stopped by {getattr(self.stopped_by, 'name', self.stopped_by)}"] if stopped else []
        return "\n".join(lines)


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
    init_groups: tuple[str, ...] = (),
    continue_steps: bool = False,
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
    best_by: str = "episode_return",
    render_every: int = 0,
    stop_when: Rule | None = None,
    stop_every: int = 0,
    on_nonfinite: str = "raise",
    chunk_seconds: float = 1.0,
    max_hours: float = 0.0,
    progress: bool | None = None,
    recorders: tuple[Callable[[Progress], None], ...] = (),
    **objects: Any,
) -> FitResult:
    """Train in chunks of updates; between chunks, log, evaluate and, if `directory` is given, save checkpoints.

    A run with a directory can be killed at any moment and resumed, any number of times: the result is bit-identical to that of an
    uninterrupted run. If this is impossible, for example with other library versions, `fit` warns. SIGINT (Ctrl-C), SIGTERM or
    SIGUSR1 ends the run after the current chunk: the run is saved, and the result so far is returned. A second signal has its
    usual effect. If a run is already finished, its result is returned at once.

    In a job of several processes (`jax.distributed`), every process makes the same call, and runs are spread over the devices of
    all processes. The directory must be on a file system that all processes share. Only the first process writes metrics and
    evaluations, calls the recorders and returns all metrics and evaluations. A signal to one process ends the run in all of them.

    Args:
        cfg: the config; or a batch of configs, with leaves `[configs]`, to train side by side.
        seed: seed of the first run. Run i of a config, counted from 0, starts from `jax.random.key(seed + i)`.
        directory: directory for checkpoints, metrics and evaluations; None saves nothing.
        num_seeds: number of runs per config. One program trains all runs, spread over the devices or, on a CPU, over its cores.
        exact: make each of several runs bit-identical to the same run alone: a device then computes its runs one after the other.
        devices_per_run: number of devices that one agent's environments are spread over, as with `data_parallel`. None means the
          number of the directory's saved run if so many devices exist, else 1. A run that is resumed with another number keeps
          its parameters and statistics, and its environments are redistributed.
        resume: `auto` resumes from the directory's newest checkpoint if one exists, `must` requires a checkpoint, `never` is an
          error if one exists. The config, the seeds, `exact` and the custom objects must be the same as before, except
          `total_timesteps` and `measure`. Custom objects are compared by name, shapes and values. If `total_timesteps` has
          changed and a schedule depends on it, `fit` warns.
        init_from: directory of another run. A new run starts from the parameters and statistics of that run.
        init_groups: groups of parameters, and "statistics", to copy from `init_from`, such as `("policy/torso", "statistics")`.
          () copies everything. A warning names the other parameters, which keep their initial values.
        continue_steps: in recorders and plots, count environment steps on from the last step of `init_from`, so that a run with
          another learning rate or number of environments continues the curve of that run. Schedules, `total_timesteps` and
          comparisons count the steps of this run alone.
        save_seconds: approximate seconds between two checkpoints.
        save_every: also save a checkpoint every `save_every` updates; 0 for none.
        keep: keep this many of the newest checkpoints.
        keep_every: also save a checkpoint every `keep_every` updates, and keep it for ever; 0 for none.
        on_save_error: if a file cannot be written, `raise` an error, or `warn` and try again when the next checkpoint is due, and
          once more at the end. A job of several processes always raises an error.
        eval_every: evaluate before the first update, or at once in a resumed run without evaluations, then every `eval_every`
          updates, and after the last update; 0 for never.
        eval_episodes: number of episodes per run in an evaluation.
        eval_deterministic: take the mode of the policy instead of a random action.
        eval_max_steps: number of steps in each environment; None for the environment's time limit.
        eval_env_params: overrides of the environment's parameters in evaluations; the factor of a parameter that `randomize`
          scales.
        best_by: the evaluation column whose highest value marks the best state of each run; for an entry of `episode_info` or
          `info`, a name such as "episode_info/success". A run with evaluations must be resumed with the same column.
        render_every: save an animation of the first run at evaluations after multiples of `render_every * eval_every` updates,
          including 0 updates; 0 for never.
        stop_when: a rule, `(Progress) -> bool`, such as `purerl.at_return(475)`. When the rule returns True, the run is saved and
          ends. The rule is called every `eval_every` updates, after the evaluation, and every `stop_every` updates, so the run
          ends after the same update however fast the machine is. In the rule's `Progress`, `evaluation` is the latest evaluation,
          and `metrics` aggregates all updates since the rule's last call, leaves `[1]` or `[runs, 1]`. If a rule has ended a run,
          the same call does not continue it; a call without the rule, or with a rule that returns False, does.
        stop_every: also call `stop_when` every `stop_every` updates; 0 for only after evaluations.
        on_nonfinite: if a run has diverged, or no environment step of an update was finite, `raise` an error, or `ignore` the
          problem and continue training. Once all runs have diverged, a checkpoint is saved only at the end.
        chunk_seconds: approximate seconds per chunk. Values above 15 count as 15, so that a signal takes effect soon.
        max_hours: save and end the run after this many hours of this call; 0 for no limit.
        progress: show a line of progress; None shows it only in a terminal or a notebook.
        recorders: functions that are called with a `Progress` after each chunk, such as those in `purerl.recorders`. If a
          recorder fails, `fit` warns, and starts the recorder again at the next checkpoint.
        **objects: `env`, `network`, `measure` and the other arguments of `make_train`.

    Returns:
        `FitResult`: state, metrics, evaluations, progress, the reason for an early end, and the `Run`.

    Raises:
        ConfigError: the config, a custom object or an argument is invalid; the directory cannot be written to; or arrays that
          must be equal on all devices of a run differ, which is checked before the first save.
        CheckpointMismatch: the directory contains another run, or `best_by` has changed.
        CheckpointError: a file in the directory could not be written or read.
        DirectoryLocked: another process trains in the directory.
        NotFiniteError: with `on_nonfinite="raise"`, a run has diverged, or no step of an update was finite.

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
    if jax.config.values["jax_disable_jit"]:
        raise config_error("jax_disable_jit", True, "must be False in fit; to debug, call train.update without jax.jit")
    raise_if_any(wrong_options(arguments))
    for problem in unused_options(arguments, fit):
        warn(str(problem))
    # NumPy's integers overflow and cannot be written as JSON, unlike Python's.
    options = types.SimpleNamespace(**{name: x.item() if isinstance(x, np.generic) else x for name, x in arguments.items()})
    options.entered = time.perf_counter()
    line = LiveLine()
    shown = line.is_live if progress is None else progress
    options.recorders = (*recorders, *([line] if shown else [])) if is_first() else ()
    options.on_save_error = on_save_error if process_count() == 1 else "raise"  # with `warn`, other processes would wait for ever
    path = None if directory is None else run_directory(directory)
    if devices_per_run is None:
        (options.devices_per_run,), _ = agree(call_in_first(lambda: saved_layout(path)) or 0)
    trainer = Trainer(cfg, options.seed, options.num_seeds, options.exact, objects, options.devices_per_run)
    updates = trainer.here.plan.num_updates
    if path is not None and (rows := updates // cfg.metrics_every) > MANY_ROWS:
        fewer = -(-updates // (MANY_ROWS // 10))
        warn(f"saves {rows:,} rows of metrics; metrics_every={fewer} saves {MANY_ROWS // 10:,} or fewer")
    if options.stop_every > updates:
        warn(f"stop_every = {options.stop_every} is more than the {updates} updates, so it never calls stop_when")
    score = evaluation_of(trainer, vars(options))
    layout = {"exact": options.exact, "share": 1 if options.exact else trainer.share, "devices_per_run": options.devices_per_run}
    who = identity(trainer.train, trainer.cfg, options.seed, options.num_seeds, **layout)
    with compile_cache(), Directory(path, who, type(cfg), options.keep, options.keep_every) as home:
        session = Session(trainer, home, score, options)
        session.train()
        run = Run(trainer, session.state, (session.updates,) * len(trainer.labels), path)
        metrics, evaluations = session.curves.whole(), session.evaluations.table()
        return FitResult(session.state, metrics, evaluations, session.report.latest, session.stopped_by, run, session.finite)


def evaluation_of(runs: Trainer, options: dict[str, Any]) -> Callable | None:
    """Return the result of `Trainer.evaluation` for a dict of arguments of `fit`; None if `eval_every` is 0.

    Raises:
        ConfigError: the runs cannot be evaluated or rendered with these options.
    """
    asked = {name: parameter.default for name, parameter in inspect.signature(fit).parameters.items()} | options
    if not asked["eval_every"]:
        return None
    if asked["render_every"]:
        check_drawing(runs.train.env, runs.train.env.max_steps)
    how = {name: asked[f"eval_{name}"] for name in ("deterministic", "max_steps", "env_params")}
    return runs.evaluation(asked["eval_episodes"], asked["best_by"], **how)


def check_arguments(*arguments: Any, **options: Any) -> None:
    """Raise a ConfigError for the `wrong_options` among these arguments of `fit`."""
    bound = inspect.signature(fit).bind(*arguments, **options)
    bound.apply_defaults()
    raise_if_any(wrong_options(bound.arguments))
