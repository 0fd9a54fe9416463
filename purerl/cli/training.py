"""The commands for training and tuning."""

import json
import pathlib
import signal
from typing import Any

import numpy as np

from purerl.cli.by_path import imported_objects
from purerl.cli.run_options import Training, Tuning
from purerl.config.base import OnPolicyConfig
from purerl.core.errors import ConfigError, Problem
from purerl.runs.analysis.statistics import few_seeds, with_interval
from purerl.runs.fit import fit
from purerl.runs.logging import recorders
from purerl.runs.logging.console import LiveLine, closing_table, table_of
from purerl.runs.logging.progress import Progress
from purerl.runs.processes import by_first, is_first
from purerl.runs.stopping import STOPPED, at_return
from purerl.studies import space
from purerl.studies.sweep import sweep
from purerl.studies.tune import Step, tune

EXIT_TIME_IS_UP = 75  # EX_TEMPFAIL of sysexits.h: "try again later"

TO_FIT = (
    *("num_seeds", "exact", "resume", "max_hours", "save_seconds", "save_every", "keep", "keep_every"),
    *("eval_every", "eval_episodes", "eval_deterministic", "best_by", "render_every", "stop_every"),
    "init_groups",
    "continue_steps",
)


def run_training(cfg: OnPolicyConfig, asked: Training) -> int:
    """Train as the flags describe, and return the exit status."""
    options = {name: getattr(asked, name) for name in TO_FIT}
    options |= {name: getattr(asked, name) or None for name in ("directory", "init_from", "devices_per_run")}
    options |= {"progress": False} | imported_objects(cfg.env, asked.algorithm, cfg.env_kwargs)
    if asked.stop_at_return is not None:
        if not (asked.eval_every or asked.stop_every):
            raise ConfigError([Problem("stop_at_return", asked.stop_at_return, "is never checked; set eval_every or stop_every")])
        options["stop_when"] = at_return(asked.stop_at_return)
    if asked.sweep:
        return _train_sweep(cfg, asked, options)
    if found := [Problem(name, getattr(asked, name), "needs --sweep") for name in ("draws", "at_once") if getattr(asked, name)]:
        raise ConfigError(found)
    live_line = LiveLine()
    watching = by_first(lambda: (live_line, *_recorders(asked, cfg, asked.directory))) or ()
    if watching:
        seeds = f", {asked.num_seeds} seeds" if asked.num_seeds > 1 else ""
        name, size = type(cfg).__name__.removesuffix("Config"), f"{cfg.num_envs} environments x {cfg.num_steps} steps"
        live_line.console.print(f"{name} on {cfg.env}, {size}{seeds}", highlight=False, markup=False)
    result = fit(cfg, asked.seed, recorders=watching, **options)
    if result.progress.updates and watching:
        live_line.console.print(closing_table(result.progress, result.metrics))
    stopped_by = None if result.progress.is_finished else result.stopped_by
    if stopped_by and watching:
        live_line.console.print(_stopped(result.progress, stopped_by, asked), highlight=False, markup=False)
    return _status(stopped_by)


def _train_sweep(cfg: OnPolicyConfig, asked: Training, options: dict[str, Any]) -> int:
    made = sweep(cfg, space.parsed(cfg, asked.sweep, "sweep"), draws=asked.draws, seed=asked.seed)
    recorders_of = lambda path, cfgs: (LiveLine(), *_recorders(asked, cfgs, path))
    result = made.fit(asked.seed, at_once=asked.at_once or None, recorders=recorders_of, **options)
    if is_first():
        summary = result.summary()
        rows = [[x.label, str(x.seeds), with_interval((x.iqm, x.low, x.high), "{:.1f}".format)] for x in summary]
        title = f"{len(made.points)} configs, {len(result.programs)} programs; interquartile mean of the return, 95 % interval"
        console = LiveLine().console
        console.print(table_of(title, ("config", "seeds", "return"), rows))
        if note := few_seeds(x.seeds for x in summary):
            console.print(f"Few seeds: {note}.", highlight=False)
        first = "The best config" if len(set(made.tasks)) == 1 else "The best config of each task"
        console.print(f"{first} was selected on these seeds, so its score is biased; train it with new seeds.", highlight=False)
        if result.diverged:
            runs = result.returns.size
            console.print(f"{result.diverged} of {runs} runs diverged and have no score.", highlight=False)
        if result.stopped_by:
            saved = "run the same command to continue" if asked.directory else "nothing was saved; use --directory DIR"
            console.print(f"Stopped in program {len(result.results)} of {len(result.programs)}: {saved}.", highlight=False)
    return _status(result.stopped_by)


def run_tuning(cfg: OnPolicyConfig, asked: Tuning) -> int:
    """Tune as the flags describe, and return the exit status."""
    values = space.parsed(cfg, asked.param, "param") if asked.param else space.default_ranges(cfg)
    names = ("trials", "num_seeds", "rungs", "finalists", "final_seeds", "seed", "search_hours", "max_hours")
    options = {name: getattr(asked, name) for name in names}
    options |= {"at_once": asked.at_once or None, "directory": asked.directory or None}
    console = LiveLine().console
    best = []

    def watch(step: Step) -> None:
        best.append(max((x for x in (*step.values, *best[-1:]) if np.isfinite(x)), default=np.nan))
        made = f" ({space.in_words(step.static)})" if step.static else ""
        span = f"trials {step.trials[0]} to {step.trials[-1]}" if step.rung == 0 else f"{len(step.trials)} trials"
        line = f"rung {step.rung + 1} of {asked.rungs}{made}: {span}, {len(step.kept)} kept; best so far {best[-1]:.1f}"
        console.print(f"{line}; {step.seconds:.1f} s", highlight=False, markup=False)

    found = tune(cfg, values, watch=watch, **options, **imported_objects(cfg.env, asked.algorithm, cfg.env_kwargs))
    if (score := found.summary) is None:  # the study was stopped
        saved = "run the same command to continue" if asked.directory else "nothing was saved; use --directory DIR"
        console.print(f"Stopped after {len(found.trials)} of {asked.trials} trials: {saved}.", highlight=False)
        return _status(found.stopped_by)
    rows = [[str(x.number), space.in_words(x.point), f"{x.score:.1f}"] for x in found.trials[: asked.finalists]]
    title = f"best of {len(found.trials)} trials, by the mean return over {asked.num_seeds} seeds"
    console.print(table_of(title, ("trial", "hyperparameters", "return"), rows, left=2))
    texts = [
        f"Return of the winner on {score.seeds} new seeds: "
        f"{with_interval((score.iqm, score.low, score.high), '{:.1f}'.format)}, interquartile mean and 95 % interval.",
        *([f"Few seeds: {note}."] if (note := few_seeds([score.seeds])) else []),
        "Importance in completed trials: " + ", ".join(f"{path} {x:.2f}" for path, x in found.importance.items()),
        f"Total: {found.env_steps:,} environment steps, {found.seconds:,.0f} s.",
        "",
        found.toml() if not asked.directory else f"{asked.directory}/best.toml:\n{found.toml()}",
        found.preset_line(),
    ]
    for text in texts:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return 0


def _status(stopped_by: signal.Signals | str | None) -> int:
    """Return the exit status of a run that ended for the reason `stopped_by`."""
    if stopped_by == STOPPED:
        return 0
    if stopped_by == "max_hours":
        return EXIT_TIME_IS_UP
    return 128 + stopped_by if isinstance(stopped_by, signal.Signals) and stopped_by != signal.SIGINT else 0


def _stopped(progress: Progress, stopped_by: signal.Signals | str, asked: Training) -> str:
    """Describe why a run ended early, and how to continue it."""
    text = f"Stopped after {progress.updates:,} of {progress.plan.num_updates:,} updates"
    if stopped_by == STOPPED:
        return f"{text}: the mean return is at least {asked.stop_at_return:g}."
    if asked.directory:
        return f"{text}. The run is saved in {asked.directory}; run the same command to continue."
    return f"{text}. Nothing was saved; use --directory DIR to save runs and continue them."


def _recorders(asked: Training, cfg: OnPolicyConfig, directory: Any) -> list[recorders.Rows]:
    home = pathlib.Path(directory or "").expanduser()
    if asked.write_every < 0:
        raise ConfigError([Problem("write_every", asked.write_every, "must be an int of at least 0")])
    kinds = [("tensorboard", recorders.TensorBoard)]
    kinds += [("metrics.csv", recorders.Csv)] * asked.csv + [("metrics.jsonl", recorders.JsonLines)] * asked.json_lines
    made: list[recorders.Rows] = [kind(home / name, asked.write_every) for name, kind in kinds] if directory else []
    if asked.wandb:
        try:
            init = {"project": asked.wandb, "config": json.loads(cfg.to_json())}
            made.append(recorders.Wandb(asked.write_every, home if directory else None, **init))
        except ImportError as error:
            raise ConfigError([Problem("wandb", asked.wandb, str(error))]) from error
    return made
