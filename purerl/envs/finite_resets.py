"""Environments that are reset if a number is not finite."""

import jax

from purerl.core.errors import ConfigError, Problem
from purerl.core.finite import any_of, finite_or_zero, nonfinite_rows
from purerl.core.types import Environment, PyTree, TimeStep
from purerl.envs.auto_reset import AutoReset, restart

OBSERVATION, REWARD = "observation", "reward"


def with_finite(env: Environment, num_envs: int = 2) -> Environment:
    """Return environments that are reset if an observation or a reward is not finite.

    A step that leads to such numbers is terminal, and its reward is 0. Nonfinite numbers in observations become 0. If the first
    observation of an episode is not finite, the episode ends with its first step. `TimeStep.nonfinite` marks these steps.

    Args:
        env: any environments.
        num_envs: number of environments with which a custom environment is traced.

    Raises:
        ConfigError: a state array has no environment axis, so that single environments cannot be reset.
    """
    resets = env.step if isinstance(env.step, AutoReset) else None
    if resets is None:
        _check_rows(env, num_envs)

    def reset(keys: jax.Array) -> tuple[PyTree, PyTree]:
        return checked(*env.reset(keys))

    def checked(env_state: PyTree, obs: PyTree) -> tuple[PyTree, PyTree]:
        return (env_state, nonfinite_rows(obs, OBSERVATION)), finite_or_zero(obs)

    def step(keys: jax.Array, env_state: PyTree, action: jax.Array) -> TimeStep:
        env_state, began = env_state
        after = resets.advance(keys[0], env_state, action) if resets else env.step(keys, env_state, action)
        found = nonfinite_rows(after.next_obs, OBSERVATION)
        found = {name: began[name] | rows for name, rows in found.items()} | nonfinite_rows(after.reward, REWARD)
        bad = any_of(found)
        terminated, truncated = after.terminated | bad, after.truncated & ~bad
        ended = terminated | truncated if resets else bad
        slow = resets is not None and resets.slow_reset
        env_state, obs = restart(reset, keys[1], ended, checked(after.env_state, after.obs), slow)
        reward = jax.numpy.where(bad, jax.numpy.zeros_like(after.reward), after.reward)
        signals = {"reward": reward, "terminated": terminated, "truncated": truncated, "nonfinite": found}
        return after.replace(env_state=env_state, obs=obs, next_obs=finite_or_zero(after.next_obs), **signals)

    draw = env.draw
    of_inner = draw and (lambda env_states, *args: draw([inner for inner, _ in env_states], *args))
    return env._replace(reset=reset, step=step, draw=of_inner)


def _check_rows(env: Environment, num_envs: int) -> None:
    """Raise a ConfigError unless every state array has an environment axis."""
    counts = (num_envs, 2 * num_envs)  # sizes of the environment axis in two traces
    keys = [jax.eval_shape(lambda count=count: jax.random.split(jax.random.key(0), count)) for count in counts]
    few, many = (jax.eval_shape(lambda keys: env.reset(keys)[0], x) for x in keys)
    pairs = zip(jax.tree_util.tree_leaves_with_path(few), jax.tree.leaves(many), strict=True)
    shared = [jax.tree_util.keystr(path) for (path, x), y in pairs if (x.shape[:1], y.shape[:1]) != ((counts[0],), (counts[1],))]
    if shared:
        hint = f"resets single environments, but the environments share a part of their state ({shared[0] or 'all'}); "
        raise ConfigError([Problem("nonfinite", "reset", hint + "give it an axis of environments, or use nonfinite='ignore'")])
