"""Construction of a suite's environments, and overrides of their parameters, which are fields of a dataclass."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from purerl.config.randomization import Scale
from purerl.core.auto_reset import AutoReset
from purerl.core.dependence import inputs_read
from purerl.core.environment import Environment
from purerl.core.errors import ConfigError, Problem, config_error, is_count, nearest, raise_if_any, warn
from purerl.core.spaces import action_shapes

LIMITS = ("max_steps_in_episode", "max_timesteps")  # time limits of gymnax and Craftax


class Made(NamedTuple):
    """An environment of a suite, as the function `make` of the suite's adapter returns it.

    Attributes:
        adapt: maps parameters to the environment as a `purerl.Environment`.
        params: the default parameters, a dataclass instance; None if the environment has no parameters to set.
    """

    adapt: Callable[[Any], Environment]
    params: Any = None


@contextlib.contextmanager
def construct_outside_trace(env_id: str, env_kwargs: tuple, names: Iterable[str] | None = None) -> Iterator[None]:
    """Let the block construct an environment outside of any trace, and raise the block's errors as ConfigErrors.

    Args:
        env_id: the id, with the prefix of its suite.
        env_kwargs: the constructor arguments.
        names: the names of all environments of the suite; None if the block checks the name.

    Raises:
        ConfigError: the suite has no such name, or the constructor refused the arguments.
    """
    name = env_id.partition("/")[2]
    if names is not None and name not in names:
        raise config_error("env", env_id, f"no such environment; {nearest(name, names)}")
    try:
        # Some constructors compute with jax.numpy. Under a trace, the environment's constants would become tracers.
        with jax.ensure_compile_time_eval():
            yield
    except ConfigError:
        raise
    except Exception as error:  # a constructor may raise any error
        made_of = Problem("env_kwargs", env_kwargs, f"{env_id} does not accept these arguments: {error}")
        as_it_is = Problem("env", env_id, f"cannot be created: {type(error).__name__}: {error}")
        raise ConfigError([made_of if env_kwargs and not isinstance(error, ImportError) else as_it_is]) from error


def check_counts(counts: dict[str, Any]) -> None:
    """Raise a ConfigError unless each of these constructor arguments is an int of at least 1."""
    wrong = {name: x for name, x in counts.items() if not is_count(x)}
    raise_if_any([Problem("env_kwargs", {name: x}, "must be an int of at least 1") for name, x in wrong.items()])


def override(params: Any, overrides: dict[str, Any]) -> Any:
    """Return the parameters with some values replaced. Each new value is cast to the dtype of the old value.

    Raises:
        ConfigError: a parameter does not exist or is not a number, or a value has a wrong shape or is out of range.
    """
    if not overrides:
        return params
    if isinstance(params, type):
        raise config_error("env_params", params, f"must be an object; write {params.__name__}()")
    names = list(getattr(params, "__dataclass_fields__", ()))
    unknown = [name for name in overrides if name not in names]
    if unknown:
        hint = lambda name: f"no such parameter; {nearest(name, names)}" if names else "the environment has no parameters"
        raise ConfigError([Problem("env_params", name, hint(name)) for name in unknown])
    found = [Problem("env_params", {name: x}, hint) for name, x in overrides.items() if (hint := _misfit(params, name, x))]
    if found:
        raise ConfigError(found)
    cast = lambda kind, x: x.astype(kind) if isinstance(x, jax.Array) else np.asarray(x).astype(kind)[()]
    changes = {name: cast(_kind(params, name), value) for name, value in overrides.items()}
    return dataclasses.replace(params, **changes)


# For parameter classes, by module: parameters that the library computes from the defaults of other parameters.
DERIVED = {
    "gymnax.environments.classic_control.cartpole": {
        "total_mass": ("masscart", "masspole"),
        "polemass_length": ("masspole", "length"),
    }
}


# The unread parameters by environment and names of changed parameters: the trace of Craftax's step takes seconds.
_known_unread: dict[tuple[str, ...], list[str]] = {}


def warn_of_parameters(
    adapt: Callable[[dict[str, Any]], Environment], params: Any, overrides: dict[str, Any], randomize: dict[str, Any], key: str
) -> None:
    """Warn about changed parameters that nothing reads, and about parameters that should change with them.

    Args:
        adapt: maps a dict of parameter values to the environment.
        params: the environment's parameter object.
        overrides: new values of parameters.
        randomize: distributions of parameters.
        key: text that identifies the environment, so that it is traced only once; "" for an object.
    """
    changed = dict.fromkeys(overrides, "env_params") | dict.fromkeys(randomize, "randomize")
    names = [name for name in changed if name not in LIMITS]
    asked = (key, *sorted(names))
    unread = _known_unread[asked] if asked in _known_unread else _unread(adapt, params, names)
    _known_unread.update({asked: unread} if key else {})
    for name in unread:
        warn(str(Problem(changed[name], ..., f"{name} has no effect, since neither reset nor step reads this parameter")))
    for name, parts in DERIVED.get(type(params).__module__, {}).items():
        moved = [part for part in parts if part in changed]
        if moved and name not in changed:
            hint = f"{name} is a separate parameter of gymnax and does not follow {moved[0]}; change it, too"
            warn(str(Problem(changed[moved[0]], ..., hint)))


def _unread(adapt: Callable[[dict[str, Any]], Environment], params: Any, names: list[str]) -> list[str]:
    """Return the names of the parameters on which neither states, steps nor bounds of actions depend. Nothing is compiled."""

    def run(values: dict[str, jax.Array]) -> Any:
        env, keys = adapt(values), jax.random.split(jax.random.key(0), (2, 1))
        env_state, obs = env.reset(keys[0])
        action = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), action_shapes(env.action_space, 1))
        step = env.step.advance if isinstance(env.step, AutoReset) else env.step
        return obs, step(keys[0] if step is not env.step else keys, env_state, action), jax.tree.leaves(env.action_space)

    values = {name: jax.ShapeDtypeStruct(np.shape(getattr(params, name)), _kind(params, name)) for name in sorted(names)}
    try:
        return [name for name, is_read in zip(values, inputs_read(run, values), strict=True) if not is_read] if names else []
    except Exception:  # an environment may need concrete parameters, and reads those
        return []


def swept_problems(params: Any, overrides: dict[str, Any]) -> list[Problem]:
    """Report invalid values of swept parameters, which have one value for each config of a batch (`[configs]`)."""
    swept = {name: np.asarray(x) for name, x in overrides.items() if np.ndim(x)}
    return [Problem("env_params", {name: x}, hint) for name, x in swept.items() if (hint := _out_of_range(params, name, x))]


def not_floats(params: Any, randomize: dict[str, Any]) -> dict[str, str]:
    """Return a hint for each name that is not a float scalar among the parameters, nor an array of floats that is scaled."""
    fields = [field.name for field in dataclasses.fields(params)] if dataclasses.is_dataclass(params) else []
    floats = [name for name in fields if (kind := _kind(params, name)) is not None and jnp.issubdtype(kind, jnp.floating)]
    hints = {}
    for name, distribution in randomize.items():
        if name not in fields:
            hints[name] = f"no such parameter; {nearest(name, floats)}" if fields else "the environment has no parameters"
        elif name in LIMITS:
            hints[name] = "is a time limit, which all episodes share; it cannot be randomized"
        elif name not in floats:
            hints[name] = "is not a float in the environment, and cannot be randomized"
        elif np.shape(getattr(params, name)) and not isinstance(distribution, Scale):
            hints[name] = "is an array in the environment; use purerl.Scale(least, most)"
    return hints


def _misfit(params: Any, name: str, value: Any) -> str | None:
    """Return the reason why a value cannot replace a parameter; None if it can."""
    if _kind(params, name) is None:
        return "is not a number in the environment, and cannot be overridden"
    shape = np.shape(getattr(params, name))
    if not isinstance(value, jax.Array) and np.asarray(value).dtype.kind not in "biuf":
        return "must be a number" if not shape else "must be an array of numbers"
    if shape and isinstance(value, list | tuple):  # a saved config would have an array, which stands for a batch of configs
        return "is an array in the environment; pass an object with all parameters as make_train(env_params=...)"
    if np.shape(value) != shape:
        sweep = f'must be a single number; for a sweep, use jax.vmap(lambda x: cfg.replace(env_params={{"{name}": x}}))(values)'
        return f"must have the shape {list(shape)}" if shape else sweep
    return None if isinstance(value, Tracer) else _out_of_range(params, name, np.asarray(value))


def _out_of_range(params: Any, name: str, values: np.ndarray) -> str | None:
    """Return the reason why some values of a parameter are invalid; None if all are valid."""
    kind = _kind(params, name)
    whole = np.issubdtype(kind, np.integer)
    if whole and (values != np.floor(values)).any():
        return "must be a whole number"
    low, high = (np.iinfo(kind).min, np.iinfo(kind).max) if whole else (-np.inf, np.inf)
    low = 1 if name in LIMITS else low
    return None if ((low <= values) & (values <= high)).all() else f"must be between {low} and {high}"


def _kind(params: Any, name: str) -> Any:
    """Return the dtype of a parameter, or None if the parameter is not a number. An int in a field of floats is a float."""
    value, field = getattr(params, name), params.__dataclass_fields__[name]
    if type(value) is int and field.type in (float, "float"):
        return jnp.result_type(float)
    try:
        return None if value is None else jnp.result_type(value)
    except TypeError:
        return None
