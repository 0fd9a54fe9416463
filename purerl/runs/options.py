"""Rules for the arguments of `fit`."""

import inspect
import os
from collections.abc import Callable
from typing import Any

from purerl.config.aliases import rename_hint
from purerl.config.rules import Rule, one_of
from purerl.core.errors import Problem, is_flag, is_int, is_number, nearest
from purerl.runs.stopping import at_return
from purerl.train import make_train

# The arguments of `make_train` that `fit` passes on. Instead of `axis_name` and `axis_size`, `fit` has `devices_per_run`.
OBJECTS = tuple(name for name in inspect.signature(make_train).parameters if name not in ("cfg", "axis_name", "axis_size"))


def int_from(low: int) -> Rule:
    """Return the rule for ints of at least `low`."""
    return Rule(f"must be an int of at least {low}", lambda x: is_int(x) and x >= low)


def optional(rule: Rule) -> Rule:
    """Return a rule that also accepts None."""
    return Rule(f"{rule.text}, or None", lambda x: x is None or rule.holds(x))


def tuple_of(parts: str, is_part: Callable[[Any], bool]) -> Rule:
    """Return the rule for tuples of certain parts."""
    return Rule(f"must be a tuple of {parts}", lambda xs: isinstance(xs, tuple | list) and all(map(is_part, xs)))


def wrong_values(values: dict[str, Any], rules: dict[tuple[str, ...], Rule]) -> list[Problem]:
    """Return a problem for each value that breaks its rule. Each key of `rules` lists the names that share a rule."""
    each = ((name, rule) for names, rule in rules.items() for name in names)
    return [Problem(name, values[name], rule.text) for name, rule in each if not rule.holds(values[name])]


HOURS = Rule("must be a number of at least 0", lambda x: is_number(x) and x >= 0)
SEED = Rule("must be an int from 0 to 2**32 - 1", lambda x: is_int(x) and 0 <= x < 2**32)
RULES = {
    ("exact", "continue_steps", "eval_deterministic"): Rule("must be True or False", is_flag),
    ("save_every", "keep_every", "eval_every", "render_every", "stop_every"): int_from(0),
    ("keep", "eval_episodes"): int_from(1),
    ("eval_max_steps", "devices_per_run"): optional(int_from(1)),
    ("save_seconds", "chunk_seconds"): Rule("must be a number above 0", lambda x: is_number(x) and x > 0),
    ("max_hours",): HOURS,
    ("resume",): one_of("auto", "must", "never"),
    ("on_save_error",): one_of("raise", "warn"),
    ("on_nonfinite",): one_of("raise", "ignore"),
    ("progress",): optional(Rule("must be True or False", is_flag)),
    ("best_by",): Rule("must be the name of a metric, such as 'episode_info/success'", lambda x: isinstance(x, str)),
    ("directory", "init_from"): optional(Rule("must be a path", lambda x: isinstance(x, str | os.PathLike))),
    ("init_groups",): tuple_of("groups of parameters, such as ('policy/torso', 'statistics')", lambda x: isinstance(x, str)),
    ("recorders",): tuple_of("functions of a Progress, as in (recorder,)", callable),
    ("stop_when",): optional(Rule("must be a function of a Progress, such as purerl.at_return(475)", callable)),
    ("eval_env_params",): optional(Rule("must be a dict of environment parameters", lambda x: isinstance(x, dict))),
}


# Arguments that have no effect without the argument in front of them.
ONLY_WITH = {
    "eval_every": ("eval_episodes", "eval_deterministic", "eval_max_steps", "eval_env_params", "best_by"),
    "directory": ("keep", "keep_every", "on_save_error"),  # recorders are flushed at saves without a directory, too
}


def unused_options(options: dict[str, Any], function: Callable) -> list[Problem]:
    """Return a problem for each argument that differs from the function's default and has no effect."""
    default = {name: x.default for name, x in inspect.signature(function).parameters.items()}
    is_set = lambda name: options[name] != default[name]
    unused = [(name, need) for need, names in ONLY_WITH.items() if not options[need] for name in filter(is_set, names)]
    return [Problem(name, options[name], f"has no effect without {need}") for name, need in unused]


def wrong_options(options: dict[str, Any]) -> list[Problem]:
    """Return a problem for each invalid argument of `fit`. `options`: all arguments by name."""
    found = wrong_values(options, RULES)
    if options["seed"] is None:  # `Batch` checks all other seeds
        found.append(Problem("seed", None, SEED.text))
    needs = (
        ("render_every", options["eval_every"] and options["directory"], "needs eval_every and a directory for the GIFs"),
        ("init_groups", options["init_from"] is not None, "needs init_from"),
        ("continue_steps", options["init_from"] is not None, "needs init_from"),
        ("stop_every", options["stop_when"] is not None, "needs stop_when"),
        ("stop_when", options["stop_when"] is not at_return, "needs a target return: purerl.at_return(475)"),
        ("stop_when", options["eval_every"] or options["stop_every"], "is never checked; set eval_every or stop_every"),
    )
    found += [] if found else [Problem(name, options[name], hint) for name, is_met, hint in needs if options[name] and not is_met]
    found += [_unknown(options, name, value) for name, value in options["objects"].items() if name not in OBJECTS]
    if options["resume"] == "must" and options["directory"] is None:
        found.append(Problem("directory", None, "resume='must' needs the directory to resume from"))
    return found


def _unknown(options: dict[str, Any], name: str, value: Any) -> Problem:
    """Return the problem with an argument that `fit` does not have."""
    if name in options["cfg"].field_docs:
        return Problem(name, value, f"fit has no such argument; set the field of the config: cfg.replace({name}=...)")
    return Problem(name, value, f"fit has no such argument; {rename_hint(name) or nearest(name, [*options, *OBJECTS])}")
