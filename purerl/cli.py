"""The command line: a subcommand for each algorithm, its flags made from the fields of its config, and some for finished runs."""

import dataclasses
import inspect
import json
import os
import pathlib
import signal
import sys
from typing import Any, Literal

import jax
import numpy as np
import tyro

from purerl import __version__
from purerl.config.base import OnPolicyConfig
from purerl.core.errors import CheckpointError, ConfigError, EnvironmentFailed, NotFiniteError, Problem
from purerl.flags import (
    Training,
    Tuning,
    algorithms_of,
    base_of,
    config_of,
    flags_of,
    imported,
    imported_env,
    job_of,
    refuse_unknown,
    values_of,
    with_values,
)
from purerl.runs.analysis import plots
from purerl.runs.analysis.export import export
from purerl.runs.analysis.rendering import render
from purerl.runs.analysis.statistics import few_seeds, with_interval
from purerl.runs.compile_cache import cache_directory, cached_programs, compile_cache
from purerl.runs.devices import use_cores
from purerl.runs.fit import fit
from purerl.runs.logging import recorders
from purerl.runs.logging.console import LiveLine, closing_table, evaluation_table, table_of
from purerl.runs.logging.progress import Progress
from purerl.runs.processes import by_first, is_first, join, process_count
from purerl.runs.run import Run, load, saved_values
from purerl.runs.stopping import STOPPED, at_return
from purerl.studies import space
from purerl.studies.compare import compare
from purerl.studies.listing import listed
from purerl.studies.reading import runs_below
from purerl.studies.sweep import sweep
from purerl.studies.tune import Step, tune

EXIT_TIME_IS_UP = 75  # "try again later", of sysexits.h

DESCRIPTION = """Trains agents of the PPO family.

- purerl ppo --env CartPole-v1
- purerl ppo --env CartPole-v1 --num-seeds 8 --directory runs/a
- purerl ppo --env Pendulum-v1 --sweep lr=3e-4,1e-3 --sweep ent_coef=0,0.01 --num-seeds 4 --directory runs/s
- purerl tune ppo --env Acrobot-v1 --directory runs/t
- purerl plot runs/a

"purerl ppo --help" lists all settings, and "purerl --version" prints the version. This completes flags by Tab in bash (or zsh):
purerl --tyro-print-completion bash > ~/.local/share/bash-completion/completions/purerl
"""


TO_FIT = ("num_seeds", "exact", "resume", "max_hours", "save_seconds", "save_every", "keep", "keep_every")
TO_FIT += ("eval_every", "eval_episodes", "eval_deterministic", "render_every", "stop_every")


@dataclasses.dataclass
class Reader:
    """Options of commands that read runs.

    Attributes:
        dir: Directory of the run.
        run: Which run, if the directory has several: its index from 0, or its label, such as "config 1, seed 0".
        best: The state with the best evaluation instead of the last.
        env: The environment that the run was trained in, package.module:name, if it is none of purerl's.
        algorithm: The algorithm that it was trained by, package.module:function, likewise.
        config_class: The class of its config, package.module:Class, likewise.
    """

    dir: tyro.conf.Positional[str]
    run: str = ""
    best: bool = False
    env: str = ""
    algorithm: str = ""
    config_class: str = ""


@dataclasses.dataclass
class Watch(Reader):
    """Options of commands that run episodes.

    Attributes:
        deterministic: The most likely actions instead of random ones.
        seed: Seed of the episodes.
    """

    deterministic: bool = False
    seed: int = 0


@dataclasses.dataclass
class Eval(Watch):
    """Evaluates every run in a directory, in its own environment, by the returns of fresh episodes.

    Attributes:
        num_episodes: Episodes of each run.
    """

    num_episodes: int = 128


@dataclasses.dataclass
class Plot:
    """Plots the learning curves of runs, a line for each config with a band over its seeds.

    Attributes:
        dirs: Directories of the runs to compare, one at least.
        out: File to write.
        metric: Any name in a run's metrics: episode_return, episode_length, entropy, approx_kl, explained_variance, ...
        centre: Interquartile mean or mean over seeds.
    """

    dirs: tyro.conf.Positional[tuple[str, ...]]
    out: str = "curves.png"
    metric: str = "episode_return"
    centre: Literal["iqm", "mean"] = "iqm"


@dataclasses.dataclass
class Compare:
    """Compares runs over seeds and tasks: interquartile means, probabilities of improvement, profiles (Agarwal et al. 2021).

    purerl compare runs/ppo runs/ppg compares two folders, with a run of each task inside. purerl compare new=runs/a,runs/b
    old=runs/c names them.

    Attributes:
        entries: Folders of runs, or name=folder,folder.
        score: The last tenth of training (or the last evaluation), or the area under the learning curve.
        episodes: Those of training, or of evaluations.
        reference: TOML or JSON file of the scores that are 0 and 1 when normalised: "CartPole-v1" = [20.0, 500.0].
        out: Files to write: .md and .tex tables, .png, .pdf and .svg pictures, .json and .csv with every score.
    """

    entries: tyro.conf.Positional[tuple[str, ...]]
    score: Literal["final", "auc"] = "final"
    episodes: Literal["training", "evaluation"] = "training"
    reference: str = ""
    out: tuple[str, ...] = ()


@dataclasses.dataclass
class Runs:
    """Lists the runs in a folder: algorithm, environment, steps, best score, how they ended, size.

    Attributes:
        folder: Where to look.
    """

    folder: tyro.conf.Positional[str] = "runs"


@dataclasses.dataclass
class Tune:
    """Searches for good settings of an algorithm: batches of trials as one program, the worse half of each rung stops.

    "purerl tune ppo --help" lists all settings. Needs pip install 'purerl[tune]'.
    """


@dataclasses.dataclass
class Render(Watch):
    """Renders an episode of a run's policy: of the run that --run names, or of the first.

    Attributes:
        out: File to write.
    """

    out: str = "agent.gif"


@dataclasses.dataclass
class Export(Reader):
    """Writes a run's policy, of the run that --run names or of the first, as a program that needs only jax and flatbuffers.

    With act = jax.export.deserialize(bytearray(open("policy.jaxexport", "rb").read())).call it acts in any number of
    environments: action, carry = act(carry, obs, first, jax.random.PRNGKey(0), False). All arrays have a leading axis of
    environments. The carry is () without a memory, first says where an episode begins, and the last argument is True for the
    most likely actions.

    Attributes:
        out: File to write.
    """

    out: str = "policy.jaxexport"


@dataclasses.dataclass
class Cache:
    """Says where compiled programs are kept, and how many: the second start of a run does not compile.

    The environment variable PURERL_CACHE names another directory, or "off". A gigabyte is kept at most.

    Attributes:
        clear: Remove them.
    """

    clear: bool = False


def main(args: list[str] | None = None) -> int:
    """Runs a command and returns its exit status.

    0: done, now or before, or ended by Ctrl-C; 1: a checkpoint failed, the run diverged, or another process of the job ended;
    2: the config cannot be trained. Saved, and to be resumed: 143 was ended by SIGTERM, 138 by SIGUSR1, and 75 by --max-hours.
    """
    args = sys.argv[1:] if args is None else args
    if args == ["--version"]:
        print(f"purerl {__version__}")
        return 0
    use_cores()  # before anything starts JAX
    try:
        if job := job_of(args):
            join(**job)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    with compile_cache():
        return _run(args)


def _run(args: list[str]) -> int:
    """Do what the arguments ask for, and return the exit status."""
    try:
        options_class = Training
        if args[:1] == ["tune"]:
            args, options_class = args[1:], Tuning
        algorithms, args = algorithms_of(args)
        args = with_values(args, algorithms)
        refuse_unknown(args, algorithms, options_class)
        base = base_of(args, algorithms, options_class)
        make = lambda name, cls: flags_of(name, base, cls, examples=name in args[:1], options=options_class)
        flags = {name: make(name, cls) for name, cls in algorithms.items()}
        commands = flags | {"tune": Tune, "eval": Eval, "plot": Plot, "compare": Compare, "runs": Runs}
        commands |= {"render": Render, "export": Export, "cache": Cache}
        prog, about = ("purerl", DESCRIPTION)
        if options_class is Tuning:
            commands, prog, about = flags, "purerl tune", inspect.getdoc(Tune)
        options = {"prog": prog, "description": about, "args": args, "config": (tyro.conf.OmitArgPrefixes,)}
        chosen = tyro.extras.subcommand_cli_from_dict(commands, **options)
        name = type(chosen).__name__
        if name not in algorithms:
            return ACTIONS[type(chosen)](chosen)
        values = values_of(chosen)
        asked = options_class(**{f.name: values[f.name] for f in dataclasses.fields(options_class)})
        cfg = config_of(algorithms[name], values)
        return _tune(cfg, asked) if isinstance(asked, Tuning) else _train(cfg, asked)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (CheckpointError, EnvironmentFailed, NotFiniteError) as error:
        print(error, file=sys.stderr)
        return 1
    except jax.errors.JaxRuntimeError as error:
        if process_count() == 1:
            raise
        print(f"process {jax.process_index()}: another process of the job has ended: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # an orderly end would wait for the others


def _train(cfg: OnPolicyConfig, asked: Training) -> int:
    options = {name: getattr(asked, name) for name in TO_FIT}
    options |= {name: getattr(asked, name) or None for name in ("directory", "init_from", "devices_per_run")}
    options |= _objects(cfg.env, asked.algorithm, cfg.env_kwargs)
    if asked.stop_at_return is not None:
        if not (asked.eval_every or asked.stop_every):
            raise ConfigError(
                [Problem("stop_at_return", asked.stop_at_return, "is never asked: it needs eval_every, or stop_every")]
            )
        options["stop_when"] = at_return(asked.stop_at_return)
    if asked.sweep:
        return _train_sweep(cfg, asked, options)
    if found := [Problem(name, getattr(asked, name), "needs --sweep") for name in ("draws", "at_once") if getattr(asked, name)]:
        raise ConfigError(found)
    live_line = LiveLine()
    watching = by_first(lambda: (live_line, *_recorders(asked, cfg, asked.directory))) or ()
    result = fit(cfg, asked.seed, recorders=watching, **options)
    if result.progress.updates and watching:
        live_line.console.print(closing_table(result.progress, result.metrics))
    stopped_by = result.stopped_by if result.progress.updates < result.progress.plan.num_updates else None
    if stopped_by and watching:
        live_line.console.print(_stopped(result.progress, stopped_by, asked), highlight=False, markup=False)
    return _status(stopped_by)


def _status(stopped_by: signal.Signals | str | None) -> int:
    """Return the exit status of a training that this ended."""
    if stopped_by == STOPPED:
        return 0
    if stopped_by == "max_hours":
        return EXIT_TIME_IS_UP
    return 128 + stopped_by if isinstance(stopped_by, signal.Signals) and stopped_by != signal.SIGINT else 0


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
        first = "The first" if len(set(made.tasks)) == 1 else "The first of each task"
        console.print(f"{first} was chosen on these seeds: train it with others to know its score.", highlight=False)
        if result.diverged:
            runs = result.returns.size
            console.print(f"{result.diverged} of {runs} runs diverged and have no score.", highlight=False)
        if result.stopped_by:
            saved = "with --directory DIR the same command could go on" if not asked.directory else "the same command goes on"
            console.print(f"Stopped in program {len(result.results)} of {len(result.programs)}: {saved}.", highlight=False)
    return _status(result.stopped_by)


def _objects(env: str, algorithm: str, env_kwargs: tuple = ()) -> dict[str, Any]:
    """Import the objects that the command line names, as arguments of `make_train`."""
    own = imported_env(env, env_kwargs) if ":" in env else None
    found = {} if own is None else {"env": own}
    return found | ({"algorithm": imported(algorithm, "algorithm")} if algorithm else {})


def _loaded(command: Reader) -> Run:
    """The runs of a directory, with the objects that the command names."""
    env_kwargs = tuple(map(tuple, saved_values(command.dir)["env_kwargs"])) if ":" in command.env else ()
    own = _objects(command.env, command.algorithm, env_kwargs)
    cls = imported(command.config_class, "config_class") if command.config_class else None
    return load(command.dir, best=command.best, config_class=cls, **own)


def _stopped(progress: Progress, stopped_by: signal.Signals | str, asked: Training) -> str:
    """Describe what ended a run early, and how to go on."""
    text = f"Stopped after {progress.updates:,} of {progress.plan.num_updates:,} updates"
    if stopped_by == STOPPED:
        return f"{text}: the mean return is at least {asked.stop_at_return:g}."
    if asked.directory:
        return f"{text}. They are saved in {asked.directory}: the same command goes on from there."
    return f"{text}. Nothing was saved: with --directory DIR the same command could go on."


def _tune(cfg: OnPolicyConfig, asked: Tuning) -> int:
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

    found = tune(cfg, values, watch=watch, **options, **_objects(cfg.env, asked.algorithm, cfg.env_kwargs))
    if (score := found.summary) is None:  # it was stopped
        saved = "the same command goes on" if asked.directory else "nothing was saved; with --directory DIR it could go on"
        console.print(f"Stopped after {len(found.trials)} of {asked.trials} trials: {saved}.", highlight=False)
        return _status(found.stopped_by)
    rows = [[str(x.number), space.in_words(x.point), f"{x.score:.1f}"] for x in found.trials[: asked.finalists]]
    title = f"the best of {len(found.trials)} trials: mean return over {asked.num_seeds} seeds"
    console.print(table_of(title, ("trial", "settings", "return"), rows, left=2))
    texts = [
        f"With {score.seeds} seeds that no choice has seen: "
        f"{with_interval((score.iqm, score.low, score.high), '{:.1f}'.format)}, interquartile mean and 95 % interval.",
        *([f"Few seeds: {note}."] if (note := few_seeds([score.seeds])) else []),
        "Importance among completed trials: " + ", ".join(f"{path} {x:.2f}" for path, x in found.importance.items()),
        f"Spent: {found.env_steps:,} environment steps, {found.seconds:,.0f} s.",
        "",
        found.toml() if not asked.directory else f"{asked.directory}/best.toml:\n{found.toml()}",
        found.preset_line(),
    ]
    for text in texts:
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return 0


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


def _evaluate(command: Eval) -> int:
    run = _asked(command) if command.run else _loaded(command)
    episodes = jax.tree.map(np.atleast_2d, run.evaluate(command.num_episodes, command.seed, command.deterministic))
    LiveLine().console.print(evaluation_table(episodes, run.labels, run.finished))
    return 0


def _asked(command: Reader) -> Run:
    """The one run that a command is about."""
    return _loaded(command).select(command.run or 0)


def _make_folder(out: str) -> None:
    """Makes the folder of a file to write, before anything is computed for it."""
    try:
        pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError([Problem("out", out, f"its folder cannot be made: {error.strerror}")]) from error


def _plot(command: Plot) -> int:
    if not command.dirs:
        raise ConfigError([Problem("dirs", (), "name one directory at least: purerl plot runs/a")])
    _make_folder(command.out)
    below = lambda folder: (os.path.isdir(folder) and runs_below(folder)) or [folder]
    directories = [directory for folder in command.dirs for directory in below(folder)]
    plots.plot(directories, command.out, metric=command.metric, centre=command.centre)
    print(command.out)
    return 0


def _compare(command: Compare) -> int:
    if not command.entries:
        raise ConfigError([Problem("entries", (), "name one folder at least: purerl compare runs/a runs/b")])
    entries = {}
    for text in command.entries:
        name, is_named, folders = text.partition("=")
        if is_named and not os.path.exists(text):
            if name in entries:
                raise ConfigError([Problem("entries", text, f"{name} is there twice; its folders go behind one, with commas")])
            if not all(folders := folders.split(",")):
                raise ConfigError([Problem("entries", text, "has an empty folder")])
            entries[name] = folders
        else:
            path = pathlib.Path(text).expanduser().absolute()
            entries[path.name if path.name not in entries else text] = [text]
    options = {"score": command.score, "episodes": command.episodes, "reference": command.reference or None}
    found = compare(entries, **options)
    console = LiveLine().console
    console.print(table_of("interquartile mean (95 % interval)", *found.rows()))
    if list(found.pairs()):
        console.print(table_of("probability of improvement (95 % interval)", *found.pair_rows(), left=2))
    if not found.can_pool:
        console.print("Scores of several tasks are put together only if they are normalised: --reference FILE", highlight=False)
    console.print(found.protocol, highlight=False, markup=False)
    for out in command.out:
        _make_folder(out)
        found.write(out)
        print(out)
    return 0


def _list_runs(command: Runs) -> int:
    columns = ("run", "algorithm", "environment", "runs", "steps", "of", "best return", "state", "MB")
    rows = []
    for run in listed(command.folder):
        name = str(run.directory.relative_to(pathlib.Path(command.folder).expanduser()))
        best = "" if np.isnan(run.best) else f"{run.best:.1f}"
        steps, total = (f"{x:,}" if x else "" for x in (run.steps, run.total_steps))
        rows.append([name, run.algorithm, run.task, str(run.runs or ""), steps, total, best, run.state, f"{run.size / 1e6:.1f}"])
    LiveLine().console.print(table_of(f"{len(rows)} runs in {command.folder}", columns, rows, left=3))
    return 0


def _render(command: Render) -> int:
    _make_folder(command.out)
    run = _asked(command)
    score = render(run.train, run.state, command.out, seed=command.seed, deterministic=command.deterministic)
    print(f"{command.out}: an episode of {run.labels[0]}, return {score:.1f}")
    return 0


def _export(command: Export) -> int:
    _make_folder(command.out)
    run = _asked(command)
    data = export(run.train, run.state, command.out)
    print(f"{command.out}: {run.labels[0]}, {len(data):,} bytes")
    return 0


def _cache(command: Cache) -> int:
    directory = cache_directory()
    if directory is None:
        print("off: the environment variable PURERL_CACHE says so")
        return 0
    if command.clear:
        for file in (*directory.glob("*-cache"), *directory.glob("*-atime")):
            file.unlink(missing_ok=True)
    programs = cached_programs()
    megabytes = sum(program.stat().st_size for program in programs) / 1e6
    print(f"{directory}: {len(programs)} programs, {megabytes:.0f} MB")
    return 0


ACTIONS = {
    Eval: _evaluate,
    Plot: _plot,
    Compare: _compare,
    Runs: _list_runs,
    Render: _render,
    Export: _export,
    Cache: _cache,
}


if __name__ == "__main__":
    sys.exit(main())
