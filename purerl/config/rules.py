"""Rules for the valid values of a field, and conditions under which a field has an effect."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer

from purerl.core.errors import is_int
from purerl.core.spaces import has_box


class Rule(NamedTuple):
    """A rule for values: a text, a test of concrete values (elementwise, False for NaN), and all choices of a `one_of` rule.

    Attributes:
        auto: True if "auto" is valid, too, which stands for the value that suits the environment. A leaf holds "auto" as the
          number `AUTO`.
    """

    text: str
    holds: Callable[[Any], Any]
    choices: tuple[str, ...] = ()
    auto: bool = False


AUTO = -math.inf  # "auto" as a number, since leaves must be numbers to be swept and traced


def or_auto(rule: Rule) -> Rule:
    """Return a rule that also accepts "auto"."""
    return Rule(f"{rule.text}, or 'auto'", lambda x: (x == AUTO) | rule.holds(x), rule.choices, auto=True)


def at_least(low) -> Rule:
    return Rule(f"must be at least {low}", lambda x: x >= low)


def above(low) -> Rule:
    return Rule(f"must be above {low} (inf to disable)", lambda x: x > low)


def between(low, high) -> Rule:
    return Rule(f"must be between {low} and {high}", lambda x: (x >= low) & (x <= high))


def finite(low=-math.inf) -> Rule:
    return Rule("must be finite" + (f" and at least {low}" if low > -math.inf else ""), lambda x: (x >= low) & np.isfinite(x))


def one_of(*choices) -> Rule:
    return Rule(f"choose from {', '.join(map(repr, choices))}", lambda x: x in choices, choices)


def some_of(*choices) -> Rule:
    text = f"must be a tuple of distinct names from {', '.join(map(repr, choices))}"
    return Rule(text, lambda xs: all(x in choices for x in xs) and len(set(xs)) == len(xs))


def each(rule: Rule) -> Rule:
    return Rule(f"must be a tuple of ints, and each int {rule.text}", lambda xs: all(is_int(x) and rule.holds(x) for x in xs))


def up_to(high: float, rule: Rule) -> Rule:
    """Return a rule with an additional upper bound."""
    return Rule(f"{rule.text} and at most {high:.1e}", lambda x: rule.holds(x) & (x <= high))


ANY = Rule("", lambda x: True)
PAIRS = Rule(
    'must be a tuple of pairs (name, value), such as (("size", 12),)',
    lambda xs: all(isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], str) for x in xs),
)
SWITCH = Rule("must be True, False or 'auto'", lambda x: x == "auto" or isinstance(x, bool), auto=True)
NAMES = Rule("must be a tuple of names", lambda xs: all(isinstance(x, str) for x in xs))


# --- what a field needs -----------------------------------------------------------------------------------------------


class Need(NamedTuple):
    """A condition for a field to have an effect: a text, and a test of config and action space."""

    text: str
    holds: Callable[[Any, Any], bool]


def when(**choices: Any) -> Need:
    """Return the condition that a field has a value, or one of several values: `when(optimizer=("adam", "adamw"))`."""
    ((name, values),) = choices.items()
    values = values if isinstance(values, tuple) else (values,)
    return Need(f"{name} = {' or '.join(map(repr, values))}", lambda cfg, space: getattr(cfg, name) in values)


def either(*needs: Need) -> Need:
    """Return the condition that at least one of the given conditions holds."""
    return Need(" or ".join(need.text for need in needs), lambda cfg, space: any(need.holds(cfg, space) for need in needs))


def is_finite(name: str) -> Need:
    """Return the condition that a float field is finite."""
    return Need(f"a finite {name}", lambda cfg, space: may_hold(getattr(cfg, name), np.isfinite))


def is_above(name: str, bound: int) -> Need:
    """Return the condition that a static number is above a bound."""
    return Need(f"{name} > {bound}", lambda cfg, space: getattr(cfg, name) > bound)


RANDOMIZED = Need("randomize", lambda cfg, space: bool(cfg.randomize))
BOX = Need("continuous actions (a Box)", lambda cfg, space: has_box(space))
GAUSSIAN = Need(
    "continuous actions (a Box) of a Gaussian policy",
    lambda cfg, space: has_box(space) and cfg.action_distribution != "beta",
)


# --- leaves that may be tracers ---------------------------------------------------------------------------------------


def may_hold(value: Any, condition: Callable[[np.ndarray], Any]) -> bool:
    """Return True if any value of a leaf meets a condition. For a tracer, return True, so that programs handle both cases."""
    return isinstance(value, Tracer) or bool(np.any(condition(np.asarray(value))))  # NumPy, since JAX would add operations


def in_order(*values: Any) -> bool:
    """Return True unless a number is below the number before it, as float32. Tracers and other values are ignored."""
    known = [np.asarray(x) for x in values if not isinstance(x, Tracer)]
    with np.errstate(over="ignore"):
        numbers = [x.astype(np.float32) for x in known if x.dtype.kind in "fiu"]
    return not any((low > high).any() for low, high in itertools.pairwise(numbers))


def surely_holds(value: Any, condition: Callable[[np.ndarray], Any]) -> bool:
    """Return True if any value of a leaf meets a condition. For a tracer, return False, to skip errors and warnings."""
    return not isinstance(value, Tracer) and may_hold(value, condition)
