"""`check_env`, a check of environments against the protocol."""

import time
import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import NEVER, Environment
from purerl.core.errors import ConfigError, EnvironmentFailed, Problem, is_int, raise_if_any
from purerl.core.keys import fold_in_name, split_keys
from purerl.core.masks import VALUES
from purerl.core.spaces import Box, entries_of, is_index, parts_of
from purerl.core.types import PyTree
from purerl.envs import make_env
from purerl.envs.external.host import host_errors
from purerl.envs.functions import wrap_if_bare
from purerl.envs.random_rollout import all_finite, random_actions, random_rollout, within_space

SHORT = 4  # number of steps of rollouts that are compared with each other; in longer ones, small differences may grow
TIMED = 256  # approximate number of environments for the timing


class EnvReport(NamedTuple):
    """The findings of `check_env`.

    Attributes:
        problems: faults that make training wrong or impossible; empty if none was found.
        notes: properties of the environment: spaces, time limit, ends of episodes, cost.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*(f"problem: {x}" for x in self.problems), *(f"note:    {x}" for x in self.notes)])


def check_env(
    env: Any, env_params: Any = None, *, env_kwargs: tuple = (), num_envs: int = 16, num_steps: int = 1100, seed: int = 0
) -> EnvReport:
    """Try an environment with random actions, and report faults that would make training wrong.

    The check covers shapes and dtypes (also of the state after a step), `terminated`, `truncated` and the time limit,
    determinism, leaks of state across resets, the independence of environments in a batch, the observation before a reset,
    nonfinite numbers, and the cost of a step and a reset. External (Python) environments cannot return to an earlier state, so
    leaks of state, independence and cost are not checked for them.

    Args:
        env: an id, an environment that `make_train` accepts, or a single environment that `wrap_env` accepts.
        env_params: the object with all parameters of the environment; None for the default parameters.
        env_kwargs: if `env` is an id, the constructor arguments as pairs of name and value, such as (("size", 12),).
        num_envs: number of environments, at least 2.
        num_steps: number of steps of each environment; choose more steps than the time limit.
        seed: seed of actions and environments.

    Example:
        >>> report = purerl.check_env("CartPole-v1")
        >>> report.problems
        ()
        >>> print(report.notes[0])
        observations: float32[4]; actions: Discrete(n=2); time limit: 500 steps
    """
    counts = (("num_envs", num_envs, 2), ("num_steps", num_steps, 1))
    wrong = [(name, x, least) for name, x, least in counts if not (is_int(x) and x >= least)]
    raise_if_any([Problem(name, x, f"must be an int of at least {least}") for name, x, least in wrong])
    try:
        env_id, given = (env, None) if isinstance(env, str) else ("", wrap_if_bare(env))
        made = make_env(env_id, env_kwargs, {}, given, env_params, num_envs=num_envs)
    except ConfigError as error:
        return EnvReport(tuple(map(str, error.problems)), ())
    key, begin = jax.random.key(seed), time.perf_counter()
    try:
        with host_errors():
            trial, last = jax.block_until_ready(jax.jit(lambda: random_rollout(made, key, num_envs, num_steps))())
    except EnvironmentFailed as failure:
        return EnvReport((str(failure),), ())
    compiled = time.perf_counter() - begin
    again, _ = jax.jit(lambda: random_rollout(made, key, num_envs, num_steps))()  # traced a second time
    trial, again = jax.device_get((trial, again))
    terminated, truncated = trial["terminated"], trial["truncated"]
    ended = terminated | truncated
    start_problems, start_notes = _start(made, key, num_envs)
    limit_problems, limit_notes = _limit(made, trial)
    problems = [*start_problems, *_signal_problems(made, trial), *limit_problems]
    notes = [
        f"observations: {_text(made.observation_space)}; actions: {_action_text(made.action_space)}; "
        f"time limit: {'unknown' if made.max_steps is None else f'{made.max_steps} steps'}",
        f"in {num_envs} x {num_steps} random steps: {terminated.sum()} terminated, {truncated.sum()} truncated, "
        f"{(terminated & truncated).sum()} both",
        *([] if ended.any() else ["no episode ended, so resets were not checked; increase num_steps"]),
        *([] if last else [SHARED]),
        *start_notes,
        *_scale_notes(trial),
        *limit_notes,
    ]
    if ended.any() and trial["varies"].any() and trial["fresh"].sum() == ended.sum():
        # If every episode begins with the same observation, every episode may also end with it.
        (notes if start_notes else problems).append(NO_FINAL.format(ended.sum()))
    notes += made.masks
    notes += map(str, made.host.warnings) if made.host else _cost_notes(made, key, compiled, num_envs)
    if not all(np.array_equal(trial[name], again[name], equal_nan=True) for name in trial):
        problems.append(DIFFERENT_RUNS)
    elif not made.host:
        problems += _row_problems(made, key, num_envs)
        problems += [REMEMBERS] if last and not _forgets(made, key, last, ended.any(0)) else []
    return EnvReport(tuple(problems), tuple(notes))


DIFFERENT_RUNS = (
    "not deterministic: two runs from the same key differ. The environment depends on something outside of its state, such as "
    "numpy.random or a Python counter. Keep everything in the state, and draw from the key (in gymnasium, from self.np_random)"
)
REMEMBERS = "state leaks across resets: an episode depends on the previous one. Reset every part of the state"
ROWS = (
    "environments of a batch influence each other: results depend on the order of environments or on other "
    "environments. This is right only among agents of one game"
)
SHARED = "environments share parts of the state, like agents of one game, so leaks across resets were not checked"
NO_FINAL = (
    "the final or the first observation is missing: `next_obs` equals `obs` at all {} ends of episodes. `next_obs` must "
    "be the observation before the reset, for the bootstrap values of truncated episodes, and `obs` the one after the reset"
)
FAULTS = {  # from an entry of the result of `random_rollout` to the problem
    "nonfinite_obs": "observations are not finite, first after {first} random steps",
    "nonfinite_reward": "rewards are not finite, first after {first} random steps",
    "out_of_range": "an observation is outside of the declared space, {space}",
    "malformed_mask": "{share:.1%} of the action masks ({mask!r}) in random steps have values other than 0 and 1; " + VALUES,
    "empty_mask": "{share:.1%} of the action masks ({mask!r}) in random steps have no valid action",
    "stale": "`obs` differs from `next_obs` within an episode; they may differ only at the end of an episode",
}


def _signal_problems(env: Environment, trial: dict[str, np.ndarray]) -> list[str]:
    """Report the faults that a random rollout recorded."""
    names = {"space": _text(env.observation_space), "mask": env.action_mask}
    found = {name: trial[name] for name in FAULTS if np.any(trial.get(name, False))}
    return [FAULTS[name].format(first=np.argmax(x) + 1, share=np.mean(x), **names) for name, x in found.items()]


def _limit(env: Environment, trial: dict[str, np.ndarray]) -> tuple[list[str], list[str]]:
    """Return the problems and notes about the time limit."""
    terminated, truncated, length = trial["terminated"], trial["truncated"], trial["length"]
    early = truncated & (length < (env.truncates_after or 0))
    if early.any():
        return [
            f"an episode was truncated after {length[early].min()} steps, but the environment declares `truncates_after` = "
            f"{env.truncates_after}; the bootstrap values of such episodes would be lost"
        ], []
    limit = env.max_steps or NEVER
    if (length > limit).any():
        return [f"an episode lasted at least {length.max()} steps, more than its time limit of {limit}"], []
    at_limit = (terminated | truncated) & (length == limit)
    if truncated[at_limit].any():
        note = (
            f"all {at_limit.sum()} episodes that reached the time limit are `terminated` too, so their final values are 0. "
            "If only the limit ends these episodes, the environment must not return `terminated`"
        )
        return [], [note] if (terminated & truncated)[at_limit].all() else []
    if not at_limit.any():
        return [], []
    if env.truncates_after == NEVER:
        return [], ["the time limit is part of the task: episodes terminate at the limit"]
    return [
        f"time limits are reported as terminal states: all {at_limit.sum()} episodes of {limit} steps are "
        "`terminated`, and none is `truncated`. Return `truncated` instead, so that values are bootstrapped"
    ], []


def _rollout(env: Environment, env_state: PyTree, keys: Callable, actions: Callable) -> PyTree:
    """Collect a short rollout of B environments. `keys` and `actions` map the step to keys `[2, B]` and actions `[B, ...]`."""

    def step(env_state, index):
        after = env.step(keys(index), env_state, actions(index))
        return after.env_state, (after.next_obs, after.reward, after.terminated, after.truncated)

    return jax.lax.scan(step, env_state, jnp.arange(SHORT, dtype=jnp.uint32))[1]


def _row_problems(env: Environment, key: jax.Array, B: int) -> list[str]:
    """Report a problem if results of B environments change, by more than rounding, in a larger batch with another order."""

    def run(rows):
        """Return a short rollout of the environments with the indices `rows` among 2 B environments."""
        start, _ = env.reset(jax.random.split(fold_in_name(key, "rows"), 2 * B)[rows])
        keys = lambda i: split_keys(fold_in_name(key, "rows/environment", i), 2, 2 * B)[:, rows]
        every = lambda i: random_actions(env.action_space, fold_in_name(key, "rows/action", i), 2 * B)
        actions = lambda i: jax.tree.map(lambda x: x[rows], every(i))
        return _rollout(env, start, keys, actions)

    these, among_others = jax.device_get((jax.jit(run)(jnp.arange(B)), jax.jit(run)(jnp.arange(2 * B)[::-1])))
    return [] if _close(these, jax.tree.map(lambda x: x[:, ::-1][:, :B], among_others)) else [ROWS]


def _close(a: PyTree, b: PyTree) -> bool:
    """Return True if two short rollouts are equal up to rounding."""
    numbers = lambda tree: [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)]
    return all(np.allclose(x, y, rtol=1e-3, atol=1e-4, equal_nan=True) for x, y in zip(numbers(a), numbers(b), strict=True))


def _forgets(env: Environment, key: jax.Array, last: PyTree, ended: np.ndarray) -> bool:
    """Return True if the steps after the end of an episode do not depend on that episode.

    Each environment repeats the last step of its last episode, with auto-reset. All environments then continue with the same keys
    and actions.

    Args:
        env: environments that are pure functions.
        key: consumed.
        last: state and action of the last step of each environment's last episode.
        ended: `[B]`, True if an episode of the environment ended.
    """
    B = len(ended)
    for_all = lambda i: jnp.broadcast_to(split_keys(fold_in_name(key, "forgets", i), 2, 1), (2, B))
    alone = lambda i: random_actions(env.action_space, fold_in_name(key, "forgets/action", i), 1)
    actions = lambda i: jax.tree.map(lambda x: jnp.broadcast_to(x, (B, *x.shape[1:])), alone(i))

    def run(last):
        after = env.step(for_all(SHORT), *last)
        begun = [(after.env_state, after.obs), env.reset(for_all(SHORT)[1])]
        seen = [(jax.tree.map(lambda x: x[None], obs), _rollout(env, state, for_all, actions)) for state, obs in begun]
        return after.terminated | after.truncated, *seen

    done, followed, fresh = jax.device_get(jax.jit(run)(last))
    of_row = lambda tree, i: jax.tree.map(lambda x: x[:, [i]], tree)
    rows = [of_row(followed, i) for i in np.flatnonzero(done & ended)]
    if not rows:
        return True
    fresh = of_row(fresh, np.flatnonzero(done & ended)[0])
    # An environment that ignores the reset keys begins in another state, and cannot be compared with a fresh reset.
    as_fresh = _close(rows[0], fresh) or not _close(rows[0][0], fresh[0])
    return as_fresh and all(_close(rows[0], row) for row in rows)


def _start(env: Environment, key: jax.Array, B: int) -> tuple[list[str], list[str]]:
    """Return the problems and notes about first observations."""
    obs = jax.jit(env.reset)(jax.random.split(fold_in_name(key, "start"), B))[1]
    problems = [] if all_finite(env, (obs,)) else ["first observations are not finite"]
    if not within_space(env, obs):
        problems.append(f"a first observation is outside of the declared space, {_text(env.observation_space)}")
    leaves = jax.tree.leaves(jax.device_get(obs))
    alike = all(np.array_equal(x, np.broadcast_to(x[:1], x.shape)) for x in leaves)
    notes = ["every episode begins with the same observation"] if alike else []
    planes = any(x.dtype == np.uint8 and x.ndim == 4 and x.max() <= 1 for x in leaves)
    notes += ["an image of uint8 has no value above 1, and is divided by 255; return planes as float32"] * planes
    scales = any(jnp.issubdtype(x.dtype, jnp.floating) and x.ndim == 4 and x.max() > 10 for x in leaves)
    return problems, notes + ["an image of floats has values above 10, and is not divided by 255; return uint8"] * scales


def _scale_notes(trial: dict[str, np.ndarray]) -> list[str]:
    """Report numbers of observations that vary, beyond rounding, by so little that `normalize_obs` hardly scales them."""
    low, high = trial["lowest"].min(0), trial["highest"].max(0)
    is_small = (high - low < 1e-4) & (high - low > 1e-5 * np.maximum(abs(low), abs(high)))
    if not is_small.any():
        return []
    hint = "normalize_obs adds 1e-8 to variances, and hardly scales such numbers; multiply them in the environment"
    return [f"{is_small.sum()} of the numbers in an observation vary by less than 1e-4; {hint}"]


def _cost_notes(env: Environment, key: jax.Array, compiled: float, num_envs: int) -> list[str]:
    count = num_envs * max(1, TIMED // num_envs)
    keys = jax.random.split(key, (2, count))
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    env_state, _ = reset(keys[0])
    action = random_actions(env.action_space, key, count)
    runs = {
        "step": lambda: jax.block_until_ready(step(keys, env_state, action)),
        "reset": lambda: jax.block_until_ready(reset(keys[0])),
    }
    seconds = {name: min(timeit.repeat(run, number=1, repeat=6)) for name, run in runs.items()}  # the first run compiles
    text = ", ".join(f"{name} {1e3 * x:.2g} ms" for name, x in seconds.items())
    notes = [f"cost: {text}, for {count} environments; a rollout took {compiled:.1f} s, with compilation"]
    if seconds["reset"] > 5 * seconds["step"]:
        notes.append(
            f"a reset costs as much as {seconds['reset'] / seconds['step']:.0f} steps. Without slow_reset=True of "
            "purerl.wrap_env, all environments compute a reset whenever an episode ends (on an accelerator, in every step)"
        )
    return notes


def _text(space: PyTree) -> str:
    text = lambda x: str(x) if is_index(x) else f"{x.dtype}{list(x.shape)}"
    return ", ".join(f"{name} {text(x)}".strip() for name, x in entries_of(space).items())


def _action_text(space: Any) -> str:
    return ", ".join(f"Box{list(x.shape)}" if isinstance(x, Box) else str(x) for x in parts_of(space))
