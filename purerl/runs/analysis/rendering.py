"""Rendering of an episode as an animation."""

import os
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import Environment
from purerl.core.errors import config_error, is_count, raise_if_any
from purerl.core.keys import fold_in_name, split_keys
from purerl.core.types import TrainState
from purerl.envs.animation import ffmpeg
from purerl.envs.external.host import host_errors
from purerl.pure import Train
from purerl.runs.options import SEED, wrong_values
from purerl.runs.storage.files import write_errors


def render(
    train: Train,
    state: TrainState,
    path: str | os.PathLike,
    *,
    seed: int = 0,
    max_steps: int | None = None,
    deterministic: bool = False,
) -> float:
    """Render one episode to a `.gif` or `.mp4` file with the suite's own renderer, and return the episode's return.

    Args:
        train: the `Train` of the state's run.
        state: state of one run.
        path: path of the file.
        seed: seed of the episode.
        max_steps: maximum number of steps; the environment's time limit if None.
        deterministic: take the mode of the policy's distribution instead of a sample.

    Raises:
        ConfigError: `path` ends in neither suffix; ffmpeg, which an MP4 needs, is missing; the environment cannot be rendered; or
          it has no known time limit, and `max_steps` is None.

    Example:
        >>> run = purerl.load("runs/a").select(seed=0)
        >>> episode_return = purerl.render(run.train, run.state, "agent.gif", max_steps=3)
    """
    raise_if_any(wrong_values({"seed": seed}, {("seed",): SEED}))
    env = train.env
    if (suffix := pathlib.Path(path).suffix) not in (".gif", ".mp4"):
        raise config_error("path", str(path), "must end in .gif or .mp4")
    if suffix == ".mp4":
        ffmpeg()  # raises an error before the episode is played
    draw, limit = check_drawing(env, env.max_steps if max_steps is None else max_steps)
    key = jax.random.key(seed)
    if env.host:
        env = train.make_env()
        env.host.start_recording()
        draw, limit = check_drawing(env, limit)

    def episode(state):
        policy = train.policy(state)

        def step(carry, index):
            env_state, obs, first, memory = carry
            action, memory = policy(memory, obs, first, fold_in_name(key, "action", index), deterministic)
            after = env.step(split_keys(fold_in_name(key, "environment", index), 2, 1), env_state, action)
            done = after.terminated | after.truncated
            return (after.env_state, after.obs, done, memory), (env_state, after.reward, done)

        env_state, obs = env.reset(fold_in_name(key, "start")[None])
        carry = (env_state, obs, jnp.ones(1, bool), policy.initial_carry(1))
        return jax.lax.scan(step, carry, jnp.arange(limit, dtype=jnp.uint32))[1]

    with host_errors():
        env_states, reward, done = jax.tree.map(lambda x: x[:, 0], jax.device_get(jax.jit(episode)(state)))
    steps = int(np.argmax(done)) + 1 if done.any() else limit
    frames = [jax.tree.map(lambda x: x[i], env_states) for i in range(steps)]  # noqa: B023
    path = pathlib.Path(path).expanduser()
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(frames, np.cumsum(reward[:steps]), path)
    return float(reward[:steps].sum())


def check_drawing(env: Environment, max_steps: int | None) -> tuple[Callable, int]:
    """Return `draw` and `max_steps`; raise a ConfigError if the environment has no renderer or no known time limit."""
    if env.draw is None:
        raise config_error("env", env.name, "this environment does not support rendering")
    if max_steps is None:
        raise config_error("max_steps", None, "the environment has no known time limit; set max_steps")
    if not is_count(max_steps):
        raise config_error("max_steps", max_steps, "must be an int of at least 1")
    return env.draw, max_steps
