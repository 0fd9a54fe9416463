"""`check_env`: report where an environment violates the protocol."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.environment import NEVER, Environment
from purerl.core.errors import ConfigError, EnvironmentFailed, Problem, is_int, raise_if_any
from purerl.core.keys import named_key, split_keys
from purerl.core.masks import VALUES
from purerl.core.spaces import Box, Mixed, entries_of, is_index, parts_of
from purerl.core.types import PyTree
from purerl.envs import make_env
from purerl.envs.functions import wrapped_if_bare
from purerl.envs.host import host_errors
from purerl.envs.random_rollout import RandomRollout, all_finite, quantities, random_actions, random_rollout, within_space

SHORT = 32  # number of steps of the short rollouts, which are compared with each other
TIMED = 256  # approximate number of environments for the timing


class EnvReport(NamedTuple):
    """The findings of `check_env`.

    Attributes:
        problems: faults that make training wrong or impossible; empty for an environment that follows the protocol.
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

    The check covers shapes and dtypes, also those of the state after a step, `terminated`, `truncated` and the time limit,
    determinism, leaks of state across resets, the independence of environments in a batch, the observation before a reset,
    nonfinite numbers, and the cost of a step and a reset. External environments cannot return to an earlier state, so their
    resets, batches and cost are not checked.

    Args:
        env: an id, an environment that `make_train` accepts, or a single environment that `wrap_env` accepts.
        env_params: as in `make_train`.
        env_kwargs: constructor arguments of the environment with this id, such as (("size", 12),).
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
        made = _made(env, env_params, env_kwargs, num_envs)
    except ConfigError as error:
        return EnvReport(tuple(map(str, error.problems)), ())
    space, key = made.action_space, jax.random.key(seed)
    begin = time.perf_counter()
    try:
        with host_errors():
            trial = jax.device_get(jax.jit(lambda: random_rollout(made, key, num_envs, num_steps))())
    except EnvironmentFailed as failure:
        return EnvReport((str(failure),), ())
    compiled = time.perf_counter() - begin
    again = jax.device_get(jax.jit(lambda: random_rollout(made, key, num_envs, num_steps))())  # traced a second time
    if made.host:  # the state is a handle, which differs between runs
        trial, again = (x._replace(last_state=(), state=()) for x in (trial, again))
    start_problems, start_notes = _start(made, key, num_envs)
    missing = _final_observation(trial)
    limit_problems, limit_notes = _limit(made, trial)
    problems = [*start_problems, *_signal_problems(made, trial), *limit_problems]
    problems += missing if not start_notes else []  # if all episodes begin alike, all may also end in the same observation
    ends = bool(trial.ended.any())
    if not _same(trial, again):
        problems.append(DIFFERENT_RUNS)
    elif not made.host:
        problems += _row_problems(made, key, num_envs)
        looked_at = ends and trial.last_state is not None
        problems += [] if not looked_at or _forgets(made, key, trial.last_state, trial.last_action, trial.ended) else [REMEMBERS]
    notes = [
        f"observations: {_text(made.observation_space)}; actions: {_action_text(space)}; "
        f"time limit: {'unknown' if made.max_steps is None else f'{made.max_steps} steps'}",
        f"in {num_envs} x {num_steps} random steps: {trial.terminated.sum()} terminated, {trial.truncated.sum()} truncated, "
        f"{(trial.terminated & trial.truncated).sum()} both",
        *([] if ends else ["no episode ended, so resets were not checked; increase num_steps"]),
        *([SHARED] if trial.last_state is None else []),
        *start_notes,
        *(missing if start_notes else []),
        *limit_notes,
        *(_host_notes(made) if made.host else _cost_notes(made, key, compiled, num_envs)),
    ]
    return EnvReport(tuple(problems), tuple(notes))


DIFFERENT_RUNS = (
    "not deterministic: two runs from the same key differ. The environment depends on something outside of its state, such as "
    "numpy.random or a Python counter. Keep everything in the state, and draw from the key (in gymnasium, from self.np_random)"
)
REMEMBERS = "state leaks across resets: an episode depends on the previous one. Reset every part of the state"
ROWS = (
    "environments of a batch influence each other: results depend on the order of environments or on other "
    "environments. Only agents of the same game may share state"
)
SHARED = "environments share parts of the state, like agents of the same game, so resets were not checked"


def _made(env: Any, env_params: Any, env_kwargs: tuple, num_envs: int) -> Environment:
    if isinstance(env, str):
        return make_env(env, env_kwargs, {}, params=env_params)
    return make_env("", env_kwargs, {}, wrapped_if_bare(env), env_params, num_envs=num_envs)


def _same(a: PyTree, b: PyTree) -> bool:
    """Return True if two trees of NumPy arrays are equal, where NaN equals NaN."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y, equal_nan=np.issubdtype(np.asarray(x).dtype, np.inexact)) for x, y in pairs)


def _signal_problems(env: Environment, trial: RandomRollout) -> list[str]:
    found = []
    if not trial.obs_finite.all():
        found.append(f"observations are not finite, first after {np.argmin(trial.obs_finite) + 1} random steps")
    if not trial.reward_finite.all():
        found.append(f"rewards are not finite, first after {np.argmin(trial.reward_finite) + 1} random steps")
    if not trial.in_range.all():
        found.append(f"an observation is outside of the declared space, {_text(env.observation_space)}")
    for faulty, what in ((trial.malformed_mask, f"values other than 0 and 1; {VALUES}"), (trial.empty_mask, "no valid action")):
        if np.any(faulty):
            found.append(f"{np.mean(faulty):.1%} of the action masks ({env.action_mask!r}) in random steps have {what}")
    if trial.stale.any():
        found.append("`obs` differs from `next_obs` within an episode; they may differ only at the end of an episode")
    return found


def _final_observation(trial: RandomRollout) -> list[str]:
    ends = (trial.terminated | trial.truncated).sum()
    if not (ends and trial.varies.any() and trial.fresh.sum() == ends):
        return []
    return [
        f"the final or the first observation is missing: `next_obs` equals `obs` at all {ends} ends of episodes. `next_obs` must "
        "be the observation before the reset, for the bootstrap values of truncated episodes, and `obs` the one after the reset"
    ]


def _limit(env: Environment, trial: RandomRollout) -> tuple[list[str], list[str]]:
    """Return the problems and notes about the time limit."""
    early = trial.truncated & (trial.length < (env.truncates_after or 0))
    if early.any():
        shortest = trial.length[early].min()
        return [
            f"an episode was truncated after {shortest} steps, but the environment declares `truncates_after` = "
            f"{env.truncates_after}; the bootstrap values of such episodes would be lost"
        ], []
    if env.max_steps is None:
        return [], []
    if (trial.length > env.max_steps).any():
        return [f"an episode lasted at least {trial.length.max()} steps, more than its time limit of {env.max_steps}"], []
    at_limit = (trial.terminated | trial.truncated) & (trial.length == env.max_steps)
    if not at_limit.any():
        return [], []
    if not trial.truncated[at_limit].any() and env.truncates_after == NEVER:
        return [], ["the time limit is part of the task: episodes terminate at the limit"]
    if not trial.truncated[at_limit].any():
        return [
            f"time limits are reported as terminal states: all {at_limit.sum()} episodes of {env.max_steps} steps are "
            "`terminated`, and none is `truncated`. Return `truncated` instead, so that values are bootstrapped"
        ], []
    if not (trial.terminated & trial.truncated)[at_limit].all():
        return [], []
    return [], [
        f"all {at_limit.sum()} episodes that reached the time limit are `terminated` too, so their final values are 0. If only "
        "the limit ends these episodes, the environment must not return `terminated`"
    ]


def _rollout(env: Environment, env_state: PyTree, keys: Callable, actions: Callable) -> PyTree:
    """Collect a short rollout. `keys` and `actions` map the step index to keys `[2, B]` and actions `[B, ...]`."""

    def step(env_state, index):
        after = env.step(keys(index), env_state, actions(index))
        return after.env_state, (after.next_obs, after.reward, after.terminated, after.truncated)

    return jax.lax.scan(step, env_state, jnp.arange(SHORT, dtype=jnp.uint32))[1]


def _row_problems(env: Environment, key: jax.Array, B: int) -> list[str]:
    """Report results that depend, by more than rounding, on the order or the neighbours of environments in a batch."""

    def run(rows):
        """Return a short rollout of the environments with the indices `rows` among 2 B environments."""
        start, _ = env.reset(jax.random.split(named_key(key, "rows"), 2 * B)[rows])
        keys = lambda i: split_keys(named_key(key, "rows/environment", i), 2, 2 * B)[:, rows]
        every = lambda i: random_actions(env.action_space, named_key(key, "rows/action", i), 2 * B)
        actions = lambda i: jax.tree.map(lambda x: x[rows], every(i))
        return _rollout(env, start, keys, actions)

    one, half = jax.jit(run), B // 2
    these, backward = one(jnp.arange(B)), one(jnp.arange(B)[::-1])
    beside_others = one(jnp.where(jnp.arange(B) < half, jnp.arange(B), jnp.arange(B) + B))
    these, backward, beside_others = jax.device_get((these, backward, beside_others))
    first = lambda tree: jax.tree.map(lambda x: x[:, :half], tree)
    alike = _close(these, jax.tree.map(lambda x: x[:, ::-1], backward)) and _close(first(these), first(beside_others))
    return [] if alike else [ROWS]


def _close(a: PyTree, b: PyTree) -> bool:
    """Return True if the first four steps of two short rollouts are equal up to rounding; later, small differences may grow."""
    begin = lambda tree: [np.asarray(x[:4], np.float64) for x in jax.tree.leaves(tree)]
    return all(np.allclose(x, y, rtol=1e-3, atol=1e-4, equal_nan=True) for x, y in zip(begin(a), begin(b), strict=True))


def _forgets(env: Environment, key: jax.Array, state: PyTree, action: Any, ended: Any) -> bool:
    """Return True if the steps after the end of an episode do not depend on that episode.

    Each environment repeats the last step of its last episode, with auto-reset. All environments then continue with the same keys
    and actions.
    """
    B = len(ended)
    shapes = jax.eval_shape(lambda: env.reset(jax.random.split(key, B))[0])
    wrap = lambda x, like: jax.random.wrap_key_data(x) if jnp.issubdtype(like.dtype, jax.dtypes.prng_key) else x
    state = jax.tree.map(wrap, state, shapes)
    for_all = lambda i: jnp.broadcast_to(split_keys(named_key(key, "forgets", i), 2, 1), (2, B))

    def run():
        after = env.step(for_all(SHORT), state, action)
        alone = lambda i: random_actions(env.action_space, named_key(key, "forgets/action", i), 1)
        one = lambda i: jax.tree.map(lambda x: jnp.broadcast_to(x, (B, *x.shape[1:])), alone(i))
        fresh_state, fresh_obs = env.reset(for_all(SHORT)[1])
        followed, fresh = _rollout(env, after.env_state, for_all, one), _rollout(env, fresh_state, for_all, one)
        return after.terminated | after.truncated, (after.obs, followed), (fresh_obs, fresh)

    done, ended_before, begun = jax.device_get(jax.jit(run)())
    rows = np.flatnonzero(done & ended)

    def pick(tree, i):
        obs, steps = tree
        return jax.tree.map(lambda x: x[None, [i]], obs), jax.tree.map(lambda x: x[:, [i]], steps)

    if not len(rows):
        return True
    first, fresh = pick(ended_before, rows[0]), pick(begun, rows[0])
    # An environment that ignores the reset keys begins in another state, and cannot be compared with a fresh reset.
    as_fresh = _close(first, fresh) or not _close(first[0], fresh[0])
    return as_fresh and all(_close(first, pick(ended_before, i)) for i in rows)


def _start(env: Environment, key: jax.Array, B: int) -> tuple[list[str], list[str]]:
    """Return the problems and notes about first observations."""
    obs = jax.jit(env.reset)(jax.random.split(named_key(key, "start"), B))[1]
    finite, in_range = bool(all_finite(quantities(env, obs))), bool(within_space(env, obs))
    leaves = jax.tree.leaves(jax.device_get(obs))
    problems = [] if finite else ["first observations are not finite"]
    problems += [] if in_range else [f"a first observation is outside of the declared space, {_text(env.observation_space)}"]
    alike = all(np.array_equal(x, np.broadcast_to(x[:1], x.shape)) for x in leaves)
    return problems, ["every episode begins with the same observation"] if alike else []


def _host_notes(env: Environment) -> list[str]:
    return [*map(str, env.host.warnings), *env.host.masks]


def _cost_notes(env: Environment, key: jax.Array, compiled: float, num_envs: int) -> list[str]:
    count = num_envs * max(1, TIMED // num_envs)
    keys = jax.random.split(key, (2, count))
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    env_state, _ = reset(keys[0])
    action = random_actions(env.action_space, key, count)
    seconds = {"step": _best(lambda: step(keys, env_state, action)), "reset": _best(lambda: reset(keys[0]))}
    text = ", ".join(f"{name} {1e3 * x:.2g} ms" for name, x in seconds.items())
    notes = [f"cost: {text}, for {count} environments; the check took {compiled:.1f} s, with compilation"]
    if seconds["reset"] > 5 * seconds["step"]:
        notes.append(
            f"a reset costs as much as {seconds['reset'] / seconds['step']:.0f} steps. Without slow_reset=True of "
            "purerl.wrap_env, all environments compute a reset in every step that ends an episode"
        )
    return notes


def _best(run: Callable) -> float:
    """Return the time of the fastest of five runs, in seconds."""
    jax.block_until_ready(run())
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begin)
    return min(times)


def _text(space: PyTree) -> str:
    text = lambda x: str(x) if is_index(x) else f"{x.dtype}{list(x.shape)}"
    return ", ".join(f"{name} {text(x)}".strip() for name, x in entries_of(space).items())


def _action_text(space: Any) -> str:
    if isinstance(space, Mixed):
        return f"Mixed({', '.join(map(_action_text, parts_of(space)))})"
    return f"Box{list(space.shape)}" if isinstance(space, Box) else str(space)
