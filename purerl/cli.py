"""The command line: a subcommand for each algorithm, its flags made from the fields of its config, and some for finished runs."""

import argparse
import dataclasses
import inspect
import json
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterable
from typing import Any, Literal, get_args

import jax
import numpy as np
import tyro

from purerl import __version__
from purerl.config.algorithms import ALGORITHMS, algorithm_of
from purerl.config.base import RNDConfig
from purerl.config.fields import ANY, AUTO, GROUPS, SWITCH, Config, field_problems, is_number, parse_docs
from purerl.config.other_names import renamed
from purerl.config.presets import PRESETS, preset
from purerl.core.errors import CheckpointError, ConfigError, NotFiniteError, Problem, nearest
from purerl.runs.analysis import plots
from purerl.runs.analysis.export import export
from purerl.runs.analysis.rendering import render
from purerl.runs.devices import use_cores
from purerl.runs.directory import Run, load
from purerl.runs.fit import fit
from purerl.runs.logging import recorders
from purerl.runs.logging.console import LiveLine, closing_table, evaluation_table
from purerl.runs.logging.progress import Progress

DESCRIPTION = """Trains agents of the PPO family.

- purerl ppo --env CartPole-v1
- purerl ppo --env CartPole-v1 --num-seeds 8 --directory runs/a
- purerl plot runs/a

"purerl ppo --help" lists all settings, and "purerl --version" prints the version. This completes flags by Tab in bash (or zsh):
purerl --tyro-print-completion bash > ~/.local/share/bash-completion/completions/purerl
"""
EXAMPLES = """
- purerl {0} --env CartPole-v1 --total-timesteps 5e5
- purerl {0} --env CartPole-v1 --lr 1e-3 --num-seeds 8 --directory runs/a --eval-every 50
- purerl {0} --config flags.toml --seed 1
"""

# Where a flag cannot have the type of its field: text can be a whole number written as 1e6, and pairs are a sequence of words.
FLAG_TYPES = {"env_kwargs": dict[str, str], "env_params": dict[str, float]}
# What is written differently in a shell than in Python.
FLAG_HELP = {
    "env_kwargs": "Arguments of its constructor, names and values: --env-kwargs size 12 for DeepSea-bsuite.",
    "env_params": "Overrides of its parameters, names and values: --env-params max_steps_in_episode 200.",
    "total_timesteps": "Environment steps over all environments, rounded up to whole updates: 500000, or 5e5.",
    "torso": "mlp, cnn (MinAtar-sized images), nature_cnn (84 x 84 images; with --hidden 512), or auto: one of the latter for "
    "observations of rank 3, by their size, and mlp for others.",
    "hidden": "Widths of the hidden layers, one after the other; for images of those after the convolutions.",
    "memory_inputs": "Further inputs of the memory: action, reward or both, of the previous step.",
    "preset": f"Environment whose tuned config is the default of the other flags: {', '.join(PRESETS)}.",
    "rnd": "Intrinsic rewards by random network distillation, in addition to the environment's.",
}


@dataclasses.dataclass(kw_only=True)
class Training:
    """The options of a training command beside the config.

    Run:
        preset: Environment whose tuned config is the default of the other flags.
        config: TOML file of flags, underscores for dashes. Flags of the command line take precedence.
        seed: Seed of the first run.
        num_seeds: Runs side by side, with the seeds that follow, spread over the devices or the cores.
        exact: Every one of several seeds has the bits of its run alone. Seeds of one device then train one after the other.
        directory: Where checkpoints, metrics (JSON lines, CSV, TensorBoard) and evaluations go; none without.
        resume: Resume from the directory's newest checkpoint: `auto` if there is one, `must`, or `never`.
        init_from: Directory of another run, whose parameters this one starts from.
        save_seconds: About how long between two checkpoints.
        save_every: A checkpoint at each k-th update as well; 0 for none.
        keep: Newest checkpoints to keep.
        keep_every: Checkpoints of every k-th update are kept for ever; 0 for none.
        write_every: Updates in a row of the files; 0 writes one about each second.
        eval_every: Evaluate before the first update and after each k-th; 0 never.
        eval_episodes: Episodes of an evaluation.
        eval_deterministic: Evaluate the most likely actions instead of random ones.
        render_every: Of the evaluations, one in k draws an episode into the directory; 0 for none.
        wandb: Weights & Biases project to log to; none without.
    """

    preset: str = ""
    config: str = ""
    seed: int = 0
    num_seeds: int = 1
    exact: bool = False
    directory: str = ""
    resume: Literal["auto", "must", "never"] = "auto"
    init_from: str = ""
    save_seconds: float = 30.0
    save_every: int = 0
    keep: int = 3
    keep_every: int = 0
    write_every: int = 0
    eval_every: int = 0
    eval_episodes: int = 128
    eval_deterministic: bool = False
    render_every: int = 0
    wandb: str = ""


TO_FIT = ("num_seeds", "exact", "resume", "save_seconds", "save_every", "keep", "keep_every")
TO_FIT += ("eval_every", "eval_episodes", "eval_deterministic", "render_every")


@dataclasses.dataclass
class Watch:
    """Options of commands that read runs.

    Attributes:
        dir: Directory of the run.
        run: Which run, if the directory has several: its index from 0, or its label, such as "config 1, seed 0".
        deterministic: The most likely actions instead of random ones.
        best: The state with the best evaluation instead of the last.
        seed: Seed of the episodes.
    """

    dir: tyro.conf.Positional[str]
    run: str = ""
    deterministic: bool = False
    best: bool = False
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
class Export:
    """Writes a run's policy, of the run that --run names or of the first, as a program that needs only jax and flatbuffers.

    With act = jax.export.deserialize(bytearray(open("policy.jaxexport", "rb").read())).call it acts in any number of
    environments: action, carry = act(carry, obs, first, jax.random.PRNGKey(0), False). All arrays have a leading axis of
    environments. The carry is () without a memory, first says where an episode begins, and the last argument is True for the
    most likely actions.

    Attributes:
        dir: Directory of the run.
        run: Which run, if the directory has several: its index from 0, or its label, such as "config 1, seed 0".
        out: File to write.
        best: The state with the best evaluation instead of the last.
    """

    dir: tyro.conf.Positional[str]
    run: str = ""
    out: str = "policy.jaxexport"
    best: bool = False


def main(args: list[str] | None = None) -> int:
    """Runs a command and returns its exit status.

    0: done, now or before, or ended by Ctrl-C; 1: a checkpoint failed or the run diverged; 2: the config cannot be trained; 143:
    ended by SIGTERM, and to be resumed.
    """
    args = _with_values(sys.argv[1:] if args is None else args)
    if args == ["--version"]:
        print(f"purerl {__version__}")
        return 0
    use_cores()  # before anything starts JAX
    try:
        _refuse_other_names(args)
        base = _base(args)
        flags = {name: _flags(name, base, cls, examples=name in args[:1]) for name, cls in ALGORITHMS.items()}
        commands = flags | {"eval": Eval, "plot": Plot, "render": Render, "export": Export}
        options = {"prog": "purerl", "description": DESCRIPTION, "args": args, "config": (tyro.conf.OmitArgPrefixes,)}
        chosen = tyro.extras.subcommand_cli_from_dict(commands, **options)
        name = type(chosen).__name__
        if name not in ALGORITHMS:
            return ACTIONS[type(chosen)](chosen)
        values = _values(chosen)
        return _train(
            _config(ALGORITHMS[name], values), Training(**{f.name: values[f.name] for f in dataclasses.fields(Training)})
        )
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (CheckpointError, NotFiniteError) as error:
        print(error, file=sys.stderr)
        return 1


def _train(cfg: Config, asked: Training) -> int:
    options = {name: getattr(asked, name) for name in TO_FIT}
    options |= {name: getattr(asked, name) or None for name in ("directory", "init_from")}
    live_line = LiveLine()
    result = fit(cfg, asked.seed, recorders=(live_line, *_recorders(asked, cfg)), **options)
    if result.progress.updates:
        live_line.console.print(closing_table(result.progress, result.metrics))
    if result.stopped_by:
        live_line.console.print(_stopped(result.progress, asked.directory), highlight=False)
    return 128 + result.stopped_by if result.stopped_by == 15 else 0


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
    run = _asked(command) if command.run else load(command.dir, best=command.best)
    episodes = jax.tree.map(np.atleast_2d, run.evaluate(command.num_episodes, command.seed, command.deterministic))
    LiveLine().console.print(evaluation_table(episodes, run.labels, run.finished))
    return 0


def _asked(command: Watch | Export) -> Run:
    """The one run that a command is about."""
    run = load(command.dir, best=command.best)
    return run.select(command.run or 0)


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


ACTIONS = {Eval: _evaluate, Plot: _plot, Render: _render, Export: _export}


def _base(args: list[str]) -> dict[str, Any]:
    """What the flags start from, by name: a preset, and a file on top. They have to be known before the flags are made."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset")
    parser.add_argument("--config")
    given = parser.parse_known_args(args)[0]
    asked = next((arg for arg in args if arg in ALGORITHMS), "ppo")
    file = _from_file(given.config, asked) if given.config else {}
    name = given.preset or file.get("preset")
    cfg = preset(name) if name else None
    if cfg and algorithm_of(cfg) != asked:
        raise ConfigError([Problem("preset", name, f"was tuned for {algorithm_of(cfg)}, and is none for another algorithm")])
    base = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)} if cfg else {}
    return base | file


def _from_file(path: str, algorithm: str) -> dict[str, Any]:
    try:
        values = tomllib.loads(pathlib.Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError([Problem("config", path, f"cannot be read: {error}")]) from error
    values = {name.replace("-", "_"): tuple(x) if isinstance(x, list) else x for name, x in values.items()}
    if isinstance(values.get("env_kwargs"), dict):
        values["env_kwargs"] = tuple(values["env_kwargs"].items())
    known = [f.name for cls in (ALGORITHMS[algorithm], Training) for f in dataclasses.fields(cls)]
    known += [f"rnd_{f.name}" for f in dataclasses.fields(RNDConfig)]
    hint = lambda name: renamed(name) or nearest(name.lower(), known, f"purerl {algorithm} --help lists all")
    hint_of_section = "sections are not used; write lr = 1e-3 at the top"
    sections = [Problem(name, value, hint_of_section) for name, value in values.items() if name in ALGORITHMS]
    found = sections or [Problem(name, values[name], f"no such flag; {hint(name)}") for name in values if name not in known]
    if not isinstance(values.get("rnd", False), bool):
        found.append(Problem("rnd", values["rnd"], "must be true or false; its fields are rnd_int_coef and so on"))
    if found := found or _file_problems(values, ALGORITHMS[algorithm]):
        raise ConfigError(found)
    return values


def _file_problems(values: dict[str, Any], cls: type[Config]) -> list[Problem]:
    """What is wrong with the values of a file, each by itself."""
    of = lambda cls, prefix="": {f.name: values[prefix + f.name] for f in dataclasses.fields(cls) if prefix + f.name in values}
    found = field_problems(cls(**{name: x for name, x in of(cls).items() if name != "rnd"}))
    inner = field_problems(RNDConfig(**of(RNDConfig, "rnd_")))
    found += [Problem(f"rnd_{problem.field}", problem.value, problem.hint) for problem in inner]
    for name, value in of(Training).items():
        kind = type(getattr(Training(), name))
        if not (isinstance(value, kind) or (kind is float and is_number(value))) or (
            kind is not bool and isinstance(value, bool)
        ):
            found.append(Problem(name, value, f"must be {'text' if kind is str else f'of type {kind.__name__}'}"))
    return found


def _with_values(args: list[str]) -> list[str]:
    """Arguments in which a switch without a value has one: `--normalize-obs` is `--normalize-obs True`, with `no-` False."""
    switches = {f.name for cls in ALGORITHMS.values() for f in dataclasses.fields(cls) if f.metadata["rule"] is SWITCH}
    found = []
    for arg, following in zip(args, [*args[1:], "--"], strict=True):
        name = arg.removeprefix("--").replace("-", "_")
        if (
            arg.startswith("--")
            and name.removeprefix("no_") in switches
            and (name.startswith("no_") or following.startswith("--"))
        ):
            arg = f"--{name.removeprefix('no_')}={not name.startswith('no_')}"
        found.append(arg)
    return found


def _refuse_other_names(args: list[str]) -> None:
    """Refuses flags that another system has under that name, with the one to use."""
    algorithm = ALGORITHMS.get(args[0]) if args else None
    if algorithm is None:
        return
    known = {*algorithm.field_docs, *(f.name for f in dataclasses.fields(Training))}
    found = []
    for arg, following in zip(args, [*args[1:], "--"], strict=True):
        flag, _, value = arg.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name not in known and (hint := renamed(name.removeprefix("no_"))):
            value = value or (True if following.startswith("--") else following)
            found.append(Problem(flag, value, f"no such flag; {_as_flags(hint, known)}"))
    if found:
        raise ConfigError(found)


def _flags(name: str, base: dict[str, Any], cls: type[Config], examples: bool = False) -> type:
    """A dataclass that tyro turns into flags, a dataclass for each group of fields inside.

    The fields are those of the config, of its `rnd` and of `Training`, their defaults replaced by `base`.
    """
    docs = cls.field_docs | parse_docs(inspect.cleandoc(Training.__doc__))[1]
    parts = [(part, f) for part in (cls(), Training()) for f in dataclasses.fields(part)]
    fields = {f.name: (_flag_type(f), _default(f, base.get(f.name, getattr(part, f.name)))) for part, f in parts}
    fields["rnd"] = (bool, dataclasses.field(default=bool(base.get("rnd"))))
    rnd = base["rnd"] if isinstance(base.get("rnd"), RNDConfig) else RNDConfig()
    for f in dataclasses.fields(RNDConfig):
        doc = RNDConfig.field_docs[f.name]
        docs[f"rnd_{f.name}"] = doc._replace(text=f"With --rnd. {doc.text}")
        fields[f"rnd_{f.name}"] = (_flag_type(f), _default(f, base.get(f"rnd_{f.name}", getattr(rnd, f.name))))
    groups = []
    for group in GROUPS:
        inside = [flag for flag, doc in docs.items() if doc.group == group]
        names = {flag: fields.keys() - set(get_args(fields[flag][0])) for flag in inside}  # a choice may have the name of a field
        texts = [f"    {flag}: {_as_flags(FLAG_HELP.get(flag, docs[flag].text), names[flag])}" for flag in inside]
        made = dataclasses.make_dataclass(
            group, [(flag, *fields[flag]) for flag in inside], namespace={"__doc__": "\n".join(["", "Attributes:", *texts, ""])}
        )
        groups.append((group.lower().replace(" ", "_"), made, dataclasses.field(default_factory=made)))
    documentation = cls.__doc__.split("\n\n")[0] + (f"\n{EXAMPLES.format(name)}" if examples else "")
    return dataclasses.make_dataclass(name, groups, namespace={"__doc__": documentation})


def _values(flags: Any) -> dict[str, Any]:
    """What was asked for, by flag, of a dataclass of `_flags`."""
    return {flag: value for group in vars(flags).values() for flag, value in vars(group).items()}


def _as_flags(text: str, names: Iterable[str]) -> str:
    """A text without backticks; where they hold nothing but the name of a field, it is written as a flag."""
    return re.sub(r"`([^`]*)`", lambda code: f"--{code[1].replace('_', '-')}" if code[1] in names else code[1], text)


def _flag_type(field: dataclasses.Field) -> Any:
    rule = field.metadata.get("rule", ANY)
    if rule is SWITCH:
        return Literal["auto", "True", "False"]
    if field.metadata.get("whole_float"):
        return int | float
    kind = Literal[rule.choices] if rule.choices else FLAG_TYPES.get(field.name, field.type)
    return kind | Literal["auto"] if rule.auto else kind


def _default(field: dataclasses.Field, value: Any) -> Any:
    rule = field.metadata.get("rule", ANY)
    if field.name == "env_kwargs":
        value = {argument: json.dumps(x) for argument, x in value}
    value = str(value) if rule is SWITCH else "auto" if rule.auto and value == AUTO else value
    return dataclasses.field(default_factory=value.copy) if isinstance(value, dict) else dataclasses.field(default=value)


def _config(cls: type[Config], flags: dict[str, Any]) -> Config:
    """The config that flags ask for."""
    inner = {f.name: flags[f"rnd_{f.name}"] for f in dataclasses.fields(RNDConfig)}
    changed = [name for name, value in inner.items() if value != getattr(RNDConfig(), name)]
    if changed and not flags["rnd"]:
        raise ConfigError([Problem(f"rnd_{name}", inner[name], "changes nothing without --rnd") for name in changed])
    values = {f.name: flags[f.name] for f in dataclasses.fields(cls)}
    switches = {f.name for f in dataclasses.fields(cls) if f.metadata["rule"] is SWITCH}
    values |= {name: {"True": True, "False": False}.get(values[name], values[name]) for name in switches}
    values |= {"rnd": RNDConfig(**inner) if flags["rnd"] else None}
    return cls(**{**values, "env_kwargs": tuple((name, _parse(text)) for name, text in flags["env_kwargs"].items())})


def _parse(text: str) -> Any:
    """A number, true, false or null as JSON has them; any other word as it is."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    sys.exit(main())
