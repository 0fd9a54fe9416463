"""The adapter for MuJoCo Playground: `playground/CartpoleBalance`, `playground/CheetahRun`, ...

In Playground, a training wrapper sets the time limit; here, `purerl.wrap_env` does, from the `episode_length` in the
environment's config. `done` of the unwrapped environment marks a terminal state. `env_kwargs` override entries of the config,
such as `episode_length`, `action_repeat` and `impl`. `impl` is `jax` by default. With `warp`, MuJoCo Warp simulates the robots,
and the entry `naconmax` limits the number of contacts of all environments and seeds together. Only the value network receives the
observation entry `privileged_state`. `randomize` scales arrays of the robot's model, such as `body_mass` and `geom_friction`, but
not what an environment computed from the model when it was made.

On GPUs that round the inputs of matrix products to TF32, Playground's authors recommend full float32 precision: the
config field `matmul_precision="highest"`.
"""

import contextlib
import copy
import io
from typing import Any

import jax

from purerl.core.environment import Environment
from purerl.core.errors import config_error
from purerl.envs.importing import importing_mujoco
from purerl.envs.one_state import one_state
from purerl.envs.parameters import Made, construct_outside_trace

with importing_mujoco():
    from mujoco.mjx.warp import WARP_INSTALLED
    from mujoco.mjx.warp.types import DATA_NON_VMAP
    from mujoco_playground import dm_control_suite, registry
    from mujoco_playground._src import mjx_env

PRIVILEGED = "privileged_state"  # an observation entry that a robot's sensors do not measure, for the value network alone
DOWNLOAD = "python -c 'from mujoco_playground._src.mjx_env import ensure_menagerie_exists as get; get()'"


def make(name: str, env_kwargs: tuple) -> Made:
    """Return the environment of this name; its parameters are the model that MJX simulates.

    Raises:
        ConfigError: the name is unknown, the robot's model or Warp is not installed, or an override is invalid.
    """
    warps = dict(env_kwargs).get("impl") == "warp"
    if warps and not WARP_INSTALLED:
        raise config_error("env_kwargs", {"impl": "warp"}, "needs the package warp-lang; run pip install warp-lang, or use 'jax'")
    with construct_outside_trace(f"playground/{name}", env_kwargs, registry.ALL_ENVS):
        if name not in dm_control_suite.ALL_ENVS and not mjx_env.MENAGERIE_PATH.exists():
            raise config_error("env", f"playground/{name}", f"needs the models of MuJoCo Menagerie; run {DOWNLOAD}")
        kwargs = {"impl": "jax"} if "impl" in registry.get_default_config(name) else {}
        env = registry.load(name, config_overrides=kwargs | dict(env_kwargs))
        simulation = jax.jit(env.reset)(jax.random.key(0)).data._impl if warps else None
    return Made(lambda model: adapt(env, model, simulation), env.mjx_model)


class WithoutSharedArrays:
    """A Playground environment that Warp simulates, without the arrays that all environments of a batch share.

    Warp keeps the contacts of a batch in arrays without an axis of environments, so that no single environment could be reset.
    Each step computes contacts anew, so states need not keep these arrays.

    Args:
        env: the environment.
        simulation: Warp's part of any state, from which a step takes the shared arrays.
    """

    def __init__(self, env: Any, simulation: Any):
        self.action_size, self.dt, self._env, self._simulation = env.action_size, env.dt, env, simulation

    def reset(self, key: jax.Array) -> Any:
        return self._without_shared(self._env.reset(key))

    def step(self, state: Any, action: jax.Array) -> Any:
        simulation = self._simulation.replace(**state.data._impl)
        return self._without_shared(self._env.step(state.replace(data=state.data.replace(_impl=simulation)), action))

    def _without_shared(self, state: Any) -> Any:
        names = [field.name for field in self._simulation.fields() if field.name not in DATA_NON_VMAP]
        own = {name: getattr(state.data._impl, name) for name in names}
        return state.replace(data=state.data.replace(_impl=own))


def adapt(env: Any, model: Any, simulation: Any = None) -> Environment:
    """Return a Playground environment as a `purerl.Environment`.

    Args:
        env: the environment.
        model: the model that MJX simulates.
        simulation: Warp's part of any state; None if Warp does not simulate the environment.
    """
    env, config = copy.copy(env), env._config
    env._mjx_model = model
    simulated = env if simulation is None else WithoutSharedArrays(env, simulation)
    made = one_state(simulated, config.episode_length, config.get("action_repeat", 1), lambda states: _render(env, states))
    entries = made.observation_space if isinstance(made.observation_space, dict) else {}
    return made._replace(critic_obs=PRIVILEGED if PRIVILEGED in entries else "")


def _render(env: Any, states: list) -> list:
    """Render images of states, without the progress bar."""
    with contextlib.redirect_stderr(io.StringIO()):
        return env.render(states)
