"""`fit`: the host loop around training, with logging, evaluation and checkpoints.

It runs the same `Train.update` as `Train.__call__`, a chunk of updates at a time. The length of a chunk is an argument of one
compiled program. Nothing on the device or in the program grows with the length of the run. Logging, evaluation and checkpoints
between chunks do not affect training.
"""

import contextlib
import functools
import inspect
import os
import pathlib
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from purerl.checks import check_type
from purerl.config.base import OnPolicyConfig
from purerl.config.other_names import renamed
from purerl.config.rules import Rule as FieldRule
from purerl.config.rules import at_least, one_of
from purerl.core.errors import CheckpointError, NotFiniteError, Problem, nearest, raise_if_any
from purerl.core.numbers import is_flag, is_int, is_number
from purerl.core.types import TrainState
from purerl.envs.host import take_failure
from purerl.learning.nonfinite import LEARNT, first_bad_leaf
from purerl.runs import host_environments
from purerl.runs.analysis.rendering import check_drawing
from purerl.runs.compile_cache import compile_cache
from purerl.runs.data_parallel import check_replicas
from purerl.runs.directory import Directory, Run, identity, require_checkpoint, saved_layout, warm_start
from purerl.runs.evaluations import Best, Evaluations
from purerl.runs.interrupts import Stop
from purerl.runs.logging.progress import Progress
from purerl.runs.logging.recorders import Reports
from purerl.runs.processes import agreed, by_first, from_first, is_first, on_host, placed, process_count
from purerl.runs.stopping import STOPPED, Rule, Stopping
from purerl.runs.storage.checkpoint import Checkpoint, describe, run_directory, to_tree
from purerl.runs.storage.curves import FILE, Curves, Header, row_dtype
from purerl.runs.storage.files import write_errors
from purerl.runs.trainer import MAX_CHUNK, Trainer
from purerl.runs.watch import MetricWatch
from purerl.train import make_train

MAX_SECONDS = 15.0  # of a chunk: a signal is answered after it
MANY_ROWS = 1_000_000  # of metrics: hundreds of megabytes
TIME_IS_UP, RULE_SAYS_SO = 1000, 1001  # outside the range of signal numbers
REASONS = {TIME_IS_UP: "max_hours", RULE_SAYS_SO: STOPPED}


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
    """Trains in chunks of updates, with logging, evaluation and, in a directory, checkpoints between them.

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
    entered = time.perf_counter()
    check_type(cfg)
    raise_if_any(_wrong_options(locals()))
    # Numbers of NumPy would overflow where Python's do not, and are no JSON.
    plain = lambda *values: (x.item() if isinstance(x, np.generic) else x for x in values)
    seed, num_seeds, exact, save_every, keep, keep_every = plain(seed, num_seeds, exact, save_every, keep, keep_every)
    devices_per_run, stop_every = plain(devices_per_run, stop_every)
    eval_every, eval_episodes, eval_max_steps, render_every = plain(eval_every, eval_episodes, eval_max_steps, render_every)
    path = None
    if directory is not None:
        path = by_first(lambda: run_directory(directory)) or pathlib.Path(directory).expanduser().absolute()
    recorders = recorders if is_first() else ()
    on_save_error = on_save_error if process_count() == 1 else "raise"  # the others would wait for ever
    if devices_per_run is None:
        (devices_per_run,), _ = agreed(by_first(lambda: saved_layout(path)) or 0)
    runs = Trainer(cfg, seed, num_seeds, exact, objects, devices_per_run)
    plan = runs.here.plan
    if path is not None and (rows := plan.num_updates // cfg.metrics_every) > MANY_ROWS:
        fewer = -(-plan.num_updates // (MANY_ROWS // 10))
        warnings.warn(f"{rows:,} rows of metrics will be kept; metrics_every={fewer} keeps {MANY_ROWS // 10:,}", stacklevel=2)
    score = evaluation_of(runs, locals())
    layout = {"exact": exact, "share": 1 if exact else runs.share, "devices_per_run": devices_per_run}
    who = identity(runs.train, runs.cfg, seed, num_seeds, **layout)
    with compile_cache(), Directory(path, who, type(cfg), keep, keep_every) as home, contextlib.ExitStack() as stack:
        rows = (row_dtype(runs.row()), cfg.metrics_every, cfg.metrics_every * plan.batch_size, runs.pairs, runs.differ)
        row = Header(*rows, devices_per_run)
        curves = stack.enter_context(contextlib.closing(Curves(row, home.file(FILE))))
        template = runs.template()
        saved = shared(home.saved(resume, plan, describe({"state": template})))
        if saved is None and init_from is not None:
            require_checkpoint(init_from)  # before anything is compiled
        changed = {name: np.asarray(x).tolist() for name, x in (eval_env_params or {}).items()}
        changed = {"max_steps": eval_max_steps, "env_params": changed}  # which make it another task
        evaluated = {"episodes": eval_episodes, "deterministic": bool(eval_deterministic), **changed} if eval_every else None
        if saved is not None and evaluated is None:
            evaluated = saved.record.get("evaluated")  # its evaluations remain
        state, updates, seconds, finite = runs.init(), 0, 0.0, np.ones(len(runs.labels), bool)
        if saved is not None:
            fresh, updates, seconds = state, saved.updates, saved.record["seconds"]
            finite = np.array(saved.record.get("finite", finite))
            if on_nonfinite == "raise" and not finite.all():
                label = runs.labels[int(np.argmin(finite))]
                raise NotFiniteError(f"{label} had diverged when {path} was saved; on_nonfinite='ignore' goes on with the others")
            state = _restored(saved, template, fresh)
            state = host_environments.restored(runs, state, fresh, saved) if runs.on_host else state
        elif init_from is not None:
            state = runs.restart(warm_start(state, init_from, runs.train.action_unit))
        by_first(lambda: curves.begin(updates))
        stopping = Stopping(stop_when, (eval_every, stop_every), row.row, saved and (saved.arrays, saved.record))
        began, saved_updates = (updates, seconds), updates
        report = stack.enter_context(Reports(recorders, Progress(plan, runs.labels, updates, seconds, {}, began)))
        expected = saved.record.get("evaluations", 0) if saved is not None else 0
        evaluations = Evaluations(home.file("evaluations.jsonl"), updates, len(runs.labels), expected)
        stack.enter_context(contextlib.closing(evaluations))
        best = Best(home.best, who, len(runs.labels))
        if saved is None:
            best.begin()
        else:
            best.restore(describe({"state": template}))
        save_errors = functools.partial(_save_errors, on_save_error)
        for write in (curves.flush, evaluations.flush):  # what was damaged is mended now
            with save_errors():
                by_first(write)

        def evaluate(score):
            evaluations.add(updates, score(state))
            with save_errors():
                evaluations.flush()
            whole = on_host(state)
            with save_errors():
                best.update(updates, np.where(finite, evaluations.returns(updates), -np.inf), whole)
            is_drawn = render_every and updates // eval_every % render_every == 0
            if is_drawn and (drawing := home.file(f"renders/{updates}.gif")):  # which only the first process has
                with save_errors(), write_errors(drawing):
                    runs.render(whole, drawing)

        def save():
            """Saves what a checkpoint depends on, and then the checkpoint."""
            nonlocal saved_updates
            report.flush()
            if devices_per_run > 1 and saved_updates == began[0]:  # the first time
                check_replicas(state)
            for write in (curves.flush, evaluations.flush, best.settle):
                with save_errors():
                    write()
            whole = on_host(state)
            with save_errors():
                more = {"seconds": seconds, "evaluations": len(evaluations), "evaluated": evaluated, "finite": finite.tolist()}
                more |= {"stopped_by": stopped_by if isinstance(stopped_by, str) else None}
                outside = {"environments": host_environments.saved(state)} if runs.on_host else {}
                home.save(updates, {"state": whole, **stopping.saved, **outside}, more)
            saved_updates = updates

        def is_over():
            return stopping.is_over(Progress(plan, runs.labels, updates, seconds, {}, began, evaluations.newest()))

        (over,), _ = agreed(stopping.was_stopped and is_over())
        stopped_by = STOPPED if over else None
        done = updates == plan.num_updates or over
        if not done:
            runs.compile(state)
        if score is not None and updates == 0:
            evaluate(score)
        chunk, saved_at, start = 1, time.monotonic(), time.perf_counter()
        watch = MetricWatch(runs.labels, plan.batch_size, updates)
        with Stop() as stop:
            while not done:
                before = time.perf_counter()
                until_due = (every - updates % every for every in (save_every, keep_every, eval_every) if every)
                chunk = min(chunk, MAX_CHUNK, plan.num_updates - updates, *until_due, *stopping.until_due(updates))
                try:
                    state, rows, finite = runs.chunk(state, chunk)
                except jax.errors.JaxRuntimeError as error:
                    if (failure := take_failure()) is None:
                        raise
                    if updates > saved_updates:
                        save()
                    raise failure from error
                updates, seconds = updates + chunk, began[1] + time.perf_counter() - start
                watch(rows, updates, updates == plan.num_updates, on_nonfinite == "raise")
                if on_nonfinite == "raise" and not finite.all():
                    raise _diverged(state, rows, finite, updates, runs.labels)
                if is_first():
                    curves.append(rows)
                    stopping.append(rows)
                report(Progress(plan, runs.labels, updates, seconds, rows, began))
                chunk = max(1, round(chunk * min(4.0, min(chunk_seconds, MAX_SECONDS) / (time.perf_counter() - before))))
                if score is not None and updates % eval_every == 0:
                    evaluate(score)
                hours = (time.perf_counter() - entered) / 3600
                asked = RULE_SAYS_SO if is_over() else stop.asked or (TIME_IS_UP if max_hours and hours >= max_hours else 0)
                (chunk, due, _), (_, _, asked) = agreed(chunk, time.monotonic() - saved_at >= save_seconds, asked)
                stopped_by = REASONS.get(asked) or (signal.Signals(asked) if asked else None)
                done = updates == plan.num_updates or stopped_by is not None
                due = due or any(every and updates % every == 0 for every in (save_every, keep_every))
                if done or (due and finite.any()):
                    save()
                    saved_at = time.monotonic()
        with save_errors():
            home.wait()
        run = Run(runs, state, (updates,) * len(runs.labels), path)
        return FitResult(state, curves.whole(), evaluations.table(), report.latest, stopped_by, run, finite)


def evaluation_of(runs: Trainer, options: dict[str, Any]) -> Callable | None:
    """`Trainer.evaluation` as these arguments of `fit`, by name, ask for it; None without evaluations. Nothing is compiled.

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


# What `make_train` takes beside the config; the axis of devices is what `devices_per_run` makes.
OBJECTS = tuple(name for name in inspect.signature(make_train).parameters if name not in ("cfg", "axis_name", "axis_size"))
RULES: dict[str, FieldRule] = {
    "devices_per_run": at_least(1),
    "resume": one_of("auto", "must", "never"),
    "save_seconds": FieldRule("must be above 0", lambda x: x > 0),
    "save_every": at_least(0),
    "keep": at_least(1),
    "keep_every": at_least(0),
    "on_save_error": one_of("raise", "warn"),
    "eval_every": at_least(0),
    "eval_episodes": at_least(1),
    "eval_max_steps": at_least(1),
    "render_every": at_least(0),
    "on_nonfinite": one_of("raise", "ignore"),
    "stop_every": at_least(0),
    "chunk_seconds": FieldRule("must be above 0", lambda x: x > 0),
    "max_hours": at_least(0),
}


def check_arguments(*arguments: Any, **options: Any) -> None:
    """Raises a ConfigError where `fit` would refuse such arguments, whatever the config."""
    bound = inspect.signature(fit).bind(*arguments, **options)
    bound.apply_defaults()
    raise_if_any(_wrong_options(bound.arguments))


def _wrong_options(options: dict[str, Any]) -> list[Problem]:
    """Invalid arguments of `fit`."""
    flags = ("exact", "eval_deterministic")
    found = [Problem(name, options[name], "must be True or False") for name in flags if not is_flag(options[name])]
    for name, rule in RULES.items():
        value = options[name]
        if name in ("eval_max_steps", "devices_per_run") and value is None:
            continue
        is_right = is_number if name.endswith(("seconds", "hours")) else is_int
        right = isinstance(value, str) if rule.choices else is_right(value)
        if not (right and rule.holds(value)):
            found.append(Problem(name, value, rule.text if rule.choices or right else f"{rule.text}, not {type(value).__name__}"))
    if not found and options["render_every"] and not (options["eval_every"] and options["directory"]):
        found.append(Problem("render_every", options["render_every"], "needs eval_every and a directory to draw into"))
    if options["seed"] is None:
        found.append(Problem("seed", None, "must be an int from 0 to 2**32 - 1"))
    for name in ("directory", "init_from"):
        if options[name] is not None and not isinstance(options[name], str | os.PathLike):
            found.append(Problem(name, options[name], "must be a path"))
    if not isinstance(options["recorders"], tuple | list) or not all(map(callable, options["recorders"])):
        found.append(Problem("recorders", options["recorders"], "must be a tuple of functions of a Progress: (recorder,)"))
    found += _wrong_stopping(options)
    if options["eval_env_params"] is not None and not isinstance(options["eval_env_params"], dict):
        found.append(Problem("eval_env_params", options["eval_env_params"], "must be a dict of parameters"))
    found += [_unknown(options["cfg"], name, value) for name, value in options["objects"].items() if name not in OBJECTS]
    if options["resume"] == "must" and options["directory"] is None:
        found.append(Problem("directory", None, "resume='must' needs the directory to resume from"))
    return found


def _wrong_stopping(options: dict[str, Any]) -> list[Problem]:
    """Return what is wrong with the rule by which a run is to end."""
    rule, every = options["stop_when"], options["stop_every"]
    if rule is None:
        return [Problem("stop_every", every, "needs stop_when")] if every else []
    if not callable(rule):
        return [Problem("stop_when", rule, "must be a function of a Progress, such as purerl.at_return(475)")]
    if not every and not options["eval_every"]:
        return [Problem("stop_when", rule, "is never asked: it needs eval_every, or stop_every")]
    return []


def _unknown(cfg: OnPolicyConfig, name: str, value: Any) -> Problem:
    """Return an argument that neither `fit` nor `make_train` has."""
    if name in cfg.field_docs:
        return Problem(name, value, f"no argument of fit; set it in the config: cfg.replace({name}=...)")
    known = [*inspect.signature(fit).parameters, *OBJECTS]
    return Problem(name, value, f"no argument of fit; {renamed(name) or nearest(name, known)}")


def _restored(saved: Checkpoint, template: TrainState, fresh: TrainState) -> TrainState:
    """Return the state of a checkpoint, on the devices of the fresh one."""
    return jax.tree.map(lambda x, like: placed(x, like.sharding), to_tree(saved.arrays, {"state": template})["state"], fresh)


def shared(saved: Checkpoint | None) -> Checkpoint | None:
    """Return a checkpoint that the first process has read, or None, in all of them."""
    record = {} if saved is None else {"updates": saved.updates, "record": saved.record}
    arrays, record = from_first(None if saved is None else saved.arrays, record)
    return None if arrays is None else Checkpoint(record["updates"], record["record"], arrays)


def _diverged(state: TrainState, rows: dict[str, Any], finite: np.ndarray, updates: int, labels: tuple[str, ...]) -> Exception:
    """Return the error that names the update, the run and the parameter that is not finite."""
    run = int(np.argmin(finite))
    learned = on_host({name: getattr(state, name) for name in LEARNT})
    of_run = jax.tree.map(lambda x: x[run] if len(finite) > 1 else x, learned)
    totals = np.stack([np.atleast_2d(jax.tree.leaves(metric)[0])[run] for metric in rows.values()])
    bad = ~np.isfinite(totals).all(0)
    first = updates - totals.shape[1] + 1 + (int(np.argmax(bad)) if bad.any() else totals.shape[1] - 1)
    leaf = first_bad_leaf(of_run)
    return NotFiniteError(
        f"{labels[run]}: {leaf} is not finite; first seen in update {first}. The last checkpoint is from before. "
        "If the environment's numbers are finite, which purerl.check_env tells, a lower lr or max_grad_norm may help; "
        "nonfinite='reset' resets environments whose numbers are not, nonfinite='freeze' skips such updates, "
        "on_nonfinite='ignore' continues"
    )


@contextlib.contextmanager
def _save_errors(on_save_error: str) -> Iterator[None]:
    """Return a failure to save is raised, or becomes a warning: the next save may succeed."""
    try:
        yield
    except CheckpointError as error:
        if on_save_error == "raise":
            raise
        warnings.warn(f"{error}; training continues, and saves again when the next checkpoint is due", stacklevel=4)
