"""Environments of all suites under one protocol. A suite's adapter is imported when one of its environments is made."""

from collections.abc import Callable
from typing import Any

from purerl.config.randomization import Distribution
from purerl.core.environment import Environment
from purerl.core.errors import Problem, config_error, raise_if_any
from purerl.core.masks import LIKELY, choices_of, with_named_mask
from purerl.envs.custom_env import check_custom, with_info
from purerl.envs.finite_resets import with_finite
from purerl.envs.functions import check_object
from purerl.envs.parameters import Made, override, warn_of_parameters
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
    randomize: dict[str, Distribution] | None = None,
    randomize_once: bool = False,
) -> Environment:
    """Return the environment of an id, or a given environment object, as a `purerl.Environment`.

    Args:
        env_id: id of a registered gymnax environment, or of an environment of another suite, such as `brax/ant`. If `env`
          is given, `env_id` is used only to check `env_kwargs`.
        env_kwargs: constructor arguments, as pairs of name and value. If `env` is given, there must be none, unless `env_id` is
          the import path from which the command line made `env`.
        env_params: a dict from the name of a parameter to its new value, which may be a tracer.
        env: an `Environment`, such as the result of `purerl.wrap_env`; an object with gymnax 1.0's methods; or None.
        params: the object with all parameters of the environment; None for the default parameters.
        info: names of the `info` entries to pass on.
        num_envs: number of environments with which a custom `Environment` is traced.
        finite: reset environments whose observation or reward is not finite.
        randomize: a dict from the name of a parameter to the distribution from which each reset samples it.
        randomize_once: sample these parameters only in the first reset of each environment.

    Raises:
        ConfigError: the environment does not exist, or violates the protocol.
    """
    if env is not None and env_kwargs and ":" not in env_id:
        hint = "apply only to an environment id; pass arguments to the constructor of an env= object"
        raise config_error("env_kwargs", env_kwargs, hint)
    if isinstance(env, Environment):
        given = {"env_params": env_params or params, "randomize": randomize}
        hint = "a purerl.Environment has no parameters to set; draw them in its reset, and keep them in its state"
        raise_if_any([Problem(name, x, hint) for name, x in given.items() if x])
        bare = env if env.host else check_custom(env, num_envs)
    else:
        made = _make(env_id, env_kwargs, env, params)
        if params is not None and (made.params is None or not isinstance(params, type(made.params))):
            kind = "None" if made.params is None else f"of type {type(made.params).__name__}"
            hint = f"must be {kind} for {env_id}; set single values with PPOConfig(env_params=...)"
            raise config_error("env_params", params, hint)
        params = made.params if params is None else params
        if finite and randomize_once:
            hint = "needs nonfinite='ignore' or 'freeze', since a reset by nonfinite='reset' would sample the parameters again"
            raise config_error("randomize_each", "environment", hint)
        adapt = lambda overrides: made.adapt(override(params, overrides))
        bare = with_randomized(adapt, params, env_params, randomize, randomize_once) if randomize else adapt(env_params)
        if env_params or randomize:
            key = f"{env_id} {env_kwargs}" if env is None else ""
            warn_of_parameters(adapt, params, env_params, randomize or {}, key)
        bare = bare._replace(name=env_id) if env is None and "/" in env_id else bare
    if not bare.host and choices_of(bare.action_space):
        hint = "info[{!r}] is not read; return the mask as the entry 'action_mask' of a dict observation, or set action_mask=''"
        named = [name for name in bare.info if LIKELY.match(name)]
        shapes = bare.step_shapes(num_envs).info if named else {}
        named = [name for name in named if shapes[name].shape[1:] == (sum(choices_of(bare.action_space)),)]
        bare = bare._replace(masks=tuple(map(hint.format, named)))
    if bare.host:  # a copy that shares no external environments
        if any(getattr(function, "__self__", None) is not bare.host for function in (bare.reset, bare.step)):
            raise config_error("env", bare.name, "has another reset or step; wrap the environment that `make` returns")
        fields = ("name", "max_steps", "truncates_after", "action_mask", "critic_obs")
        same = {name: getattr(bare, name) for name in fields}
        return with_named_mask(bare.host.environment(info, finite)._replace(**same))
    return with_named_mask(with_info(with_finite(bare, num_envs) if finite else bare, info))


def _make(env_id: str, env_kwargs: tuple, env: Any, params: Any) -> Made:
    """Return the environment of an id, or an object with gymnax's methods, before its parameters are set."""
    suite, name = adapter(env_id if env is None else "")
    if env is None:
        return suite.make(name, env_kwargs)
    if isinstance(env, str):
        raise config_error("env", env, f"must be an object; pass an environment id as PPOConfig(env={env!r})")
    if isinstance(env, tuple):
        raise config_error("env", tuple, "pass environment and parameters separately: env=env, env_params=params")
    check_object(env, ("reset", "step", "action_space"), "use a gymnax 1.0 environment, or purerl.wrap_env(env)")
    return suite.make_from_object(env, params)


def lives_on_host(env_id: str, env: Any = None) -> bool:
    """Return True if `env`, or the environment `env_id` if `env` is None, is external (Python). Nothing is constructed."""
    return env.host is not None if isinstance(env, Environment) else env is None and env_id.startswith("gymnasium/")


def swept_problems(
    env_id: str, env_kwargs: tuple, env_params: dict[str, Any], env: Any = None, params: Any = None
) -> list[Problem]:
    """Report invalid environment parameters in a batch of configs. The values in `env_params` may be arrays `[configs]`."""
    if isinstance(env, Environment):
        return []
    defaults = _make(env_id, env_kwargs, env, params).params if params is None else params
    return problems_of(defaults, env_params)


def from_gymnasium(make: Callable[..., Any], vectorization: str = "sync") -> Environment:
    """Return gymnasium environments as a `purerl.Environment`, to be passed as `env=`.

    The environments are external (Python): the compiled program calls back to Python in each step, which takes longer than a step
    in JAX. Seeds and configs are trained one after the other, on one device, without `jax.vmap`. Compiled programs with callbacks
    are not cached. The environments' state is not part of the training state, so `update` accepts only the latest training state.
    Evaluations use separate environments. `purerl.export` exports the policy as usual, without the environment.

    If all attributes of the environments and their wrappers that can change are numbers, arrays, random generators or MuJoCo's
    simulation, checkpoints hold them, and a run resumes bit for bit. Otherwise, the environments restart, and a warning says why.
    State in closures, class attributes or `__slots__` is not detected. If an environment raises an error or its process dies,
    `fit` saves the run if it has a directory, and raises `purerl.EnvironmentFailed`.

    Wrappers that normalise by running statistics are refused, since evaluations would not share the statistics. Use the config's
    `normalize_obs` and `normalize_reward` instead. Wrappers that change rewards cause a warning. An action mask is read if it is
    the entry `action_mask` of a dict observation. A mask in `info`, or a method that returns a mask, causes a warning. gymnasium
    sorts the parts of a `Dict` action space by name: the flags of a mask have this order.

    Args:
        make: `() -> gymnasium.Env`; or with `vectorization="vector"`, `(num_envs) -> gymnasium.vector.VectorEnv`, whose `reset`
          takes one seed for all of its environments.
        vectorization: `sync`, one environment after the other in this process; `async`, one process per environment, which pays
          off if a step takes a millisecond or more; `vector`, the vector environment that `make` returns. With `async`, a script
          needs `if __name__ == "__main__":` around the code that trains.

    Raises:
        ConfigError: `make` does not return such an environment, or a space is not supported.

    Example:
        >>> import gymnasium
        >>> env = purerl.from_gymnasium(lambda: gymnasium.make("CartPole-v1"))
        >>> env.max_steps
        500
        >>> train = purerl.make_train(purerl.PPOConfig(), env=env)
    """
    from purerl.envs.external.gymnasium import environment

    return environment(make, vectorization)
