"""The commands for training and tuning."""

import inspect
import json
import math
import pathlib
import signal
from collections.abc import Callable, Collection, Iterable
from typing import Any

from purerl.cli.by_path import import_objects
from purerl.cli.run_options import Options, Training, Tuning
from purerl.config.base import OnPolicyConfig
from purerl.core.errors import ConfigError, Problem, config_error, raise_if_any
from purerl.runs.analysis.statistics import few_seeds, format_number
from purerl.runs.devices.processes import call_in_first, is_first
from purerl.runs.fit import fit
from purerl.runs.logging import recorders
from purerl.runs.logging.console import PLAIN, LiveLine, closing_table, format_count, table_of
from purerl.runs.logging.progress import Progress
from purerl.runs.stopping import STOPPED, at_return
from purerl.studies import space
from purerl.studies.reading import Summary
from purerl.studies.steps import step_printer
from purerl.studies.sweep import sweep
from purerl.studies.tune import tune

EXIT_TIME_IS_UP = 75  # EX_TEMPFAIL of sysexits.h: "try again later"


def run_training(cfg: OnPolicyConfig, asked: Training) -> int:
    """Train as the flags describe, and return the exit status."""
    options: dict[str, Any] = _select_arguments(fit, asked) | {"progress": False}
    options |= import_objects(cfg.env, asked.algorithm, cfg.env_kwargs)
    files = [name for name in ("csv", "json_lines") if getattr(asked, name)]
    if files and not asked.directory:
        raise ConfigError([Problem(name, True, "writes into the run's directory; give --directory") for name in files])
    if asked.stop_at_return != math.inf:
        if not (asked.eval_every or asked.stop_every):
            raise config_error("stop_at_return", asked.stop_at_return, "is never checked; set eval_every or stop_every")
        options["stop_when"] = at_return(asked.stop_at_return)
    if asked.sweep:
        return _train_sweep(cfg, asked, options)
    raise_if_any([Problem(x, getattr(asked, x), "needs --sweep") for x in ("draws", "at_once") if getattr(asked, x)])
    live_line = LiveLine()
    watching = call_in_first(lambda: (live_line, *_recorders(asked, cfg, asked.directory))) or ()
    _announce(cfg, f", {asked.num_seeds} seeds" if asked.num_seeds > 1 else "")
    result = fit(cfg, recorders=watching, **options)
    if result.progress.updates and watching:
        live_line.console.print(closing_table(result.progress, result.metrics))
    stopped_by = None if result.progress.is_finished else result.stopped_by
    if stopped_by and watching:
        live_line.console.print(_stop_message(result.progress, stopped_by, asked), **PLAIN)
    return _status(stopped_by)


def _announce(cfg: OnPolicyConfig, rest: str, varied: Collection[str] = ()) -> None:
    """Print what the command is about to do, before anything is compiled. `varied`: fields with several values."""
    place = "" if "env" in varied else f" on {cfg.env}"
    sizes = "" if {"num_envs", "num_steps"} & {*varied} else f", {cfg.num_envs} environments x {cfg.num_steps} steps"
    if is_first():
        LiveLine().console.print(f"compiling {type(cfg).__name__.removesuffix('Config')}{place}{sizes}{rest}", **PLAIN)


def _train_sweep(cfg: OnPolicyConfig, asked: Training, options: dict[str, Any]) -> int:
    values = space.parse(cfg, asked.sweep, "sweep")
    fixed = [path for path in values if path.partition(".")[0] in ("env", "env_kwargs")] if "env" in options else []
    hint = f"cannot be swept, since {cfg.env} is made once; start a run for each value"
    raise_if_any([Problem("sweep", path, hint) for path in fixed])
    made = sweep(cfg, values, draws=asked.draws, seed=asked.seed)
    _announce(cfg, f", {format_count(len(made.points), 'config')} x {format_count(asked.num_seeds, 'seed')}", values)
    recorders_of = lambda path, cfgs: (LiveLine(), *_recorders(asked, cfgs, path))
    result = made.fit(at_once=asked.at_once or None, recorders=recorders_of, **options)
    if not is_first():
        return _status(result.stopped_by)
    summary = result.summary()
    rows = [[x.label, str(x.seeds), x.score] for x in summary]
    sizes = f"{format_count(len(made.points), 'config')}, {format_count(len(result.programs), 'program')}"
    console, table = LiveLine().console, table_of(sizes, ("config", "seeds", "return"), rows)
    table.caption = f"return: interquartile mean {result.window}, 95 % interval"
    console.print(table)
    first = "The best config" if len(set(made.tasks)) == 1 else "The best config of each task"
    lines = [f"{first} was selected on these seeds, so its score is biased; train it with new seeds."]
    if result.stopped_by:
        lines.append(f"Stopped in program {len(result.results)} of {len(result.programs)}{_continue_hint(asked)}")
    console.print("\n".join([*_few_seeds(summary), *lines]), **PLAIN)
    return _status(result.stopped_by)


def run_tuning(cfg: OnPolicyConfig, asked: Tuning, given: Collection[str] = ()) -> int:
    """Tune as the flags describe, and return the exit status. Without --param, the `given` flags keep their values."""
    default = {path: x for path, x in space.default_ranges(cfg).items() if path not in given}
    if not (asked.param or default):
        raise config_error("param", (), "is needed, since flags set all fields that are tuned by default")
    values = space.parse(cfg, asked.param, "param") if asked.param else default
    options = _select_arguments(tune, asked) | import_objects(cfg.env, asked.algorithm, cfg.env_kwargs)
    console = LiveLine().console
    trials = int(min(asked.trials, space.num_points(cfg, values)))
    sizes = f", {format_count(trials, 'trial')} x {format_count(asked.num_seeds, 'seed')}"
    _announce(cfg, f"{sizes}; the score of a trial is its mean return over the last fifth of a rung", values)
    found = tune(cfg, values, watch=step_printer(LiveLine(), asked.rungs), **options)
    if (score := found.summary) is None:  # the study was stopped
        console.print(f"Stopped after {len(found.trials)} of {asked.trials} trials{_continue_hint(asked)}", **PLAIN)
        return _status(found.stopped_by)
    completed = [x for x in found.trials if x.completed]
    rows = [[str(x.number), space.format_point(x.point), format_number(x.score)] for x in completed[: asked.finalists]]
    title = f"best completed trials of {len(found.trials)}, by the score over {format_count(asked.num_seeds, 'seed')}"
    console.print(table_of(title, ("trial", "hyperparameters", "score"), rows, left=2))
    lines = [
        f"Return of the winner on {format_count(score.seeds, 'new seed')}, over the last tenth of training: {score.score}, "
        "interquartile mean and 95 % interval.",
        *_few_seeds([score]),
        "Importance in completed trials: " + ", ".join(f"{path} {x:.2f}" for path, x in found.importance.items()),
        f"Total: {found.env_steps:,} environment steps, {found.seconds:,.0f} s.",
        "",
        found.toml() if not asked.directory else f"{asked.directory}/best.toml:\n{found.toml()}",
    ]
    console.print("\n".join(lines), **PLAIN)
    return 0


def _few_seeds(summary: Iterable[Summary]) -> list[str]:
    note = few_seeds(x.seeds for x in summary)
    return [f"Few seeds: {note}."] if note else []


def _select_arguments(function: Callable, asked: Options) -> dict[str, Any]:
    """Return the options that are arguments of `function`. If the argument's default is None, 0 and empty values become None."""
    parameters = inspect.signature(function).parameters
    given = {name: (x.default, getattr(asked, name)) for name, x in parameters.items() if hasattr(asked, name)}
    return {name: value or None if default is None else value for name, (default, value) in given.items()}


def _status(stopped_by: signal.Signals | str | None) -> int:
    """Return the exit status of a run that ended for the reason `stopped_by`."""
    if stopped_by == "max_hours":
        return EXIT_TIME_IS_UP
    return 128 + stopped_by if isinstance(stopped_by, signal.Signals) and stopped_by != signal.SIGINT else 0


def _stop_message(progress: Progress, stopped_by: signal.Signals | str, asked: Training) -> str:
    """Describe why a run ended early, and how to continue it."""
    text = f"Stopped after {progress.updates:,} of {progress.plan.num_updates:,} updates"
    if stopped_by == STOPPED:
        return f"{text}: the mean return is at least {asked.stop_at_return:g}."
    return text + _continue_hint(asked)


def _continue_hint(asked: Options) -> str:
    if asked.directory:
        return f". All is saved in {asked.directory}; run the same command to continue."
    return ". Nothing was saved; use --directory DIR to save runs and continue them."


def _recorders(asked: Training, cfg: OnPolicyConfig, directory: Any) -> list[recorders.Rows]:
    home = pathlib.Path(directory or "").expanduser()
    if asked.write_every < 0:
        raise config_error("write_every", asked.write_every, "must be an int of at least 0")
    kinds = [("tensorboard", recorders.TensorBoard)]
    kinds += [("metrics.csv", recorders.Csv)] * asked.csv + [("metrics.jsonl", recorders.JsonLines)] * asked.json_lines
    made: list[recorders.Rows] = [kind(home / name, asked.write_every) for name, kind in kinds] if directory else []
    if asked.wandb:
        try:
            init = {"project": asked.wandb, "config": json.loads(cfg.to_json())}
            made.append(recorders.Wandb(asked.write_every, home if directory else None, **init))
        except ImportError as error:
            raise config_error("wandb", asked.wandb, str(error)) from error
    return made
