"""Tasks: the environment and its parameters, which two runs must share for their scores to be comparable."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from purerl.config.base import OnPolicyConfig
from purerl.core.errors import is_int

# Fields of a config that define the task.
FIELDS = ("env", "env_kwargs", "env_params", "randomize", "randomize_each", "num_levels")


class Task(NamedTuple):
    """The environment of a run.

    Attributes:
        name: id of the environment, or name of a custom environment, with the parameters that the run changed.
        own: description of a custom environment, as in checkpoints: sorted pairs of a name and a text; () for other environments.
    """

    name: str
    own: tuple[tuple[str, str], ...] = ()


def task_of(record: dict[str, Any], config: int | None = None, evaluated: dict[str, Any] | None = None) -> Task:
    """Return the task of a run.

    Args:
        record: record of a checkpoint.
        config: index of the config in a batch; None for a single config, or for the task of the whole batch.
        evaluated: for scores of evaluations, the evaluation settings, of which `env_params` and `max_steps` change the task.
    """
    values, objects, evaluated = record["config"], record.get("objects", {}), evaluated or {}
    params = {name: _number(x, config) for name, x in values.get("env_params", {}).items()}
    params |= {name: _number(x, None) for name, x in evaluated.get("env_params", {}).items()}
    parts = {f"env_kwargs.{name}": x if isinstance(x, str) else json.dumps(x) for name, x in sorted(values.get("env_kwargs", []))}
    distributions = values.get("randomize", {})
    path = lambda name: f"randomize.{name}.factor" if "least" in distributions.get(name, {}) else f"env_params.{name}"
    parts |= {path(name): x for name, x in sorted(params.items())}
    drawn = {name: x for name, x in distributions.items() if name not in params}
    parts |= {f"randomize.{name}.{end}": _number(x, config) for name, ends in sorted(drawn.items()) for end, x in ends.items()}
    parts |= {"randomize_each": "environment"} if drawn and values.get("randomize_each") == "environment" else {}
    parts |= {"num_levels": str(values["num_levels"])} if values.get("num_levels") else {}
    parts |= {"eval_max_steps": str(evaluated["max_steps"])} if evaluated.get("max_steps") else {}
    changed = ", ".join(f"{name} = {x}" for name, x in parts.items())
    given = objects.get("env", {})
    name = given.get("is") or values["env"]
    own = {name: str(x) for name, x in {**objects.get("env_params", {}), **given}.items() if name != "is"}
    return Task(f"{name} ({changed})" if changed else name, tuple(sorted(own.items())))


def task_of_config(cfg: OnPolicyConfig) -> Task:
    """Return the task of a config without a custom environment."""
    return task_of({"config": json.loads(cfg.to_json())})


def names_of(tasks: Iterable[Task]) -> dict[Task, str]:
    """Return a name for each task. If tasks share a name, the differences of their descriptions are added."""
    tasks, found = tuple(dict.fromkeys(tasks)), {}
    for task in tasks:
        others = [dict(other.own) for other in tasks if other.name == task.name]
        differ = [f"{name.lstrip('.')} = {x}" for name, x in task.own if any(other.get(name) != x for other in others)]
        found[task] = f"{task.name} ({', '.join(differ)})" if differ else task.name
    return found


def is_of_task(path: str) -> bool:
    """Return True if the field at a path is part of the task."""
    return path.partition(".")[0] in FIELDS


def _number(value: Any, config: int | None) -> str:
    """Return a parameter as text, equal for equal float32 numbers; of a batch, that of `config`, or all if `config` is None."""
    if isinstance(value, list):
        return _number(value[config], None) if config is not None else ", ".join(_number(x, None) for x in value)
    return str(value) if is_int(value) else np.format_float_positional(np.float32(value), trim="-")
