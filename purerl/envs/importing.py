"""Imports of other libraries: some of their modules when first used, quietly, and without OpenGL."""

import builtins
import contextlib
import functools
import importlib
import os
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any


class _Later(types.ModuleType):
    """Stands for a module until one of its attributes is read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def lazily(*names: str) -> Iterator[None]:
    """Delay these modules for imports within the block until one of their attributes is read."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update({name: _Later(name) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            if isinstance(sys.modules.get(name), _Later):
                del sys.modules[name]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Import a library without its warnings, and as if outside of a notebook, whose pictures it would change."""
    notebook = builtins.__dict__.pop("__IPYTHON__", None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if notebook is not None:
            builtins.__dict__["__IPYTHON__"] = notebook


LOADED = {"egl": ["OpenGL.EGL"], "osmesa": ["OpenGL.GL", "OpenGL.osmesa"]}  # by MuJoCo's import, for each value of MUJOCO_GL


@contextlib.contextmanager
def importing_mujoco() -> Iterator[None]:
    """Let the block import MuJoCo on any machine. Without a screen MuJoCo draws by EGL, unless `MUJOCO_GL` names another way.

    MuJoCo's import loads OpenGL, and fails without it. If OpenGL is missing, the block imports MuJoCo without its drawing.
    """
    given = os.environ.get("MUJOCO_GL", "")
    way = given or ("egl" if sys.platform == "linux" and not os.environ.get("DISPLAY") else "")
    loads = _loads_opengl(way.strip().lower())
    _set_variable("MUJOCO_GL", way if loads else "disable")
    try:
        yield
    finally:
        if not loads:
            _set_variable("MUJOCO_GL", given)


def _set_variable(name: str, value: str) -> None:
    os.environ.pop(name, None)
    if value:
        os.environ[name] = value


@functools.cache
def _loads_opengl(way: str) -> bool:
    """Return True if MuJoCo can load what it needs to draw in this way."""
    if way not in LOADED or os.environ.setdefault("PYOPENGL_PLATFORM", way) != way:
        return way not in LOADED
    try:
        for module in LOADED[way]:
            importlib.import_module(module)
    except Exception:  # a missing library shows as any error: of the attributes of None, for example
        return False
    return True


def opengl_hint(error: Exception) -> str:
    """Return what to do about an error of MuJoCo's drawing."""
    way = f" with MUJOCO_GL={way}" if (way := os.environ.get("MUJOCO_GL")) else ""
    reason = f" ({error})" if hasattr(sys.modules.get("mujoco"), "GLContext") else ""  # else the error is that it is missing
    return (
        f"MuJoCo draws with OpenGL, which does not work here{way}{reason}. To draw, install OpenGL (Debian, Ubuntu: apt-get "
        "install libegl1 libgl1), set MUJOCO_GL to egl (or osmesa, or glfw with a screen), and start a new process"
    )
