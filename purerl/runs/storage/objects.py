"""Descriptions of the objects that a user passed to `make_train`, to detect that a run resumes with different objects.

Descriptions contain names, shapes and numbers, for comparison only. Nothing read from a directory is ever imported or called.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from purerl.core.environment import Environment
from purerl.core.spaces import Box, Discrete, Indices, MultiBinary, MultiDiscrete

PACKAGES = ("purerl", "jax", "jaxlib", "flax", "optax", "gymnax", "numpy", "orbax-checkpoint")
OF_SUITES = {  # suites whose numbers depend on several packages
    "brax": ("brax", "mujoco-mjx"),
    "gymnasium": ("gymnasium", "mujoco", "ale-py"),
    "playground": ("playground", "mujoco", "mujoco-mjx", "warp-lang"),
}
FLAGS = ("config_class", "algorithm", "env")  # objects that a command can import


def describe_objects(given: dict[str, Any], environment: Environment) -> dict[str, Any]:
    """Return a JSON description of the objects.

    Args:
        given: arguments of `make_train` that are not defaults, by name, and `config_class` if user-defined.
        environment: the environment made from `env` and `env_params`.
    """
    described = {name: {"is": qualified_name(x)} for name, x in given.items()}
    if "env" in described:
        described["env"] |= {"observations": _text(environment.observation_space), "actions": _text(environment.action_space)}
        if isinstance(given["env"], Environment):
            described["env"] |= {"max_steps": str(environment.max_steps)}
    for name in ("torso", "memory"):
        described.get(name, {}).update(_fields(given.get(name)))
    if "env_params" in described:
        described["env_params"] |= _numbers(given["env_params"])
    if "env" in described and "env_params" not in described:
        described["env"] |= _numbers(getattr(given["env"], "default_params", None))
    return described


def qualified_name(x: Any) -> str:
    """Return the qualified name of a function, or of an object's class; for a tuple or dict, return the names of its parts."""
    if isinstance(x, functools.partial):
        return qualified_name(x.func)
    if isinstance(x, Environment):
        return x.name or qualified_name((x.reset, x.step))
    if isinstance(x, dict):
        return ", ".join(f"{name}: {qualified_name(part)}" for name, part in x.items())
    if isinstance(x, tuple):
        return ", ".join(qualified_name(part) for part in x if callable(part))
    one = x if hasattr(x, "__qualname__") else type(x)
    return f"{one.__module__}.{one.__qualname__}"


def object_differences(saved: dict[str, Any], current: dict[str, Any], names: tuple[str, ...] = ()) -> list[str]:
    """Describe how the objects of two runs differ, and which argument to pass or leave out. `names`: compare only these."""
    found = []
    for name in names or sorted(saved.keys() | current.keys()):
        then, now = saved.get(name), current.get(name)
        if then is None and now is not None:
            found.append(f"{name}: the default in the checkpoint, {now['is']} here; omit `{name}=`")
        elif now is None and then is not None:
            flag = f", on the command line --{name.replace('_', '-')} package.module:name" if name in FLAGS else ""
            found.append(f"{name}: {then['is']} in the checkpoint, the default here; in Python, pass `{name}=`{flag}")
        elif then is not None and now is not None:
            changed = [what for what in sorted(then.keys() | now.keys()) if not _alike(what, then.get(what), now.get(what))]
            text = lambda what, described: f"{what} {described.get(what, 'nothing')}"
            hint = f"pass the same object as `{name}=`"
            found += [f"{name}: {text(what, then)} in the checkpoint, {text(what, now)} here; {hint}" for what in changed]
    return found


def _alike(what: str, then: Any, now: Any) -> bool:
    if what != "is" or then is None or now is None or then == now:
        return then == now
    # An object defined in a script is named `__main__.Name` in the script itself, but `module.Name` if the script is imported.
    ends = lambda a, b: a.startswith("__main__.") and b.endswith(a.removeprefix("__main__"))
    parts = then.split(", "), now.split(", ")
    return len(parts[0]) == len(parts[1]) and all(a == b or ends(a, b) or ends(b, a) for a, b in zip(*parts, strict=True))


def _text(space: Any) -> str:
    """Describe a space, or a PyTree of spaces."""
    is_space = lambda x: isinstance(x, Discrete | Indices | MultiDiscrete | MultiBinary | Box)

    def text(x):
        if is_space(x):
            return " ".join([type(x).__name__, *(f"{name}={_value(value)}" for name, value in x._asdict().items())])
        return f"{x.dtype}{list(x.shape)}"

    leaves = jax.tree_util.tree_leaves_with_path(space, is_leaf=is_space)
    return ", ".join(f"{jax.tree_util.keystr(path)} {text(x)}".strip() for path, x in leaves)


def _fields(module: Any) -> dict[str, str]:
    """Return the fields of a linen module that are numbers, text, or tuples of these."""
    if not isinstance(module, nn.Module):
        return {}
    plain = lambda x: isinstance(x, int | float | str) or (isinstance(x, tuple) and all(map(plain, x)))
    return {f.name: repr(x) for f in dataclasses.fields(module) if f.name != "name" and plain(x := getattr(module, f.name))}


def _numbers(params: Any) -> dict[str, str]:
    """Return the numbers among an environment's parameters as text, by path in the tree."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    is_number = lambda x: isinstance(x, int | float | np.ndarray | np.generic | jax.Array)
    return {jax.tree_util.keystr(path): _value(x) for path, x in leaves if is_number(x)}


def _value(x: Any) -> str:
    """Return a number as text; for an array, return its dtype, its shape and a part of its hash."""
    x = np.asarray(x)
    if x.size == 1:
        return f"{x.item():.9g}" if x.dtype.kind == "f" else str(x.item())
    return f"{x.dtype}{list(x.shape)} {hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:12]}"


def versions(env_id: str) -> dict[str, str]:
    """Return the versions and JAX settings that affect a run's exact numbers. Checkpoints record but do not require them.

    env_id: id of the environment, whose suite is included.
    """
    found, (suite, slash, _) = {}, env_id.partition("/")
    for name in (*PACKAGES, *(OF_SUITES.get(suite, (suite,)) if suite and slash else ())):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    values = jax.config.values
    prng = f"{values['jax_default_prng_impl']}, partitionable {values['jax_threefry_partitionable']}"
    return {**found, "platform": jax.default_backend(), "prng": prng}
