"""Snapshots of gymnasium environments: numbers, arrays and random generators, as JSON. Nothing is pickled.

A restored environment continues exactly if all attributes of the environment and its wrappers are of these kinds, are MuJoCo's
simulation, or do not change (code, MuJoCo's model). State in closures, class attributes or `__slots__` is not detected.
"""

import base64
import collections
import hashlib
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
BUFFERS = (bytes, bytearray, memoryview, type(None))  # bases of arrays that own their memory, or were unpickled
CONTAINERS = {kind.__name__: kind for kind in (list, tuple, dict, collections.deque)}


def encode(x: Any) -> Any:
    """Encode a value as JSON. A space is encoded as its random generators.

    Raises:
        TypeError: the value cannot be encoded.
    """
    if type(x) in PLAIN:
        return x
    if type(x).__name__ == "MjData" and type(x).__module__.startswith("mujoco"):
        return {"simulation": encode(_simulation_arrays(x)), "time": x.time}
    if type(x).__name__ == "MjModel" and type(x).__module__.startswith("mujoco"):
        parts = [*_simulation_arrays(x).values(), *_simulation_arrays(x.opt).values(), np.float64(x.opt.timestep)]
        return {"model": hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()}
    if (type(x) is np.ndarray or isinstance(x, np.generic)) and x.dtype.kind in "biufSU":
        data = base64.b64encode(np.ascontiguousarray(x).tobytes()).decode()
        return {"array": [x.dtype.str, list(x.shape), data, isinstance(x, np.generic)]}
    if isinstance(x, np.random.Generator):
        return {"generator": encode(x.bit_generator.state)}
    if isinstance(x, gymnasium.Space):
        return {"space": [encode(space._np_random) for space in spaces_in(x)]}
    if isinstance(x, list | tuple | dict | collections.deque) and type(x) in CONTAINERS.values():
        options = {"maxlen": x.maxlen} if isinstance(x, collections.deque) else {}
        return {type(x).__name__: [encode(value) for value in (x.items() if isinstance(x, dict) else x)]} | options
    raise TypeError(type(x).__name__)


def decode(x: Any, current: Any = None, in_place: bool = False) -> Any:
    """Decode a value that `encode` returned.

    If `current`, the attribute's value before, is a generator, a space or a simulation, change it in place, since other objects
    may refer to it. With `in_place`, do so for arrays and containers, too. A model is `current` itself, which does not change.
    """
    if not isinstance(x, dict):
        return x
    (kind, value), *options = x.items()
    if kind == "array":
        dtype, shape, data, is_scalar = value
        array = np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape)
        if in_place and type(current) is np.ndarray and (current.dtype, current.shape) == (array.dtype, array.shape):
            current[...] = array
            return current
        return array[()] if is_scalar else array.copy()
    if kind == "generator":
        # Before the first reset, there may be no generator; gymnasium then makes a generator of the default kind.
        generator = current if isinstance(current, np.random.Generator) else np.random.default_rng()
        generator.bit_generator.state = decode(value)
        return generator
    if kind == "model":
        return current
    if kind == "simulation":
        current.time = x["time"]
        for name, array in decode(value).items():
            if (there := getattr(current, name)).shape == array.shape:  # others belong to constraints, and are recomputed
                there[...] = array
        return current
    if kind == "space":
        for space, generator in zip(spaces_in(current), value, strict=True):
            space._np_random = decode(generator, space._np_random)
        return current
    made: Any = CONTAINERS[kind](map(decode, value), **dict(options))
    if not (in_place and type(current) is type(made) and kind != "tuple"):
        return made
    current.clear()
    (current.update if kind == "dict" else current.extend)(made)
    return current


def _simulation_arrays(data: Any) -> dict[str, np.ndarray]:
    """Return the writable arrays of MuJoCo's `MjData`, the state and derived arrays, or those of another object of MuJoCo.

    Some environments read derived arrays, such as the positions of bodies, before MuJoCo recomputes these arrays.
    """
    names = (name for name in dir(data) if not name.startswith(("_", "efc_", "contact", "timer", "solver", "warning")))
    arrays = ((name, x) for name in names if isinstance(x := getattr(data, name), np.ndarray))
    return {name: x for name, x in arrays if x.dtype.kind in "iuf" and x.flags.writeable}


def spaces_in(space: gymnasium.Space) -> list[gymnasium.Space]:
    """List a space and the spaces in it. Each space has its own random generator for `sample`."""
    inside = getattr(space, "spaces", ())
    return [space, *(x for part in (inside.values() if isinstance(inside, dict) else inside) for x in spaces_in(part))]


class Keeper:
    """Access to the state of one environment, for saving and restoring."""

    def __init__(self, env: gymnasium.Env):
        self._layers = [env]
        while isinstance(env, gymnasium.Wrapper):
            self._layers.append(env := env.env)
        self._names = [type(layer).__name__ for layer in self._layers]
        self._made = self._values()

    def _values(self) -> list[dict[str, Any]]:
        """Encode the changeable attributes of each layer, wrapper or environment. `{"unknown": ...}` marks unsupported values."""
        is_layer = lambda x: any(x is y for y in self._layers)
        is_method = lambda x: inspect.isroutine(x) and is_layer(getattr(x, "__self__", None))
        kept = lambda name, x: name not in NOT_OF_THE_STATE and not (_stays_as_made(x) or is_method(x) or is_layer(x))
        layers = zip(self._names, self._layers, strict=True)
        values = lambda kind, layer: {x: _encode_or_explain(f"{kind}.{x}", y) for x, y in vars(layer).items() if kept(x, y)}
        return [values(kind, layer) for kind, layer in layers]

    def _shared_objects(self, values: list[dict[str, Any]]) -> list[str]:
        """Report changed objects to which several attributes refer. After a restore, each attribute would have its own object."""
        places: dict[int, list[str]] = {}
        for layer, made, now in zip(self._layers, self._made, values, strict=True):
            for name in (name for name in now if now[name] != made.get(name, self)):
                for part in _mutable_parts(vars(layer)[name]):
                    places.setdefault(id(part), []).append(name)
        return [f"{' and '.join(names)} (the same object)" for names in places.values() if len(names) > 1]

    def snapshot(self) -> dict[str, Any]:
        """Return the attributes and class name of each layer, or `{"missing": [...]}` if some attributes cannot be saved."""
        values = self._values()
        unknown = [x["unknown"] for layer in values for x in layer.values() if _is_unknown(x)]
        models = [(x, made.get(name)) for made, layer in zip(self._made, values, strict=True) for name, x in layer.items()]
        changed = ["a changed MjModel" for x, made in models if isinstance(x, dict) and "model" in x and x != made]
        missing = unknown + changed + self._shared_objects(values)
        return {"missing": missing} if missing else {"values": values, "layers": self._names}

    def restore(self, saved: dict[str, Any], in_place: bool = False) -> None:
        """Set the environment's attributes to saved values. An attribute that has this value already stays the same object.

        Raises:
            EnvironmentFailed: the saved environment had other wrappers.
        """
        if (before := saved["layers"]) != self._names:
            raise EnvironmentFailed(f"saved with the wrappers {' > '.join(before)}, but now has {' > '.join(self._names)}")
        for layer, made, values, now in zip(self._layers, self._made, saved["values"], self._values(), strict=True):
            for name, x in (made | values).items():
                if not _is_unknown(x) and repr(now.get(name, self)) != repr(x):  # 0 is not 0.0
                    setattr(layer, name, decode(x, getattr(layer, name, None), in_place))

    def renew(self) -> bool:
        """Restore the environment as it was made; return False if some attributes cannot be restored."""
        if "missing" in (now := self.snapshot()) or any(_is_unknown(x) for made in self._made for x in made.values()):
            return False
        for layer, made, values in zip(self._layers, self._made, now["values"], strict=True):
            for name in values.keys() - made.keys():
                delattr(layer, name)
        self.restore({"layers": self._names, "values": self._made}, in_place=True)  # functions may hold the same objects
        return True


def _encode_or_explain(place: str, x: Any) -> Any:
    try:
        for part in _mutable_parts(x):
            if isinstance(part, np.ndarray) and part.flags.writeable and not isinstance(part.base, BUFFERS):
                raise TypeError("memory of another object")
        return encode(x)
    except TypeError as error:
        return {"unknown": f"{place} ({error})"}


def _mutable_parts(x: Any) -> Iterator[Any]:
    """Yield the mutable containers and the arrays in a value. For a view of an array, yield the array that it shows."""
    if isinstance(x, np.ndarray):
        while isinstance(x.base, np.ndarray):
            x = x.base
        yield x
    elif type(x) in CONTAINERS.values():
        if not isinstance(x, tuple):
            yield x
        for part in x.values() if isinstance(x, dict) else x:
            yield from _mutable_parts(part)


def _is_unknown(x: Any) -> bool:
    return isinstance(x, dict) and "unknown" in x


def _stays_as_made(x: Any) -> bool:
    """Return True if a value does not change after construction: code, unless it is an object's method, or MuJoCo's renderer."""
    if inspect.isroutine(x):
        return isinstance(getattr(x, "__self__", None), type | types.ModuleType | None)
    return isinstance(x, type | types.ModuleType | EnvSpec) or type(x).__module__ == "gymnasium.envs.mujoco.mujoco_rendering"
