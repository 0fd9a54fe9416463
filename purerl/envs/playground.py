"""The adapter for MuJoCo Playground: `playground/CartpoleBalance`, `playground/CheetahRun`, ...

In Playground, a training wrapper sets the time limit; here, `purerl.wrap_env` does, from the `episode_length` in the
environment's config. `done` of the unwrapped environment marks a terminal state. `env_kwargs` override entries of the config,
such as `episode_length`, `action_repeat` and `impl`; `impl` is `jax` by default. Only the value network sees the observation
entry `privileged_state`.

On GPUs that round the inputs of matrix products to TF32, Playground's authors recommend a higher precision:
`matmul_precision="highest"`.
"""

import contextlib
import io
from typing import Any

from purerl.core.environment import Environment
from purerl.core.errors import ConfigError, Problem, is_count, nearest, raise_if_any
from purerl.envs.functions import wrap_env
from purerl.envs.importing import importing_mujoco
from purerl.envs.one_state import OneState, drawn
from purerl.envs.parameters import constructing

with importing_mujoco():
    from mujoco_playground import dm_control_suite, registry
    from mujoco_playground._src import mjx_env

PRIVILEGED = "privileged_state"  # an observation entry that a robot's sensors do not measure, for the value network alone
DOWNLOAD = "python -c 'from mujoco_playground._src.mjx_env import ensure_menagerie_exists as get; get()'"


def make(name: str, env_kwargs: tuple) -> Any:
    """Return the environment of this name.

    Raises:
        ConfigError: the name is unknown, the robot's model is not installed, or Playground refused the overrides.
    """
    if name not in registry.ALL_ENVS:
        raise ConfigError([Problem("env", f"playground/{name}", f"no such environment; {nearest(name, registry.ALL_ENVS)}")])
    if name not in dm_control_suite.ALL_ENVS and not mjx_env.MENAGERIE_PATH.exists():
        hint = f"needs the models of MuJoCo Menagerie; run {DOWNLOAD}"
        raise ConfigError([Problem("env", f"playground/{name}", hint)])
    kwargs = dict(env_kwargs)
    if "impl" in registry.get_default_config(name):
        kwargs = {"impl": "jax", **kwargs}
    with constructing(f"playground/{name}", env_kwargs):
        return registry.load(name, config_overrides=kwargs)


def default_params(env: Any) -> None:
    """Return None: this suite's config is set through `env_kwargs`."""


def adapt(env: Any, params: None) -> Environment:
    """Return the environment as a `purerl.Environment`."""
    config = env._config
    repeat = config.get("action_repeat", 1)
    counts = {"action_repeat": repeat, "episode_length": config.episode_length}
    wrong = {name: x for name, x in counts.items() if not is_count(x)}
    raise_if_any([Problem("env_kwargs", {name: x}, "must be an int of at least 1") for name, x in wrong.items()])
    wrapped = wrap_env(OneState(env, repeat), max_steps=-(-config.episode_length // repeat), slow_reset=True)
    entries = wrapped.observation_space if isinstance(wrapped.observation_space, dict) else {}
    wrapped = wrapped._replace(critic_obs=PRIVILEGED if PRIVILEGED in entries else "")
    return wrapped._replace(draw=drawn(lambda states: _rendered(env, states), seconds=float(env.dt) * repeat))


def _rendered(env: Any, states: list) -> list:
    """Render images of states, without the progress bar."""
    with contextlib.redirect_stderr(io.StringIO()):
        return env.render(states)
