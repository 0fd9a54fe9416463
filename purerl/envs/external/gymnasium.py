"""The adapter for gymnasium, whose environments are external (Python): `gymnasium/HalfCheetah-v5`, `gymnasium/ALE/Pong-v5`, ...

`env_kwargs` can contain `vectorization`: `sync`, one environment after the other in this process, or `async`, one process per
environment. All other entries are constructor arguments.
"""

import contextlib
import functools
import importlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from purerl.core.environment import Environment
from purerl.core.errors import ConfigError, Problem, config_error, convert_errors, raise_if_any
from purerl.core.masks import LIKELY, choices_of
from purerl.core.spaces import entries_of
from purerl.core.types import PyTree
from purerl.envs.external.gymnasium_spaces import action_space, convert_observations, observation_space
from purerl.envs.external.gymnasium_vector import ASYNC, SYNC, VECTOR, VectorEnvironments
from purerl.envs.external.host import Host
from purerl.envs.external.snapshots import spaces_in
from purerl.envs.importing import import_quietly, importing_mujoco
from purerl.envs.parameters import Made, construct_outside_trace

IMAGES = "rgb_array"
PROBED = 1000  # maximum number of steps of the random episode in which entries of info are looked for
REWARDS = ("reward", "rewards")  # methods by which a wrapper changes rewards


def make(name: str, env_kwargs: tuple) -> Made:
    """Return the environment of this id. For an id `module:id`, the module that registers the id must already be imported.

    Raises:
        ConfigError: the id is unknown, the module is not imported, or the constructor refused the arguments.
    """
    module, _, registered = name.rpartition(":")
    if module and module not in sys.modules:
        raise config_error("env", f"gymnasium/{name}", f"the module {module} is not imported; write `import {module}` first")
    kwargs = dict(env_kwargs)
    vectorization = kwargs.pop("vectorization", SYNC)
    make_one = functools.partial(_make_one, name, disable_env_checker=True)
    try:
        with construct_outside_trace(f"gymnasium/{name}", env_kwargs):
            make_one(**kwargs).close()
    except ConfigError as error:
        cause, errors = error.__cause__, gymnasium.error
        if not isinstance(cause, ImportError | errors.DependencyNotInstalled | errors.UnregisteredEnv):
            raise
        of_mujoco = "mujoco" in str(getattr(gymnasium.registry.get(registered), "entry_point", ""))
        package = "'.[gymnasium]'" if of_mujoco else "ale-py" if getattr(cause, "name", "") == "ale_py" else ""
        hint = f"{cause}; run pip install {package}" if package else str(cause)
        raise config_error("env", f"gymnasium/{name}", hint) from error
    drawn = functools.partial(make_one, **kwargs | {"render_mode": IMAGES})
    return Made(lambda params: environment(functools.partial(make_one, **kwargs), vectorization, drawn))


def _make_one(name: str, **kwargs: Any) -> gymnasium.Env:
    registered = name.rpartition(":")[2]
    if registered.startswith("ALE/") and registered not in gymnasium.registry:
        with import_quietly():
            importlib.import_module("ale_py")  # each process must import ale_py, which registers these ids
    with importing_mujoco():  # the first MuJoCo environment in a process imports MuJoCo
        return gymnasium.make(name, **kwargs)


def environment(make: Callable[..., Any], vectorization: str, drawn: Callable | None = None) -> Environment:
    """Return gymnasium environments as a `purerl.Environment`. For an id, `drawn` makes an environment that renders images."""
    if vectorization not in (choices := (SYNC, ASYNC) if drawn else (SYNC, ASYNC, VECTOR)):
        raise config_error("vectorization", vectorization, f"must be one of {', '.join(choices)}")
    if not callable(make):
        raise config_error("make", make, "must be a function that returns a new environment in each call")
    own = vectorization == VECTOR
    tried = functools.partial(VectorEnvironments, make, VECTOR if own else SYNC)
    not_used = lambda *args: None
    with convert_errors("make", "make()"), contextlib.closing(tried(1 if own else 2, {})) as environments:
        env, layers = environments.envs, _layers(environments.envs)
        _check_statistics(layers)
        if not own and len({*map(id, env.get_attr("unwrapped"))}) == 1:
            raise config_error("make", make, "must return a new environment in each call, not the same one again")
        spec = next((spec for x in reversed(layers) if (spec := getattr(x, "spec", None))), None)
        limits = [x._max_episode_steps for x in layers if isinstance(x, gymnasium.wrappers.TimeLimit)]
        made = Environment(
            reset=not_used,
            step=not_used,
            observation_space=observation_space(env.single_observation_space),
            action_space=action_space(env.single_action_space),
            max_steps=min(limits, default=getattr(spec, "max_episode_steps", None)),
            name=f"gymnasium/{spec.id}" if spec else getattr(make, "__qualname__", type(make).__name__),
        )
        if isinstance(env, SyncVectorEnv):  # check first: gymnasium's error about shapes does not say what is wrong
            obs, _ = env.envs[0].reset(seed=0)
            _check_shapes(convert_observations(env.single_observation_space, made.observation_space, obs), made)
        names = set()
        for obs in environments.explore(PROBED if environments.same_step else 1):
            _check_shapes(jax.tree.map(lambda x: x[0], obs), made)
            names |= {name for name, x in environments.told.items() if np.ndim(x) > 1 or np.asarray(x).dtype == object}
    if drawn is None or IMAGES not in env.metadata.get("render_modes", ()):
        drawn = make if env.render_mode == IMAGES and not own else None
    host = Host(
        make=functools.partial(VectorEnvironments, make, vectorization),
        env=made._replace(masks=_unread_masks(layers, names) if choices_of(made.action_space) else ()),
        info_shapes=functools.cache(lambda: _info_shapes(tried(1, {}))),
        drawn=drawn and functools.partial(VectorEnvironments, drawn, SYNC),
        frame_seconds=1 / (env.metadata.get("render_fps") or 30),
        arguments={name: x for name, x in getattr(spec, "kwargs", {}).items() if name != "render_mode"},
        warnings=(*_wrapper_warnings(layers, env.single_action_space), *_start_warnings(env)),
    )
    return host.environment()


def _check_shapes(obs: PyTree, env: Environment) -> None:
    """Check that an observation has the shapes of its space.

    Raises:
        ConfigError: the shapes differ.
    """
    shapes, wanted = [x.shape for x in jax.tree.leaves(obs)], [tuple(x.shape) for x in entries_of(env.observation_space).values()]
    if shapes != wanted:
        raise config_error("make", shapes, f"observations have these shapes, but the space declares {wanted}")


def _info_shapes(environments: VectorEnvironments) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the `info` entries that are numbers or vectors in a random episode."""
    found = {}
    with contextlib.closing(environments):
        for _ in itertools.islice(environments.explore(PROBED), 1, None):  # a rollout has the info of steps, not of resets
            told = environments.told
            rows = told | told.get("final_info", {})  # `final_info` is the last info of an episode if resets are same-step
            first = {name: x[0] for name, x in rows.items() if name[0] != "_" and isinstance(x, np.ndarray)}
            found |= {name: np.shape(x) for name, x in first.items() if np.ndim(x) <= 1 and np.asarray(x).dtype.kind in "biuf"}
    return found


# --- wrappers ---------------------------------------------------------------------------------------------------------


def _layers(env: Any) -> list[Any]:
    """List an environment and its inner layers, outermost first. A vector environment is followed by its first environment."""
    layers = []
    while env is not None and not any(env is layer for layer in layers):
        layers.append(env)
        if isinstance(env, AsyncVectorEnv):  # its environments are in other processes, so make one here
            env = env.env_fns[0]()
            env.close()
        elif isinstance(env, SyncVectorEnv):
            env = env.envs[0]
        else:
            env = getattr(env, "env", None)
    return layers


def _check_statistics(layers: list[Any]) -> None:
    """Refuse layers that normalise by running statistics.

    Raises:
        ConfigError: a layer normalises by running statistics.
    """
    hint = "has running statistics that evaluations do not share; remove the wrapper and set {}=True in the config"
    found = {}
    for layer in layers:
        names = [name for name, x in getattr(layer, "__dict__", {}).items() if _is_statistics(x)]
        fields = {"normalize_obs" if "obs" in name or "state" in name else "normalize_reward" for name in names}
        if fields:
            found[type(layer).__name__] = hint.format("=True and ".join(sorted(fields)))
    raise_if_any([Problem("make", name, text) for name, text in found.items()])


def _is_statistics(x: Any) -> bool:
    """Return True for an object with a method `update` and with `mean`, `var` and `count` that are not methods."""
    moments = [getattr(x, name, None) for name in ("mean", "var", "count")]
    return callable(getattr(x, "update", None)) and not any(moment is None or callable(moment) for moment in moments)


def _wrapper_warnings(layers: list[Any], space: gymnasium.Space) -> tuple[Problem, ...]:
    """Report the wrappers that change rewards or hide the bounds of actions."""
    hint = "changes rewards, also in reported returns; to change only the rewards for learning, use reward_shaper="
    changes = lambda layer: any(callable(getattr(type(layer), name, None)) for name in REWARDS)
    hides = (
        "hides the bounds of actions, which set the scale of the policy; remove the wrapper: actions are clipped to the bounds"
    )
    clipping = (gymnasium.wrappers.ClipAction, gymnasium.wrappers.vector.ClipAction)
    found = [Problem("make", type(x), hint) for x in layers[:-1] if changes(x)]
    hiding = layers[:-1] if np.isinf(getattr(space, "high", 0)).any() else ()
    return (*found, *(Problem("make", type(x), hides) for x in hiding if isinstance(x, clipping)))


def _start_warnings(env: Any) -> tuple[Problem, ...]:
    """Report discrete spaces that begin at another number than 0, which a policy counts from 0."""
    spaces = {"actions": env.single_action_space, "observations": env.single_observation_space}
    hint = "begin at another number than 0, but a policy that is called outside of training counts from 0"
    shifted = [name for name, space in spaces.items() if any(np.any(getattr(x, "start", 0)) for x in spaces_in(space))]
    return tuple(Problem("make", str(spaces[name]), f"{name} {hint}") for name in shifted)


def _unread_masks(layers: list[Any], info: set[str]) -> tuple[str, ...]:
    """Return a message about action masks that an environment offers outside of its observations, if any."""
    methods = [f"{type(x).__name__}.{name}" for x in layers for name in dir(type(x)) if LIKELY.match(name)]
    found = methods[-1:] + [f"info[{name!r}]" for name in sorted(info) if LIKELY.match(name)]
    hint = "is not read; use a wrapper that adds the mask to a dict observation as 'action_mask' (see from_gymnasium)"
    return (f"{' or '.join(found)} {hint}, or action_mask='' for none",) if found else ()
