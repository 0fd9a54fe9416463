"""Sweeps of many configs. Configs with the same static values share a compiled program, as far as memory allows."""

import contextlib
import dataclasses
import functools
import json
import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from purerl.checks.check_arguments import check_type
from purerl.config.algorithms import algorithm_of
from purerl.config.base import OnPolicyConfig
from purerl.config.fields import to_python
from purerl.config.rules import Rule, one_of
from purerl.config.value_checks import not_scalar, problems
from purerl.core.errors import ConfigError, Problem, config_error, raise_if_any, warn
from purerl.runs.compile_cache import compile_cache
from purerl.runs.devices.processes import agree, call_in_first, process_count
from purerl.runs.directory import run_directory
from purerl.runs.fit import FitResult, check_arguments, fit
from purerl.runs.logging.console import format_count
from purerl.runs.options import SEED, int_from, optional, wrong_values
from purerl.runs.stopping import STOPPED
from purerl.runs.storage.object_values import numbers_of
from purerl.studies import space
from purerl.studies.programs import Program, count_fitting, lock_plan, name_of, read_begun, runs_of, save_plan
from purerl.studies.reading import Summary, final_returns, has_begun, has_current_evaluation, summary_of
from purerl.studies.rungs import UNEQUAL
from purerl.studies.tasks import Task, is_of_task, task_of_config

RULES = {("draws",): int_from(0), ("method",): one_of("sobol", "random"), ("seed",): SEED}
FIT_RULES = {
    ("at_once",): optional(int_from(1)),
    ("recorders",): optional(Rule("must be a function from a program's (directory, configs) to recorders", callable)),
}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Many configs, as returned by `purerl.sweep`.

    Attributes:
        cfg: the config from which all configs are made.
        points: for each config, the values that replace those of `cfg`, by field.

    Example:
        >>> cfg = purerl.PPOConfig(total_timesteps=1024)
        >>> sweep = purerl.sweep(cfg, {"lr": [1e-4, 1e-3], "num_steps": [64, 128]})
        >>> sweep.labels[1], len(sweep.programs())
        ('lr = 0.0001, num_steps = 128', 2)
        >>> result = sweep.fit(num_seeds=2)
        >>> result.returns.shape
        (4, 2)
    """

    cfg: OnPolicyConfig
    points: tuple[dict[str, Any], ...]

    def __repr__(self) -> str:
        """Describe the sweep: its number of configs, and the labels of the first four."""
        more = ["..."] if len(self.points) > 4 else []
        return f"{len(self.points)} configs for {self.cfg.env}: {'; '.join([*self.labels[:4], *more])}"

    @property
    def configs(self) -> tuple[OnPolicyConfig, ...]:
        """Return all configs."""
        return tuple(space.with_values(self.cfg, point) for point in self.points)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return a description of each config, such as "lr = 0.001, num_steps = 64"."""
        short = tuple(map(space.format_point, self.points))
        return short if len(set(short)) == len(short) else tuple(space.format_point(point, space.EXACT) for point in self.points)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the task of each config."""
        return tuple(map(task_of_config, self.configs))

    def programs(self, at_once: int | None = None) -> tuple[Program, ...]:
        """Return the configs as batches for `fit`. The configs of a batch have the same static values and differ only in floats.

        Args:
            at_once: largest number of configs in a batch; None for no limit.
        """
        size = at_once or len(self.points)
        paths = {path for point in self.points for path in point if not space.is_static(self.cfg, path)}
        batch = lambda places: space.stack_configs(self.cfg, [self.points[i] for i in places], paths)
        groups = space.group_points(self.cfg, self.points)
        parts = [(static, tuple(every[i : i + size])) for static, every in groups for i in range(0, len(every), size)]
        return tuple(Program(batch(places), places, name_of(n, static)) for n, (static, places) in enumerate(parts))

    def fit(
        self,
        seed: int = 0,
        directory: Any = None,
        *,
        num_seeds: int = 1,
        at_once: int | None = None,
        recorders: Callable[[pathlib.Path | None, OnPolicyConfig], tuple] | None = None,
        max_hours: float = 0.0,
        **options: Any,
    ) -> "SweepResult":
        """Train all configs with `purerl.fit`, one `Program` (a batch of configs) at a time.

        After a kill, the same call continues the sweep. If the sweep has one program, its directory is the directory of a run.
        With several programs, each has its own directory inside. `sweep.json` lists the configs of each program.

        If a run diverges, it has no score and the other runs continue, unless `on_nonfinite` is "raise".

        Args:
            seed, num_seeds: first seed and number of seeds per config; all configs have the same seeds.
            directory: directory of checkpoints, metrics and evaluations; None saves nothing.
            at_once: largest number of configs in a program; if None, as many as fit into memory by the compiler's estimate, or
              all in a job of several processes. A resumed sweep keeps its first `at_once`.
            recorders: a function from a program's directory (or None) and batch of configs to the recorders for `fit`.
            max_hours: end and save the sweep after this many hours of this call; 0 for no limit.
            **options: other arguments of `fit`.

        Raises:
            ConfigError, CheckpointError: as in `fit`, or the directory has another sweep.
        """
        entered, options = time.perf_counter(), {"on_nonfinite": "ignore", **options}
        raise_if_any(wrong_values({"at_once": at_once, "recorders": recorders}, FIT_RULES))
        check_arguments(self.cfg, seed, directory, num_seeds=num_seeds, max_hours=max_hours, **options)
        seed, num_seeds, at_once = map(to_python, (seed, num_seeds, at_once))  # JSON has no NumPy numbers
        for program in self.programs():  # check all programs before the first is trained
            raise_if_any(problems(program.cfg))
        home = None if directory is None else run_directory(directory)
        with compile_cache(), contextlib.ExitStack() as planning:
            call_in_first(lambda: lock_plan(home, planning))
            programs = self._plan(home, at_once, seed, num_seeds, options)
        if options.get("resume") == "must" and home is not None and has_begun(home):
            options["resume"] = "auto"  # later programs may have no checkpoint yet
        results, stopped_by = [], None
        for program in programs:
            left = max_hours - (time.perf_counter() - entered) / 3600 if max_hours else 0.0
            (is_over,), _ = agree(max_hours > 0 and left <= 0)
            if stopped_by is not None or is_over:
                stopped_by = stopped_by or "max_hours"
                break
            path = home if home is None or len(programs) == 1 else home / program.name
            rows = call_in_first(functools.partial(recorders, path, program.cfg)) if recorders else None
            results.append(fit(program.cfg, seed, path, num_seeds=num_seeds, recorders=rows or (), max_hours=left, **options))
            stopped_by = results[-1].stopped_by if results[-1].stopped_by != STOPPED else None  # `stop_when` ends one program
        if len(results) == len(programs) and results[-1].progress.is_finished:
            stopped_by = None  # the stop came in the last chunk of the last program, so nothing is left to train
        found = SweepResult(self, programs, tuple(results), num_seeds, stopped_by)
        if found.note:
            warn(found.note)
        return found

    def _plan(
        self, home: pathlib.Path | None, at_once: int | None, seed: int, num_seeds: int, options: dict
    ) -> tuple[Program, ...]:
        """Return the programs of the sweep that was begun in a directory, or new programs."""
        config = {**json.loads(self.cfg.to_json()), "total_timesteps": None}
        points = [{path: space.to_json(x) for path, x in point.items()} for point in self.points]
        groups, goes_on = list(options.get("init_groups", ())), bool(options.get("continue_steps", False))
        start = f"a run, init_groups = {groups}, continue_steps = {goes_on}" if options.get("init_from") else None
        plan = {"algorithm": algorithm_of(self.cfg), "config": config, "points": points, "seed": seed, "num_seeds": num_seeds}
        plan |= {"init_from": start}  # without the path, since the folder may move; `fit` warns of another folder
        alone = process_count() == 1
        runs = [runs_of(program, seed, num_seeds, options) for program in self.programs()] if alone else []
        numbers = next((numbers_of(x.train.given, x.train.env) for x in runs), {})
        saved = None if home is None else call_in_first(lambda: read_begun(home, plan, numbers))
        most = len(self.points)
        fit_at_once = lambda: min((count_fitting(x, most) for x in runs), default=most)
        (at_once,), _ = agree(saved["at_once"] if saved else at_once or fit_at_once())
        programs = self.programs(at_once)
        if home is not None:
            plan |= {"at_once": at_once, "labels": self.labels, "programs": {x.name: x.places for x in programs}}
            plan["numbers"] = numbers
            call_in_first(lambda: save_plan(home, saved, plan))
        return programs


class SweepResult(NamedTuple):
    """The result of a sweep, finished or interrupted.

    `returns` has a score for each run, `summary()` has a row for each config, and `best` is the config of the first row. Diverged
    runs have no score: rows summarise the other runs, and `diverged` is the number of diverged runs.

    Attributes:
        sweep: the configs that were trained.
        programs: batches of configs, trained one after the other.
        results: the `FitResult` of each program that was begun.
        num_seeds: seeds per config.
        stopped_by: the reason for an early end, a signal or "max_hours"; None without an early end.
    """

    sweep: Sweep
    programs: tuple[Program, ...]
    results: tuple[FitResult, ...]
    num_seeds: int
    stopped_by: signal.Signals | str | None

    @property
    def note(self) -> str:
        """Return a note on the reasons why scores cannot be compared, such as programs that `stop_when` ended early; else ""."""
        found, ended = [], [x.progress for x in self.results if x.progress.is_finished]
        if self.diverged:
            found += [f"{self.diverged} of {sum(x.finite.size for x in self.results)} runs diverged and have no score"]
        trained = sorted({x.updates * x.plan.batch_size for x in ended})
        if trained and trained[-1] > UNEQUAL * trained[0] and not any("total_timesteps" in point for point in self.sweep.points):
            steps = " or ".join(f"{x:,}" for x in trained)
            found += [f"configs were trained for {steps} steps, since total_timesteps is rounded up to whole updates"]
        if stopped := {x.progress.steps_of_run() for x in self.results if x.stopped_by == STOPPED and not x.progress.is_finished}:
            steps = ", ".join(f"{x:,}" for x in sorted(stopped))
            mean = "the rule sees all configs of a program together, and a score at a stop is biased upwards"
            found += [f"stop_when ended programs: their configs were trained for {steps} steps; {mean}"]
        if 0 < sum(map(has_current_evaluation, self.results)) < len(self.results):
            found += ["some programs have no current evaluation, so all scores are of training episodes"]
        return "; ".join(found)

    def __repr__(self) -> str:
        """Describe each config by its label and score, a line each."""
        name = self.results[0].run.env_name if self.results else self.sweep.cfg.env
        sizes = f"{format_count(len(self.sweep.points), 'config')} for {name}, {format_count(self.num_seeds, 'seed')} each"
        lines = [f"{sizes}; returns {self.window}", *map(str, self.summary())]
        lines += [self.note] if self.note else []
        if self.stopped_by:
            ended = [len(x.places) for x, found in zip(self.programs, self.results, strict=False) if found.progress.is_finished]
            reason = getattr(self.stopped_by, "name", self.stopped_by)
            lines.append(f"stopped by {reason}: {sum(ended)} of {len(self.sweep.points)} configs are trained to the end")
        return "\n".join(lines)

    @property
    def _is_evaluated(self) -> bool:
        """Return True if scores are those of evaluations."""
        return bool(self.results) and all(map(has_current_evaluation, self.results))

    @property
    def window(self) -> str:
        """Return the episodes over which scores are means, as text."""
        return "in the last evaluation" if self._is_evaluated else "over the last tenth of training"

    @property
    def returns(self) -> np.ndarray:
        """Return the score of each run, `[configs, seeds]`; NaN if the run was not trained, diverged, or ended no episode.

        If all programs were evaluated at the end of training, the score is the mean return of that evaluation. Otherwise, the
        score is the mean return of the episodes in the last tenth of training.
        """
        scores = np.full((len(self.sweep.points), self.num_seeds), np.nan)
        for program, result in zip(self.programs, self.results, strict=False):
            scores[list(program.places)] = final_returns(result, self._is_evaluated).reshape(-1, self.num_seeds)
        return scores

    def summary(self) -> list[Summary]:
        """Return each config's label, and the interquartile mean over the seeds that have a score, with its interval.

        Configs with more scored seeds come first, since the mean of the seeds that remain would be too high. Of configs with
        equally many, the best come first.
        Configs of different tasks are not ranked against each other: each task has its own rows, in the order of the sweep.
        """
        tasks = list(dict.fromkeys(self.sweep.tasks))
        every = zip(self.sweep.tasks, self.sweep.labels, self.returns, strict=True)
        rows = [(tasks.index(task), summary_of(label, scores)) for task, label, scores in every]
        rank = lambda row: (row[0], -row[1].seeds, -np.nan_to_num(row[1].iqm, nan=-np.inf))
        return [row for _, row in sorted(rows, key=rank)]

    @property
    def diverged(self) -> int:
        """Return the number of diverged runs."""
        return sum(int((~result.finite).sum()) for result in self.results)

    @property
    def best(self) -> OnPolicyConfig:
        """Return the config of the first row of `summary()`. Its score is biased upwards, since the same seeds chose the config.

        Raises:
            ConfigError: the configs belong to several tasks, whose scores cannot be compared.
            ValueError: no config has a score.
        """
        if len(set(self.sweep.tasks)) > 1:
            swept = sorted({path for point in self.sweep.points for path in point if is_of_task(path)})
            hint = "changes the task, and scores of different tasks cannot be compared; summary() groups configs by task"
            raise ConfigError([Problem("best", path, hint) for path in swept])
        if not self.summary()[0].seeds:
            raise ValueError("no config has a score: all runs diverged, finished no episode, or were not trained")
        return self.sweep.configs[self.sweep.labels.index(self.summary()[0].label)]


def sweep(cfg: OnPolicyConfig, values: Any, *, draws: int = 0, method: str = "sobol", seed: int = 0) -> Sweep:
    """Make many configs from one.

    Args:
        cfg: the config from which all configs are made.
        values: a dict from fields to lists of values, for one config per combination (the last field varies fastest); or a
          list with one dict per config, from fields to values. Nested fields have dots: "rnd.int_coef", "env_params.g",
          "randomize.g.low".
        draws: if above 0, sample this many configs from lists or `purerl.Range`s, and keep one of equal configs; 0 for all
          combinations.
        method: `sobol` samples a scrambled Sobol sequence, which fills the space evenly; `random` samples independent configs.
        seed: seed of the samples.

    Raises:
        ConfigError: a field does not exist, a value is wrong, or a range is given without `draws`.

    Example:
        >>> cfg = purerl.PPOConfig()
        >>> purerl.sweep(cfg, {"lr": [1e-4, 1e-3], "ent_coef": [0.0, 0.01]}).labels[2]
        'lr = 0.001, ent_coef = 0'
        >>> purerl.sweep(cfg, [{"lr": 1e-4}, {"lr": 1e-3, "gamma": 0.9}]).labels[1]
        'lr = 0.001, gamma = 0.9'
        >>> len(purerl.sweep(cfg, {"lr": purerl.Range(1e-5, 1e-2, log=True)}, draws=16).points)
        16
    """
    check_type(cfg)
    found = wrong_values({"draws": draws, "method": method, "seed": seed}, RULES)
    hint = "must be a single number; to sweep the field, add it to values"
    raise_if_any(found + [problem._replace(hint=hint) for problem in not_scalar(cfg.replace(env_params={}))])
    if isinstance(values, list | tuple):
        if draws or not values or not all(isinstance(point, dict) for point in values):
            raise config_error("values", values, "must be a list of dicts from fields to single values, with draws=0")
        lists = [space.check(cfg, {name: (x,) for name, x in point.items()}, "values") for point in values]
        points = [point for each in lists for point in space.all_points(each)]
    else:
        values = space.check(cfg, values, "values")
        ranges = {name: x for name, x in values.items() if isinstance(x, space.Range) and not draws}
        raise_if_any([Problem(name, str(x), "a range needs draws, such as draws=8") for name, x in ranges.items()])
        points = space.draw_points(cfg, values, int(draws), method, seed) if draws else space.all_points(values)
    unique = {space.format_point(dict(sorted(point.items())), space.EXACT): point for point in points}
    return Sweep(cfg, tuple(unique.values()))
