"""Objects that the command line names by their import paths, `package.module:name`."""

import os
import pkgutil
import sys
from typing import Any

from purerl.config.algorithms import ALGORITHMS
from purerl.config.base import OnPolicyConfig
from purerl.core.errors import config_error, convert_errors
from purerl.envs.functions import wrap_if_bare


def import_path(path: str, flag: str) -> Any:
    """Import the object at a path `package.module:name`, or the module at `package.module:`. The current folder is searched, too.

    Raises:
        ConfigError: the module or the name does not exist, or the module raises an error.
    """
    if ":" not in path:
        raise config_error(flag, path, "must be an import path, such as package.module:name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with convert_errors(flag, f"import {path}"):
        return pkgutil.resolve_name(path)


def import_env(path: str, env_kwargs: tuple) -> Any:
    """Return the environment at an import path: an object, or the result of a class or function called with `env_kwargs`.

    A single environment is wrapped by `wrap_env`. For `gymnasium/module:id`, import the module, which registers the id, and
    return None.
    """
    if path.startswith("gymnasium/"):
        import_path(path.removeprefix("gymnasium/").partition(":")[0] + ":", "env")
        return None
    found = import_path(path, "env")
    if callable(found):
        with convert_errors("env", f"{path}({', '.join(name for name, _ in env_kwargs)})"):
            found = found(**dict(env_kwargs))
    elif env_kwargs:
        raise config_error("env_kwargs", dict(env_kwargs), f"{path} is an object and takes no arguments")
    return wrap_if_bare(found)


def algorithms_of(args: list[str]) -> tuple[dict[str, type[OnPolicyConfig]], list[str]]:
    """Return config classes by subcommand, and the arguments, with the import path of a class replaced by the class's name."""
    if not (args and ":" in args[0]):
        return ALGORITHMS, args
    cls = import_path(args[0], "command")
    if not (isinstance(cls, type) and issubclass(cls, OnPolicyConfig)):
        raise config_error("command", args[0], "must be a config class made with purerl.configclass")
    return {**ALGORITHMS, cls.__name__: cls}, [cls.__name__, *args[1:]]


def import_objects(env: str, algorithm: str, env_kwargs: tuple = ()) -> dict[str, Any]:
    """Import the objects that the command line names, as arguments of `make_train`."""
    own = import_env(env, env_kwargs) if ":" in env else None
    found = {} if own is None else {"env": own}
    return found | ({"algorithm": import_path(algorithm, "algorithm")} if algorithm else {})
