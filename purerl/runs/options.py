"""Rules for the arguments of `fit`."""

import inspect
import os
from typing import Any

from purerl.config.other_names import renamed
from purerl.config.rules import Rule as FieldRule
from purerl.config.rules import at_least, one_of
from purerl.core.errors import Problem, is_flag, is_int, is_number, nearest
from purerl.train import make_train

# The arguments of `make_train` that `fit` passes on. For `axis_name` and `axis_size`, `fit` has `devices_per_run` instead.
OBJECTS = tuple(name for name in inspect.signature(make_train).parameters if name not in ("cfg", "axis_name", "axis_size"))
RULES: dict[str, FieldRule] = {
    "devices_per_run": at_least(1),
    "resume": one_of("auto", "must", "never"),
    "save_seconds": FieldRule("must be above 0", lambda x: x > 0),
    "save_every": at_least(0),
    "keep": at_least(1),
    "keep_every": at_least(0),
    "on_save_error": one_of("raise", "warn"),
    "eval_every": at_least(0),
    "eval_episodes": at_least(1),
    "eval_max_steps": at_least(1),
    "render_every": at_least(0),
    "on_nonfinite": one_of("raise", "ignore"),
    "stop_every": at_least(0),
    "chunk_seconds": FieldRule("must be above 0", lambda x: x > 0),
    "max_hours": at_least(0),
}
_FLAG = FieldRule("must be True or False", is_flag)
_PATH = FieldRule("must be a path", lambda x: x is None or isinstance(x, str | os.PathLike))
KINDS: dict[str, FieldRule] = {
    "exact": _FLAG,
    "continue_steps": _FLAG,
    "eval_deterministic": _FLAG,
    "progress": FieldRule("must be True, False or None", lambda x: x is None or is_flag(x)),
    "best_by": FieldRule("must be the name of a metric, such as 'episode_info/success'", lambda x: isinstance(x, str)),
    "seed": FieldRule("must be an int from 0 to 2**32 - 1", lambda x: x is not None),
    "directory": _PATH,
    "init_from": _PATH,
    "init_groups": FieldRule(
        "must be a tuple of groups of parameters, such as ('policy/torso', 'statistics')",
        lambda xs: isinstance(xs, tuple | list) and all(isinstance(x, str) for x in xs),
    ),
    "recorders": FieldRule(
        "must be a tuple of functions of a Progress, as in (recorder,)",
        lambda xs: isinstance(xs, tuple | list) and all(map(callable, xs)),
    ),
    "eval_env_params": FieldRule("must be a dict of environment parameters", lambda x: x is None or isinstance(x, dict)),
}


def wrong_options(options: dict[str, Any]) -> list[Problem]:
    """Return a problem for each invalid argument of `fit`. `options`: all arguments by name."""
    found = [Problem(name, options[name], rule.text) for name, rule in KINDS.items() if not rule.holds(options[name])]
    for name, rule in RULES.items():
        value = options[name]
        if name in ("eval_max_steps", "devices_per_run") and value is None:
            continue
        is_right = is_number if name.endswith(("seconds", "hours")) else is_int
        right = isinstance(value, str) if rule.choices else is_right(value)
        if not (right and rule.holds(value)):
            found.append(Problem(name, value, rule.text if rule.choices or right else f"{rule.text}, not {type(value).__name__}"))
    if not found and options["render_every"] and not (options["eval_every"] and options["directory"]):
        found.append(Problem("render_every", options["render_every"], "needs eval_every and a directory for the GIFs"))
    alone = [name for name in ("init_groups", "continue_steps") if options[name] and options["init_from"] is None]
    found += [Problem(name, options[name], "needs init_from") for name in alone]
    found += _wrong_stopping(options)
    found += [_unknown(options, name, value) for name, value in options["objects"].items() if name not in OBJECTS]
    if options["resume"] == "must" and options["directory"] is None:
        found.append(Problem("directory", None, "resume='must' needs the directory to resume from"))
    return found


def _wrong_stopping(options: dict[str, Any]) -> list[Problem]:
    """Return the problems of `stop_when` and `stop_every`."""
    rule, every = options["stop_when"], options["stop_every"]
    if rule is None:
        return [Problem("stop_every", every, "needs stop_when")] if every else []
    if not callable(rule):
        return [Problem("stop_when", rule, "must be a function of a Progress, such as purerl.at_return(475)")]
    if not every and not options["eval_every"]:
        return [Problem("stop_when", rule, "is never checked; set eval_every or stop_every")]
    return []


def _unknown(options: dict[str, Any], name: str, value: Any) -> Problem:
    """Return the problem with an argument that `fit` does not have."""
    if name in options["cfg"].field_docs:
        return Problem(name, value, f"fit has no such argument; set the field of the config: cfg.replace({name}=...)")
    return Problem(name, value, f"fit has no such argument; {renamed(name) or nearest(name, [*options, *OBJECTS])}")
