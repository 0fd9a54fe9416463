"""Snapshots of gymnasium's environments, as JSON: numbers, arrays and generators of random numbers. Nothing is pickled.

An environment is exact if everything in it that can change is one of these, or of MuJoCo's simulation. What its classes hold
besides (a model, spaces, whatever draws) is made anew with it.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

KEPT_AS_MADE = ("gymnasium.", "numpy.random.")  # modules whose other objects an environment does not change
PLAIN = (bool, int, float, str, type(None))


def attributes(env: gymnasium.Env) -> Iterator[tuple[str, Any, str]]:
    """Of an environment and its wrappers, outermost first, each attribute: where it is, its object and its name."""
    layer, depth = env, 0
    while True:
        for name in sorted(vars(layer)):
            if name not in ("metadata", "_metadata") and not (isinstance(layer, gymnasium.Wrapper) and name == "env"):
                yield f"{depth}.{name}", layer, name
        if not isinstance(layer, gymnasium.Wrapper):
            return
        layer, depth = layer.env, depth + 1


def encoded(x: Any) -> Any:
    """A value as JSON.

    Raises:
        TypeError: it is none that can be.
    """
    if isinstance(x, PLAIN):
        return x
    if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "biufSU":
        data = base64.b64encode(np.ascontiguousarray(x).tobytes()).decode()
        return {"array": [x.dtype.str, list(x.shape), data, isinstance(x, np.generic)]}
    if isinstance(x, np.random.Generator):
        return {"generator": x.bit_generator.state["bit_generator"], "state": encoded(x.bit_generator.state)}
    if type(x).__name__ == "MjData" and type(x).__module__.startswith("mujoco"):
        return {"simulation": {name: encoded(value) for name, value in _simulated(x).items()}}
    if type(x) in (list, tuple):
        return {type(x).__name__: [encoded(value) for value in x]}
    if type(x) is dict:
        return {"dict": [[encoded(key), encoded(value)] for key, value in x.items()]}
    raise TypeError(type(x).__name__)


def decoded(x: Any, current: Any) -> Any:
    """The value that was encoded. Generators and simulations are changed in place: others may hold them as well."""
    if not isinstance(x, dict):
        return x
    if "array" in x:
        dtype, shape, data, scalar = x["array"]
        array = np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape)
        return array[()] if scalar else array.copy()
    if "generator" in x:
        generator = current if isinstance(current, np.random.Generator) else np.random.Generator(BIT_GENERATORS[x["generator"]]())
        generator.bit_generator.state = decoded(x["state"], None)
        return generator
    if "simulation" in x:
        for name, value in x["simulation"].items():
            _set_simulated(current, name, decoded(value, None))
        return current
    if "dict" in x:
        return {decoded(key, None): decoded(value, None) for key, value in x["dict"]}
    (kind, values), *_ = x.items()
    return {"list": list, "tuple": tuple}[kind](decoded(value, None) for value in values)


BIT_GENERATORS = {name: getattr(np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")}


def _simulated(data: Any) -> dict[str, Any]:
    """The arrays and numbers of MuJoCo's `MjData` that have the same shape in every state: its state, and what follows from it.

    What follows is read by some environments before it is computed again, such as the positions of bodies.
    """
    names = (name for name in dir(data) if not name.startswith(("_", "efc_", "contact", "timer", "solver", "warning")))
    values = {name: getattr(data, name) for name in names if name not in ("model", "signature")}
    return {name: x for name, x in values.items() if isinstance(x, np.ndarray | float) and _is_fixed(x)}


def _is_fixed(x: Any) -> bool:
    return isinstance(x, float) or (x.dtype.kind in "iuf" and x.flags.writeable)


def _set_simulated(data: Any, name: str, value: Any) -> None:
    current = getattr(data, name)
    if isinstance(current, np.ndarray):
        if current.shape == value.shape:  # others are of constraints, and computed anew
            current[...] = value
    else:
        setattr(data, name, value)


class Keeper:
    """Snapshots of one environment, of what has changed since it was made."""

    def __init__(self, env: gymnasium.Env):
        self._env = env
        self._made = {place: _digest(value) for place, value in self._values().items()}

    def _values(self) -> dict[str, Any]:
        values = {}
        for place, layer, name in attributes(self._env):
            x = getattr(layer, name)
            try:
                values[place] = encoded(x)
            except TypeError as error:
                if not (callable(x) or type(x).__module__.startswith(KEPT_AS_MADE) or type(x).__name__ == "MjModel"):
                    values[place] = {"unknown": f"{type(layer).__name__}.{name}, a {error}"}
        return values

    def snapshot(self) -> dict[str, Any]:
        """The values that have changed, by place, and what cannot be kept, in words."""
        values = self._values()
        unknown = [x["unknown"] for x in values.values() if isinstance(x, dict) and "unknown" in x]
        changed = {place: x for place, x in values.items() if self._made.get(place) != _digest(x)}
        return {"missing": unknown} if unknown else {"values": changed}

    def restore(self, saved: dict[str, Any]) -> None:
        """Gives the environment these values."""
        for place, layer, name in list(attributes(self._env)):
            if place in saved["values"]:
                setattr(layer, name, decoded(saved["values"][place], getattr(layer, name)))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
