"""Command-line flags: made from the fields of a config, and converted back to a config; files of flags."""

import argparse
import dataclasses
import inspect
import itertools
import json
import pathlib
import re
import tomllib
from collections.abc import Collection
from typing import Annotated, Any, Literal, get_args

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from purerl.cli.run_options import Training
from purerl.config.algorithms import ALGORITHMS, algorithm_of
from purerl.config.base import OnPolicyConfig
from purerl.config.curiosity import RNDConfig
from purerl.config.documentation import GROUPS, parse_docs
from purerl.config.other_names import unknown_names
from purerl.config.presets import PRESETS, preset
from purerl.config.randomization import Normal, Uniform
from purerl.config.rules import ANY, AUTO, SWITCH
from purerl.config.value_checks import field_problems
from purerl.core.errors import ConfigError, Problem, is_int, is_number, raise_if_any

EXAMPLES = """
- purerl {0} --env CartPole-v1 --total-timesteps 5e5
- purerl {0} --env CartPole-v1 --lr 1e-3 --num-seeds 8 --directory runs/a --eval-every 50
- purerl {0} --config flags.toml --seed 1
"""

TUNING_EXAMPLES = """
- purerl tune {0} --env Acrobot-v1 --directory runs/t
- purerl tune {0} --env Acrobot-v1 --trials 64 --num-seeds 4 --param lr=1e-5:1e-2:log --param num_steps=32,64,128
- purerl {0} --config runs/t/best.toml
"""

# Types of flags that differ from the types of their fields: in a shell, pairs, for example, are a sequence of words.
FLAG_TYPES = {"env_kwargs": dict[str, str], "env_params": dict[str, float], "randomize": dict[str, str]}
FLAG_TYPES["sweep"] = FLAG_TYPES["param"] = tyro.conf.UseAppendAction[tuple[str, ...]]  # the flag is repeated for each field


def _steps(words: list[str]) -> int | float:
    """Return a number of steps from its text: "500000", "5e5", "500k" or "0.5M"."""
    text = words[0]
    if text.isdecimal():
        return int(text)  # exact, where a float would round
    return float(re.sub("M$", "e6", re.sub("k$", "e3", text)))


WIDTHS = Annotated[
    tuple[int, ...],
    PrimitiveConstructorSpec(
        "*",
        "[INT [INT ...]]",
        lambda words: tuple(int(width) for word in words for width in word.split(",")),
        lambda x: isinstance(x, tuple) and all(isinstance(width, int) for width in x),
        lambda x: [str(width) for width in x],
    ),
]
STEPS = Annotated[
    int | float, PrimitiveConstructorSpec(1, "STEPS", _steps, lambda x: isinstance(x, int | float), lambda x: [str(x)])
]
# Help texts of flags whose values are written differently in a shell than in Python.
FLAG_HELP = {
    "env": "Environment id, in gymnax or in another suite (brax/ant), or package.module:Class of a custom environment.",
    "env_kwargs": "Arguments of the environment's constructor, names and values: --env-kwargs size 12 for DeepSea-bsuite.",
    "env_params": "Overrides of the environment's parameters, names and values: --env-params max_steps_in_episode 200.",
    "randomize": "Parameters of the environment that each episode draws, names and distributions: --randomize gravity 8:12 for "
    "all numbers between 8 and 12, --randomize gravity normal:9.8:0.5 for a mean and a standard deviation.",
    "total_timesteps": "Environment steps over all environments, rounded up to whole updates: 500000, 5e5, 500k or 0.5M.",
    "torso": "mlp, cnn (MinAtar-sized images), nature_cnn (84 x 84 images; with --hidden 512), or auto: cnn or nature_cnn "
    "for images (height, width, channels), by their size, and mlp for other observations.",
    "hidden": "Widths of the hidden layers, in order; for images, of the layers after the convolutions.",
    "critic_hidden": "Widths of the value network's hidden layers; by default the widths in --hidden.",
    "memory_inputs": "Further inputs of the recurrent network: action, reward or both, of the previous step.",
    "preset": f"Environment whose tuned config gives the defaults of the other flags: {', '.join(PRESETS)}.",
    "rnd": "Intrinsic rewards by random network distillation, in addition to the environment's.",
}

COMMON = (
    *("env", "preset", "total_timesteps", "num_envs", "num_steps", "lr", "ent_coef", "hidden", "memory"),
    *("seed", "num_seeds", "directory", "eval_every", "sweep"),
)


def short_help(name: str, cls: type[OnPolicyConfig]) -> str:
    """Return a short help text for an algorithm's command, with the flags that most users need."""
    docs, options = cls.field_docs | parse_docs(inspect.cleandoc(Training.__doc__ or ""))[1], Training()
    lines = [
        f"usage: purerl {name} [flags]; purerl {name} --help-all lists all flags",
        "",
        (cls.__doc__ or "").split("\n")[0],
        "",
    ]
    for flag in COMMON:
        default = getattr(cls() if hasattr(cls, flag) else options, flag)
        text = _as_flags(_first_clause(FLAG_HELP.get(flag, docs[flag].text)), ())
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else "auto" if default == AUTO else default
        lines.append(f"  --{flag.replace('_', '-'):<17} {text}" + (f" (default: {shown})" if shown not in ("", 0) else ""))
    return "\n".join([*lines, "", EXAMPLES.format(name).strip()])


def _first_clause(text: str) -> str:
    return re.split(r"[.;:]\s", f"{text} ")[0].replace("\n", " ")


def job_of(args: list[str]) -> dict[str, Any] | None:
    """Return the arguments of `join`, which connects the processes of a job; None without a job. Call this before JAX starts."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--coordinator", default="")
    parser.add_argument("--num-processes", "--num_processes", type=int, default=0)
    parser.add_argument("--process-id", "--process_id", type=int, default=-1)
    try:
        found = vars(parser.parse_known_args(args)[0])
    except argparse.ArgumentError:
        return None  # the error is reported later, when all flags are read
    named = found["coordinator"] or found["num_processes"] > 0 or found["process_id"] >= 0
    return found if found.pop("distributed") or named else None


def base_of(args: list[str], algorithms: dict[str, type[OnPolicyConfig]], options: type = Training) -> dict[str, Any]:
    """Return the defaults of flags, by name: values of a preset, overridden by those of a file."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--preset")
    parser.add_argument("--config")
    given = parser.parse_known_args(args)[0]
    asked = next((arg for arg in args if arg in algorithms), "ppo")
    file = _from_file(given.config, asked, algorithms[asked], options) if given.config else {}
    name = given.preset or file.get("preset")
    cfg = preset(name) if name else None
    if cfg and algorithm_of(cfg) != algorithm_of(algorithms[asked]()):
        raise ConfigError([Problem("preset", name, f"is a preset of {algorithm_of(cfg)}; use purerl {algorithm_of(cfg)}")])
    base = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)} if cfg else {}
    return base | file


OF_TYRO = ("help", "tyro_print_completion", "tyro_write_completion")
ONLY_FLAGS = ("config", "distributed", "coordinator", "num_processes", "process_id")  # these flags are read before any file


def _from_file(path: str, algorithm: str, cls: type[OnPolicyConfig], options: type) -> dict[str, Any]:
    try:
        values = tomllib.loads(pathlib.Path(path).read_text())
    except OSError as error:
        raise ConfigError([Problem("config", path, f"cannot be read: {error.strerror}")]) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        hint = f"must be a TOML file, with lines such as lr = 1e-3 and env = 'CartPole-v1'; parsing failed: {error}"
        raise ConfigError([Problem("config", path, hint)]) from error
    values = {name.replace("-", "_"): tuple(x) if isinstance(x, list) else x for name, x in values.items()}
    if isinstance(values.get("env_kwargs"), dict):
        values["env_kwargs"] = tuple(values["env_kwargs"].items())
    values |= {name: _value_texts(values[name]) for name in ("sweep", "param") if name in values}
    known = _names(cls, options)
    unused = "sections are not supported; write lr = 1e-3 at the top level"
    only = "a file cannot contain import paths; use the command line"
    found = [Problem(name, values[name], only) for name in ("env", "algorithm") if ":" in str(values.get(name, ""))]
    job = "a file cannot contain this flag; use the command line"
    found += [Problem(name, values[name], job) for name in ONLY_FLAGS if name in values]
    sections = [Problem(name, value, unused) for name, value in values.items() if name in ALGORITHMS]
    found += sections or unknown_names(values, known, "flag", f"purerl {algorithm} --help-all lists all")
    if not isinstance(values.get("rnd", False), bool):
        found.append(Problem("rnd", values["rnd"], "must be true or false; set its fields as rnd_int_coef = 1.0"))
    if found := found or _file_problems(values, cls, options):
        raise ConfigError(found)
    return values


def _value_texts(values: Any) -> tuple[str, ...]:
    """Return values to try as texts of a flag. In a file, `values` is a list of such texts, or a table of lists of values."""
    texts = lambda xs: [
        "x".join(map(str, x)) if isinstance(x, list) else str(x).lower() if isinstance(x, bool) else str(x) for x in xs
    ]
    if isinstance(values, dict):
        return tuple(f"{name}={','.join(texts(xs if isinstance(xs, list) else [xs]))}" for name, xs in values.items())
    return tuple(map(str, values)) if isinstance(values, tuple) else (str(values),)


def _file_problems(values: dict[str, Any], cls: type[OnPolicyConfig], options: type) -> list[Problem]:
    """Return a problem for each invalid value of a file."""
    of = lambda cls, prefix="": {f.name: values[prefix + f.name] for f in dataclasses.fields(cls) if prefix + f.name in values}
    found = field_problems(cls(**{name: x for name, x in of(cls).items() if name != "rnd"}))
    inner = field_problems(RNDConfig(**of(RNDConfig, "rnd_")))
    found += [Problem(f"rnd_{problem.field}", problem.value, problem.hint) for problem in inner]
    for name, value in of(options).items():
        kind = type(getattr(options(), name))
        fits = is_number(value) if kind is float else is_int(value) if kind is int else isinstance(value, kind)
        if not fits:
            found.append(Problem(name, value, f"must be {'a string' if kind is str else f'of type {kind.__name__}'}"))
    return found


def refuse_unknown(args: list[str], algorithms: dict[str, type[OnPolicyConfig]], options: type = Training) -> None:
    """Raise an error that lists all flags that a command does not have, each with a flag to use instead."""
    if not (args and args[0] in algorithms):
        return
    cls = algorithms[args[0]]
    known, given, flags = [*_names(cls, options), *OF_TYRO], {}, {}
    for i, arg in enumerate(args):
        flag, equals, value = arg.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--"):
            name = name if name in known else name.removeprefix("no_")
            values = itertools.takewhile(lambda x: not x.startswith("--"), args[i + 1 :])
            given[name], flags[name] = value if equals else " ".join(values) or True, flag
    found = unknown_names(given, known, "flag", f"purerl {args[0]} --help-all lists all")
    as_flags = lambda hint: _as_flags(re.sub(r"'(\w+)'", r"`\1`", hint) if "did you mean" in hint else hint, known, cls)
    raise_if_any([Problem(flags[name], value, as_flags(hint)) for name, value, hint in found])


def _names(cls: type[OnPolicyConfig], options: type) -> list[str]:
    """Return the names of all flags of a command, with underscores."""
    own = [f.name for part in (cls, options) for f in dataclasses.fields(part)]
    return [*own, *(f"rnd_{f.name}" for f in dataclasses.fields(RNDConfig))]


def flags_of(
    name: str, base: dict[str, Any], cls: type[OnPolicyConfig], examples: bool = False, options: type = Training
) -> type:
    """Return a dataclass that tyro turns into flags, with a nested dataclass for each group of fields.

    The flags are the fields of the config, of its `rnd` and of the options. Values in `base` replace their defaults.
    """
    docs = cls.field_docs | parse_docs(inspect.cleandoc(options.__doc__ or ""))[1]
    parts = [(part, f) for part in (cls(), options()) for f in dataclasses.fields(part)]
    fields = {f.name: (_flag_type(f), _default(f, base.get(f.name, getattr(part, f.name)))) for part, f in parts}
    fields["rnd"] = (bool, dataclasses.field(default=bool(base.get("rnd"))))
    rnd = base["rnd"] if isinstance(base.get("rnd"), RNDConfig) else RNDConfig()
    for f in dataclasses.fields(RNDConfig):
        doc = RNDConfig.field_docs[f.name]
        docs[f"rnd_{f.name}"] = doc._replace(text=f"Requires --rnd. {doc.text}")
        fields[f"rnd_{f.name}"] = (_flag_type(f), _default(f, base.get(f"rnd_{f.name}", getattr(rnd, f.name))))
    groups = []
    for group in GROUPS:
        inside = [flag for flag, doc in docs.items() if doc.group == group]
        names = {flag: fields.keys() - set(get_args(fields[flag][0])) for flag in inside}  # a choice may have the name of a field
        texts = [f"    {flag}: {_as_flags(FLAG_HELP.get(flag, docs[flag].text), names[flag])}" for flag in inside]
        made = dataclasses.make_dataclass(
            group,
            [(flag, _with_hint(*fields[flag]), fields[flag][1]) for flag in inside],
            namespace={"__doc__": "\n".join(["", "Attributes:", *texts, ""])},
        )
        groups.append((group.lower().replace(" ", "_"), made, dataclasses.field(default_factory=made)))
    documentation = (cls.__doc__ or "").split("\n\n")[0] + (
        f"\n{(EXAMPLES if options is Training else TUNING_EXAMPLES).format(name)}" if examples else ""
    )
    return dataclasses.make_dataclass(name, groups, namespace={"__doc__": documentation})


def values_of(flags: Any) -> dict[str, Any]:
    """Return the values of an instance of a `flags_of` class, by flag."""
    return {flag: value for group in vars(flags).values() for flag, value in vars(group).items()}


def _as_flags(text: str, names: Collection[str], cls: type[OnPolicyConfig] = OnPolicyConfig) -> str:
    """Return a text without backticks, with fields and arguments of `fit` written as flags where flags exist."""
    place = re.compile(rf"(?:{cls.__name__}\.|fit\()?(rnd_)?(\w+)(?:=\))?")

    def written(code: re.Match) -> str:
        found = place.fullmatch(code[1].replace("RNDConfig.", "rnd_"))
        name = found and f"{found[1] or ''}{found[2]}"
        return f"--{name.replace('_', '-')}" if name and name in names else code[1]

    return re.sub(r"`([^`]*)`", written, text)


def _flag_type(field: dataclasses.Field) -> Any:
    rule = field.metadata.get("rule", ANY)
    if rule is SWITCH:
        return bool | Literal["auto"]
    if field.metadata.get("whole_float"):
        return STEPS
    if field.name in ("hidden", "critic_hidden"):
        return WIDTHS
    kind = Literal[rule.choices] if rule.choices else FLAG_TYPES.get(field.name, field.type)
    return kind | Literal["auto"] if rule.auto else kind


def _with_hint(kind: Any, default: Any) -> Any:
    """Return a flag's type; if the default is empty, with a text for the help, which would show nothing."""
    value = default.default_factory() if default.default is dataclasses.MISSING else default.default
    return Annotated[kind, tyro.conf.arg(help_behavior_hint="(default: none)")] if value in ("", (), {}) else kind


def _default(field: dataclasses.Field, value: Any) -> Any:
    rule = field.metadata.get("rule", ANY)
    if field.name == "env_kwargs":
        value = {argument: json.dumps(x) for argument, x in value}
    if field.name == "randomize":
        value = {name: ":".join(["normal"] * isinstance(x, Normal) + [*map(str, x)]) for name, x in value.items()}
    value = "auto" if rule.auto and value == AUTO else value
    return dataclasses.field(default_factory=value.copy) if isinstance(value, dict) else dataclasses.field(default=value)


def config_of(cls: type[OnPolicyConfig], flags: dict[str, Any]) -> OnPolicyConfig:
    """Return the config that the flags describe."""
    inner = {f.name: flags[f"rnd_{f.name}"] for f in dataclasses.fields(RNDConfig)}
    changed = [name for name, value in inner.items() if value != getattr(RNDConfig(), name)]
    if changed and not flags["rnd"]:
        raise ConfigError([Problem(f"rnd_{name}", inner[name], "has no effect without --rnd") for name in changed])
    values = {f.name: flags[f.name] for f in dataclasses.fields(cls)}
    values["rnd"] = RNDConfig(**inner) if flags["rnd"] else None
    values["env_kwargs"] = tuple((name, _parse(text)) for name, text in flags["env_kwargs"].items())
    values["randomize"] = {name: _distribution(name, text) for name, text in flags["randomize"].items()}
    return cls(**values)


def _distribution(name: str, text: str) -> Uniform | Normal:
    """Return the distribution of a text: "8:12" is uniform, "normal:9.8:0.5" has a mean and a standard deviation."""
    try:
        match text.split(":"):
            case ["normal", mean, std]:
                return Normal(float(mean), float(std))
            case [low, high]:
                return Uniform(float(low), float(high))
    except ValueError:  # not a number
        pass
    raise ConfigError([Problem("randomize", {name: text}, "must be low:high, or normal:mean:std")])


def _parse(text: str) -> Any:
    """Return the value of a JSON text, such as a number or true; return any other text unchanged."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
