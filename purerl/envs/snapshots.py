"""Snapshots of gymnasium's environments, as JSON: numbers, arrays and generators of random numbers. Nothing is pickled.

An environment goes on exactly if all that it and its wrappers keep in attributes is one of these, MuJoCo's simulation, or does
not change (code, a model). Nothing is known of what is elsewhere: in closures, in attributes of a class, in `__slots__`.
"""

import base64
import collections
import inspect
import types
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from purerl.core.errors import EnvironmentFailed

NOT_OF_THE_STATE = ("metadata", "_metadata")
PLAIN = (bool, int, float, str, type(None))


def encoded(x: Any) -> Any:
    """Return a value as JSON; of a space its generators.

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
    if isinstance(x, gymnasium.Space):
        return {"space": [encoded(space._np_random) for space in _spaces(x)]}
    if type(x) is collections.deque:
        return {"deque": [encoded(value) for value in x], "maxlen": x.maxlen}
    if type(x) is list or type(x) is tuple:
        return {type(x).__name__: [encoded(value) for value in x]}
    if type(x) is dict:
        return {"dict": [[encoded(key), encoded(value)] for key, value in x.items()]}
    raise TypeError(type(x).__name__)


def decoded(x: Any, current: Any) -> Any:
    """The value that was encoded. Generators, spaces and simulations are changed in place: others may hold them as well."""
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
    if "space" in x:
        for space, generator in zip(_spaces(current), x["space"], strict=True):
            space._np_random = decoded(generator, space._np_random)
        return current
    if "deque" in x:
        return collections.deque((decoded(value, None) for value in x["deque"]), x["maxlen"])
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
    """Snapshots of one environment."""

    def __init__(self, env: gymnasium.Env):
        self._layers = list(_layers(env))
        self._made = self._values()
        self._names = [type(layer).__name__ for layer in self._layers]

    def _values(self) -> dict[str, Any]:
        """Return all attributes as JSON, by the number of their layer and their name; what cannot be kept, in words."""
        values = {}
        for depth, layer in enumerate(self._layers):
            for name, x in vars(layer).items():
                if name in NOT_OF_THE_STATE or (name == "env" and isinstance(layer, gymnasium.Wrapper)) or _stays_as_made(x):
                    continue
                try:
                    values[f"{depth}.{name}"] = encoded(x)
                except TypeError as error:
                    values[f"{depth}.{name}"] = {"unknown": f"{type(layer).__name__}.{name}, a {error}"}
        return values

    def _shared(self, values: dict[str, Any]) -> list[str]:
        """Report a changed object with two names: it would be two objects in a restored environment."""
        places: dict[int, list[str]] = {}
        for place in values:
            depth, name = place.split(".", 1)
            x = vars(self._layers[int(depth)])[name]
            if isinstance(x, np.ndarray | list | dict | collections.deque):
                places.setdefault(id(x), []).append(place)
        twice = [found for found in places.values() if len(found) > 1 and values[found[0]] != self._made.get(found[0], self)]
        return [f"{' and '.join(place.split('.', 1)[1] for place in found)}, one object with two names" for found in twice]

    def snapshot(self) -> dict[str, Any]:
        """Return all values, by place; or what cannot be kept, in words."""
        values = self._values()
        unknown = [x["unknown"] for x in values.values() if isinstance(x, dict) and "unknown" in x]
        missing = unknown + self._shared(values)
        return {"missing": missing} if missing else {"values": values, "layers": self._names}

    def restore(self, saved: dict[str, Any]) -> None:
        """Gives the environment these values.

        Raises:
            EnvironmentFailed: it has other wrappers than the one that was saved.
        """
        if (before := saved.get("layers", self._names)) != self._names:
            raise EnvironmentFailed(f"saved with the layers {' > '.join(before)}, and made here with {' > '.join(self._names)}")
        for place, x in (self._made | saved["values"]).items():
            depth, name = place.split(".", 1)
            layer = self._layers[int(depth)]
            setattr(layer, name, decoded(x, getattr(layer, name, None)))


def _layers(env: gymnasium.Env) -> Iterator[gymnasium.Env]:
    """Return an environment and what it wraps, outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _stays_as_made(x: Any) -> bool:
    """Return True if it is made with the environment and does not change: code, MuJoCo's model, what draws it."""
    is_code = inspect.isroutine(x) or isinstance(x, type | types.ModuleType | EnvSpec)
    return is_code or type(x).__name__ == "MjModel" or type(x).__module__ == "gymnasium.envs.mujoco.mujoco_rendering"


def _spaces(space: gymnasium.Space) -> Iterator[gymnasium.Space]:
    """Return a space and those in it: each has a generator, from which `sample` draws."""
    yield space
    inside = getattr(space, "spaces", ())
    for x in inside.values() if isinstance(inside, dict) else inside:
        yield from _spaces(x)
