"""`fit`: the host loop around training, for everything that must happen while it runs.

It drives the same `Train.update` as `Train.__call__` does, a chunk of updates at a time. The length of a chunk is an
argument of one compiled program, and nothing on the device or in the program grows with the length of the run. What happens
between chunks (records, evaluations, checkpoints) moves no bit of training.
"""

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from purerl.checkpoint import Checkpoint, describe, run_directory, to_tree
from purerl.curves import Curves, Header
from purerl.directory import Directory, Run, identity, warm_start
from purerl.durable import written
from purerl.errors import CheckpointError, ConfigError, NotFiniteError, Problem
from purerl.evaluations import Best, Evaluations
from purerl.fields import Rule, at_least, is_flag, is_int, is_number, one_of
from purerl.nonfinite import LEARNT, first_bad_leaf
from purerl.on_policy import OnPolicyConfig
from purerl.progress import Progress
from purerl.recorders import Reports
from purerl.runs import MAX_CHUNK, Runs
from purerl.signals import Stop
from purerl.types import TrainState

PyTree = Any


class FitResult(NamedTuple):
    """What a run gives, whole or interrupted.

    state: after the last finished chunk. With several runs its leaves have a leading axis, but for the clock.
    metrics: as in `TrainResult`, on the host, from the first update on; leaves `[rows]`, or `[runs, rows]`.
    evaluations: `update [n]`, and `episode_return`, `episode_length` and `finished`, means over episodes, `[n, runs]`.
    progress: where the run stood at the end; its `began` is where this call went on from.
    stopped_by: the signal that ended it early, or None.
    run: the state with its config, as `load` gives it; `run.select` takes one run out of several.
    """

    state: TrainState
    metrics: dict[str, Any]
    evaluations: dict[str, np.ndarray]
    progress: Progress
    stopped_by: int | None
    run: Run


def fit(
    cfg: OnPolicyConfig,
    seed: int = 0,
    directory: Any = None,
    *,
    num_seeds: int = 1,
    exact: bool = False,
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
    on_nonfinite: str = "raise",
    measure: Callable[[TrainState], dict[str, Any]] | None = None,
    chunk_seconds: float = 1.0,
    recorders: tuple[Callable[[Progress], None], ...] = (),
    **objects: Any,
) -> FitResult:
    """Trains, reporting after each chunk of updates, and with a directory so that nothing is lost.

    A run that is killed at any moment and resumed, any number of times, ends in the same bits as one that never was. SIGINT
    (Ctrl-C) or SIGTERM ends it after the chunk in progress: it is saved, and what was reached is returned. A second one does
    what it always does. Of a run that is finished already the result is handed back.

    Args:
        cfg: what to train and how; or a batch of configs, with leaves `[configs]`, to train side by side.
        seed: of the first run; the others follow it. Run i begins with `jax.random.key(seed + i)`.
        directory: for checkpoints, metrics and evaluations; None keeps nothing.
        num_seeds: runs (of each config) side by side in one program, spread over the devices; on a CPU over its cores.
        exact: every one of several runs has the bits of its run alone: see `over_devices`.
        resume: `auto` goes on from the directory's newest checkpoint if it has one, `must` insists on one, `never` on none.
          Everything but `total_timesteps` and the arguments below must be as it was; of objects their names, shapes and numbers.
          Where a schedule follows `total_timesteps`, it warns.
        init_from: a directory of another run, whose parameters this one starts from.
        save_seconds: about how long between two checkpoints.
        save_every: a checkpoint at each k-th update as well; 0 for none.
        keep: newest checkpoints to keep.
        keep_every: checkpoints of every k-th update are kept for ever; 0 for none.
        on_save_error: where a file cannot be written, `raise`, or `warn` and try again when the next checkpoint is due.
        eval_every: evaluate before the first update and after each k-th; 0 never.
        eval_episodes, eval_deterministic, eval_max_steps, eval_env_params: as `Train.evaluate` takes them.
        render_every: of the evaluations, one in k also draws an episode of the first run into the directory; 0 for none.
        on_nonfinite: `raise` where a run has diverged, or `ignore` it. No checkpoint is made of such a state.
        measure: `(state) -> {name: scalar}`, added to the metrics of each update.
        chunk_seconds: about how long to run between two reports.
        recorders: called with a `Progress` after each chunk; see `purerl.recorders`. One that fails is reported, and tried again
          after the next checkpoint.
        **objects: `env`, `network` and the others, as `make_train` takes them.

    Raises:
        ConfigError: as `make_train`, for the arguments, and for a directory that cannot be written to.
        CheckpointMismatch: the directory's run is another one.
        CheckpointError: a file of the directory could not be written or read.
        DirectoryLocked: another process trains there.
        NotFiniteError: a run has diverged.
    """
    if found := _wrong_options(locals()):
        raise ConfigError(found)
    # Numbers of NumPy would overflow where Python's do not, and are no JSON.
    plain = lambda *values: (x.item() if isinstance(x, np.generic) else x for x in values)
    seed, num_seeds, exact, save_every, keep, keep_every = plain(seed, num_seeds, exact, save_every, keep, keep_every)
    eval_every, eval_episodes, eval_max_steps, render_every = plain(eval_every, eval_episodes, eval_max_steps, render_every)
    runs = Runs(cfg, seed, num_seeds, exact, measure, objects)
    plan = runs.train.plan
    options = {"deterministic": eval_deterministic, "max_steps": eval_max_steps, "env_params": eval_env_params}
    score = runs.evaluation(eval_episodes, **options) if eval_every else None
    who = identity(runs.train, runs.cfg, seed, num_seeds, exact=exact, share=1 if exact else runs.share)
    path = None if directory is None else run_directory(directory)
    with Directory(path, who, keep, keep_every) as home, contextlib.ExitStack() as stack:
        row = Header(runs.row(), cfg.metrics_every, cfg.metrics_every * plan.batch_size, runs.pairs, runs.differ)
        curves = stack.enter_context(contextlib.closing(Curves(row, home.file("curves.bin"))))
        template = runs.template()
        saved = home.saved(resume, plan, describe({"state": template}))
        state, updates, seconds = runs.init(), 0, 0.0
        if saved is not None:
            state, updates, seconds = _restored(saved, template, state), saved.updates, saved.record["seconds"]
            curves.pending = _pending(saved, curves.pending)
        elif init_from is not None:
            state = runs.restart(warm_start(state, init_from))
        curves.begin(updates)
        began = (updates, seconds)
        report = stack.enter_context(Reports(recorders, Progress(plan, runs.labels, updates, seconds, {}, began)))
        expected = saved.record.get("evaluations", 0) if saved is not None else 0
        evaluations = Evaluations(score, home.file("evaluations.jsonl"), updates, len(runs.labels), expected)
        stack.enter_context(contextlib.closing(evaluations))
        best = Best(home.best, who, len(runs.labels))
        best.begin(evaluations, describe({"state": template}))
        told = functools.partial(_told, on_save_error)
        for write in (curves.flush, evaluations.flush):  # what was damaged is mended now
            with told():
                write()

        def evaluate():
            evaluations.add(updates, state)
            with told():
                evaluations.flush()
            with told():
                best.offer(updates, evaluations.returns(updates), state)
            if render_every and updates // eval_every % render_every == 0:
                drawing = home.file(f"renders/{updates}.gif")
                with told(), written(drawing):
                    runs.render(state, drawing)

        def save():
            """What a checkpoint is not whole without comes first."""
            report.flush()
            for write in (curves.flush, evaluations.flush, best.settle):
                with told():
                    write()
            with told():
                more = {"seconds": seconds, "evaluations": len(evaluations)}
                home.save(updates, {"state": state, "pending": curves.pending}, more)

        done = updates == plan.num_updates
        if not done:
            runs.compile(state)
        if eval_every and updates == 0:
            evaluate()
        chunk, saved_at, start = 1, time.monotonic(), time.perf_counter()
        with Stop() as stop:
            while not done:
                before = time.perf_counter()
                until_due = (every - updates % every for every in (save_every, eval_every) if every)
                chunk = min(chunk, MAX_CHUNK, plan.num_updates - updates, *until_due)
                state, rows, finite = runs.chunk(state, chunk)
                updates, seconds = updates + chunk, began[1] + time.perf_counter() - start
                if on_nonfinite == "raise" and not finite.all():
                    raise _diverged(state, rows, finite, updates, runs.labels)
                curves.append(rows)
                report(Progress(plan, runs.labels, updates, seconds, rows, began))
                if eval_every and updates % eval_every == 0:
                    evaluate()
                done = updates == plan.num_updates or stop.asked is not None
                due = (save_every and updates % save_every == 0) or time.monotonic() - saved_at >= save_seconds
                if (done or due) and finite.all():
                    save()
                    saved_at = time.monotonic()
                chunk = max(1, round(chunk * min(4.0, chunk_seconds / (time.perf_counter() - before))))
        with told():
            home.wait()
        run = Run(runs, state, (updates,) * len(runs.labels), path)
        return FitResult(state, curves.whole(), evaluations.table(), report.latest, stop.asked, run)


RULES: dict[str, Rule] = {
    "resume": one_of("auto", "must", "never"),
    "save_seconds": Rule("must be above 0", lambda x: x > 0),
    "save_every": at_least(0),
    "keep": at_least(1),
    "keep_every": at_least(0),
    "on_save_error": one_of("raise", "warn"),
    "eval_every": at_least(0),
    "eval_episodes": at_least(1),
    "eval_max_steps": at_least(1),
    "render_every": at_least(0),
    "on_nonfinite": one_of("raise", "ignore"),
    "chunk_seconds": Rule("must be above 0", lambda x: x > 0),
}


def _wrong_options(options: dict[str, Any]) -> list[Problem]:
    """What is wrong with the arguments of `fit` by themselves."""
    flags = ("exact", "eval_deterministic")
    found = [Problem(name, options[name], "must be True or False") for name in flags if not is_flag(options[name])]
    for name, rule in RULES.items():
        value = options[name]
        if name == "eval_max_steps" and value is None:
            continue
        right = isinstance(value, str) if rule.choices else is_number(value) if name.endswith("seconds") else is_int(value)
        if not (right and rule.holds(value)):
            found.append(Problem(name, value, rule.says if rule.choices or right else f"{rule.says}, not {type(value).__name__}"))
    if not found and options["render_every"] and not (options["eval_every"] and options["directory"]):
        found.append(Problem("render_every", options["render_every"], "needs eval_every and a directory to draw into"))
    if options["seed"] is None:
        found.append(Problem("seed", None, "must be an int from 0 to 2**32 - 1"))
    if options["resume"] == "must" and options["directory"] is None:
        found.append(Problem("directory", None, "resume='must' needs the directory to go on from"))
    return found


def _restored(saved: Checkpoint, template: TrainState, fresh: TrainState) -> TrainState:
    """The state of a checkpoint where the fresh one lies."""
    restored = to_tree(saved.arrays, {"state": template})["state"]
    return jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), restored, fresh)


def _pending(saved: Checkpoint, nothing: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a checkpoint that were no whole row yet; of those that it does not have, nothing."""

    def leaf(path, x):
        theirs = saved.arrays.get(jax.tree_util.keystr(path), x)
        return theirs if (theirs.shape, theirs.dtype) == (x.shape, x.dtype) else x

    return jax.tree_util.tree_map_with_path(leaf, {"pending": nothing})["pending"]


def _diverged(state: TrainState, rows: dict[str, Any], finite: np.ndarray, updates: int, labels: tuple[str, ...]) -> Exception:
    """The error that names the update, the run and the parameter that is not finite."""
    run = int(np.argmin(finite))
    learnt = {name: jax.device_get(getattr(state, name)) for name in LEARNT}
    mine = jax.tree.map(lambda x: x[run] if len(finite) > 1 else x, learnt)
    totals = np.stack([np.atleast_2d(jax.tree.leaves(metric)[0])[run] for metric in rows.values()])
    bad = ~np.isfinite(totals).all(0)
    first = updates - totals.shape[1] + 1 + (int(np.argmax(bad)) if bad.any() else totals.shape[1] - 1)
    leaf = first_bad_leaf(mine)
    return NotFiniteError(
        f"{labels[run]}: {leaf} is not finite; first seen in update {first}. The last checkpoint is from before. "
        "A lower lr or max_grad_norm may help; nonfinite='freeze' skips such updates, on_nonfinite='ignore' goes on"
    )


@contextlib.contextmanager
def _told(on_save_error: str) -> Iterator[None]:
    """A failure to save is raised, or told and forgotten: the next save may succeed."""
    try:
        yield
    except CheckpointError as error:
        if on_save_error == "raise":
            raise
        warnings.warn(f"{error}; training goes on, and saves again when the next checkpoint is due", stacklevel=4)
