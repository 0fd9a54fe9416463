"""Configs: fields with rules, and JSON.

Configs are frozen PyTrees. Their floats are leaves and all else is static. A sweep is therefore a config with batched leaves,
made and consumed by `jax.vmap`, and the floats of a config that is an argument of a jitted function change without recompiling.
"Off" for a float is a value (`max_grad_norm=inf`), never None, so that on and off share one tree structure.

Values are not checked when a config is built, only names, since JAX rebuilds configs around tracers: `make_train` checks them,
and `validate` those of a sweep.
"""

import dataclasses
import functools
import inspect
import json
import math
import typing
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.core import Tracer

from purerl.config.documentation import GROUPS, FieldDoc, documented, parse_docs, shown
from purerl.config.other_names import unknown_names
from purerl.config.rules import ANY, AUTO, Need, Rule
from purerl.core.errors import ConfigError, Problem, raise_if_any

# --- fields -----------------------------------------------------------------------------------------------------------


def leaf(default: float, rule: Rule = ANY, needs: Need | None = None) -> Any:
    """Return a float field, a leaf of the config's PyTree: it can be swept.

    Args:
        default: its default.
        rule: what a value must be; see `purerl.config.rules`.
        needs: what another field must be for this one to have an effect.

    Example:
        >>> from purerl.config.rules import between
        >>> @purerl.configclass
        ... class Mine(purerl.PPOConfig):
        ...     share: float = purerl.leaf(0.5, between(0, 1))
        >>> purerl.validate(Mine(share=2.0))
        Traceback (most recent call last):
        ConfigError: 1 problem:
          share = 2.0: must be between 0 and 1
    """
    default = float(default) if isinstance(default, int) else default
    return dataclasses.field(default=default, metadata={"rule": rule, "needs": needs})


def static(default: Any, rule: Rule = ANY, needs: Need | None = None) -> Any:
    """Return a static field: not traced, compared by value, and hashed. Arguments as those of `leaf`.

    Example:
        >>> @purerl.configclass
        ... class Mine(purerl.PPOConfig):
        ...     kind: str = purerl.static("fast")
        >>> Mine().kind
        'fast'
    """
    return dataclasses.field(default=default, metadata={"rule": rule, "needs": needs, "static": True})


def nested(kind: type) -> Any:
    """Return a field that is a config of this class, or None."""
    return dataclasses.field(default=None, metadata={"rule": ANY, "nested": kind})


@dataclass_transform(kw_only_default=True, frozen_default=True)
def configclass(cls: type) -> type:
    """Make a class of `leaf` and `static` fields, a subclass of another config's, a config: a frozen dataclass and a PyTree.

    Its fields join those of its base in JSON, sweeps, checks, flags and help. The docstring of the class may document them in
    sections: Environment, Rollout, Optimisation, Policy loss, Value, Statistics, Network, Memory, Curiosity, Run.

    Raises:
        ConfigError: the class extends no config's, or a field is neither `leaf` nor `static`, or has no type.

    Example:
        >>> @purerl.configclass
        ... class SPOConfig(purerl.PPOConfig):
        ...     penalty: float = purerl.leaf(0.5)
        ...     shape: str = purerl.static("square")
        >>> SPOConfig(lr=1e-3, penalty=0.1).replace(env="Pendulum-v1").penalty
        0.1
    """
    if not issubclass(cls, Config):
        raise ConfigError([Problem("configclass", cls.__name__, "must extend the class of a config, such as purerl.PPOConfig")])
    cls.__hash__ = Config.__hash__  # what a dataclass would make of it cannot hash a dict
    notes = vars(cls).get("__annotations__", {})
    bare = [name for name, x in vars(cls).items() if isinstance(x, dataclasses.Field) and name not in notes]
    raise_if_any([Problem(f"{cls.__name__}.{name}", "without a type", f"write {name}: float = ...") for name in bare])
    try:
        made = dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)
    except (TypeError, ValueError) as error:  # a default that may be changed, such as a list
        raise ConfigError([Problem("configclass", cls.__name__, str(error))]) from error
    hint = "must be purerl.leaf(default), a float that can be swept, or purerl.static(default)"
    plain = [field for field in dataclasses.fields(made) if "rule" not in field.metadata]
    raise_if_any([Problem(f"{cls.__name__}.{field.name}", field.default, hint) for field in plain])
    for field in dataclasses.fields(made):
        if isinstance(field.type, str):  # of a module with `from __future__ import annotations`
            field.type = typing.get_type_hints(made)[field.name]
        if type(field.default) is float and not field.metadata.get("static"):
            field.type = float
    jax.tree_util.register_dataclass(made)
    summary, own = parse_docs(inspect.cleandoc(vars(cls).get("__doc__") or ""))
    undocumented = {f.name: FieldDoc(GROUPS[-1], "") for f in dataclasses.fields(made)}
    made.field_docs = undocumented | cls.field_docs | own
    made.__doc__ = "\n\n".join([summary, *documented(made)])
    made.__init__ = _with_hints(made.__init__)
    return made


def _with_hints(init: Callable) -> Callable:
    """Return a constructor that refuses unknown names with what they may have meant."""

    @functools.wraps(init)
    def checked(self, *args, **values):
        self._refuse_unknown(values)
        init(self, *args, **values)

    return checked


def count(default: int, rule: Rule, needs: Need | None = None) -> Any:
    """Return a static integer that may also be written as a float: `1e6`."""
    return dataclasses.field(default=default, metadata={"rule": rule, "needs": needs, "static": True, "whole_float": True})


class Config:
    """The base class of configs."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    field_docs: ClassVar[dict[str, FieldDoc]] = {}

    def __post_init__(self) -> None:
        # Numbers of NumPy would overflow where Python's do not, and are no JSON. Leaves are JAX's, which rebuilds configs.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("static") and isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
            elif not field.metadata.get("static") and field.metadata["rule"].auto and isinstance(value, str) and value == "auto":
                object.__setattr__(self, field.name, AUTO)

    def __repr__(self) -> str:
        values = (f"{f.name}={shown(f, getattr(self, f.name))!r}" for f in dataclasses.fields(self))
        return f"{type(self).__name__}({', '.join(values)})"

    def __hash__(self) -> int:
        values = (getattr(self, f.name) for f in dataclasses.fields(self))
        return hash((type(self), *(frozenset(x.items()) if isinstance(x, dict) else x for x in values)))

    def replace(self, **changes) -> Self:
        """Return the config with other values.

        Raises:
            ConfigError: a name that is no field, with the nearest that is.
        """
        self._refuse_unknown(changes)
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the config with these values and defaults elsewhere.

        Raises:
            ConfigError: a name that is no field, with the nearest that is.
        """
        cls._refuse_unknown(values)
        return cls(**values)

    def to_json(self) -> str:
        """Return the config as JSON text, one field a line; an infinite float is the string "inf". `from_json` reads it back."""
        return json.dumps(_to_json(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the config that `to_json` wrote; fields left out keep their defaults.

        Raises:
            ConfigError: a name that is no field, with the nearest that is.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError([Problem(cls.__name__, text, f"is no JSON: {error}")]) from error
        return cls._from_json(values)

    @classmethod
    def _from_json(cls, values: dict[str, Any]) -> Self:
        if not isinstance(values, dict):
            raise ConfigError([Problem(cls.__name__, values, "must be an object of fields")])
        cls._refuse_unknown(values)
        found, wrong = {}, []
        for field in dataclasses.fields(cls):
            try:
                found |= {field.name: _from_json(values[field.name], field)} if field.name in values else {}
            except ConfigError:  # of a config inside it
                raise
            except (TypeError, ValueError):
                wrong.append(Problem(field.name, values[field.name], "must be a number, or a list of numbers"))
        raise_if_any(wrong)
        return cls(**found)

    @classmethod
    def _refuse_unknown(cls, names) -> None:
        fields = [f.name for f in dataclasses.fields(cls)]
        raise_if_any(unknown_names(names, fields, "field", f"help(purerl.{cls.__name__}) lists all"))

    def resolved(self, env: Any) -> Self:
        """Return the config with a value wherever a field asks for one that follows from other fields or from the environment."""
        return self

    def cross_field_errors(self) -> list[Problem]:
        """Report problems between fields that are each right by themselves."""
        return []

    def warnings_of(self) -> list[Problem]:
        """List values that can be trained but are hardly meant; `make_train` warns of them."""
        return []


AnyConfig = TypeVar("AnyConfig", bound=Config)


def _to_json(value: Any) -> Any:
    if isinstance(value, Config):
        return {f.name: _auto_to_json(f, _to_json(getattr(value, f.name))) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _to_json(v) for name, v in value.items()}
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return [_to_json(v) for v in value]
    return "inf" if value == math.inf else value


def _auto_to_json(field: dataclasses.Field, value: Any) -> Any:
    """Return a field's value with "auto" for the number that stands for it."""
    return [shown(field, x) for x in value] if isinstance(value, list) else shown(field, value)


def _from_json(value: Any, field: dataclasses.Field) -> Any:
    if kind := field.metadata.get("nested"):
        return None if value is None else kind._from_json(value)
    if field.metadata.get("static"):
        return _tuples(value)
    if isinstance(value, dict):
        return {name: _from_json(v, field) for name, v in value.items()}
    number = lambda x: AUTO if x == "auto" and field.metadata["rule"].auto else float(x) if x == "inf" else x
    return np.array([number(x) for x in value], np.float32) if isinstance(value, list) else number(value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def is_float_leaf(field: dataclasses.Field) -> bool:
    """Return True if a field is a leaf with one number, and no parameters of an environment or config of its own."""
    return not field.metadata.get("static") and field.type is float


def kind_of(field: dataclasses.Field) -> Any:
    """Return the type of a field's values. That of a count is int, though `5e5` may be written."""
    return int if field.metadata.get("whole_float") else field.type


def or_default(value: Any, default: float) -> Any:
    """Return a leaf's value, or this default where it is `AUTO`, elementwise."""
    if isinstance(value, Tracer):
        return jax.numpy.where(value == AUTO, default, value)
    is_auto = np.asarray(value) == AUTO  # of an array of JAX's too, which would become a tracer inside a trace
    return np.where(is_auto, np.float32(default), value) if np.ndim(value) else default if is_auto else value


def single_precision(cfg: AnyConfig) -> AnyConfig:
    """Return the config with its float leaves as float32, whatever their width, so that no default width leaks into a program."""
    floats = [f.name for f in dataclasses.fields(cfg) if is_float_leaf(f)]
    cast = lambda x: x.astype(np.float32) if isinstance(x, Tracer) else np.float32(x)
    inner = {name: single_precision(part) for name, part in inner_configs(cfg).items()}
    return dataclasses.replace(cfg, **{name: cast(getattr(cfg, name)) for name in floats}, **inner)


def inner_configs(cfg: Config) -> dict[str, Config]:
    """Return the configs inside a config, by field."""
    return {f.name: part for f in dataclasses.fields(cfg) if isinstance(part := getattr(cfg, f.name), Config)}
