"""Imports of other libraries: delayed imports, quiet imports, and imports of MuJoCo without OpenGL."""

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
    """A placeholder for a module, which is imported when an attribute is read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def import_lazily(*names: str) -> Iterator[None]:
    """Delay the block's import of each of these modules until an attribute of the module is read."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update({name: _Later(name) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            if isinstance(sys.modules.get(name), _Later):
                del sys.modules[name]


@contextlib.contextmanager
def import_quietly() -> Iterator[None]:
    """Let the block import a library without warnings, and without changes of the notebook's plotting backend."""
    notebook = builtins.__dict__.pop("__IPYTHON__", None)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        if notebook is not None:
            builtins.__dict__["__IPYTHON__"] = notebook


LOADED = {"egl": ["OpenGL.EGL"], "osmesa": ["OpenGL.GL", "OpenGL.osmesa"]}  # from a value of MUJOCO_GL to what MuJoCo imports


@contextlib.contextmanager
def importing_mujoco() -> Iterator[None]:
    """Let the block import MuJoCo on any machine. On Linux without a screen, `MUJOCO_GL` becomes `egl` unless it is set.

    MuJoCo's import loads OpenGL, and would fail if OpenGL is missing. In this case, MuJoCo is imported without rendering.
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
    """Return True if the modules that MuJoCo imports for this value of `MUJOCO_GL` can be loaded."""
    if way not in LOADED or os.environ.setdefault("PYOPENGL_PLATFORM", way) != way:
        return way not in LOADED
    try:
        for module in LOADED[way]:
            importlib.import_module(module)
    except Exception:  # a missing library may raise any error, such as one about an attribute of None
        return False
    return True


def opengl_hint(error: Exception) -> str:
    """Return a hint for an error that MuJoCo's renderer raised."""
    way = f" with MUJOCO_GL={way}" if (way := os.environ.get("MUJOCO_GL")) else ""
    reason = f" ({error})" if hasattr(sys.modules.get("mujoco"), "GLContext") else ""  # else `error` is only about GLContext
    return (
        f"MuJoCo renders with OpenGL, which does not work here{way}{reason}. Install OpenGL (Debian, Ubuntu: apt-get "
        "install libegl1 libgl1), set MUJOCO_GL to egl (or osmesa, or glfw with a screen), and start a new process"
    )
