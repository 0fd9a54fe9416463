"""Checks of the values of a config, field by field and between fields."""

import dataclasses
import types
import typing
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from purerl.config.fields import Config, inner_configs, kind_of
from purerl.config.randomization import randomize_problem
from purerl.config.rules import Rule
from purerl.core.errors import Problem, config_error, is_int, is_number, raise_if_any


def validate(cfg: Config) -> None:
    """Check every field of a config, or of a batched config that `jax.vmap` made for a sweep.

    Raises:
        ConfigError: `cfg` is not a config, or has invalid values. The error lists all problems, and the wrong values of a sweep.

    Example:
        >>> purerl.validate(purerl.PPOConfig(gamma=0.99))
        >>> purerl.validate(purerl.PPOConfig(gamma=2.0))
        Traceback (most recent call last):
        ConfigError: 1 problem:
          gamma = 2.0: must be between 0 and 1
    """
    if not isinstance(cfg, Config):
        raise config_error("cfg", cfg, "must be a config, such as purerl.PPOConfig()")
    raise_if_any(problems(cfg))


def problems(cfg: Config) -> list[Problem]:
    """Report the problems of a config that can be found without an environment. Traced values cannot be checked and pass.

    Combinations of fields are checked only if all static fields are valid.
    """
    if "__dataclass_params__" not in vars(type(cfg)):
        return [Problem("cfg", type(cfg), "the config class must be decorated with @purerl.configclass")]
    found = field_problems(cfg)
    static = {field.name for field in dataclasses.fields(cfg) if field.metadata.get("static")}
    return found if static.intersection(problem.field for problem in found) else found + cfg.cross_field_errors()


def field_problems(cfg: Config) -> list[Problem]:
    """Report the problems of each field by itself, without combinations of fields."""
    found = []
    for field in dataclasses.fields(cfg):
        value, rule = getattr(cfg, field.name), field.metadata["rule"]
        if field.metadata.get("whole_float") and isinstance(value, float) and value.is_integer():
            value = int(value)
        check = _static_problem if field.metadata.get("static") else _leaf_problem
        if kind := field.metadata.get("nested"):
            if value is not None and type(value) is not kind:
                found.append(Problem(field.name, value, f"must be a {kind.__name__}, or None"))
            continue
        if hint := check(value, kind_of(field), rule):
            found.append(Problem(field.name, value, hint))
    for name, part in inner_configs(cfg).items():
        found += [Problem(f"{name}.{problem.field}", problem.value, problem.hint) for problem in problems(part)]
    return found


def not_scalar(cfg: Config) -> list[Problem]:
    """Report the leaves of a config that are arrays, such as those of a sweep outside of `jax.vmap`."""
    hint = "must be a single number; for several values, use purerl.sweep, or jax.vmap over make_train"
    leaves = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg) if not f.metadata.get("static")}
    return [Problem(name, value, hint) for name, value in leaves.items() if any(np.ndim(x) for x in jax.tree.leaves(value))]


def _is_numeric(value: Any) -> bool:
    """Return True for a finite number, an array or list of finite numbers, or a tracer."""
    if isinstance(value, Tracer):
        return True
    if isinstance(value, str | bool | dict) or value is None:
        return False
    try:
        return bool(np.isfinite(np.asarray(value, np.float64)).all())
    except (TypeError, ValueError, OverflowError):
        return False


def _static_problem(value: Any, kind: type, rule: Rule) -> str | None:
    if isinstance(value, Tracer):
        return "a static field cannot be traced or swept by jax.vmap; use purerl.sweep or a loop"
    fits = is_int(value) if kind is int else _is_of(value, kind)
    if not fits:
        kinds = {int: "must be an int", bool: "must be True or False", str: rule.text or "must be a string"}
        wanted = kinds.get(kind) or rule.text or f"must be of type {getattr(kind, '__name__', kind)}"
        return f"{wanted}, not {type(value).__name__}"
    return None if rule.holds(value) else rule.text


def _is_of(value: Any, kind: Any) -> bool:
    """Return True if a value has the outer type of a field: a tuple for `tuple[int, ...]`."""
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return value in typing.get_args(kind)
    return isinstance(value, origin if isinstance(origin, type) and origin is not types.UnionType else kind)


def _leaf_problem(value: Any, kind: type, rule: Rule) -> str | None:
    if typing.get_origin(kind) is dict:
        return randomize_problem(value)
    if kind is dict:
        right = isinstance(value, dict) and all(isinstance(name, str) and _is_numeric(x) for name, x in value.items())
        return None if right else "must be a dict from parameter names to finite numbers"
    if isinstance(value, Tracer):
        return None
    if not (is_number(value) or isinstance(value, np.ndarray | jax.Array)) or isinstance(value, np.complexfloating):
        return f"must be a number, not {type(value).__name__}"
    try:
        value = np.asarray(value, np.float32)
    except (TypeError, ValueError, OverflowError):
        return f"{rule.text or 'must be a number'}, within the range of float32"
    right = np.asarray(rule.holds(value))
    if right.all():
        return None
    return rule.text if value.ndim == 0 else f"{rule.text}; invalid: {', '.join(map(str, value[~right]))}"
