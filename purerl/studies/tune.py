"""Tuning: Optuna proposes settings, batches of trials train as one program, and the worse half of each rung stops.

A trial is a config with a few seeds. Its training is cut into rungs: each ends at twice the steps of the one before. A batch of
trials trains side by side to the end of its rung. Those that Optuna's pruner stops are replaced: by trials that wait for the next
rung, once there is a batch of them, or by new ones. No program is compiled for them, since the floats of a config are arguments.

A study that is killed goes on from the last batch that was whole: the one that was interrupted is trained again, and no trial
counts twice.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from purerl.checks.check_arguments import check_type
from purerl.config.base import OnPolicyConfig, RNDConfig
from purerl.config.documentation import default_of, shown
from purerl.core.errors import ConfigError, Problem, raise_if_any
from purerl.core.numbers import is_count, is_int, is_number
from purerl.runs.compile_cache import compile_cache
from purerl.runs.identity import identity
from purerl.runs.interrupts import Stop
from purerl.runs.options import OBJECTS
from purerl.runs.processes import process_count
from purerl.runs.storage.files import atomic_write
from purerl.runs.storage.lock import Lock, run_directory
from purerl.studies import space
from purerl.studies.reading import PLAN, WINNER, Summary, read_plan, summary_of
from purerl.studies.rungs import RungTrainer, check_program, check_rungs
from purerl.studies.search import Search
from purerl.studies.steps import Step, Trial
from purerl.studies.study import STUDY, Study
from purerl.studies.sweep import Sweep, SweepResult
from purerl.studies.tasks import is_of_task
from purerl.train import make_train

MOST_AT_ONCE = 16
MOST_CHECKED = 32  # programs that are made before the first is trained


class Tuned(NamedTuple):
    """The result of tuning, finished or interrupted.

    cfg: the best config; None only if `stopped_by` says what interrupted the study before.
    point: what it has in place of the config that was tuned, by field.
    summary: its score on seeds that neither tuning nor the choice among finalists has seen.
    trials: all, the best first: completed ones before others.
    finalists: labels of the best trials, and their scores on seeds that tuning has not seen, the best first.
    importance: the share of the variance of scores that each parameter explains, by field, among completed trials alone: what
      the pruner stopped or what diverged does not count, so that a parameter which decided about that may look unimportant. {} if
      it is not known.
    env_steps, seconds: spent on all of it.
    stopped_by: the signal that ended it early, "max_hours", or None.

    Example:
        >>> cfg = purerl.PPOConfig(lr=3e-4, hidden=(8,))
        >>> tuned = purerl.Tuned(cfg, {"lr": 3e-4}, None, (), (), {}, env_steps=0, seconds=0.0, stopped_by=None)
        >>> print(tuned.toml())
        lr = 0.0003
        hidden = [8]
        <BLANKLINE>
    """

    cfg: OnPolicyConfig | None
    point: dict[str, Any]
    summary: Summary | None
    trials: tuple[Trial, ...]
    finalists: tuple[Summary, ...]
    importance: dict[str, float]
    env_steps: int
    seconds: float
    stopped_by: Any

    def toml(self) -> str:
        """Return the best config as a file for `purerl ... --config`."""
        return as_toml(self._chosen())

    def preset_line(self) -> str:
        """Return the best config as a line of Python."""
        cfg = self._chosen()
        return f'"{cfg.env}": {as_code(cfg)},'

    def _chosen(self) -> OnPolicyConfig:
        if self.cfg is None:
            raise ConfigError([Problem("cfg", None, "the study was stopped before it chose a config")])
        return self.cfg


def tune(
    cfg: OnPolicyConfig,
    values: dict[str, Any],
    *,
    trials: int = 64,
    num_seeds: int = 4,
    directory: Any = None,
    rungs: int = 3,
    at_once: int | None = None,
    finalists: int = 4,
    final_seeds: int = 8,
    seed: int = 0,
    search_hours: float = 0.0,
    max_hours: float = 0.0,
    sampler: Callable[[int], Any] | None = None,
    pruner: Any = None,
    watch: Callable[[Step], None] | None = None,
    **objects: Any,
) -> Tuned:
    """Search for good settings, with Optuna's samplers and pruners. Needs `pip install 'purerl[tune]'`.

    A trial's score is the mean return over its seeds in the last fifth of a rung. All trials have the same seeds. A trial stops
    if its score is below the median of all scores at that rung so far, or if a seed diverges. If with some seed no episode ended,
    the trial goes on. The best completed trials are trained again with other seeds, which choose the winner; a third set of seeds
    gives the score that is reported.

    Args:
        cfg: what is not tuned.
        values: a dict from fields to a `purerl.Range` or a list. Of static fields each choice is a program of its own. The
          environment and its parameters are no such fields: scores of several tasks have no best.
        trials: how many settings to try; of lists alone each combination once, at most.
        num_seeds: of each trial.
        directory: for the study, which the same call continues after a kill, and for the runs of finalists; None keeps nothing.
          More `trials` may be asked for later.
        rungs: into which training is cut. The first ends at `1 / 2**(rungs - 1)` of it, and must be as long as an episode.
        at_once: trials in a program; if None `trials / (2 * choices of static fields)`, 16 at most. A study that goes on has
          as many as it began with.
        finalists: completed trials that are trained again.
        final_seeds: of the winner.
        seed: trials have the seeds from here on, and the finalists and the winner those that follow.
        search_hours: begins no further trials after this many hours of training them; 0 for no limit.
        max_hours: ends the study, saved, after this many hours of this call; 0 for no limit.
        sampler: from a seed to one of Optuna's samplers; if None TPE, after a first batch that is drawn at random. To TPE, trials
          that wait for their next rung count with the score that they have; to another sampler they still run.
        pruner: one of Optuna's pruners, in place of the rule above. Each trial's score is reported to it.
        watch: called after each batch.
        **objects: `env`, `network` and the others, as `make_train` takes them.

    Raises:
        ConfigError: wrong arguments, Optuna is not installed, or at the end no trial has a score; the directory is kept.
        CheckpointMismatch: the directory has another study.

    Example:
        >>> cfg = purerl.PPOConfig(total_timesteps=4096)
        >>> space = {"lr": purerl.Range(1e-4, 1e-2, log=True)}
        >>> tuned = purerl.tune(cfg, space, trials=2, num_seeds=2, rungs=1, finalists=1, final_seeds=2)
        >>> len(tuned.trials), tuned.summary.seeds
        (2, 2)
    """
    check_type(cfg)
    raise_if_any(_wrong_options(locals()))
    values = space.checked(cfg, values, "values")
    hint = "is a part of the task, and scores of several tasks have no best: tune each by itself, or purerl.sweep and compare"
    raise_if_any([Problem(path, x if isinstance(x, tuple) else str(x), hint) for path, x in values.items() if is_of_task(path)])
    static = {path: x for path, x in values.items() if space.is_static(cfg, path)}
    choices = math.prod(len(x) if isinstance(x, tuple) else x.high - x.low + 1 for x in static.values())
    home = None if directory is None else run_directory(directory)
    saved = None if home is None else read_plan(home / STUDY)
    at_once = at_once or (saved or {}).get("at_once") or max(1, min(MOST_AT_ONCE, int(trials / (2 * choices))))
    if len(static) == len(values):  # each choice is one trial
        at_once = 1
    trials = int(min(trials, space.num_points(cfg, values)))
    described = _checked_programs(cfg, static, rungs, objects)
    options = {"num_seeds": num_seeds, "rungs": rungs, "at_once": at_once, "seed": seed, "objects": described}
    with contextlib.ExitStack() as locked:
        if home is not None:
            locked.callback(Lock(home).release)
        with compile_cache(), Stop() as stop:
            deadline = time.perf_counter() + (3600 * max_hours or math.inf)
            limit = lambda: "max_hours" if time.perf_counter() > deadline else stop.asked
            search = Search(cfg, values, trials, options, sampler, pruner)
            study = Study(search, RungTrainer(cfg, options, objects, limit), home, search_hours, limit)
            while (step := study.next()) is not None:
                if watch is not None:
                    watch(step)
            study.close()
        best = study.best(finalists)
        if limit() is not None:
            return _result(study, limit())
        if study.unjudged:
            text = f"{study.unjudged} times a trial went on unjudged, since with some seed no episode had ended in its rung"
            warnings.warn(text, stacklevel=2)
        if not best:
            status = [trial.status for trial in study.trials()]
            counts = {"diverged": status.count("diverged"), "were stopped before the end": status.count("stopped")}
            raise _without_score("trials", len(status), counts, home)
        return _finals(study, best, num_seeds, final_seeds, home, deadline, objects)


def _checked_programs(cfg: OnPolicyConfig, static: dict[str, space.Values], rungs: int, objects: dict[str, Any]) -> Any:
    """Return the objects in words, after every program was made, or of very many the first.

    Raises:
        ConfigError: as `make_train`, and where a study cannot train it.
    """
    few = space.num_points(cfg, static) <= MOST_CHECKED
    points = space.all_points(static if few else {path: x if isinstance(x, tuple) else (x.low,) for path, x in static.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each program warns when it is trained
        trains = [make_train(space.with_values(cfg, point), **objects) for point in points[: None if few else 1]]
    for train in trains:
        check_program(train, rungs)
    if warning := check_rungs(trains, rungs):
        warnings.warn(warning, stacklevel=3)
    return identity(trains[0], cfg)["objects"]


def _finals(study: Study, best: list[Trial], num_seeds: int, final_seeds: int, home: Any, deadline: float, objects: Any) -> Tuned:
    """Train the best trials again with seeds that follow those of the search, and the winner of that with the next ones."""

    def train(points: tuple, name: str, seed: int, seeds: int) -> SweepResult:
        left = max(1e-9, deadline - time.perf_counter()) / 3600 if math.isfinite(deadline) else 0.0
        directory = None if home is None else home / name
        result = Sweep(study.cfg, points).fit(seed, directory, num_seeds=seeds, max_hours=left, **objects)
        for fitted in result.results:
            study.env_steps, study.seconds = study.env_steps + fitted.progress.steps, study.seconds + fitted.progress.seconds
        return result

    seed = study.search.options["seed"] + num_seeds
    name = f"finalists/{len(best)}-of-{len(study.trials())}"  # more trials, asked for later, may have other finalists
    chosen = train(tuple(trial.point for trial in best), name, seed, num_seeds)
    if chosen.stopped_by is not None:
        return _result(study, chosen.stopped_by)
    rows = tuple(chosen.summary())
    if not rows[0].seeds:
        raise _without_score("finalists' runs", chosen.returns.size, {"diverged": chosen.diverged}, home)
    winner = best[chosen.sweep.labels.index(rows[0].label)]
    name = f"best/{winner.number}"
    saved = None if home is None else read_plan(home / name / PLAN)
    if saved is not None and saved["num_seeds"] != final_seeds:  # other seeds were asked for before
        name += f"-with-{final_seeds}-seeds"
    last = train((winner.point,), name, seed + num_seeds, final_seeds)
    if last.stopped_by is not None:
        return _result(study, last.stopped_by, finalists=rows)
    if last.diverged:
        warnings.warn(f"{last.diverged} of the {final_seeds} final runs diverged; the score is of the others", stacklevel=3)
    summary, cfg = summary_of(last.sweep.labels[0], last.returns[0]), space.with_values(study.cfg, winner.point)
    found = _result(study, None, cfg=cfg, point=winner.point, summary=summary, finalists=rows)
    if home is not None:
        atomic_write(home / WINNER, name.encode())
        atomic_write(home / "best.toml", found.toml().encode())
        atomic_write(home / "best.json", cfg.to_json().encode())
    return found


def _result(study: Study, stopped_by: Any, **found: Any) -> Tuned:
    spent = {"env_steps": study.env_steps, "seconds": study.seconds, "stopped_by": stopped_by}
    nothing = {"cfg": None, "point": {}, "summary": None, "finalists": ()}
    return Tuned(**nothing | found, trials=tuple(study.trials()), importance=study.search.importance(study.steps), **spent)


def _without_score(what: str, total: int, counts: dict[str, int], home: pathlib.Path | None) -> ConfigError:
    """Return the error of a study in which nothing has a score: how many diverged or were stopped; the rest ended no episode."""
    counts = {**counts, "ended no episode": total - sum(counts.values())}
    why = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    hint = f"none has a score: {why}; lower values of lr help where runs diverge, a larger total_timesteps where no episode ends"
    kept = "" if home is None else f"; the study is kept in {home}"
    return ConfigError([Problem(what, total, hint + kept)])


def _wrong_options(options: dict[str, Any]) -> list[Problem]:
    is_none = lambda x: x is None
    is_pruner = lambda x: callable(getattr(x, "prune", None)) and not isinstance(x, type)
    count, function = "must be an int of at least 1", "must be a function, or None"
    rules = (
        (is_count, count, ("trials", "num_seeds", "rungs", "finalists", "final_seeds")),
        (lambda x: is_int(x) and x >= 0, "must be an int of at least 0", ("seed",)),
        (lambda x: is_none(x) or is_count(x), count, ("at_once",)),
        (lambda x: is_none(x) or callable(x), function, ("sampler", "watch")),
        (lambda x: is_none(x) or is_pruner(x), "must be one of Optuna's pruners, an object, or None", ("pruner",)),
        (lambda x: is_number(x) and x >= 0, "must be at least 0", ("search_hours", "max_hours")),
    )
    found = [Problem(x, options[x], hint) for is_right, hint, names in rules for x in names if not is_right(options[x])]
    if not found and options["seed"] + 2 * options["num_seeds"] + options["final_seeds"] > 2**32:
        found.append(Problem("seed", options["seed"], "must leave room below 2**32 for the seeds that follow it"))
    found += [Problem(name, x, "no argument of tune") for name, x in options["objects"].items() if name not in OBJECTS]
    if process_count() > 1:
        found.append(Problem("tune", process_count(), "a study has one process; start it without --distributed"))
    return found


# --- configs as text --------------------------------------------------------------------------------------------------


def _changed_values(cfg: OnPolicyConfig | RNDConfig) -> dict[str, Any]:
    """Return what a config has in place of its class's defaults, by field."""
    values = {field: getattr(cfg, field.name) for field in dataclasses.fields(cfg)}
    plain = lambda x: x.item() if isinstance(x, np.generic) else x
    return {field.name: shown(field, plain(x)) for field, x in values.items() if x != default_of(field)}


def as_toml(cfg: OnPolicyConfig) -> str:
    """Return a config as a file of flags, for `--config`."""

    def text(value):
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{name} = {text(x)}" for name, x in value.items()) + " }"
        return repr(value) if isinstance(value, float) else json.dumps(value)

    values = _changed_values(cfg)
    if cfg.rnd is not None:
        values |= {"rnd": True} | {f"rnd_{name}": x for name, x in _changed_values(cfg.rnd).items()}
    if "env_kwargs" in values:
        values["env_kwargs"] = dict(values["env_kwargs"])
    note = f"# with --env {values.pop('env')}\n" if ":" in values.get("env", "") else ""  # nothing of a file is imported
    return note + "".join(f"{name} = {text(x)}\n" for name, x in values.items())


def as_code(cfg: OnPolicyConfig | RNDConfig) -> str:
    """Return a config as Python."""
    code = lambda x: as_code(x) if isinstance(x, RNDConfig) else "math.inf" if x == math.inf else repr(x)
    return f"{type(cfg).__name__}({', '.join(f'{name}={code(x)}' for name, x in _changed_values(cfg).items())})"
