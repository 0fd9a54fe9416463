"""Environments with one protocol and one adapter per suite. An adapter is imported when one of its environments is made."""

from collections.abc import Callable
from typing import Any

from purerl.config.randomization import Normal, Uniform
from purerl.core.environment import Environment
from purerl.core.errors import ConfigError, Problem, raise_if_any
from purerl.core.masks import with_named_mask
from purerl.envs.finite_resets import with_finite
from purerl.envs.functions import check_not_gymnasium
from purerl.envs.own import checked, with_info
from purerl.envs.parameters import overridden
from purerl.envs.parameters import swept_problems as problems_of
from purerl.envs.randomized import with_randomized
from purerl.envs.suites import adapter


def make_env(
    env_id: str,
    env_kwargs: tuple,
    env_params: dict[str, Any],
    env: Any = None,
    params: Any = None,
    info: tuple[str, ...] = (),
    num_envs: int = 2,
    finite: bool = False,
    randomize: dict[str, Uniform | Normal] | None = None,
) -> Environment:
    """Return the environment of an id, or a given environment object, as a `purerl.Environment`.

    Args:
        env_id: id of a registered gymnax environment, or of an environment of another suite, such as `brax/ant`; ignored if `env`
          is given.
        env_kwargs: constructor arguments, as pairs of name and value. If `env` is given, there must be none, unless `env_id` is
          the import path from which the command line made `env`.
        env_params: values, numbers or tracers, that override single parameters.
        env: an `Environment`, such as the result of `purerl.wrap_env`; an object with gymnax 1.0's methods; or None.
        params: the object of parameters of a gymnax environment or of the suite's environment; None for the default parameters.
        info: names of the `info` entries to pass on.
        num_envs: number of environments with which a custom `Environment` is traced.
        finite: reset environments whose observation or reward is not finite.
        randomize: the distribution of each parameter that is drawn at each reset.

    Raises:
        ConfigError: the environment does not exist, or violates the protocol.
    """
    if env is not None and env_kwargs and ":" not in env_id:
        hint = "apply only to an environment id; pass arguments to the constructor of an env= object"
        raise ConfigError([Problem("env_kwargs", env_kwargs, hint)])
    if isinstance(env, Environment):
        return _own(env, env_params, params, info, num_envs, finite, randomize)
    if env is None and "/" in env_id:
        suite, name = adapter(env_id)
        env = suite.make(name, env_kwargs)
        defaults = suite.default_params(env)
        if params is not None and (defaults is None or not isinstance(params, type(defaults))):
            kind = "has no parameters object" if defaults is None else f"needs an object of type {type(defaults).__name__}"
            raise ConfigError([Problem("env_params", params, f"{env_id} {kind}")])
        params = defaults if params is None else params
        adapt = lambda overrides: suite.adapt(env, overridden(params, overrides))
        made = with_randomized(adapt, params, env_params, randomize) if randomize else adapt(env_params)
        return _informed(made, info, finite)._replace(name=env_id)
    gymnax, _ = adapter("")
    if env is None:
        env = gymnax.make(env_id, env_kwargs)
        if params is not None and not isinstance(params, type(defaults := gymnax.default_params(env))):
            hint = f"must be of type {type(defaults).__name__}; set single values with PPOConfig(env_params=...)"
            raise ConfigError([Problem("env_params", params, hint)])
    if isinstance(env, type):
        raise ConfigError([Problem("env", env.__name__, "must be an object, not a class; write env=" + env.__name__ + "()")])
    if isinstance(env, str):
        raise ConfigError([Problem("env", env, f"must be an object; pass an environment id as PPOConfig(env={env!r})")])
    if isinstance(env, tuple):
        raise ConfigError([Problem("env", "a tuple", "pass environment and parameters separately: env=env, env_params=params")])
    check_not_gymnasium(env)
    missing = [name for name in ("reset", "step", "action_space") if not callable(getattr(env, name, None))]
    if missing:
        hint = f"has no method {' or '.join(missing)}; use a gymnax 1.0 environment, or purerl.wrap_env(env)"
        raise ConfigError([Problem("env", env, hint)])
    own = tuple(name for name in info if name not in (randomize or {}))
    adapt = lambda overrides: with_named_mask(gymnax.adapt(env, overrides, params, own))
    if randomize:
        params = gymnax.default_params(env) if params is None else params
        return _informed(with_randomized(adapt, params, env_params, randomize), info, finite)
    made = adapt(env_params)
    return with_finite(made) if finite else made


def _own(
    env: Environment,
    env_params: dict[str, Any],
    params: Any,
    info: tuple[str, ...],
    num_envs: int,
    finite: bool,
    randomize: dict[str, Uniform | Normal] | None,
) -> Environment:
    """Check a custom `Environment`; return it with only these `info` entries."""
    given = {"env_params": env_params or params, "randomize": randomize}
    hint = "a purerl.Environment has no parameters to set; draw them in its reset, and keep them in its state"
    raise_if_any([Problem(name, x, hint) for name, x in given.items() if x])
    return with_named_mask(_informed(env if env.host else checked(env, num_envs), info, finite, num_envs))


def lives_on_host(env_id: str, env: Any = None) -> bool:
    """Return True if `env`, or the config's environment if `env` is None, is external to JAX. Nothing is constructed."""
    return env.host is not None if isinstance(env, Environment) else env is None and env_id.startswith("gymnasium/")


def _informed(env: Environment, info: tuple[str, ...], finite: bool, num_envs: int = 2) -> Environment:
    """Return an environment with only these `info` entries. An external environment is returned as an unshared copy."""
    if env.host:
        return env.host.environment(info, finite)
    return with_info(with_finite(env, num_envs) if finite else env, info)


def swept_problems(
    env_id: str, env_kwargs: tuple, env_params: dict[str, Any], env: Any = None, params: Any = None
) -> list[Problem]:
    """Report invalid environment parameters in a batch of configs. Arguments are as in `make_env`; overrides are `[configs]`."""
    if isinstance(env, Environment):
        return []
    suite, name = adapter(env_id if env is None else "")
    env = suite.make(name, env_kwargs) if env is None else env
    return problems_of(suite.default_params(env) if params is None else params, env_params)


def from_gymnasium(make: Callable[..., Any], vectorization: str = "sync") -> Environment:
    """Return gymnasium environments as a `purerl.Environment`, to be passed as `env=`.

    The environments are external: the compiled program calls back to Python in each step, which takes longer than a step in JAX.
    Seeds and configs are trained one after the other, on one device, without `jax.vmap`. Programs with callbacks are not cached.
    The environments' state is not part of the training state: `update` continues from the latest state only, and evaluations use
    separate environments. `purerl.export` exports the policy as usual, without the environment.

    Checkpoints hold the attributes of the environments and their wrappers, if these are numbers, arrays, random generators or
    MuJoCo's simulation. Such a run resumes bit for bit. Otherwise the environments restart, and a warning says why. State in
    closures, class attributes or `__slots__` is not detected. If an environment raises an error or its process dies, the run is
    saved and ends with `purerl.EnvironmentFailed`.

    Wrappers that normalise by running statistics are refused, since evaluations would not share the statistics. Use the config's
    `normalize_obs` and `normalize_reward` instead. Wrappers that change rewards cause a warning. An action mask is read if it is
    the entry `action_mask` of a dict of observations. A mask in info, or one that a method returns, causes a warning.

    Args:
        make: `() -> gymnasium.Env`; or with `vectorization="vector"`, `(num_envs) -> gymnasium.vector.VectorEnv`, whose `reset`
          takes one seed for all of its environments.
        vectorization: `sync`, one environment after the other in this process; `async`, one process per environment, which pays
          off if a step takes a millisecond or more; `vector`, the vector environment that `make` returns. With `async`, a script
          needs `if __name__ == "__main__":` around the code that runs.

    Raises:
        ConfigError: `make` does not return such an environment, or a space is not supported.

    Example:
        >>> import gymnasium
        >>> env = purerl.from_gymnasium(lambda: gymnasium.make("CartPole-v1"))
        >>> env.max_steps
        500
        >>> train = purerl.make_train(purerl.PPOConfig(), env=env)
    """
    from purerl.envs.gymnasium import environment

    return environment(make, vectorization)
