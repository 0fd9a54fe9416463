"""The adapter for MuJoCo Playground: `playground/CartpoleBalance`, `playground/CheetahRun`, ...

In Playground, a training wrapper sets the time limit; here, `purerl.wrap_env` does, from the `episode_length` in the
environment's config. `done` of the unwrapped environment marks a terminal state. `env_kwargs` override entries of the config,
such as `episode_length`, `action_repeat` and `impl`; `impl` is `jax` by default, and cannot be `warp`. Only the value network
receives the observation entry `privileged_state`. `randomize` scales arrays of the robot's model, such as `body_mass` and
`geom_friction`, but not what an environment computed from the model when it was made.

On GPUs that round the inputs of matrix products to TF32, Playground's authors recommend full float32 precision: the
config field `matmul_precision="highest"`.
"""

import contextlib
import copy
import io
from typing import Any

from purerl.core.environment import Environment
from purerl.core.errors import ConfigError, Problem
from purerl.envs.importing import importing_mujoco
from purerl.envs.one_state import one_state
from purerl.envs.parameters import Made, constructing

with importing_mujoco():
    from mujoco_playground import dm_control_suite, registry
    from mujoco_playground._src import mjx_env

PRIVILEGED = "privileged_state"  # an observation entry that a robot's sensors do not measure, for the value network alone
DOWNLOAD = "python -c 'from mujoco_playground._src.mjx_env import ensure_menagerie_exists as get; get()'"


def make(name: str, env_kwargs: tuple) -> Made:
    """Return the environment of this name; its parameters are the model that MJX simulates.

    Raises:
        ConfigError: the name is unknown, the robot's model is not installed, or an override is invalid (`impl` cannot be `warp`).
    """
    if dict(env_kwargs).get("impl") == "warp":
        hint = "keeps the contacts of all environments in shared arrays, so that single environments cannot be reset; use 'jax'"
        raise ConfigError([Problem("env_kwargs", {"impl": "warp"}, hint)])
    with constructing(f"playground/{name}", env_kwargs, registry.ALL_ENVS):
        if name not in dm_control_suite.ALL_ENVS and not mjx_env.MENAGERIE_PATH.exists():
            hint = f"needs the models of MuJoCo Menagerie; run {DOWNLOAD}"
            raise ConfigError([Problem("env", f"playground/{name}", hint)])
        kwargs = {"impl": "jax"} if "impl" in registry.get_default_config(name) else {}
        env = registry.load(name, config_overrides=kwargs | dict(env_kwargs))
    return Made(lambda model: adapted(env, model), env.mjx_model)


def adapted(env: Any, model: Any) -> Environment:
    """Return a Playground environment that simulates a model of MJX as a `purerl.Environment`."""
    env, config = copy.copy(env), env._config
    env._mjx_model = model
    made = one_state(env, config.episode_length, config.get("action_repeat", 1), lambda states: _rendered(env, states))
    entries = made.observation_space if isinstance(made.observation_space, dict) else {}
    return made._replace(critic_obs=PRIVILEGED if PRIVILEGED in entries else "")


def _rendered(env: Any, states: list) -> list:
    """Render images of states, without the progress bar."""
    with contextlib.redirect_stderr(io.StringIO()):
        return env.render(states)
