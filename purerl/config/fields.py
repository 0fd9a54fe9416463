"""Config classes: fields with rules, and conversion from and to JSON.

Configs are frozen PyTrees: floats are leaves, and all other fields are static. A sweep is a config with batched leaves: one
`jax.vmap` returns it, and another maps training over it. If a config is an argument of a jitted function, changed floats do not
recompile the function. The value that disables a float field is a number (`max_grad_norm=inf`), never None, so that configs with
and without the feature share one tree structure.

Building a config checks names only, not values, since JAX rebuilds configs around tracers. `make_train` checks the values of a
single config, and `validate` also checks the values of a sweep.
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

from purerl.config.aliases import unknown_names
from purerl.config.documentation import GROUPS, FieldDoc, as_written, default_of, describe_groups, parse_docs
from purerl.config.randomization import Distribution, distribution_from_json
from purerl.config.rules import ANY, AUTO, Need, Rule
from purerl.core.errors import Problem, config_error, raise_if_any

# --- fields -----------------------------------------------------------------------------------------------------------


def leaf(default: float, rule: Rule = ANY, needs: Need | None = None) -> Any:
    """Return a float field: a leaf of the config's PyTree, which can be swept.

    Args:
        default: the default value.
        rule: the rule for valid values, from `purerl.config.rules`.
        needs: the condition on another field under which this field has an effect.

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
    """Return a static field: not traced, compared by value, and hashed. The arguments are those of `leaf`.

    Example:
        >>> @purerl.configclass
        ... class Mine(purerl.PPOConfig):
        ...     kind: str = purerl.static("fast")
        >>> Mine().kind
        'fast'
    """
    return dataclasses.field(default=default, metadata={"rule": rule, "needs": needs, "static": True})


def nested(kind: type) -> Any:
    """Return a field that holds a config of the class `kind`, or None."""
    return dataclasses.field(default=None, metadata={"rule": ANY, "nested": kind})


@dataclass_transform(kw_only_default=True, frozen_default=True)
def configclass(cls: type) -> type:
    """Turn a subclass of a config, with `leaf` and `static` fields, into a config class: a frozen dataclass and a PyTree.

    The new fields are added to those of the base in JSON, sweeps, checks, flags and help. The class docstring may document fields
    in sections: Environment, Rollout, Optimisation, Policy loss, Value, Statistics, Network, Memory, Curiosity, Run.

    Raises:
        ConfigError: the class does not extend a config, or one of its fields has no type, is neither `leaf` nor `static`, or has
          the name of a property or method.

    Example:
        >>> @purerl.configclass
        ... class SPOConfig(purerl.PPOConfig):
        ...     penalty: float = purerl.leaf(0.5)
        ...     shape: str = purerl.static("square")
        >>> SPOConfig(lr=1e-3, penalty=0.1).replace(env="Pendulum-v1").penalty
        0.1
    """
    if not issubclass(cls, Config):
        raise config_error("configclass", cls, "must extend a config class, such as purerl.PPOConfig")
    if "resolved" in vars(cls):
        raise config_error(f"{cls.__name__}.resolved", ..., "is not called; the method's name is resolve")
    cls.__hash__ = Config.__hash__  # a dataclass's own hash fails on dicts
    notes = vars(cls).get("__annotations__", {})
    bare = [name for name, x in vars(cls).items() if isinstance(x, dataclasses.Field) and name not in notes]
    raise_if_any([Problem(f"{cls.__name__}.{name}", ..., f"has no type; write {name}: float = ...") for name in bare])
    is_computed = lambda x: callable(x) or isinstance(x, property)
    own = getattr(cls.__base__, "__dataclass_fields__", {})
    taken = [name for name in notes if name not in own and is_computed(getattr(cls.__base__, name, None))]
    hint = "is the name of a number or function that the config computes; choose another name"
    if cls.__module__ != "purerl.config.algorithms":  # whose fields may replace a property, such as `arch`
        raise_if_any([Problem(f"{cls.__name__}.{name}", ..., hint) for name in taken])
    try:
        made = dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)
    except (TypeError, ValueError) as error:  # a mutable default, such as a list
        raise config_error("configclass", cls, str(error)) from error
    hint = "must be purerl.leaf(default) for a float that can be swept, or purerl.static(default)"
    without_rule = [field for field in dataclasses.fields(made) if "rule" not in field.metadata]
    raise_if_any([Problem(f"{cls.__name__}.{field.name}", field.default, hint) for field in without_rule])
    for field in dataclasses.fields(made):
        if isinstance(field.type, str):  # the module has `from __future__ import annotations`
            field.type = typing.get_type_hints(made)[field.name]
        if type(field.default) is float and not field.metadata.get("static"):
            field.type = float
    jax.tree_util.register_dataclass(made)
    summary, own = parse_docs(inspect.cleandoc(vars(cls).get("__doc__") or ""))
    undocumented = {f.name: FieldDoc(GROUPS[-1], "") for f in dataclasses.fields(made)}
    made.field_docs = undocumented | cls.field_docs | own
    made.__doc__ = "\n\n".join([summary, *describe_groups(made)])
    made.__init__ = _with_hints(made.__init__)
    return made


def _with_hints(init: Callable) -> Callable:
    """Return a constructor that refuses unknown names and suggests similar ones."""

    @functools.wraps(init)
    def strict_init(self, *args, **values):
        self._refuse_unknown(values)
        init(self, *args, **values)

    return strict_init


def count(default: int, rule: Rule, needs: Need | None = None) -> Any:
    """Return a static integer field that also accepts whole floats, such as `1e6`."""
    return dataclasses.field(default=default, metadata={"rule": rule, "needs": needs, "static": True, "whole_float": True})


class Config:
    """The base class of configs."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    field_docs: ClassVar[dict[str, FieldDoc]] = {}

    def __post_init__(self) -> None:
        # Convert static NumPy scalars, which overflow and which JSON cannot store. Of the leaves, convert only "auto", since JAX
        # rebuilds configs around tracers. Copy dicts, which the user may change later.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is dict:
                object.__setattr__(self, field.name, dict(value))
            elif field.metadata.get("static") and isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
            elif not field.metadata.get("static") and field.metadata["rule"].auto and isinstance(value, str) and value == "auto":
                object.__setattr__(self, field.name, AUTO)

    def __repr__(self) -> str:
        text = lambda f, x: _brief(f, x) if isinstance(x, np.ndarray | jax.Array) else repr(as_written(f, x))
        values = (f"{f.name}={text(f, getattr(self, f.name))}" for f in dataclasses.fields(self))
        return f"{type(self).__name__}({', '.join(values)})"

    def __str__(self) -> str:
        """Show the environment, and one line for each value that differs from its default."""
        lines = [f"{type(self).__name__} {getattr(self, 'env', '')}".rstrip()]
        for field in dataclasses.fields(self):
            value, default = (_brief(field, x) for x in (getattr(self, field.name), default_of(field)))
            lines += [f"  {field.name} = {value} (default {default})"] if value != default and field.name != "env" else []
        return "\n".join(lines)

    def __hash__(self) -> int:
        values = (getattr(self, f.name) for f in dataclasses.fields(self))
        return hash((type(self), *(frozenset(x.items()) if isinstance(x, dict) else x for x in values)))

    def replace(self, **changes) -> Self:
        """Return a copy of the config with the given fields changed.

        Raises:
            ConfigError: a name is not a field; the message suggests the nearest field.
        """
        self._refuse_unknown(changes)
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return a config with these values, and defaults for all other fields.

        Raises:
            ConfigError: a name is not a field; the message suggests the nearest field.
        """
        return cls(**values)

    def to_json(self) -> str:
        """Return the config as JSON for `from_json`, one field per line. An infinite float becomes the string "inf"."""
        return json.dumps(_to_json(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the config that `to_json` wrote. Missing fields have their defaults.

        Raises:
            ConfigError: the text is not JSON, or a name is not a field; the message suggests the nearest field.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise config_error(cls.__name__, text, f"is not valid JSON: {error}") from error
        return cls._from_json(values)

    @classmethod
    def _from_json(cls, values: dict[str, Any]) -> Self:
        if not isinstance(values, dict):
            raise config_error(cls.__name__, values, "must be a JSON object from fields to values")
        cls._refuse_unknown(values)
        return cls(**{f.name: _from_json(values[f.name], f) for f in dataclasses.fields(cls) if f.name in values})

    @classmethod
    def _refuse_unknown(cls, names) -> None:
        fields = [f.name for f in dataclasses.fields(cls)]
        raise_if_any(unknown_names(names, fields, "field", f"help({cls.__name__}) lists all fields"))

    def resolve(self, env: Any) -> Self:
        """Return the config with the values filled in that depend on other fields or on the environment."""
        return self

    def cross_field_errors(self) -> list[Problem]:
        """Return the problems of combinations of fields, where each field is valid alone."""
        return []


AnyConfig = TypeVar("AnyConfig", bound=Config)


def _brief(field: dataclasses.Field, value: Any) -> str:
    """Return a value as short text. A batch of numbers is described by its size and range."""
    if isinstance(value, Config):
        return ", ".join(line.strip() for line in str(value).splitlines())
    if isinstance(value, Tracer):
        return "traced"
    if not isinstance(value, float | np.ndarray | jax.Array):
        return repr(value)
    if not np.size(value):
        return "no values"
    low, high = (as_written(field, limit(value).item()) for limit in (np.min, np.max))
    text = [x if isinstance(x, str) else f"{x:g}" for x in (low, high)]
    return text[0] if text[0] == text[1] else f"{np.size(value)} values from {text[0]} to {text[1]}"


def _to_json(value: Any) -> Any:
    if isinstance(value, Config):
        return {f.name: as_written(f, _to_json(getattr(value, f.name))) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _to_json(v) for name, v in value.items()}
    if isinstance(value, Distribution):
        return _to_json(value._asdict())
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return [_to_json(v) for v in value]
    return "inf" if value == math.inf else value


def _from_json(value: Any, field: dataclasses.Field) -> Any:
    if kind := field.metadata.get("nested"):
        return None if value is None else kind._from_json(value)
    if field.metadata.get("static"):
        return as_tuples(value)
    if isinstance(value, dict) and typing.get_origin(field.type) is dict:
        return {name: distribution_from_json(x) for name, x in value.items()}
    if isinstance(value, dict):
        return {name: _from_json(v, field) for name, v in value.items()}
    number = lambda x: AUTO if x == "auto" and field.metadata["rule"].auto else float(x) if x == "inf" else x
    if not isinstance(value, list):
        return number(value)
    try:
        return np.array([number(x) for x in value], np.float32)
    except (TypeError, ValueError) as error:
        raise config_error(field.name, value, "must be a number, or a list of numbers") from error


def as_tuples(value: Any) -> Any:
    """Return a value of JSON or TOML with tuples in place of lists."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def to_python(x: Any) -> Any:
    """Return a value with Python's numbers and tuples in place of NumPy's and JAX's numbers, arrays and lists, also in dicts."""
    x = x.tolist() if hasattr(x, "tolist") else x
    if isinstance(x, dict):
        return {name: to_python(value) for name, value in x.items()}
    return tuple(map(to_python, x)) if type(x) in (list, tuple) else x


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, such as a number or true, or of True, False or None; return any other text unchanged."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except json.JSONDecodeError:
        return text


def is_float_leaf(field: dataclasses.Field) -> bool:
    """Return True if a field is a leaf with a single number, unlike `env_params` or a nested config."""
    return not field.metadata.get("static") and field.type is float


def kind_of(field: dataclasses.Field) -> Any:
    """Return the type of a field's values. The type of a count is int, although users may write `5e5`."""
    return int if field.metadata.get("whole_float") else field.type


def or_default(value: Any, default: float) -> Any:
    """Return a leaf's value with `default` in place of `AUTO`, elementwise."""
    if isinstance(value, Tracer):
        return jax.numpy.where(value == AUTO, default, value)
    is_auto = np.asarray(value) == AUTO  # also for JAX arrays, which would become tracers inside a trace
    return np.where(is_auto, np.float32(default), value) if np.ndim(value) else default if is_auto else value


def single_precision(cfg: AnyConfig) -> AnyConfig:
    """Return the config with its float leaves cast to float32, so that a compiled program has no other float width."""
    floats = [f.name for f in dataclasses.fields(cfg) if is_float_leaf(f)]
    cast = lambda x: x.astype(np.float32) if isinstance(x, Tracer) else np.float32(x)
    inner = {name: single_precision(part) for name, part in inner_configs(cfg).items()}
    return dataclasses.replace(cfg, **{name: cast(getattr(cfg, name)) for name in floats}, **inner)


def inner_configs(cfg: Config) -> dict[str, Config]:
    """Return a dict from field to nested config."""
    return {f.name: part for f in dataclasses.fields(cfg) if isinstance(part := getattr(cfg, f.name), Config)}
