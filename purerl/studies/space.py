"""Values to try for fields of a config, from the command line or from Python. A point is a dict with one value per field."""

import contextlib
import dataclasses
import itertools
import json
import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

from purerl.config.aliases import rename_hint
from purerl.config.base import OnPolicyConfig
from purerl.config.curiosity import RNDConfig
from purerl.config.fields import is_float_leaf, kind_of, parse_json, to_python
from purerl.config.randomization import randomize_problem
from purerl.config.rules import AUTO
from purerl.config.value_checks import field_problems
from purerl.core.errors import ConfigError, Problem, config_error, is_int, is_number, nearest, raise_if_any


@dataclasses.dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`; for an int field, all integers.

    Args:
        low, high: the ends, both included.
        log: sample uniformly in the logarithm of the number.

    Example:
        >>> purerl.Range(1e-5, 1e-3, log=True).at(0.5)
        0.0001
    """

    low: float
    high: float
    log: bool = False

    def at(self, share: float) -> float:
        """Return the number at this share of the range, from 0 to 1, measured linearly or in the logarithm."""
        if not self.log:
            return float(self.low + share * (self.high - self.low))
        return float(f"{math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low))):.12g}")

    @property
    def digits(self) -> int:
        """Return the number of significant digits that distinguish a hundred equidistant numbers in the range; from 3 to 9."""
        wide = math.log(self.high / self.low) if self.log else self.high - self.low
        if wide <= 0:
            return EXACT
        largest = 0 if self.log else math.floor(math.log10(max(abs(self.low), abs(self.high))))
        return min(EXACT, max(3, 1 + largest - math.floor(math.log10(wide / 100))))

    def __str__(self) -> str:
        exact = lambda x: short if float(short := f"{x:g}") == x else repr(float(x))
        return f"{exact(self.low)}:{exact(self.high)}" + (":log" if self.log else "")


EXACT = 9  # significant digits that identify a float32
TIME_LIMITS = ("env_params.max_steps_in_episode", "env_params.max_timesteps")  # each value needs its own compiled program
PARAMETERS = ("env_params", "env_kwargs")  # fields whose entries are swept one by one
FLOATS = ("env_params", "randomize")  # fields whose entries are floats
Values = Range | tuple  # values to try for a field
TWICE = "is given twice; give all of its values at once"


def parse(cfg: OnPolicyConfig, texts: Sequence[str], flag: str) -> dict[str, Values]:
    """Parse the texts of a flag, and return the values to try by field.

    Forms: "lr=1e-4,3e-4", "hidden=64x64,256x256", "memory_inputs=action+reward" and "lr=1e-5:1e-2:log".

    Raises:
        ConfigError: a name is not a field or is given twice, or the ends of a range are not numbers. `check` checks the values.
    """
    found, values = [], {}
    for text in texts:
        name, _, given = text.partition("=")
        try:
            path = _path(cfg, name)
            if path in values:
                found.append(Problem(flag, text, f"{path} {TWICE}"))
            values[path] = _range_of(text, given) if ":" in given else tuple(_value_of(cfg, path, x) for x in given.split(","))
            if kind_of(_field(cfg, path)) is tuple and len(set(values[path])) < len(values[path]):
                found.append(Problem(flag, text, "lists a value twice; the widths of two layers are written 64x64"))
        except ConfigError as error:
            found += error.problems
    raise_if_any(found)
    return values


def check(cfg: OnPolicyConfig, values: Any, flag: str) -> dict[str, Values]:
    """Check values to try, and return a dict from the path of each field to its range or tuple of values.

    Raises:
        ConfigError: a name is not a field or is given twice, or the values of a field are missing or invalid.
    """
    if not isinstance(values, dict) or not values:
        raise config_error(flag, values, 'must be a dict from fields to lists of values, such as {"lr": [1e-4, 3e-4]}')
    found, right = [], {}
    for name, given in values.items():
        try:
            path = _path(cfg, name)
        except ConfigError as error:
            found += error.problems
            continue
        if path in right:
            found.append(Problem(flag, name, f"{path} {TWICE}"))
        if isinstance(given, Range):
            right[path], hint = given, _range_hint(cfg, path, given)
            ends = (given.low, given.high) if hint or not is_int_field(cfg, path) else (int(given.low), int(given.high))
        else:
            right[path] = ends = _tuple_of(given)
            hint = "" if ends else "must be a list of values, or a purerl.Range"
        found += [Problem(name, given, hint)] if hint else _value_problems(cfg, path, ends)
    raise_if_any(found)
    return right


def default_ranges(cfg: OnPolicyConfig) -> dict[str, Values]:
    """Return the default search space: wide ranges of the most important hyperparameters of the PPO family."""
    return {
        "lr": Range(1e-4, 1e-2, log=True),
        "ent_coef": Range(1e-4, 0.1, log=True),
        "gamma": Range(0.95, 0.999),
        "gae_lambda": Range(0.8, 0.99),
        "num_steps": tuple(dict.fromkeys((max(1, cfg.num_steps // 4), cfg.num_steps))),
    }


def with_values(cfg: OnPolicyConfig, point: dict[str, Any]) -> OnPolicyConfig:
    """Return a config with the values of a point.

    Paths such as "rnd.int_coef", "env_params.g" and "randomize.g.low" name values inside a field.
    """
    for path, value in point.items():
        name, _, inner = path.partition(".")
        if name == "rnd" and cfg.rnd is not None:
            value = cfg.rnd.replace(**{inner: value})
        elif name == "randomize":
            parameter, _, number = inner.rpartition(".")
            value = cfg.randomize | {parameter: cfg.randomize[parameter]._replace(**{number: value})}
        elif name == "env_kwargs":
            value = tuple((dict(cfg.env_kwargs) | {inner: value}).items())
        elif inner:
            value = getattr(cfg, name) | {inner: value}
        cfg = cfg.replace(**{name: value})
    return cfg


def is_static(cfg: OnPolicyConfig, path: str) -> bool:
    """Return True if each value of the field needs its own compiled program."""
    return path in TIME_LIMITS or bool(_field(cfg, path).metadata.get("static"))


def static_values(cfg: OnPolicyConfig, point: dict[str, Any]) -> dict[str, Any]:
    """Return the static values of a point, which are compiled into the program, with JSON types."""
    return json.loads(json.dumps({path: to_json(x) for path, x in point.items() if is_static(cfg, path)}))


def group_points(cfg: OnPolicyConfig, points: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], list[int]]]:
    """Group points that can share a compiled program; return each group's static values, and the indices of its points."""
    groups: dict[Any, tuple[dict[str, Any], list[int]]] = {}
    for place, point in enumerate(points):
        static = {path: x for path, x in point.items() if is_static(cfg, path)}
        key = format_point(static, EXACT), frozenset(path for path in point if path.startswith("env_params."))
        groups.setdefault(key, (static, []))[1].append(place)
    return list(groups.values())


def stack_configs(cfg: OnPolicyConfig, points: Sequence[dict[str, Any]], paths: Collection[str] | None) -> OnPolicyConfig:
    """Return a batch of one config per point, with arrays `[points]` for the floats in `paths`; None means all floats."""

    def leaf(path, *xs):
        is_array = paths is None or jax.tree_util.keystr(path, simple=True, separator=".") in paths
        return np.array(xs, np.float32) if is_array else xs[0]

    return jax.tree_util.tree_map_with_path(leaf, *[with_values(cfg, point) for point in points])


def num_points(cfg: OnPolicyConfig, values: dict[str, Values]) -> float:
    """Return the number of combinations of values; infinite if a float field has a range."""
    count = lambda path, x: len(x) if isinstance(x, tuple) else x.high - x.low + 1 if is_int_field(cfg, path) else math.inf
    return math.prod(count(path, x) for path, x in values.items())


def all_points(values: dict[str, Values]) -> list[dict[str, Any]]:
    """Return every combination of values from lists and integer ranges; the last field varies fastest."""
    each = [x if isinstance(x, tuple) else range(int(x.low), int(x.high) + 1) for x in values.values()]
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*each)]


def draw_points(cfg: OnPolicyConfig, values: dict[str, Values], draws: int, method: str, seed: int) -> list[dict[str, Any]]:
    """Sample points from ranges and lists, by the method `sobol` or `random`."""
    if method == "sobol":
        from scipy.stats import qmc

        shares = qmc.Sobol(len(values), rng=seed).random_base2(max(0, (draws - 1).bit_length()))[:draws]
    else:
        shares = np.random.default_rng(seed).random((draws, len(values)))

    def at(path, x, share):
        if not isinstance(x, Range):
            return x[int(share * len(x))]
        if not is_int_field(cfg, path):
            return x.at(share)
        # The range is widened by 0.5 at both ends, so that rounding gives the end values a full share, too.
        wider = Range(x.low - 0.5, x.high + 0.5, x.log)
        return int(np.clip(round(wider.at(share)), x.low, x.high))

    return [{path: at(path, x, share) for (path, x), share in zip(values.items(), row, strict=True)} for row in shares]


def is_int_field(cfg: OnPolicyConfig, path: str) -> bool:
    """Return True if the values of the field are ints."""
    return path.partition(".")[0] not in FLOATS and kind_of(_field(cfg, path)) is int


def format_point(point: dict[str, Any], digits: int = 6) -> str:
    """Return a point as text: "lr = 0.001, num_steps = 64"."""
    return ", ".join(f"{path} = {format_value(value, digits)}" for path, value in point.items())


def format_value(value: Any, digits: int = 6) -> str:
    """Return a value as text; `EXACT` digits distinguish any two float32 numbers. The text "8" has quotes, unlike the number."""
    if isinstance(value, float):
        return "auto" if value == AUTO else f"{value:.{digits}g}"
    if isinstance(value, str) and parse_json(value) is not value:
        return json.dumps(value)
    return "x".join(map(str, value)) if isinstance(value, tuple) and all(map(is_int, value)) else str(value)


def to_json(value: Any) -> Any:
    """Convert a value for JSON; a float that is not finite, such as the number for "auto", becomes a string."""
    return format_value(value) if isinstance(value, float) and not math.isfinite(value) else value


# --- fields -----------------------------------------------------------------------------------------------------------


def _path(cfg: OnPolicyConfig, name: str) -> str:
    """Return the path of the field with this name, which may be a flag, a name in Python, or a dotted path.

    Raises:
        ConfigError: no field has this name.
    """
    if not isinstance(name, str):
        raise config_error("values", name, "must be the name of a field")
    path = name.strip().removeprefix("--").replace("-", "_")
    inner = [f"rnd.{f.name}" for f in dataclasses.fields(RNDConfig)]
    path = path.replace("_", ".", 1) if path.replace("_", ".", 1) in inner else path
    outer, _, parameter = path.partition(".")
    drawn = [f"randomize.{name}.{number}" for name, x in cfg.randomize.items() for number in x._fields]
    names = [f.name for f in dataclasses.fields(cfg) if f.name not in ("rnd", "randomize", *PARAMETERS)]
    if path in names or path in drawn or (path in inner and cfg.rnd is not None) or (outer in PARAMETERS and parameter):
        return path
    if outer in PARAMETERS:
        hint = f"must name one parameter, such as {outer}.g"
    elif outer == "randomize":
        hint = f"must name one number of a distribution in randomize, such as {', '.join(drawn) or 'randomize.g.low'}"
    elif path in inner:
        hint = "has no effect without rnd=purerl.RNDConfig(), or --rnd"
    else:
        hint = f"no such field; {rename_hint(name) or nearest(path, [*names, *inner])}"
    raise config_error(name, ..., hint)


def _place(cfg: OnPolicyConfig, path: str) -> tuple[OnPolicyConfig | RNDConfig, str]:
    """Return the config that has the field at a path, `cfg` or `cfg.rnd`, and the field's name in this config."""
    outer, _, inner = path.partition(".")
    return (cfg.rnd, inner) if outer == "rnd" and cfg.rnd is not None else (cfg, outer)


def _field(cfg: OnPolicyConfig, path: str) -> dataclasses.Field:
    part, name = _place(cfg, path)
    return next(f for f in dataclasses.fields(part) if f.name == name)


def _is_number(cfg: OnPolicyConfig, path: str) -> bool:
    field = _field(cfg, path)
    return path.partition(".")[0] in FLOATS or is_float_leaf(field) or kind_of(field) is int


def _range_hint(cfg: OnPolicyConfig, path: str, x: Range) -> str:
    """Return what is wrong with a range for a field; "" if the range is valid."""
    is_finite = all(is_number(end) and math.isfinite(end) for end in (x.low, x.high))
    if not is_finite or x.low >= x.high or (x.log and x.low <= 0):
        return "needs finite numbers low < high, and low > 0 with log"
    if not _is_number(cfg, path):
        return "a field that is not a number cannot have a range; list the values to try"
    is_whole = float(x.low).is_integer() and float(x.high).is_integer()
    return "needs whole numbers low < high" if is_int_field(cfg, path) and not is_whole else ""


def _tuple_of(values: Any) -> tuple:
    is_scalar = hasattr(values, "dtype") and np.ndim(values) == 0
    if isinstance(values, str | bytes | dict) or is_scalar or not hasattr(values, "__iter__"):
        return ()
    return tuple({format_value(x, EXACT): x for x in map(to_python, values)}.values())  # without duplicates


def _value_problems(cfg: OnPolicyConfig, path: str, values: Sequence[Any]) -> list[Problem]:
    """Return a problem for each invalid value of a field."""
    outer = path.partition(".")[0]
    if outer == "env_kwargs":
        return []
    if outer == "env_params":
        return [Problem(path, x, "must be a finite number") for x in values if not (is_number(x) and math.isfinite(x))]
    if outer == "randomize":
        hints = ((x, randomize_problem(with_values(cfg, {path: x}).randomize)) for x in values)
        return [Problem(path, x, hint) for x, hint in hints if hint]
    part, name = _place(cfg, path)
    found = [problem for x in values for problem in field_problems(part.replace(**{name: x})) if problem.field == name]
    return [Problem(path, problem.value, problem.hint) for problem in found]


def _range_of(text: str, given: str) -> Range:
    low, high, *rest = given.split(":")
    with contextlib.suppress(ValueError):
        if rest in ([], ["log"]):
            return Range(float(low), float(high), bool(rest))
    raise config_error(text, given, "is not a range of numbers; write field=value,value or field=low:high or field=low:high:log")


def _value_of(cfg: OnPolicyConfig, path: str, text: str) -> Any:
    """Parse the text of a field's value. If parsing fails, return the text, which `check` refuses."""
    field, text = _field(cfg, path), text.strip()
    if path.startswith("env_kwargs."):
        return parse_json(text)
    if _is_number(cfg, path):
        with contextlib.suppress(ValueError):
            number = float(text)
            return int(number) if kind_of(field) is int and number.is_integer() else number
    if kind_of(field) is tuple:
        widths = text.split("x")
        return tuple(map(int, widths)) if all(map(str.isdecimal, widths)) else tuple(text.split("+"))
    return {"true": True, "false": False}.get(text.lower(), text)
