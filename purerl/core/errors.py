"""Exceptions and warnings of purerl, the format of their messages, and helpers for hints: predicates, similar names, divisors."""

import contextlib
import difflib
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeGuard

import jax
import numpy as np

LISTED = 60  # maximum number of names in a hint


class Problem(NamedTuple):
    """A problem with one field of a config: the field, its value, and a hint about what would work.

    If the value is a class, the message shows its name. The value `...` stands for a problem that is not about one value.
    """

    field: str
    value: Any
    hint: str

    def __str__(self) -> str:
        if self.value is ...:
            return f"{self.field}: {self.hint}"
        value = str(self.value) if isinstance(self.value, np.generic) else _in_a_line(self.value)
        return f"{self.field} = {value}: {self.hint}"


def _in_a_line(value: Any) -> str:
    """Format a value as one short line."""
    try:
        text = value.__name__ if isinstance(value, type) else " ".join(repr(value).split())
    except Exception:  # a custom repr may raise, and Python refuses to print integers with thousands of digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 120 else f"{text[:100]} ... ({type(value).__name__})"


@contextlib.contextmanager
def convert_errors(field: str, what: str) -> Iterator[None]:
    """Convert an exception from custom code into a ConfigError, and chain the original. A ConfigError passes unchanged.

    Args:
        field: the argument that holds the custom code.
        what: the call, as text for the message.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # custom code may raise any exception
        text = " ".join(str(error).split())
        raise config_error(field, ..., f"{what} raised {type(error).__name__}: {text[:300]}") from error


def guard(field: str, function: Callable) -> Callable:
    """Wrap a custom function so that its errors become ConfigErrors about the argument `field`."""
    return convert_errors(field, name_of(function))(function)


def name_of(function: Any) -> str:
    """Return the name of a custom function for a message."""
    return getattr(function, "__name__", repr(function))


class ConfigError(ValueError):
    """Error for a config, environment or network that cannot be trained; `problems` lists every problem found.

    Example:
        >>> try:
        ...     purerl.make_train(purerl.PPOConfig(env="CartPol-v1", gamma=2.0))
        ... except purerl.ConfigError as error:
        ...     print([problem.field for problem in error.problems])
        ['gamma', 'env']
    """

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        count = "1 problem:" if len(problems) == 1 else f"{len(problems)} problems:"
        super().__init__("\n  ".join([count, *map(str, problems)]))


def config_error(field: str, value: Any, hint: str) -> ConfigError:
    """Return a ConfigError with one problem; the arguments are those of `Problem`."""
    return ConfigError([Problem(field, value, hint)])


def refuse_vmap(field: str, hint: str) -> Callable:
    """Return an identity function that raises a ConfigError if `jax.vmap` batches its argument, also through `jit` and loops."""
    identity = jax.custom_batching.custom_vmap(lambda x: x)

    @identity.def_vmap
    def refuse(axis_size: int, is_batched: list, x: Any) -> Any:
        raise config_error(field, ..., hint)

    return identity


def raise_if_any(found: list[Problem]) -> None:
    """Raise a ConfigError with the given problems. Do nothing if the list is empty."""
    if found:
        raise ConfigError(found)


def warn(text: str) -> None:
    """Warn about a line of the user's code: the innermost call from outside of purerl and of the packages that call it back."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in ("purerl", "jax", "flax", "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def nearest(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return a hint with the names most similar to `name`.

    If no name is similar, return `otherwise`. If `otherwise` is empty too, return a hint with all names, or the first of many.
    """
    names = list(names)
    if close := difflib.get_close_matches(name, names, n=3, cutoff=0.6):
        return f"did you mean {' or '.join(map(repr, close))}?"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return otherwise or f"choose from {', '.join(names[:LISTED])}{more}"


def would_work(values: Iterable[Any]) -> str:
    """Return the end of a hint that lists values that would work. If `values` is empty, return ""."""
    text = " or ".join(map(str, values))
    return f"; {text} would work" if text else ""


class CheckpointError(RuntimeError):
    """Error while writing or reading a checkpoint.

    Example:
        >>> try:
        ...     purerl.load("nowhere")
        ... except purerl.CheckpointError as error:
        ...     print(str(error).split(" in ")[0])
        no checkpoint
    """


class CheckpointMismatch(CheckpointError):
    """Error for a checkpoint that does not match the run to be resumed; `differences` lists where the two differ.

    Example:
        >>> try:
        ...     purerl.fit(purerl.PPOConfig(total_timesteps=1024), seed=7, directory="runs/a", num_seeds=2)
        ... except purerl.CheckpointMismatch as error:
        ...     print(error.differences)
        ['seed: 0 in the checkpoint, 7 here']
    """

    def __init__(self, directory: Any, differences: list[str], hint: str = ""):
        self.differences = differences
        more = [f"and {len(differences) - 5} more"] if len(differences) > 5 else []
        shown = [*differences[:5], *more, *([hint] if hint else [])]
        super().__init__("\n  ".join([f"the checkpoint in {directory} does not match this run:", *shown]))


class CheckpointCorrupt(CheckpointError):
    """Error for a checkpoint whose files differ from what was written.

    Example:
        >>> try:
        ...     run = purerl.load("runs/a", updates=2)
        ... except purerl.CheckpointCorrupt as error:
        ...     print(f"restore a copy of this directory: {error}")
    """


class DirectoryLocked(CheckpointError):
    """Error for a run directory in which another process is training.

    Example:
        >>> try:
        ...     result = purerl.fit(purerl.PPOConfig(total_timesteps=1024), directory="runs/b")
        ... except purerl.DirectoryLocked as error:
        ...     print(f"choose another directory: {error}")
    """


class EnvironmentFailed(RuntimeError):
    """Error for an external (Python) environment that raised an error, or that was called with an outdated state.

    Example:
        >>> try:
        ...     result = purerl.fit(purerl.PPOConfig(env="gymnasium/CartPole-v1", total_timesteps=1024))
        ... except purerl.EnvironmentFailed as error:
        ...     print(f"the run is saved: {error}")
    """


class NotFiniteError(ArithmeticError):
    """Error for a diverged run: parameters are NaN or infinite, or no environment step of an update was finite.

    Example:
        >>> try:
        ...     result = purerl.fit(purerl.PPOConfig(total_timesteps=1024))
        ... except purerl.NotFiniteError as error:
        ...     print(f"a smaller learning rate may help: {error}")
    """


def is_int(value: Any) -> TypeGuard[int]:
    """Return True for an integer that is not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_count(value: Any) -> TypeGuard[int]:
    """Return True for an integer of at least 1 that is not a bool."""
    return is_int(value) and value >= 1


def is_flag(value: Any) -> bool:
    """Return True for a bool."""
    return isinstance(value, bool | np.bool_)


def is_number(value: Any) -> bool:
    """Return True for a number that is not a bool."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive int in ascending order."""
    small = [x for x in range(1, math.isqrt(number) + 1) if number % x == 0]
    return sorted({*small, *(number // x for x in small)})


def neighbours(wanted: int, choices: Iterable[int]) -> list[int]:
    """Return the choices next to `wanted`, below and above. Omit an upper choice over `2 * wanted` if there is a lower choice."""
    choices = sorted(choices)
    below, over = [x for x in choices if x <= wanted][-1:], [x for x in choices if x >= wanted][:1]
    return sorted({*below, *(x for x in over if x <= 2 * wanted or not below)})
