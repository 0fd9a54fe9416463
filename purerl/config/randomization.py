"""Distributions from which each episode samples environment parameters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from purerl.core.errors import config_error, is_number


class Uniform(NamedTuple):
    """The uniform distribution between two bounds. The bounds are leaves, which can be swept.

    Example:
        >>> cfg = purerl.PPOConfig(env="CartPole-v1", randomize={"gravity": purerl.Uniform(8, 12)})
        >>> train = purerl.make_train(cfg)
    """

    low: Any
    high: Any

    def __str__(self) -> str:
        """Return the text of a flag, "8:12"."""
        return f"{self.low}:{self.high}"

    def draw(self, key: jax.Array) -> jax.Array:
        """Sample a float32 number, `low + (high - low) * u` with `u` uniform in `[0, 1)`."""
        low, high = jnp.float32(self.low), jnp.float32(self.high)
        return jax.random.uniform(key, (), jnp.float32, low, high)


class Normal(NamedTuple):
    """A normal distribution. Its mean and standard deviation are leaves, which can be swept.

    Example:
        >>> cfg = purerl.PPOConfig(env="Pendulum-v1", randomize={"g": purerl.Normal(9.8, 0.5)})
        >>> train = purerl.make_train(cfg)
    """

    mean: Any
    std: Any

    def __str__(self) -> str:
        """Return the text of a flag, "normal:9.8:0.5"."""
        return f"normal:{self.mean}:{self.std}"

    def draw(self, key: jax.Array) -> jax.Array:
        """Sample a float32 number, `mean + std * z` with `z` standard normal."""
        return jnp.float32(self.mean) + jnp.float32(self.std) * jax.random.normal(key, dtype=jnp.float32)


class Scale(NamedTuple):
    """A factor that multiplies a parameter: a float, or all numbers of an array.

    The factor is uniform between two bounds. The bounds are leaves, which can be swept. `info` reports the factor, and the
    `env_params` of an evaluation set the factor.

    Example:
        >>> purerl.PPOConfig(env="playground/CheetahRun", randomize={"body_mass": purerl.Scale(0.8, 1.2)}).randomize
        {'body_mass': Scale(least=0.8, most=1.2)}
    """

    least: Any
    most: Any

    def __str__(self) -> str:
        """Return the text of a flag, "scale:0.8:1.2"."""
        return f"scale:{self.least}:{self.most}"

    def draw(self, key: jax.Array) -> jax.Array:
        """Sample a float32 factor, `least + (most - least) * u` with `u` uniform in `[0, 1)`."""
        return Uniform(*self).draw(key)


Distribution = Uniform | Normal | Scale
KINDS = "purerl.Uniform(low, high), purerl.Normal(mean, std) or purerl.Scale(least, most)"


def distribution_from_json(value: Any) -> Any:
    """Return the distribution with the fields of a JSON object. Return any other value unchanged, for the check of the config."""
    kinds = [kind for kind in (Uniform, Normal, Scale) if isinstance(value, dict) and value.keys() == set(kind._fields)]
    array = lambda x: np.array(x, np.float32) if isinstance(x, list) else x
    return kinds[0](**{name: array(x) for name, x in value.items()}) if kinds else value


def distribution_of(name: str, text: str) -> Distribution:
    """Return the distribution of a flag's text: "8:12" is uniform, "normal:9.8:0.5" is normal, "scale:0.8:1.2" is a factor."""
    try:
        match text.split(":"):
            case ["normal", mean, std]:
                return Normal(float(mean), float(std))
            case ["scale", least, most]:
                return Scale(float(least), float(most))
            case [low, high]:
                return Uniform(float(low), float(high))
    except ValueError:  # not a number
        pass
    raise config_error("randomize", {name: text}, "must be low:high, normal:mean:std, or scale:least:most")


def randomize_problem(value: Any) -> str | None:
    """Return the hint of the first problem of a dict of distributions; None if the dict is valid. Traced numbers pass."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return f"must be a dict from parameter names to {KINDS}"
    hints = (f"{name}: {hint}" for name, x in value.items() if (hint := _problem(x)))
    return next(hints, None)


def _problem(x: Any) -> str | None:
    if not isinstance(x, Distribution):
        return f"must be {KINDS}"
    if any(isinstance(number, Tracer) for number in x):
        return None
    are_numbers = all(is_number(number) or isinstance(number, np.ndarray | jax.Array) for number in x)
    try:
        with np.errstate(over="ignore"):
            first, second = (np.asarray(number, np.float32) for number in x)
    except (TypeError, ValueError, OverflowError):
        return "needs finite numbers"
    if not are_numbers or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return "needs finite numbers, within the range of float32"
    if isinstance(x, Normal):
        return None if np.all(second >= 0) else "needs a std of at least 0"
    return None if np.all(first < second) else f"needs {' < '.join(x._fields)}"
