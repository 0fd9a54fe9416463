"""Command-line flags: made from the fields of a config, and converted back to a config; files of flags."""

import dataclasses
import itertools
import json
import pathlib
import re
import tomllib
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal, get_args

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from purerl.cli import run_options
from purerl.cli.run_options import Options, Training, Tuning
from purerl.config.algorithms import algorithm_of
from purerl.config.aliases import unknown_names
from purerl.config.base import OnPolicyConfig
from purerl.config.curiosity import RNDConfig
from purerl.config.documentation import GROUPS, FieldDoc, as_written, default_of, parse_docs
from purerl.config.fields import as_tuples, parse_json
from purerl.config.presets import preset, presets
from purerl.config.randomization import distribution_of
from purerl.config.rules import SWITCH
from purerl.config.value_checks import field_problems
from purerl.core.errors import ConfigError, Problem, config_error, raise_if_any


def _pairs(read: Callable[[str], Any]) -> Any:
    """Return the type of a flag of names and values. `values_of` adds those of a file or preset."""

    def parse(words):
        if len(words) % 2:
            raise ValueError("each name needs a value")
        if twice := [name for name in words[::2] if words[::2].count(name) > 1]:
            raise ValueError(f"{twice[0]!r} is given twice")
        return {name: read(value) for name, value in zip(words[::2], words[1::2], strict=True)}

    texts = lambda x: [str(word) for pair in x.items() for word in pair]
    is_dict = lambda x: isinstance(x, dict)
    return Annotated[dict, PrimitiveConstructorSpec("*", "[NAME VALUE [NAME VALUE ...]]", parse, is_dict, texts)]


# Types of flags that differ from the types of their fields: in a shell, for example, pairs are a sequence of words.
PAIRS = {"env_kwargs": _pairs(str), "env_params": _pairs(float), "randomize": _pairs(str)}
FLAG_TYPES = PAIRS | dict.fromkeys(("sweep", "param"), tyro.conf.UseAppendAction[tuple[str, ...]])  # repeated for each field


def _steps(words: list[str]) -> int | float:
    """Return a number of steps from its text: "500000", "5e5", "500k" or "0.5M"."""
    text = words[0]
    if text.isdecimal():
        return int(text)  # exact, where a float would round
    return float(re.sub("M$", "e6", re.sub("k$", "e3", text)))


_widths = lambda words: tuple(int(width) for word in words for width in word.split(","))
_are_widths = lambda x: isinstance(x, tuple) and all(isinstance(width, int) for width in x)
_as_texts = lambda xs: [str(x) for x in xs]
_are_steps = lambda x: isinstance(x, int | float)
WIDTHS = Annotated[tuple[int, ...], PrimitiveConstructorSpec("*", "[INT [INT ...]]", _widths, _are_widths, _as_texts)]
STEPS = Annotated[int | float, PrimitiveConstructorSpec(1, "STEPS", _steps, _are_steps, lambda x: [str(x)])]
COMMON = (
    *("env", "preset", "total_timesteps", "num_envs", "num_steps", "lr", "ent_coef", "hidden", "memory"),
    *("seed", "num_seeds", "directory"),
)
COMMON_OPTIONS = {Training: ("eval_every", "sweep"), Tuning: ("param", "trials")}


def short_help(name: str, cls: type[OnPolicyConfig], options: type[Options] = Training) -> str:
    """Return a short help text for an algorithm's command, with the flags that most users need."""
    docs, fields, command = _docs_of(cls, options), _fields_of(cls, options), f"tune {name}" if options is Tuning else name
    lines = [f"usage: purerl {command} [flags]; purerl {command} --help-all lists all flags", "", _summary(cls), ""]
    for flag in (*COMMON, *COMMON_OPTIONS[options]):
        default = _default_of(fields[flag])
        text = _as_flags(re.split(r"[.;:]\s", f"{docs[flag].text} ")[0], ())
        value = " ".join(map(str, default)) if isinstance(default, tuple) else default
        lines.append(f"  --{flag.replace('_', '-'):<17} {text}" + (f" (default: {value})" if value not in ("", 0) else ""))
    return "\n".join([*lines, "", _examples(name, options)])


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").split("\n\n")[0]


def _examples(name: str, options: type[Options]) -> str:
    return parse_docs(options.__doc__ or "")[0].partition("\n\n")[2].replace(" ppo ", f" {name} ")


def given_flags(args: list[str]) -> dict[str, tuple[str, Any]]:
    """Return a dict from the name of each flag to the flag as written, and its value as text (True without a value)."""
    found = {}
    for i, arg in enumerate(args):
        flag, equals, value = arg.partition("=")
        if flag.startswith("--"):
            values = _words_after(args, i)
            text = value if equals else " ".join(values) if values else True
            found[flag.removeprefix("--").replace("-", "_")] = flag, text
    return found


def _words_after(args: list[str], place: int) -> list[str]:
    """Return the arguments between the flag at a place and the next flag."""
    return list(itertools.takewhile(lambda x: not x.startswith("--"), args[place + 1 :]))


def job_arguments(args: list[str]) -> dict[str, Any] | None:
    """Return the arguments of `join`, which connects the processes of a job; None without a job. Call this before JAX starts."""
    given = {name: value for name, (_, value) in given_flags(args).items()}
    found = {name: given[name] for name in ("coordinator", "num_processes", "process_id") if name in given}
    try:
        found |= {name: int(value) for name, value in found.items() if name != "coordinator"}
    except ValueError:
        return None  # the error is reported later, when all flags are read
    names_job = found.get("coordinator") or found.get("num_processes", 0) > 0 or found.get("process_id", -1) >= 0
    return found if names_job or "distributed" in given else None


def file_values(args: list[str], algorithms: dict[str, type[OnPolicyConfig]], options: type[Options]) -> dict[str, Any]:
    """Return the values of the file of flags that `--config` names, by flag; {} without a file."""
    _, path = given_flags(args).get("config", ("", True))
    read = isinstance(path, str)  # a flag without a value is refused later, when all flags are read
    return _from_file(path, args[0], algorithms[args[0]], options) if read else {}


def base_values(args: list[str], algorithms: dict[str, type[OnPolicyConfig]], options: type[Options]) -> dict[str, Any]:
    """Return the defaults of flags, by name: values of a preset, overridden by values of a file of flags.

    A flag --sweep or --param replaces those of the file.
    """
    if not (args and args[0] in algorithms):
        return {}
    given, file = {name: value for name, (_, value) in given_flags(args).items()}, file_values(args, algorithms, options)
    name = file.get("preset") if given.get("preset", True) is True else given["preset"]
    cfg = preset(name) if name else None
    if cfg and algorithm_of(cfg) != algorithm_of(algorithms[args[0]]()):
        raise config_error("preset", name, f"is a preset of {algorithm_of(cfg)}; use purerl {algorithm_of(cfg)}")
    values = defaults_of(cfg) if cfg else {}
    file = {name: x for name, x in file.items() if name not in ("sweep", "param") or name not in given}
    return values | file | {name: _merge(values[name], file[name]) for name in PAIRS if name in values and name in file}


def _merge(before: Any, new: Any) -> Any:
    """Return the names and values of `before`, overridden by those of `new`: a dict, or a tuple of pairs, as `before`."""
    return type(before)((dict(before) | dict(new)).items())


def defaults_of(cfg: OnPolicyConfig) -> dict[str, Any]:
    """Return the values of a config by flag."""
    rnd = {f"rnd_{f.name}": getattr(cfg.rnd, f.name) for f in dataclasses.fields(RNDConfig)} if cfg.rnd else {}
    return {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg)} | {"rnd": cfg.rnd is not None, **rnd}


OF_TYRO = ("help", "tyro_print_completion", "tyro_write_completion")
ONLY_FLAGS = ("config", "distributed", "coordinator", "num_processes", "process_id")  # these flags are read before any file


def _from_file(path: str, algorithm: str, cls: type[OnPolicyConfig], options: type[Options]) -> dict[str, Any]:
    try:
        values = tomllib.loads(pathlib.Path(path).read_text("utf-8"))
    except OSError as error:
        raise config_error("config", path, f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        hint = f"must be a TOML file, with lines such as lr = 1e-3 and env = 'CartPole-v1'; parsing failed: {error}"
        raise config_error("config", path, hint) from error
    values = {name.replace("-", "_"): as_tuples(x) for name, x in values.items()}
    values |= {name: (values[name],) for name in ("sweep", "param") if isinstance(values.get(name), str)}
    if isinstance(texts := values.get("randomize"), dict):
        values["randomize"] = {name: distribution_of(name, str(text)) for name, text in texts.items()}
    if isinstance(values.get("env_kwargs"), dict):
        values["env_kwargs"] = tuple(values["env_kwargs"].items())
    only = "a file cannot contain import paths; use the command line"
    found = [Problem(name, values[name], only) for name in ("env", "algorithm") if ":" in str(values.get(name, ""))]
    job = "a file cannot contain this flag; use the command line"
    found += [Problem(name, values[name], job) for name in ONLY_FLAGS if name in values]
    found += unknown_names(values, _fields_of(cls, options), "flag", f"purerl {algorithm} --help-all lists all")
    if not isinstance(values.get("rnd", False), bool):
        found.append(Problem("rnd", values["rnd"], "must be true or false; set its fields as rnd_int_coef = 1.0"))
    raise_if_any(found)
    config = lambda part, prefix="": part(
        **{f.name: values[prefix + f.name] for f in dataclasses.fields(part) if prefix + f.name in values.keys() - {"rnd"}}
    )
    found = field_problems(config(cls)) + field_problems(config(options))
    inner = field_problems(config(RNDConfig, "rnd_"))
    raise_if_any(found + [problem._replace(field=f"rnd_{problem.field}") for problem in inner])
    return values


def refuse_unknown(args: list[str], algorithms: dict[str, type[OnPolicyConfig]], options: type[Options] = Training) -> None:
    """Raise a ConfigError if the command does not have some of the given flags; list them, each with a flag to use instead.

    Also refuse a flag with a list of values, such as --env-params, that is given twice: only the last would count.
    """
    if not (args and args[0] in algorithms):
        return
    fields = _fields_of(algorithms[args[0]], options)
    known = [*fields, *OF_TYRO]
    given = {name if name in known else name.removeprefix("no_"): x for name, x in given_flags(args).items()}
    values = {name: value for name, (_, value) in given.items()}
    as_flags = lambda hint: _as_flags(re.sub(r"'(\w+)'", r"`\1`", hint) if "did you mean" in hint else hint, known)
    command = f"tune {args[0]}" if options is Tuning else args[0]
    found = unknown_names(values, known, "flag", f"purerl {command} --help-all lists all")
    found = [Problem(given[name][0], value, as_flags(hint)) for name, value, hint in found]
    flags = [arg.partition("=")[0].removeprefix("--").replace("-", "_") for arg in args if arg.startswith("--")]
    lists = {name for name, field in fields.items() if isinstance(_default_of(field), tuple | dict)} - {"sweep", "param"}
    several = {name for name in lists if _flag_type(fields[name]) is not WIDTHS}  # widths replace each other
    twice = [(flag, text) for name, (flag, text) in given.items() if name in several and flags.count(name) > 1]
    raise_if_any(found + [Problem(flag, text, "is given twice; write all its values after one flag") for flag, text in twice])


def _fields_of(cls: type[OnPolicyConfig], options: type[Options]) -> dict[str, dataclasses.Field]:
    """Return the field of each flag of a command: of the config, of its `rnd` or of the options."""
    own = {f.name: f for part in (cls, options) for f in dataclasses.fields(part)}
    return own | {f"rnd_{f.name}": f for f in dataclasses.fields(RNDConfig)}


def _docs_of(cls: type[OnPolicyConfig], options: type[Options]) -> dict[str, FieldDoc]:
    """Return the documentation of each flag of a command."""
    rnd = {f"rnd_{name}": doc._replace(text=f"Requires --rnd. {doc.text}") for name, doc in RNDConfig.field_docs.items()}
    docs = cls.field_docs | parse_docs(run_options.__doc__ or "")[1] | options.field_docs | rnd
    text = f"{docs['preset'].text.removesuffix('.')}: {', '.join(presets())}."
    return docs | {"preset": docs["preset"]._replace(text=text)}


def flags_of(
    name: str, base: dict[str, Any], cls: type[OnPolicyConfig], examples: bool = False, options: type[Options] = Training
) -> type:
    """Return a dataclass that tyro turns into flags, with a nested dataclass for each group of fields.

    The flags are the fields of the config, of its `rnd` and of the options. Values in `base` replace the fields' defaults.
    """
    docs, fields, groups = _docs_of(cls, options), _fields_of(cls, options), []
    types = {flag: bool if flag == "rnd" else _flag_type(field) for flag, field in fields.items()}
    for group in GROUPS:
        inside = [flag for flag, doc in docs.items() if doc.group == group]
        names = {flag: fields.keys() - set(get_args(types[flag])) for flag in inside}  # a choice may have the name of a field
        texts = [f"    {flag}: {_as_flags(docs[flag].text, names[flag])}" for flag in inside]
        members = [(flag, *_with_default(types[flag], _default_of(fields[flag], base.get(flag)))) for flag in inside]
        made = dataclasses.make_dataclass(group, members, namespace={"__doc__": "\n".join(["", "Attributes:", *texts, ""])})
        groups.append((group.lower().replace(" ", "_"), made, dataclasses.field(default_factory=made)))
    documentation = _summary(cls) + (f"\n\n{_examples(name, options)}\n" if examples else "")
    return dataclasses.make_dataclass(name, groups, namespace={"__doc__": documentation})


def values_of(flags: Any, base: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an instance of a `flags_of` class, by flag. A flag of names and values adds to those of `base`."""
    values = {flag: value for group in vars(flags).values() for flag, value in vars(group).items()}
    fields = {f.name: f for f in dataclasses.fields(OnPolicyConfig)}
    return values | {name: _merge(_default_of(fields[name], base[name]), values[name]) for name in PAIRS if name in base}


def refuse_swept(args: list[str], asked: Options) -> None:
    """Raise a ConfigError if a flag sets a field that --sweep or --param sets, too."""
    given = given_flags(args)
    for option in ("sweep", "param"):
        paths = [text.partition("=")[0].lstrip("-").replace("-", "_") for text in getattr(asked, option, ())]
        parts = [path.partition(".") for path in paths if path.startswith(("env_params.", "env_kwargs."))]
        names = [path.replace(".", "_") for path in paths]
        words = lambda field: _words_after(args, args.index(given[field][0])) if given.get(field, ("",))[0] in args else []
        names += [field for field, _, name in parts if name in words(field)[::2]]
        hint = f"has no effect, since --{option} sets the field, too; leave out one of them"
        raise_if_any([Problem(given[name][0], given[name][1], hint) for name in names if name in given])


def _as_flags(text: str, names: Collection[str]) -> str:
    """Return a text without backticks, with fields and arguments of `fit` written as flags where flags exist."""
    place = re.compile(r"(?:\w+Config\.|fit\()?(rnd_)?(\w+)(?:=\))?")

    def as_flag(code: re.Match) -> str:
        found = place.fullmatch(code[1].replace("RNDConfig.", "rnd_"))
        name = found and f"{found[1] or ''}{found[2]}"
        return f"--{name.replace('_', '-')}" if name and name in names else code[1]

    return re.sub(r"`([^`]*)`", as_flag, text)


def _flag_type(field: dataclasses.Field) -> Any:
    rule = field.metadata["rule"]
    if rule is SWITCH:
        return bool | Literal["auto"]
    if field.metadata.get("whole_float"):
        return STEPS
    if field.name in ("hidden", "critic_hidden"):
        return WIDTHS
    kind = Literal[rule.choices] if rule.choices else FLAG_TYPES.get(field.name, field.type)
    return kind | Literal["auto"] if rule.auto else kind


def _default_of(field: dataclasses.Field, value: Any = None) -> Any:
    """Return a value as the default of its flag; if the value is None, return the field's default."""
    value = as_written(field, default_of(field) if value is None else value)
    if field.name == "env_kwargs":
        return {argument: json.dumps(x) for argument, x in value}
    if field.name == "randomize":
        return {name: str(x) for name, x in value.items()}
    return bool(value) if field.name == "rnd" else value


def _with_default(kind: Any, value: Any) -> tuple[Any, Any]:
    """Return a flag's type and dataclass field. If the default is empty, the type makes the help show "(default: none)"."""
    default = dataclasses.field(default_factory=value.copy) if isinstance(value, dict) else dataclasses.field(default=value)
    hint = Annotated[kind, tyro.conf.arg(help_behavior_hint="(default: none)")]
    return (hint if value in ("", (), {}) else kind), default


def config_of(cls: type[OnPolicyConfig], flags: dict[str, Any]) -> OnPolicyConfig:
    """Return the config that the flags describe."""
    inner = {f.name: flags[f"rnd_{f.name}"] for f in dataclasses.fields(RNDConfig)}
    changed = [name for name, value in inner.items() if value != getattr(RNDConfig(), name)]
    if changed and not flags["rnd"]:
        raise ConfigError([Problem(f"rnd_{name}", inner[name], "has no effect without --rnd") for name in changed])
    values = {f.name: flags[f.name] for f in dataclasses.fields(cls)}
    values["rnd"] = RNDConfig(**inner) if flags["rnd"] else None
    values["env_kwargs"] = tuple((name, parse_json(text)) for name, text in flags["env_kwargs"].items())
    values["randomize"] = {name: distribution_of(name, text) for name, text in flags["randomize"].items()}
    return cls(**values)
