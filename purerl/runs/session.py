"""The Python loop around training, in one call of `fit`.

A session runs the same `Train.update` as `Train.__call__`, a chunk of updates at a time. One compiled program runs chunks of any
length up to 1024 updates, so neither the memory on the device nor the program grows with the length of the run. Logging,
evaluation and checkpoints between chunks do not affect training.
"""

import contextlib
import pathlib
import signal
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from purerl.core.errors import CheckpointError, CheckpointMismatch, NotFiniteError, warn
from purerl.core.types import TrainState
from purerl.envs.external.host import take_failure
from purerl.learning.nonfinite import LEARNT, first_bad_leaf
from purerl.runs.devices.data_parallel import check_replicas
from purerl.runs.devices.processes import agree, call_in_first, gather_to_host, is_first, place_array
from purerl.runs.directory import Directory, absolute_path
from purerl.runs.evaluations import Best, Evaluations
from purerl.runs.identity import schedules_over_training
from purerl.runs.interrupts import Stop
from purerl.runs.logging.progress import Progress, Reports
from purerl.runs.stopping import STOPPED, Stopping
from purerl.runs.storage.arrays import describe, to_tree
from purerl.runs.storage.checkpoint import Checkpoint, broadcast_checkpoint, newest_readable
from purerl.runs.storage.curves import FILE, Curves, Header, row_dtype
from purerl.runs.trainer import MAX_CHUNK, Score, Trainer
from purerl.runs.warm_start import check_layout, last_step, warm_start, warn_of_other_networks
from purerl.runs.watch import MetricWatch

MAX_SECONDS = 15.0  # longest chunk: a signal takes effect at the end of a chunk
TIME_IS_UP, STOP_WHEN = 1000, 1001  # outside the range of signal numbers
REASONS = {TIME_IS_UP: "max_hours", STOP_WHEN: STOPPED}


class Session:
    """Trains runs from the start, from a checkpoint or from another run's parameters, and saves the runs.

    Attributes:
        state, updates, seconds: training state, finished updates and seconds so far.
        finite: `[runs]`, True if all learnt values of a run are finite.
        stopped_by: the reason for an early end, as in `FitResult.stopped_by`.

    Args:
        trainer: the runs to train.
        home: the open directory of the runs.
        score: the evaluation function; None without evaluations.
        options: the arguments of `fit`, and `entered`, the time at which `fit` was called.
    """

    state: TrainState

    def __init__(self, trainer: Trainer, home: Directory, score: Score | None, options: types.SimpleNamespace):
        self.trainer, self.home, self.score, self.options, self.plan = trainer, home, score, options, trainer.here.plan
        self.updates, self.seconds, self.finite = 0, 0.0, np.ones(len(trainer.labels), bool)
        self.stopped_by: signal.Signals | str | None = None
        row, every = row_dtype(trainer.row()), options.cfg.metrics_every
        template = trainer.template()
        described = describe({"state": template})
        saved = broadcast_checkpoint(home.saved(options.resume, self.plan, described))
        begins_from = None
        if saved is None and options.init_from is not None:
            begins_from = newest_readable(absolute_path(options.init_from) / "checkpoints")  # before anything is compiled
        record = {} if saved is None else saved.record
        self._first_step = last_step(begins_from) if begins_from and options.continue_steps else record.get("first_step", 0)
        layout = trainer.pairs, trainer.differ, trainer.devices_per_run
        header = Header(row, every, every * self.plan.batch_size, *layout, self._first_step)
        self.curves = Curves(header, home.file(FILE))
        # A call without evaluations keeps the evaluation settings of the checkpoint.
        self._evaluated = _protocol(options) or record.get("evaluated")
        origin = None if options.init_from is None else str(absolute_path(options.init_from))
        given = {"init_from": origin, "init_groups": list(options.init_groups), "continue_steps": options.continue_steps}
        self._began = {name: record.get(name, x) for name, x in given.items()}
        for name, x in given.items():
            if x and x != (before := self._began[name]):
                warn(f"{name} = {x!r} has no effect, since the run in {home.path} began with {name} = {before!r}")
        self.state = trainer.init()
        if saved is not None:
            self._resume(saved, template)
        elif begins_from is not None:
            check_layout(begins_from, trainer.pairs, options.init_from)
            unit, groups = trainer.train.action_unit, tuple(options.init_groups)
            warn_of_other_networks(begins_from, home.identity, options.init_from, groups)
            self.state = trainer.restart(warm_start(self.state, begins_from, options.init_from, unit, groups))
        self._start = (self.updates, self.seconds)
        self._saved_updates = self.updates
        call_in_first(lambda: self.curves.begin(self.updates))
        self._stopping = Stopping(options.stop_when, (options.eval_every, options.stop_every), row, saved)
        expected = record.get("evaluations")
        begin = lambda: Evaluations(home.file("evaluations.jsonl"), self.updates, len(trainer.labels), expected)
        found = call_in_first(begin)  # the first process alone has a file, and may fail to read it
        self.evaluations = begin() if found is None else found
        self.report = Reports(options.recorders, self._progress())
        by = options.best_by if options.eval_every else None
        total = lambda record: record["config"]["total_timesteps"]
        self._has_new_total = saved is not None and total(record) != total(home.identity)
        self.best = Best(home.best, home.identity, len(trainer.labels), by, described if saved else None)
        if saved is not None:
            self.best.resume(self._last_reached_update(record), self.updates, lambda: gather_to_host(self.state))

    def _last_reached_update(self, record: dict[str, Any]) -> int:
        """Return the last update that the run of a checkpoint's record had reached, or will reach with the same state."""
        if record.get("evaluations") == 0:
            return self.updates - 1  # best states from here on are of a call that was killed before its first checkpoint
        objects = self.home.identity["objects"]
        depends = "lr_schedule" in objects or schedules_over_training(record["config"], objects)
        return self.updates if self._has_new_total and depends else self.plan.num_updates

    def _resume(self, saved: Checkpoint, template: TrainState) -> None:
        self.updates, self.seconds = saved.updates, saved.record["seconds"]
        self.finite = np.array(saved.record.get("finite", self.finite))
        if self.options.on_nonfinite == "raise" and not self.finite.all():
            label, path = self.trainer.labels[int(np.argmin(self.finite))], self.home.path
            raise NotFiniteError(f"{label} has diverged in {path}; on_nonfinite='ignore' continues training")
        now, before = _protocol(self.options) or {}, saved.record.get("evaluated") or {}
        other = [name for name in ("deterministic", "max_steps", "env_params") if now and before and now[name] != before[name]]
        if other:
            text = [f"eval_{name}: {before[name]} in the checkpoint, {now[name]} here" for name in other]
            raise CheckpointMismatch(self.home.path, text)
        if now and before and now["episodes"] != before["episodes"]:
            count = f"{before['episodes']} in the checkpoint, {now['episodes']} here"
            warn(f"eval_episodes: {count}; comparisons and the choice of the best state mix both kinds of scores")
        fresh, state = self.state, to_tree(saved.arrays, {"state": template})["state"]
        state = jax.tree.map(lambda x, like: place_array(x, like.sharding), state, fresh)
        self.state = self.trainer.restore_environments(state, fresh, saved)

    def train(self) -> None:
        """Train until the last update, or until an early end; then save, and wait until everything is saved."""
        with contextlib.closing(self.curves), contextlib.closing(self.evaluations), self.report:
            self._train()
            if not self._try(self.home.checkpoints.wait) or self._saved_updates < self.updates:  # on_save_error="warn": once more
                self._save()
                self._try(self.home.checkpoints.wait)

    def _train(self) -> None:
        for write in (self.curves.flush, self.evaluations.flush):  # rewrites files that a kill has damaged
            self._try(call_in_first, write)
        (over,), _ = agree(self._stopping.was_stopped and self._is_over())
        self.stopped_by = STOPPED if over else None
        done = self.updates == self.plan.num_updates or over
        if done and self.score is not None and not len(self.evaluations):
            warn("the run is finished, so eval_every has no effect; evaluate the result with purerl.load(...).evaluate")
        if not done:
            self.trainer.compile(self.state)
            (evaluations,), _ = agree(len(self.evaluations))  # only the first process has those of earlier calls
            if self.score is not None and not evaluations:
                self._evaluate(self.score)
            with Stop() as stop:
                self._loop(stop)
        elif self._has_new_total:
            self._save()

    def _loop(self, stop: Stop) -> None:
        options, raises, last = self.options, self.options.on_nonfinite == "raise", self.plan.num_updates
        cfg = options.cfg
        clip = None if cfg.value_clip == "none" or cfg.normalize_value else float(np.max(cfg.value_clip_eps))
        watch = MetricWatch(self.trainer.labels, self.plan.batch_size, self.updates, clip, self.trainer.train.env.max_steps)
        length, saved_at, start, done = 1, time.monotonic(), time.perf_counter(), False
        while not done:
            before = time.perf_counter()
            length = self._shorten(length)
            rows = self._chunk(length)
            self.seconds = self._start[1] + time.perf_counter() - start
            watch(rows, self.updates, self.updates == last, raises)
            if raises and not self.finite.all():
                raise self._divergence_error(rows)
            if is_first():
                self.curves.append(rows)
                self._stopping.append(rows)
            spent = time.perf_counter() - before
            length = max(1, round(length * min(4.0, min(options.chunk_seconds, MAX_SECONDS) / spent)))
            if self.score is not None and (self.updates == last or self.updates % options.eval_every == 0):
                self._evaluate(self.score)
            self.report(self._progress(metrics=rows))
            due = time.monotonic() - saved_at >= options.save_seconds
            (length, due, _), (_, _, reason) = agree(length, due, self._reason(stop))
            self.stopped_by = REASONS.get(reason) or (signal.Signals(reason) if reason else None)
            done = self.updates == last or self.stopped_by is not None
            due = due or any(every and self.updates % every == 0 for every in (options.save_every, options.keep_every))
            if done or (due and self.finite.any()):
                self._save()
                saved_at = time.monotonic()

    def _shorten(self, length: int) -> int:
        """Return the length of the next chunk, at most up to the next save, evaluation or `stop_when` due by updates."""
        intervals = (self.options.save_every, self.options.keep_every, self.options.eval_every, *self._stopping.every)
        until_due = (every - self.updates % every for every in intervals if every)
        return min(length, MAX_CHUNK, self.plan.num_updates - self.updates, *until_due)

    def _chunk(self, length: int) -> dict[str, Any]:
        """Train for this many updates, and return their metrics."""
        try:
            self.state, rows, self.finite = self.trainer.chunk(self.state, length)
        except jax.errors.JaxRuntimeError as error:
            if (failure := take_failure()) is None:
                raise
            if self.updates > self._saved_updates:
                self._save()
            raise failure from error
        self.updates += length
        return rows

    def _reason(self, stop: Stop) -> int:
        """Return the code of the reason to end the session now, or 0 without a reason."""
        hours, limit = (time.perf_counter() - self.options.entered) / 3600, self.options.max_hours
        return STOP_WHEN if self._is_over() else stop.asked or (TIME_IS_UP if limit and hours >= limit else 0)

    def _is_over(self) -> bool:
        """Return True in the first process if `stop_when` ends the run. Every process calls this."""
        return self.options.stop_when is not None and bool(call_in_first(lambda: self._stopping.is_over(self._progress())))

    def _progress(self, metrics: dict[str, Any] | None = None) -> Progress:
        newest = self.evaluations.newest() if self.options.eval_every else None
        done = self.updates, self.seconds
        return Progress(self.plan, self.trainer.labels, *done, metrics or {}, self._start, newest, self._first_step)

    def _evaluate(self, score: Score) -> None:
        columns, whole = score(self.state), gather_to_host(self.state)
        self.evaluations.add(self.updates, columns)
        scores = columns[self.options.best_by].astype(np.float64)
        self._try(call_in_first, self.evaluations.flush)
        self._try(self.best.update, self.updates, np.where(self.finite & np.isfinite(scores), scores, -np.inf), whole)
        every = self.options.render_every * self.options.eval_every
        if every and self.updates % every == 0:
            self._try(call_in_first, lambda: self._render(whole, self.home.file(f"renders/{self.updates}.gif")))

    def _render(self, state: TrainState, drawing: pathlib.Path | None) -> None:
        if drawing is not None:
            self.trainer.render(state, drawing)
            self.report.show(self._progress(), drawing)

    def _save(self) -> None:
        """Save the files that a checkpoint depends on, and then begin to save the checkpoint."""
        self.report.flush()
        if self.trainer.devices_per_run > 1 and self._saved_updates == self._start[0]:  # at the first save only
            check_replicas(self.state)
        for write in (self.curves.flush, self.evaluations.flush):
            self._try(call_in_first, write)
        self._try(self.best.settle)
        tree = {"state": gather_to_host(self.state), "environments": self.trainer.snapshots(self.state), **self._stopping.saved}
        record = {
            **self.home.identity,
            **self._began,
            "seconds": self.seconds,
            "first_step": self._first_step,
            "batch_size": self.plan.batch_size,
            "evaluations": len(self.evaluations),
            "evaluated": self._evaluated,
            "finite": self.finite.tolist(),
            "stopped_by": getattr(self.stopped_by, "name", self.stopped_by),
        }
        if not self._try(self.home.checkpoints.wait):  # a save that failed must not prevent the next
            self._saved_updates = self._start[0]
        if self._try(self.home.checkpoints.save, self.updates, tree, record):
            self._saved_updates = self.updates

    def _try(self, write: Callable[..., Any], *args: Any) -> bool:
        """Call a function that saves; return True if it succeeds. With `on_save_error="warn"`, only warn about an error."""
        try:
            write(*args)
        except CheckpointError as error:
            if self.options.on_save_error == "raise":
                raise
            warn(f"{error}; with on_save_error='warn', no error is raised")
            return False
        return True

    def _divergence_error(self, rows: dict[str, Any]) -> Exception:
        """Return the error that names the update, the run and an array that is not finite."""
        run = int(np.argmin(self.finite))
        learned = gather_to_host({name: getattr(self.state, name) for name in LEARNT})
        of_run = jax.tree.map(lambda x: x[run] if len(self.finite) > 1 else x, learned)
        totals = np.stack([np.atleast_2d(jax.tree.leaves(metric)[0])[run] for metric in rows.values()])
        bad = ~np.isfinite(totals).all(0)
        first = self.updates - totals.shape[1] + 1 + (int(np.argmax(bad)) if bad.any() else totals.shape[1] - 1)
        leaf = first_bad_leaf(of_run)
        return NotFiniteError(
            f"{self.trainer.labels[run]}: {leaf} has not been finite since update {first}. Checkpoints are from earlier updates. "
            "Check the environment with purerl.check_env; if its numbers are finite, a lower lr or max_grad_norm may help. "
            "nonfinite='reset' resets environments with NaN or infinite numbers, nonfinite='freeze' skips updates with NaN, "
            "and on_nonfinite='ignore' continues training"
        )


def _protocol(options: types.SimpleNamespace) -> dict[str, Any] | None:
    """Return the settings of evaluations, for the record of a checkpoint; None without evaluations."""
    if not options.eval_every:
        return None
    params = {name: np.asarray(x).tolist() for name, x in (options.eval_env_params or {}).items()}
    how = {"episodes": options.eval_episodes, "deterministic": bool(options.eval_deterministic)}
    return {**how, "max_steps": options.eval_max_steps, "env_params": params}  # the last two can change the task
