"""Train agents of the PPO family.

- purerl ppo --env CartPole-v1
- purerl ppo --env CartPole-v1 --num-seeds 8 --directory runs/a
- purerl ppo --env Pendulum-v1 --sweep lr=3e-4,1e-3 --sweep ent_coef=0,0.01 --num-seeds 4 --directory runs/s
- purerl tune ppo --env Acrobot-v1 --directory runs/t
- purerl plot runs/a

"purerl ppo --help" lists common flags, and "--help-all" lists all. "purerl --version" prints the version. To complete flags with
Tab in bash (or zsh), run: purerl --tyro-print-completion bash > ~/.local/share/bash-completion/completions/purerl
"""

import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import os
import re
import signal
import sys
import typing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import tyro

from purerl import __version__
from purerl.cli import flags
from purerl.cli.by_path import algorithms_of
from purerl.cli.commands import COMMANDS, Reader
from purerl.cli.run_options import Training, Tuning
from purerl.cli.training import run_training, run_tuning
from purerl.core.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFailed,
    NotFiniteError,
    Problem,
    config_error,
    nearest,
    raise_if_any,
)
from purerl.runs.compile_cache import compile_cache
from purerl.runs.devices.over_devices import use_cores
from purerl.runs.devices.processes import join, process_count


@dataclasses.dataclass
class Tune:
    """Search for good hyperparameters of an algorithm: trials train in batches, and trials below the median score stop early.

    "purerl tune ppo --help" lists the most common flags, and "--help-all" all. This command needs pip install '.[tune]'.
    """


def main(args: list[str] | None = None) -> int:
    """Run a command and return its exit status.

    0: the run is finished, or Ctrl-C or its stopping rule ended it; 1: a checkpoint or the environment failed, the run diverged,
    or another process of the job ended; 2: the flags or the config are invalid; 143, 138 or 75: SIGTERM, SIGUSR1 or --max-hours
    ended the run, which can be resumed if it has a directory.
    """
    args = sys.argv[1:] if args is None else args
    if args == ["--version"]:
        print(f"purerl {__version__}")
        return 0
    use_cores()  # before anything starts JAX
    try:
        if (job := flags.job_arguments(args)) is not None:
            join(**job)
        with compile_cache(), short_warnings():
            return _run(args)
    except BrokenPipeError:  # the reader, such as `head`, has ended: on exit, Python would report this again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (CheckpointError, EnvironmentFailed, NotFiniteError) as error:
        print(error, file=sys.stderr)
        return 1
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # Gloo's errors are of both kinds
        if process_count() == 1 or (isinstance(error, ValueError) and "gloo" not in str(error).lower()):
            raise
        print(f"process {jax.process_index()}: another process of the job has ended: {error}", file=sys.stderr, flush=True)
        os._exit(1)  # an orderly exit would wait for the other processes


@contextlib.contextmanager
def short_warnings() -> Iterator[None]:
    """Print each warning in one line, without its place in the code."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"warning: {' '.join(str(message).split())}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def _run(args: list[str]) -> int:
    """Run the command that the arguments name, and return the exit status."""
    options_class = Training
    if args[:1] == ["tune"]:
        args, options_class = args[1:], Tuning
    algorithms, args = algorithms_of(args)
    if args[:1] and args[0] in algorithms and {"-h", "--help"} & set(args):
        print(flags.short_help(args[0], algorithms[args[0]], options_class))
        return 0
    args = ["--help" if arg == "--help-all" else arg for arg in args]
    others = {} if options_class is Tuning else COMMANDS
    names = [*algorithms, *others, *(["tune"] if others else [])]
    if args and not args[0].startswith("-") and args[0] not in names:
        raise config_error("command", args[0], nearest(args[0], names))
    flags.refuse_unknown(args, algorithms, options_class)
    if args and args[0] in others:
        known = [*_flag_names(others[args[0]]), *flags.OF_TYRO]
        given = {name: x for name, x in flags.given_flags(args).items() if name.removeprefix("no_") not in known}
        hint = lambda name: nearest(name, known, f"purerl {args[0]} --help lists all").replace("_", "-")
        as_flags = lambda name: re.sub(r"'([\w-]+)'", r"--\1", hint(name))
        raise_if_any([Problem(flag, value, f"no such flag; {as_flags(name)}") for name, (flag, value) in given.items()])
    base = flags.base_values(args, algorithms, options_class)
    make = lambda name, cls: flags.flags_of(name, base, cls, examples=name in args[:1], options=options_class)
    commands, prog, about = {name: make(name, cls) for name, cls in algorithms.items()}, "purerl tune", inspect.getdoc(Tune)
    if options_class is Training:
        later = {name: _delay_call(function) for name, function in others.items()}
        commands, prog, about = {**commands, "tune": Tune, **later}, "purerl", __doc__
    options = {"prog": prog, "description": about, "args": args, "config": (tyro.conf.OmitArgPrefixes,)}
    with _errors_of_tyro():
        chosen = tyro.extras.subcommand_cli_from_dict(commands, **options)
    if (name := type(chosen).__name__) not in algorithms:
        if isinstance(chosen, functools.partial):
            chosen()
        return 0
    values = flags.values_of(chosen, base)
    asked = options_class(**{f.name: values[f.name] for f in dataclasses.fields(options_class)})
    flags.refuse_swept(args, asked)
    cfg = flags.config_of(algorithms[name], values)
    if isinstance(asked, Tuning):
        return run_tuning(cfg, asked, {*flags.given_flags(args), *flags.file_values(args, algorithms, options_class)})
    return run_training(cfg, asked)


def _flag_names(function: Callable) -> list[str]:
    """Return the names of a command's flags, without its positional arguments."""
    names = typing.get_type_hints(function, include_extras=True)
    names |= typing.get_type_hints(Reader, include_extras=True) if "reader" in names else {}
    (place,) = tyro.conf.Positional[str].__metadata__  # pyright: ignore[reportAttributeAccessIssue]
    asked = [name for name, kind in names.items() if place not in getattr(kind, "__metadata__", ())]
    return [name for name in asked if name not in ("reader", "return")]


def _delay_call(function: Callable) -> Callable:
    """Return a function with the same arguments as `function` that returns the call, which tyro would make itself."""

    @functools.wraps(function)
    def bind(*args: Any, **kwargs: Any) -> functools.partial:
        return functools.partial(function, *args, **kwargs)

    return bind


@contextlib.contextmanager
def _errors_of_tyro() -> Iterator[None]:
    """Raise an error of tyro, which tyro prints in a box before it ends the process, as a ConfigError."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except SystemExit as end:
        if end.code != 2:
            sys.stderr.write(printed.getvalue())
            raise
        lines = [line.strip("│|╭╮╰╯+ ") for line in printed.getvalue().splitlines()[1:]]  # the first line is a title
        is_rule = lambda line: set(line) <= {"─", "-"}
        text = " ".join(itertools.takewhile(lambda line: not is_rule(line), itertools.dropwhile(is_rule, lines)))
        text = text.replace("'reader.", "'")  # a group of flags
        raise config_error("arguments", ..., f"{text}; purerl [command] --help lists all") from None
    sys.stderr.write(printed.getvalue())
