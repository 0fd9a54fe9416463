"""Resets of environments whose observation or reward is not finite."""

import jax

from purerl.core.auto_reset import AutoReset, after_step, change_step, restart
from purerl.core.environment import Environment, TimeStep
from purerl.core.errors import config_error
from purerl.core.finite import any_of, finite_or_zero, nonfinite_rows
from purerl.core.types import PyTree

OBSERVATION, REWARD = "observation", "reward"


def with_finite(env: Environment, num_envs: int = 2) -> Environment:
    """Return environments that are reset if an observation or a reward is not finite.

    A number counts as finite up to a magnitude of 1e18. A step whose observation or reward is not finite is terminal, and its
    reward becomes 0. Nonfinite numbers in observations become 0. If the first observation of an episode is not finite, the
    episode ends with its first step. `TimeStep.nonfinite` marks these steps.

    Args:
        env: environments that are pure functions.
        num_envs: number of environments with which a custom environment is traced.

    Raises:
        ConfigError: a state array has no environment axis, so that single environments cannot be reset.
    """
    if not isinstance(env.step, AutoReset):
        _check_rows(env, num_envs)

    def reset(keys: jax.Array) -> tuple[PyTree, PyTree]:
        return record_nonfinite(*env.reset(keys))

    def record_nonfinite(env_state: PyTree, obs: PyTree) -> tuple[PyTree, PyTree]:
        return (env_state, nonfinite_rows(obs, OBSERVATION)), finite_or_zero(obs)

    def mark_nonfinite(env_state: PyTree, _: jax.Array, after: TimeStep) -> TimeStep:
        """Replace the nonfinite numbers of a step by 0, and end the episodes with such numbers."""
        _, began = env_state
        found = nonfinite_rows(after.next_obs, OBSERVATION)
        found = {name: began[name] | rows for name, rows in found.items()} | nonfinite_rows(after.reward, REWARD)
        bad, (env_state, obs) = any_of(found), record_nonfinite(after.env_state, after.obs)
        reward = jax.numpy.where(bad, jax.numpy.zeros_like(after.reward), after.reward)
        signals = {"reward": reward, "terminated": after.terminated | bad, "truncated": after.truncated & ~bad}
        after = after.replace(env_state=env_state, obs=obs, next_obs=finite_or_zero(after.next_obs), **signals)
        return after.replace(nonfinite=found)

    mark = after_step(mark_nonfinite, lambda env_state: env_state[0])

    def reset_rows(keys: jax.Array, env_state: PyTree, action: jax.Array) -> TimeStep:
        """Step environments that reset themselves. Then reset the environments whose numbers are not finite."""
        after = mark(env.step)(keys, env_state, action)
        env_state, obs = restart(reset, keys[1], any_of(after.nonfinite), (after.env_state, after.obs), slow_reset=False)
        return after.replace(env_state=env_state, obs=obs)

    draw, apart = env.draw, isinstance(env.step, AutoReset)
    step = change_step(env.step, reset, mark) if apart else reset_rows
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
        hint = f"cannot reset single environments, since they share a part of their state ({shared[0] or 'all'}); "
        raise config_error("nonfinite", "reset", hint + "add an axis of environments, or use nonfinite='ignore'")
