"""The user's loss term and measurement, as an update calls them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.arguments import accepted
from purerl.core.errors import ConfigError, Problem, guarded, raise_if_any
from purerl.core.metrics import Mean, mean_of, values


def extra_term(function: Callable) -> Callable:
    """A user's `extra_loss` as a term of the policy's loss, its metrics named `extra_loss/name`."""
    call = guarded("extra_loss", function)

    def term(params: Any, outputs: Any, batch: Any, cfg: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        found = call(params, outputs, batch, cfg)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
            hint = "must return two things: a scalar, and a dict from a name to a scalar"
            raise ConfigError([Problem("extra_loss", type(found).__name__, hint)])
        loss, metrics = found
        raise_if_any(_no_scalars("extra_loss", {"the loss": loss, **metrics}))
        return loss, {"extra_loss": loss, **{f"extra_loss/{name}": x for name, x in metrics.items()}}

    return term


def measurement(function: Callable) -> Callable[[Any, Any, dict[str, Any]], dict[str, Mean]]:
    """A user's `measure` as `Components.measure`."""
    call = guarded("measure", function)

    def measure(state: Any, batch: Any, metrics: dict[str, Any]) -> dict[str, Mean]:
        found = call(state, **accepted(function, batch=batch, metrics=values(metrics)))
        if not isinstance(found, dict):
            raise ConfigError([Problem("measure", found, "must return a dict from a name to a scalar")])
        hint = "is a metric of the algorithm; choose another name"
        taken = [Problem("measure", name, hint) for name in found if name in metrics]
        raise_if_any(taken + _no_scalars("measure", found))
        return {name: mean_of(jnp.asarray(value, jnp.float32)) for name, value in found.items()}

    return measure


def _no_scalars(field: str, found: dict[str, Any]) -> list[Problem]:
    return [Problem(field, {name: x}, "must be a scalar") for name, x in found.items() if np.shape(x)]
