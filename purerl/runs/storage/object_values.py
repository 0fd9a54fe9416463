"""The numbers and texts in an object that a user passed. Two objects of one class can be different tasks."""

import dataclasses
import functools
import hashlib
import types
from functools import cached_property
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.core import Tracer

INTERNAL = ("purerl", "jax", "jaxlib", "flax", "equinox")  # the variables of these packages are not a user's settings
SET_BY_FLAX = ("name", "parent")
ARGUMENTS = "arguments"
DEEPEST = 8


def object_values(given: Any, arrays: bool = False) -> dict[str, str]:
    """Return the numbers and texts in an object, by path.

    These are attributes, arguments of partial functions, default arguments, and the variables that a function takes from outside.
    Constants in the code of a function are not found, and variables of purerl, JAX, flax and Equinox are left out.

    Args:
        given: the object.
        arrays: if True, the result has arrays, too, each as its dtype, its shape and a part of its hash.
    """
    found: dict[str, str] = {}
    seen: dict[int, Any] = {}  # holds the objects, so that no other object gets the id of one of them

    def visit(path: tuple[str, ...], x: Any, internal: bool) -> None:
        internal = internal if type(x) in (dict, list, tuple) else _is_internal(x) and not isinstance(x, nn.Module)
        for name, part in _parts(x).items():
            text = _text(part, arrays)
            inner = path if internal else (*path, name)
            if text is not None and not internal:
                found.setdefault(".".join(inner), text)
            if text is None and len(path) < DEEPEST and id(part) not in seen:
                seen[id(part)] = part
                visit(inner, part, internal)

    visit((), given, False)
    return found


def number_text(x: Any) -> str:
    """Return a number as text; for an array, return its dtype, its shape and a part of its hash."""
    x = np.asarray(x)
    if x.size == 1:
        return f"{x.item():.9g}" if x.dtype.kind == "f" else str(x.item())
    return f"{x.dtype}{list(x.shape)} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:12]}"


def _text(x: Any, arrays: bool) -> str | None:
    """Return a number, a text, or a container of these as text; None for other objects."""
    if x is None or isinstance(x, str | bool | bytes):
        return repr(x)
    if isinstance(x, int | float | np.generic):
        return number_text(x)
    if isinstance(x, np.ndarray | jax.Array):
        here = not isinstance(x, Tracer) and getattr(x, "is_fully_addressable", True)
        return number_text(x) if arrays and here and isinstance(x.dtype, np.dtype) and x.dtype.kind in "biuf" else None
    if isinstance(x, dict):
        x = {str(name): _text(part, arrays) for name, part in x.items()}
        return None if None in x.values() else ", ".join(f"{name}={x[name]}" for name in sorted(x))
    if isinstance(x, list | tuple):
        x = [_text(part, arrays) for part in x]
        return None if None in x else f"({', '.join(map(str, x))})"
    return None


def _parts(x: Any) -> dict[str, Any]:
    """Return the parts of an object by name: arguments, variables, entries or attributes."""
    if isinstance(x, types.ModuleType):
        return {}
    if isinstance(x, type):
        return {ARGUMENTS: {}}
    if isinstance(x, functools.partial):
        return {"func": x.func, ARGUMENTS: {**{str(i): part for i, part in enumerate(x.args)}, **x.keywords}}
    if isinstance(x, types.MethodType):
        return {"func": x.__func__, "self": x.__self__}
    if isinstance(x, types.FunctionType):
        cells = zip(x.__code__.co_freevars, x.__closure__ or (), strict=False)
        outside = {name: x.__globals__[name] for name in x.__code__.co_names if name in x.__globals__}
        outside = {name: value for name, value in outside.items() if _text(value, arrays=False) is not None}
        defaults = [*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
        return {ARGUMENTS: {}, "defaults": defaults} | outside | {name: _content(cell) for name, cell in cells}
    if hasattr(x, "__wrapped__"):
        return {"func": x.__wrapped__}
    if isinstance(x, dict):
        return {str(name): part for name, part in x.items()}
    if isinstance(x, list | tuple):
        return dict(zip(getattr(x, "_fields", map(str, range(len(x)))), x, strict=False))
    if dataclasses.is_dataclass(x):
        names = [f.name for f in dataclasses.fields(x)]
    else:
        names = [name for name in getattr(x, "__dict__", {}) if not isinstance(getattr(type(x), name, None), cached_property)]
    return {name: getattr(x, name, None) for name in names if not (isinstance(x, nn.Module) and name in SET_BY_FLAX)}


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None


def _is_internal(x: Any) -> bool:
    """Return True if a package of `INTERNAL` defines the function or the class of the object."""
    x = x.func if isinstance(x, functools.partial) else x
    module = getattr(x, "__globals__", {}).get("__name__") or getattr(x if isinstance(x, type) else type(x), "__module__", "")
    return str(module).partition(".")[0] in INTERNAL
