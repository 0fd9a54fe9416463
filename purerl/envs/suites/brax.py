"""The adapter for brax: `brax/ant`, `brax/inverted_pendulum`, `brax/fast`, ...

In brax, `EpisodeWrapper` sets the time limit; here, `purerl.wrap_env` does. An episode that reaches the limit is truncated,
and its return is bootstrapped from the value of its last observation. `done` of the unwrapped environment marks a terminal state.

`env_kwargs` can contain `episode_length` (by default 1000 steps of brax, as in brax's training) and `action_repeat` (by default
1; repeats stop when the episode ends). All other entries are constructor arguments; `backend` is `spring` by default, except for
swimmer. `env_params` override numbers of the environment's `System`, such as `ang_damping`. `randomize` also scales arrays, such
as `geom_friction`.
"""

import copy
import warnings
from typing import Any

from purerl.core.environment import Environment
from purerl.envs.importing import importing_mujoco
from purerl.envs.one_state import one_state
from purerl.envs.parameters import Made, construct_outside_trace

with importing_mujoco():
    from brax import envs
    from brax.io import image

OWN_BACKENDS = ("fast", "swimmer")  # the spring backend does not simulate them


def make(name: str, env_kwargs: tuple) -> Made:
    """Return the environment of this name; its parameters are the `System` that brax simulates, or None for `fast`.

    Raises:
        ConfigError: the name is unknown, or the constructor refused the arguments.
    """
    kwargs = dict(env_kwargs)
    length, repeat = kwargs.pop("episode_length", 1000), kwargs.pop("action_repeat", 1)
    if name not in OWN_BACKENDS:
        kwargs = {"backend": "spring", **kwargs}
    with construct_outside_trace(f"brax/{name}", env_kwargs, envs._envs), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Brax System, piplines and environments", UserWarning)
        env = envs.get_environment(name, **kwargs)

    def adapt(system: Any) -> Environment:
        if system is None:
            return one_state(env, length, repeat)
        changed: Any = copy.copy(env)
        changed.sys = system
        render = lambda states: image.render_array(system, [state.pipeline_state for state in states])
        return one_state(changed, length, repeat, render)

    return Made(adapt, getattr(env, "sys", None))
