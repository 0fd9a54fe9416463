"""The values in the objects that a user passed: `Reach(goal=2)` and `Reach(goal=9)` have one class, but are different tasks."""

import dataclasses
import dis
import functools
import hashlib
import inspect
import re
import sys
import types
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from purerl.core.environment import Environment

INTERNAL = ("purerl", "jax", "jaxlib", "flax", "equinox")  # the variables of these packages are not a user's settings
CODE = types.FunctionType | types.MethodType | functools.partial
LONGEST = 100  # entries of a container that is read
LARGEST = 10_000  # elements of an array that is read
WORD = re.compile("[A-Za-z][A-Za-z_-]{0,39}")  # a choice, such as "easy"; names of runs and files have digits or slashes
NAMES = re.compile("name|title|device|render_mode|.*(dir|directory|folder|path|file)")  # attributes whose texts name no task
CODE_NAME = f"code of Python 3.{sys.version_info[1]}"
MOST, DEEPEST = 10_000, 100  # objects that are read, and levels of objects


def numbers_of(given: dict[str, Any], environment: Environment) -> dict[str, str]:
    """Return the values in the arguments of `make_train` as text, by path, such as `env.goal`; arrays of `env` alone."""
    made_with = {"env": environment.host.arguments} if environment.host else {}
    env = {name: x for name, x in given.items() if name == "env"}
    try:
        return object_values(given) | object_values(env, arrays=True) | object_values(made_with, arrays=True)
    except Exception:  # a user's objects may raise anything when they are read, and the values only serve warnings
        return {}


def other_numbers(then: dict[str, str], now: dict[str, str]) -> list[str]:
    """Describe the values that differ between two results of `numbers_of`, if any. Values that one lacks are skipped."""
    changed = [f"{path} {then[path]} before, {now[path]} now" for path in now if then.get(path, now[path]) != now[path]]
    return [f"objects have other values than when the run was saved: {'; '.join(changed)}"] if changed else []


def object_values(given: Any, arrays: bool = False) -> dict[str, str]:
    """Return the numbers and words in an object as text, by path, and with `arrays` hashes of its arrays.

    These are attributes, arguments of partial functions, default arguments, the variables that a function takes from outside, and
    hashes of the code of the user's functions and methods, for one version of Python.

    Left out are names, texts with digits or slashes, which are often names of runs or files, arrays of more than 10,000 elements,
    code of installed packages, variables of purerl, JAX, flax and Equinox, and attributes of an attribute whose class is from
    another package.
    """
    found: dict[str, str] = {}
    seen = {id(given): given}  # holds the objects, so that no other object gets the id of one of them

    def visit(path: tuple[str, ...], x: Any, hidden: bool, depth: int) -> None:
        hidden = hidden if type(x) in (dict, list, tuple) else _package(x) in INTERNAL
        for name, part in _parts(x).items():
            text, place = _text(part) or (_hash(part) if arrays else None), path if hidden else (*path, name)
            if text is not None and not hidden and not (isinstance(part, str) and NAMES.fullmatch(name)):
                found.setdefault(".".join(place), text)
            if text is None and id(part) not in seen and len(seen) < MOST and depth < DEEPEST and _is_read(part, x):
                seen[id(part)] = part
                visit(place, part, hidden, depth + 1)

    visit((), given, False, 0)
    return found


def _text(x: Any) -> str | None:
    """Return a number, a word, or a tuple or list of these, as text; None for other objects."""
    if type(x) not in (list, tuple):
        return _value(x)
    texts = [_value(part) for part in x[:LONGEST]]
    return None if None in texts or not 0 < len(x) <= LONGEST else f"({', '.join(map(str, texts))})"


def _value(x: Any) -> str | None:
    if isinstance(x, str):
        return x if WORD.fullmatch(x) else None
    if isinstance(x, np.ndarray | jax.Array) and x.ndim == 0 and not isinstance(x, Tracer) and isinstance(x.dtype, np.dtype):
        x = x.item() if getattr(x, "is_fully_addressable", True) else None
    if isinstance(x, float | np.floating):
        return f"{x:.9g}"
    return str(x) if isinstance(x, bool | int | np.generic) else None


def _hash(x: Any) -> str | None:
    """Return dtype, shape and hash of an array; for floats, whose last bits differ between platforms, a rounded, weighted sum.

    The result is None for other objects, and for large arrays.
    """
    if not isinstance(x, np.ndarray | jax.Array) or isinstance(x, Tracer) or not isinstance(x.dtype, np.dtype):
        return None
    if x.dtype.kind not in "biuf" or not 0 < x.size <= LARGEST or not getattr(x, "is_fully_addressable", True):
        return None
    known = np.asarray(x)
    if known.dtype.kind == "f":
        weights = np.random.default_rng(0).standard_normal(known.shape)
        return f"{x.dtype}{list(x.shape)} {np.vdot(weights, np.where(np.isfinite(known), known, 0).astype(np.float64)):.4g}"
    return f"{x.dtype}{list(x.shape)} {hashlib.sha256(known.tobytes()).hexdigest()[:8]}"


def _is_read(part: Any, parent: Any) -> bool:
    """Return True if the values in a part of an object are read."""
    if isinstance(part, CODE | dict | list | tuple) or dataclasses.is_dataclass(part):
        return True
    package, around = _package(part), _package(parent)
    is_attribute = not isinstance(parent, CODE | tuple | dict | list) and around not in INTERNAL
    return package not in sys.stdlib_module_names and not (is_attribute and package != around)


def _parts(x: Any) -> dict[str, Any]:
    """Return the parts of an object by name: arguments, variables, entries or attributes."""
    if isinstance(x, type | types.ModuleType):
        return {}
    if isinstance(x, functools.partial):
        return {"func": x.func} | {str(i): part for i, part in enumerate(x.args)} | x.keywords
    if isinstance(x, types.MethodType):
        return {"func": x.__func__, "self": x.__self__}
    if isinstance(x, types.FunctionType):
        globals_read = {step.argval for step in dis.get_instructions(x) if step.opname == "LOAD_GLOBAL"}
        known = lambda part: _text(part) or _hash(part)
        outside = {name: x.__globals__[name] for name in sorted(globals_read) if known(x.__globals__.get(name)) is not None}
        cells = zip(x.__code__.co_freevars, x.__closure__ or (), strict=False)
        defaults = [*(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
        code = {} if _is_installed(x) else {CODE_NAME: _hash_of_code(x.__code__, x.__doc__)}
        return code | {"defaults": defaults} | outside | {name: _content(cell) for name, cell in cells}
    if isinstance(x, dict | list | tuple) and len(x) > LONGEST:
        return {}
    if isinstance(x, dict):
        return dict(x) if all(isinstance(name, str) for name in x) else {}
    if isinstance(x, list | tuple):
        return dict(zip(getattr(x, "_fields", map(str, range(len(x)))), x, strict=False))
    if _package(x) in INTERNAL and hasattr(x, "__wrapped__"):
        return {"func": x.__wrapped__}
    methods = _methods(type(x))
    if dataclasses.is_dataclass(x):
        return methods | {field.name: getattr(x, field.name, None) for field in dataclasses.fields(x)}
    attributes = found if type(found := getattr(x, "__dict__", None)) is dict else {}
    is_cached = lambda name: isinstance(getattr(type(x), name, None), functools.cached_property)
    return methods | {name: part for name, part in attributes.items() if not is_cached(name)}


def _methods(kind: type) -> dict[str, types.FunctionType]:
    """Return the user's methods of a class by name, also those inherited from other classes of the user's."""
    members = {name: x for parent in kind.__mro__[::-1] for name, x in vars(parent).items() if callable(x)}
    functions = {name: inspect.unwrap(x) for name, x in members.items()}
    return {name: x for name, x in functions.items() if isinstance(x, types.FunctionType) and not _is_installed(x)}


def _is_installed(function: types.FunctionType) -> bool:
    """Return True for functions of purerl, of Python and of other installed packages, and for generated methods."""
    package, file = _package(function), function.__code__.co_filename
    return package in INTERNAL or package in sys.stdlib_module_names or "-packages" in file or file == "<string>"


def _hash_of_code(code: types.CodeType, doc: str | None) -> int:
    """Return a hash of the instructions, names and constants of a function, without its docstring and line numbers."""
    text = lambda x: sorted(map(repr, x)) if isinstance(x, frozenset) else repr(x)
    kept = [x for x in code.co_consts if doc is None or x != doc]
    constants = [_hash_of_code(x, None) if isinstance(x, types.CodeType) else text(x) for x in kept]
    return int(hashlib.sha256(repr((code.co_code, code.co_names, constants)).encode()).hexdigest()[:8], 16)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None


def _package(x: Any) -> str:
    """Return the package that defines a function, or the class of an object."""
    while isinstance(x, functools.partial | types.MethodType):
        x = x.func if isinstance(x, functools.partial) else x.__func__
    module = x.__globals__.get("__name__") if isinstance(x, types.FunctionType) else type(x).__module__
    return str(module).partition(".")[0]
