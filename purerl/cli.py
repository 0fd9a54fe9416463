"""The command line: a subcommand for each algorithm, its flags made from the fields of its config, and some for finished runs."""

import dataclasses
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
from purerl.config.fields import Config
from purerl.core.errors import CheckpointError, ConfigError, NotFiniteError, Problem
from purerl.flags import (
    Training,
    algorithms_of,
    base_of,
    config_of,
    flags_of,
    imported,
    imported_env,
    job_of,
    refuse_other_names,
    values_of,
    with_values,
)
from purerl.runs.analysis import plots
from purerl.runs.analysis.export import export
from purerl.runs.analysis.rendering import render
from purerl.runs.compile_cache import cache_directory, cached_programs, clear_cache, compile_cache
from purerl.runs.devices import use_cores
from purerl.runs.directory import Run, load, saved_values
from purerl.runs.fit import fit
from purerl.runs.logging import recorders
from purerl.runs.logging.console import LiveLine, closing_table, evaluation_table
from purerl.runs.logging.progress import Progress
from purerl.runs.processes import is_first, join, process_count

TIME_IS_UP = 75  # "try again later", of sysexits.h

DESCRIPTION = """Trains agents of the PPO family.

- purerl ppo --env CartPole-v1
- purerl ppo --env CartPole-v1 --num-seeds 8 --directory runs/a
- purerl plot runs/a

"purerl ppo --help" lists all settings, and "purerl --version" prints the version. This completes flags by Tab in bash (or zsh):
purerl --tyro-print-completion bash > ~/.local/share/bash-completion/completions/purerl
"""


TO_FIT = ("num_seeds", "exact", "resume", "max_hours", "save_seconds", "save_every", "keep", "keep_every")
TO_FIT += ("eval_every", "eval_episodes", "eval_deterministic", "render_every")


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
    """What the arguments ask for, and the exit status."""
    try:
        algorithms, args = algorithms_of(args)
        args = with_values(args, algorithms)
        refuse_other_names(args, algorithms)
        base = base_of(args, algorithms)
        flags = {name: flags_of(name, base, cls, examples=name in args[:1]) for name, cls in algorithms.items()}
        commands = flags | {"eval": Eval, "plot": Plot, "render": Render, "export": Export, "cache": Cache}
        options = {"prog": "purerl", "description": DESCRIPTION, "args": args, "config": (tyro.conf.OmitArgPrefixes,)}
        chosen = tyro.extras.subcommand_cli_from_dict(commands, **options)
        name = type(chosen).__name__
        if name not in algorithms:
            return ACTIONS[type(chosen)](chosen)
        values = values_of(chosen)
        asked = Training(**{f.name: values[f.name] for f in dataclasses.fields(Training)})
        return _train(config_of(algorithms[name], values), asked)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (CheckpointError, NotFiniteError) as error:
        print(error, file=sys.stderr)
        return 1
    except jax.errors.JaxRuntimeError as error:
        if process_count() == 1:
            raise
        print(f"process {jax.process_index()}: another process of the job has ended: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # an orderly end would wait for the others


def _train(cfg: Config, asked: Training) -> int:
    options = {name: getattr(asked, name) for name in TO_FIT}
    options |= {name: getattr(asked, name) or None for name in ("directory", "init_from", "devices_per_run")}
    options |= _objects(cfg.env, asked.algorithm, cfg.env_kwargs)
    live_line = LiveLine()
    watching = (live_line, *_recorders(asked, cfg)) if is_first() else ()
    result = fit(cfg, asked.seed, recorders=watching, **options)
    if result.progress.updates and watching:
        live_line.console.print(closing_table(result.progress, result.metrics))
    if result.stopped_by and watching:
        live_line.console.print(_stopped(result.progress, asked.directory), highlight=False)
    if result.stopped_by == "max_hours":
        return TIME_IS_UP
    return 128 + result.stopped_by if result.stopped_by and result.stopped_by != signal.SIGINT else 0


def _objects(env: str, algorithm: str, env_kwargs: tuple = ()) -> dict[str, Any]:
    """What import paths of the command line name, as arguments of `make_train`."""
    found = {"env": imported_env(env, env_kwargs)} if ":" in env else {}
    return found | ({"algorithm": imported(algorithm, "algorithm")} if algorithm else {})


def _loaded(command: Reader) -> Run:
    """The runs of a directory, with the objects that the command names."""
    env_kwargs = tuple(map(tuple, saved_values(command.dir)["env_kwargs"])) if ":" in command.env else ()
    own = _objects(command.env, command.algorithm, env_kwargs)
    cls = imported(command.config_class, "config_class") if command.config_class else None
    return load(command.dir, best=command.best, config_class=cls, **own)


def _stopped(progress: Progress, directory: str) -> str:
    """What became of a run that a signal ended early, and how to go on."""
    text = f"Stopped after {progress.updates:,} of {progress.plan.num_updates:,} updates. "
    if directory:
        return f"{text}They are saved in {directory}: the same command goes on from there."
    return f"{text}Nothing was saved: with --directory DIR the same command could go on."


def _recorders(asked: Training, cfg: Config) -> list[recorders.Rows]:
    home = pathlib.Path(asked.directory).expanduser()
    kinds = (("metrics.jsonl", recorders.JsonLines), ("metrics.csv", recorders.Csv), ("tensorboard", recorders.TensorBoard))
    made = [kind(home / name, asked.write_every) for name, kind in kinds] if asked.directory else []
    if asked.wandb:
        try:
            made.append(recorders.Wandb(asked.write_every, project=asked.wandb, config=json.loads(cfg.to_json())))
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
    plots.plot(command.dirs, command.out, metric=command.metric, centre=command.centre)
    print(command.out)
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
        clear_cache()
    programs = cached_programs()
    megabytes = sum(program.stat().st_size for program in programs) / 1e6
    print(f"{directory}: {len(programs)} programs, {megabytes:.0f} MB")
    return 0


ACTIONS = {Eval: _evaluate, Plot: _plot, Render: _render, Export: _export, Cache: _cache}


if __name__ == "__main__":
    sys.exit(main())
