"""Environments whose parameters are sampled from distributions, at each reset or once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from purerl.config.randomization import Distribution, Scale
from purerl.core.auto_reset import AutoReset, restart
from purerl.core.environment import Environment
from purerl.core.errors import Problem, config_error, is_number, raise_if_any, warn
from purerl.core.keys import fold_in_name
from purerl.core.types import PyTree
from purerl.envs.parameters import not_floats


class Randomized(NamedTuple):
    """The state of an environment with randomized parameters.

    Attributes:
        env_state: the state of the environment itself.
        params: the values of the episode's parameters; for a `Scale`, the factor.
    """

    env_state: PyTree
    params: dict[str, jax.Array]


def with_randomized(
    adapt: Callable[[dict[str, Any]], Environment],
    params: Any,
    overrides: dict[str, Any],
    randomize: dict[str, Distribution],
    once: bool = False,
) -> Environment:
    """Return environments that sample parameters from distributions at each reset, and add the parameters to `info`.

    Args:
        adapt: maps a dict of parameter values, numbers or tracers, to the environment.
        params: the environment's parameter object.
        overrides: fixed values of parameters, which replace sampled values; of a parameter with a `Scale`, the factor.
        randomize: the distribution of each randomized parameter.
        once: sample only in the first reset of an environment; its later episodes have the same parameters.

    Raises:
        ConfigError: a name is not a float parameter of the environment, or the environment resets itself.
    """
    scaled = {name for name, x in randomize.items() if isinstance(x, Scale)}
    raise_if_any([Problem("randomize", {name: randomize[name]}, hint) for name, hint in not_floats(params, randomize).items()])
    wrong = {name: x for name, x in overrides.items() if name in scaled and not _is_factor(x)}
    hint = "must be one finite number: randomize scales this parameter, so give the factor"
    raise_if_any([Problem("env_params", {name: x}, hint) for name, x in wrong.items()])
    value = lambda name, x: getattr(params, name) * x if name in scaled else x
    make = lambda values: adapt({name: value(name, x) for name, x in values.items()})
    base = make(overrides)
    if not isinstance(base.step, AutoReset):
        hint = "needs an environment that purerl resets, but this environment resets itself; sample the parameters in its reset"
        raise config_error("randomize", sorted(randomize), hint)
    if taken := sorted({*base.info} & {*randomize}):
        hint = "the environment's info has an entry of this name, which shows the sampled parameter now"
        warn("\n".join(str(Problem("randomize", name, hint)) for name in taken))
    spaces = []
    some = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in randomize.keys() - overrides.keys()}
    jax.eval_shape(lambda drawn: spaces.append(make(overrides | drawn).action_space), some)
    if any(isinstance(bound, Tracer) for bound in jax.tree.leaves(spaces)):
        raise config_error("randomize", sorted(some), "sets the bounds of actions, which all episodes share; use env_params")
    batch_of_one = lambda tree: jax.tree.map(lambda x: x[None], tree)
    only = lambda tree: jax.tree.map(lambda x: x[0], tree)

    def reset(key):
        drawn = {name: x.draw(fold_in_name(key, f"randomize {name}")) for name, x in randomize.items()}
        drawn |= {name: jnp.float32(x) for name, x in overrides.items() if name in drawn}
        return reset_with(key, drawn)

    def reset_with(key, drawn):
        env_state, obs = only(make(overrides | drawn).reset(batch_of_one(key)))
        return Randomized(env_state, drawn), obs

    def step(key, state, action):
        advance = make(overrides | state.params).step.advance
        after = only(advance(*batch_of_one((key, state.env_state, action))))
        return after.replace(env_state=state._replace(env_state=after.env_state), info=after.info | state.params)

    def step_and_keep(keys, state, action):
        after, slow = jax.vmap(step)(keys[0], state, action), base.step.slow_reset
        again, given = lambda given: jax.vmap(reset_with)(*given), (keys[1], state.params)
        ended, running = after.terminated | after.truncated, (after.env_state, after.obs)
        env_state, obs = restart(again, given, ended, running, slow)
        return after.replace(env_state=env_state, obs=obs)

    return base._replace(
        reset=jax.vmap(reset),
        step=step_and_keep if once else AutoReset(jax.vmap(step), jax.vmap(reset), base.step.slow_reset),
        info=(*base.info, *randomize),
        draw=base.draw and _draw_inner(base.draw),
    )


def _is_factor(x: Any) -> bool:
    """Return True for one finite number, or a traced one."""
    if isinstance(x, Tracer):
        return x.ndim == 0
    return (is_number(x) or isinstance(x, np.ndarray | jax.Array)) and np.ndim(x) == 0 and bool(np.isfinite(x))


def _draw_inner(draw: Callable) -> Callable:
    return lambda states, returns, path: draw([state.env_state for state in states], returns, path)
