"""Tuning of hyperparameters, which Optuna proposes: trials train in batches, and bad trials stop early.

A trial is a config with a few seeds. Its training is divided into rungs: each rung ends at twice the steps of the previous rung.
The trials of a batch train side by side to the end of their rung. The pruner then stops some of them, and the others wait for
their next rung. If the waiting trials fill a batch, they are the next batch; otherwise, new trials are. After the last new trial,
the remaining trials train in smaller batches. Each batch size and each combination of static values, such as `num_steps`, is
compiled once; a config's floats are arguments.

The same call continues a killed study after the last complete batch. The interrupted batch is trained again, and counts once.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
import time
import warnings
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from purerl.checks.check_arguments import check_type
from purerl.config.base import OnPolicyConfig
from purerl.config.curiosity import RNDConfig
from purerl.config.documentation import as_written, default_of
from purerl.config.fields import to_python
from purerl.config.rules import Rule
from purerl.core.errors import ConfigError, Problem, config_error, raise_if_any, warn
from purerl.runs.compile_cache import compile_cache
from purerl.runs.devices.processes import process_count
from purerl.runs.directory import PLAN, STUDY, Lock, run_directory
from purerl.runs.identity import identity
from purerl.runs.interrupts import Stop
from purerl.runs.logging.console import LiveLine, format_count
from purerl.runs.logging.progress import Progress
from purerl.runs.options import HOURS, OBJECTS, int_from, optional, wrong_values
from purerl.runs.storage.files import atomic_write
from purerl.studies import space
from purerl.studies.reading import WINNER, Summary, read_plan, summary_of
from purerl.studies.rungs import RungTrainer, check_program, check_rungs
from purerl.studies.search import Search
from purerl.studies.steps import Step, Trial, step_printer
from purerl.studies.study import Study
from purerl.studies.sweep import Sweep, SweepResult
from purerl.studies.tasks import is_of_task
from purerl.train import make_train

MOST_AT_ONCE = 16
_is_pruner = lambda x: callable(getattr(x, "prune", None)) and not callable(x)
RULES = {
    ("trials", "num_seeds", "rungs", "finalists", "final_seeds"): int_from(1),
    ("at_once",): optional(int_from(1)),
    ("seed",): int_from(0),
    ("search_hours", "max_hours"): HOURS,
    ("sampler", "watch"): optional(Rule("must be a function", callable)),
    ("pruner",): optional(Rule("must be an Optuna pruner object", _is_pruner)),
}
MOST_CHECKED = 32  # with more combinations of static values, only the first is checked before training


class TuneResult(NamedTuple):
    """The result of tuning, finished or interrupted.

    Attributes:
        cfg: the best config; None if the study was stopped before a config was chosen.
        point: the values of the tuned fields in the best config, by field.
        summary: score of the best config, with seeds that were used neither in the search nor to choose among the finalists.
        trials: all trials, the best first; completed trials come before others.
        finalists: labels of the best trials and their scores with seeds that the search did not use, the best first.
        importance: by field, Optuna's importance for being in the best tenth of completed trials (sum 1); {} without such trials.
          Since stopped and diverged trials do not count, a parameter that makes trials stop or diverge may look unimportant.
        env_steps, seconds: environment steps and seconds of all trials, of the finalists' runs and of the winner's final runs.
        stopped_by: the reason for an early end, a signal or "max_hours"; None without an early end.

    Example:
        >>> cfg = purerl.PPOConfig(lr=3e-4, hidden=(8,))
        >>> tuned = purerl.TuneResult(cfg, {"lr": 3e-4}, None, (), (), {}, env_steps=0, seconds=0.0, stopped_by=None)
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

    def __repr__(self) -> str:
        """Describe the best config, its score and the study, in a few lines."""
        best = f"best config {self.summary}" if self.summary else f"no config was chosen: stopped by {self.stopped_by}"
        return f"{best}\n{len(self.trials)} trials, {self.env_steps:,} steps"

    def toml(self) -> str:
        """Return the best config as TOML, for `purerl ... --config`."""
        if self.cfg is None:
            raise config_error("cfg", None, "the study was stopped before it chose a config")
        return as_toml(self.cfg, self.point)


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
) -> TuneResult:
    """Search for good hyperparameters, which an Optuna sampler proposes. This needs `pip install '.[tune]'`.

    A trial is trained in rungs, each to twice the steps of the previous rung. A trial's score is the mean return over its seeds
    in the last fifth of a rung. All trials have the same seeds. After a rung, a trial stops if its score is below the median of
    all scores at that rung so far, or if a seed diverges. If some seed finished no episode in the rung, the trial continues. The
    best completed trials, the finalists, are trained again with other seeds, and the best finalist wins. The reported score of
    the winner is from a third set of seeds.

    Args:
        cfg: the config; fields that are not in `values` stay fixed.
        values: a dict from fields to a `purerl.Range` or list. Each combination of values of static fields, such as `num_steps`,
          is compiled separately. The environment and its parameters cannot be tuned: scores of different tasks cannot be ranked.
        trials: number of configs to try. If there are at most this many combinations of values, each is tried once.
        num_seeds: seeds per trial.
        directory: directory of the study, and of the runs of its finalists and its winner; None saves nothing. The same call
          continues a killed study. A later call may ask for more `trials`.
        rungs: number of rungs. The first ends at `1 / 2**(rungs - 1)` of training, and must be long enough for an episode.
        at_once: largest number of trials in a batch; always 1 if all fields in `values` are static. If None, a continued study
          keeps its number, and a new study uses `trials / (2 * combinations of static values)`, from 1 to 16.
        finalists: number of completed trials that are trained again.
        final_seeds: number of seeds of the winner's reported score.
        seed: first seed of the trials. The next seeds are those of the finalists, and then those of the winner.
        search_hours: begin no new trials after this many hours of training trials, over all calls; 0 for no limit.
        max_hours: end and save the study after this many hours of this call; 0 for no limit.
        sampler: a function from a seed to an Optuna sampler, called for each batch; if None, TPE after at least
          `max(at_once, 8)` random trials. This TPE uses the current scores of trials that wait for their next rung; a custom
          sampler receives these trials as running.
        pruner: an Optuna pruner, in place of the median rule above. After each rung, the pruner receives each trial's score.
        watch: a function of a `Step`, the trained batch, which is called after each batch; by default, it prints a line in a
          terminal or a notebook.
        **objects: `env`, `network` and the other arguments of `make_train`.

    Raises:
        ConfigError: an argument is wrong, Optuna is not installed, or no trial or finalist has a score; `directory` is kept.
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
    trials, num_seeds, rungs, finalists, final_seeds, seed = map(int, (trials, num_seeds, rungs, finalists, final_seeds, seed))
    values = space.check(cfg, values, "values")
    hint = "changes the task, and scores of different tasks cannot be compared; tune each task alone, or use purerl.sweep"
    raise_if_any([Problem(path, x if isinstance(x, tuple) else str(x), hint) for path, x in values.items() if is_of_task(path)])
    static = {path: x for path, x in values.items() if space.is_static(cfg, path)}
    home = None if directory is None else run_directory(directory)
    saved = None if home is None else read_plan(home / STUDY)
    new = max(1, min(MOST_AT_ONCE, int(trials / (2 * space.num_points(cfg, static)))))
    at_once = int(at_once or (saved or {}).get("at_once") or new)
    if len(static) == len(values):  # each combination is one trial, which needs its own compiled program
        at_once = 1
    trials = int(min(trials, space.num_points(cfg, values)))
    described = _check_programs(cfg, static, rungs, objects)
    options = {"num_seeds": num_seeds, "rungs": rungs, "at_once": at_once, "seed": seed, **described}
    with contextlib.ExitStack() as locked:
        if home is not None:
            locked.callback(Lock(home).release)
        with compile_cache(), Stop() as stop:
            deadline = time.perf_counter() + (3600 * max_hours or math.inf)
            limit = lambda: "max_hours" if time.perf_counter() > deadline else stop.asked
            search = Search(cfg, values, trials, options, sampler, pruner)
            study = Study(search, RungTrainer(cfg, options, objects, limit), home, search_hours, limit)
            line = LiveLine()
            watch = watch or (step_printer(line, rungs) if line.is_live else None)
            while (step := study.next()) is not None:
                if watch is not None:
                    watch(step)
            study.close()
        best = study.best(finalists)
        if limit() is not None:
            return _result(study, limit(), [])
        if unjudged := sum(len(step.unknown) for step in study.steps):
            warn(f"{unjudged} times, a trial without a score was kept, since some seed finished no episode in the rung")
        if not best:
            status = [trial.status for trial in study.trials()]
            counts = {"diverged": status.count("diverged"), "were stopped before the end": status.count("stopped")}
            raise _without_score("trials", len(status), counts, home)
        if line.is_live:
            of_best, of_seeds = format_count(len(best), "finalist"), format_count(final_seeds, "new seed")
            line.console.print(f"training {of_best}, and the best of them with {of_seeds}")
        return _finals(study, best, final_seeds, home, deadline, objects)


def _check_programs(cfg: OnPolicyConfig, static: dict[str, space.Values], rungs: int, objects: dict[str, Any]) -> dict[str, Any]:
    """Check each combination of static values, or the first of more than `MOST_CHECKED`; describe the objects and their values.

    Raises:
        ConfigError: `make_train` refuses a config, or a study cannot train it.
    """
    first: dict[str, space.Values] = {path: x[:1] if isinstance(x, tuple) else (x.low,) for path, x in static.items()}
    points = space.all_points(static if space.num_points(cfg, static) <= MOST_CHECKED else first)
    with warnings.catch_warnings(action="ignore"):  # each program warns when it is trained
        trains = [make_train(space.with_values(cfg, point), **objects) for point in points]
    for train in trains:
        check_program(train, rungs)
    for text in check_rungs(trains, rungs):
        warn(text)
    described = identity(trains[0], cfg)
    return {name: described[name] for name in ("objects", "numbers")}


def _finals(study: Study, best: list[Trial], final_seeds: int, home: Any, deadline: float, objects: Any) -> TuneResult:
    """Train the finalists on the seeds after those of the search, and the winner on the seeds after those of the finalists."""

    def train(points: tuple, name: str, seed: int, seeds: int) -> SweepResult:
        left = max(1e-9, deadline - time.perf_counter()) / 3600 if math.isfinite(deadline) else 0.0
        directory = None if home is None else home / name
        result = Sweep(study.search.cfg, points).fit(seed, directory, num_seeds=seeds, max_hours=left, progress=False, **objects)
        spent.extend(fitted.progress for fitted in result.results)
        return result

    spent: list[Progress] = []
    num_seeds = study.search.options["num_seeds"]
    seed = study.search.options["seed"] + num_seeds
    name = f"finalists/{len(best)}-of-{len(study.trials())}"  # with more trials, a later call may have other finalists
    chosen = train(tuple(trial.point for trial in best), name, seed, num_seeds)
    if chosen.stopped_by is not None:
        return _result(study, chosen.stopped_by, spent)
    rows = tuple(chosen.summary())
    if not rows[0].seeds:
        raise _without_score("finalists' runs", chosen.returns.size, {"diverged": chosen.diverged}, home)
    winner = best[chosen.sweep.labels.index(rows[0].label)]
    name = f"best/{winner.number}"
    saved = None if home is None else read_plan(home / name / PLAN)
    if saved is not None and saved["num_seeds"] != final_seeds:  # an earlier call had another number of seeds
        name += f"-with-{final_seeds}-seeds"
    last = train((winner.point,), name, seed + num_seeds, final_seeds)
    if last.stopped_by is not None:
        return _result(study, last.stopped_by, spent, finalists=rows)
    summary, cfg = summary_of(last.sweep.labels[0], last.returns[0]), space.with_values(study.search.cfg, winner.point)
    found = _result(study, None, spent, cfg=cfg, point=winner.point, summary=summary, finalists=rows)
    if home is not None:
        described = study.search.options["objects"].items()
        given = "".join(f"# with {name} = {x['is']}, which a file cannot hold\n" for name, x in described if name in objects)
        atomic_write(home / WINNER, name.encode())
        atomic_write(home / "best.toml", (given + found.toml()).encode())
        atomic_write(home / "best.json", cfg.to_json().encode())
    return found


def _result(study: Study, stopped_by: Any, spent: list[Progress], **found: Any) -> TuneResult:
    """Return the result of a study. `spent`: progress of the runs after the search."""
    steps = sum(x.env_steps for x in study.steps) + sum(x.steps for x in spent)
    total = {"env_steps": steps, "seconds": sum(x.seconds for x in (*study.steps, *spent)), "stopped_by": stopped_by}
    nothing = {"cfg": None, "point": {}, "summary": None, "finalists": ()}
    return TuneResult(**nothing | found, trials=tuple(study.trials()), importance=study.search.importance(study.steps), **total)


def _without_score(what: str, total: int, counts: dict[str, int], home: pathlib.Path | None) -> ConfigError:
    """Return the error for a study without scores. `counts`: how many diverged or were stopped; all others ended no episode."""
    counts = {**counts, "finished no episode": total - sum(counts.values())}
    why = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    hint = f"none has a score: {why}; use lower values of lr if runs diverge, a larger total_timesteps if no episode ends"
    kept = "" if home is None else f"; the study is saved in {home}"
    return config_error(what, total, hint + kept)


def _wrong_options(options: dict[str, Any]) -> list[Problem]:
    found = wrong_values(options, RULES)
    if not found and options["seed"] + 2 * options["num_seeds"] + options["final_seeds"] > 2**32:
        found.append(Problem("seed", options["seed"], "is too large: all seeds of the study must be below 2**32"))
    found += [Problem(name, x, "tune has no such argument") for name, x in options["objects"].items() if name not in OBJECTS]
    if process_count() > 1:
        found.append(Problem("tune", ..., "a study runs in one process; do not use --distributed"))
    return found


# --- configs as text --------------------------------------------------------------------------------------------------


def _changed_values(cfg: OnPolicyConfig | RNDConfig, kept: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of a config that differ from the defaults of its class, and those of `kept`, by field."""
    values = {field: to_python(getattr(cfg, field.name)) for field in dataclasses.fields(cfg)}
    return {field.name: as_written(field, x) for field, x in values.items() if field.name in kept or x != default_of(field)}


def as_toml(cfg: OnPolicyConfig, kept: Collection[str] = ()) -> str:
    """Return a config as TOML flags, for `--config`: the fields that differ from the class's defaults, and those of `kept`.

    A preset beside the file may have other defaults, which must not replace the tuned values that `kept` names.
    """

    def text(value):
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{name} = {text(x)}" for name, x in value.items()) + " }"
        return repr(value) if isinstance(value, float) else json.dumps(value)

    values = _changed_values(cfg, {path.partition(".")[0] for path in kept})
    if cfg.rnd is not None:
        inner = {path.removeprefix("rnd.") for path in kept if path.startswith("rnd.")}
        values |= {"rnd": True} | {f"rnd_{name}": x for name, x in _changed_values(cfg.rnd, inner).items()}
    if "randomize" in values:
        values["randomize"] = {name: str(x) for name, x in values["randomize"].items()}
    given = dict(values.pop("env_kwargs", ()))
    values |= {"env_kwargs": known} if (known := {name: x for name, x in given.items() if x is not None}) else {}
    note = f"# with --env {values.pop('env')}\n" if ":" in values.get("env", "") else ""  # import paths in files are refused
    note += "".join(f"# with env_kwargs {name} = None, which TOML cannot hold\n" for name, x in given.items() if x is None)
    return note + "".join(f"{name} = {text(x)}\n" for name, x in values.items())
