"""Rollouts: the only loop over time."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.acting.wrappers import acting_network
from purerl.core.clock import updates_in_float32
from purerl.core.keys import named_key, split_keys
from purerl.core.metrics import Max, Sum, mean_of, mean_where
from purerl.core.reductions import largest, total
from purerl.core.streams import EPISODIC, extrinsic
from purerl.core.types import Actor, Clock, Environment, Network, Outputs, Rollout, TimeStep, TrainState, Transition

PyTree = Any


def one_step(network: Network, params: PyTree, carry: PyTree, obs: PyTree, first: jax.Array) -> tuple[Outputs, PyTree]:
    """The network on one step of `B` environments: `obs [B, ...]`, `first [B]`, outputs `[B, ...]`, and the carry after it."""
    outputs, carry = network.apply(params, carry, jax.tree.map(lambda x: x[None], obs), first[None])
    return jax.tree.map(lambda x: x[0], outputs), carry


def start(env: Environment, network: Network, num_envs: int, key: jax.Array) -> Actor:
    """Actors at the beginning of an episode in each of `num_envs` environments. The key is consumed."""
    env_state, obs = env.reset(jax.random.split(key, num_envs))
    return Actor(
        env_state=env_state,
        obs=obs,
        first=jnp.ones(num_envs, bool),
        carry=network.initial_carry(num_envs),
        episode_return=jnp.zeros(num_envs, jnp.float32),
        episode_length=jnp.zeros(num_envs, jnp.int32),
    )


def step_counts(clock: Clock, num_steps: int, num_envs: int) -> jax.Array:
    """Environment steps, of all environments, before each row of the rollout after this clock: `[T, 1]` float32, rounded."""
    rows = jnp.arange(num_steps, dtype=jnp.float32)[:, None]
    return np.float32(num_envs) * (updates_in_float32(clock) * np.float32(num_steps) + rows)


def collect_rollout(
    cfg: Any, env: Environment, network: Network, state: TrainState, behaviour: TrainState | None = None, **options: Any
) -> tuple[TrainState, Rollout, dict[str, Any]]:
    """The rollout of an update: the state with the environments after it, the rollout, and metrics.

    Args:
        cfg: the config.
        env: environments.
        network: policy and value function.
        state: where the environments and the clock stand.
        behaviour: the parameters and statistics that act; the state's own if None.
        **options: of `collect`, in place of the config's.
    """
    behaviour = state if behaviour is None else behaviour
    acting = acting_network(cfg, network, behaviour, state, env.action_space)
    key = named_key(state.key, "rollout", state.clock)
    defaults = {"length": cfg.training_length if network.is_recurrent else None, "truncation": cfg.truncation}
    defaults |= {"info": cfg.info, "episode_info": cfg.episode_info}
    defaults |= {"keep_next_obs": True, "episodic": EPISODIC} if cfg.streams > 1 else {}
    actor, rollout, metrics = collect(env, acting, behaviour.params, state.actor, key, cfg.num_steps, **defaults | options)
    return state.replace(actor=actor), rollout, metrics


class _Step(NamedTuple):
    """What the scan over time keeps of each step, `[T, B, ...]`; `value` and `final_value` only with a memory."""

    obs: PyTree
    first: jax.Array
    policy: Any
    action: jax.Array
    after: TimeStep
    episode_return: jax.Array
    episode_length: jax.Array
    value: Any
    final_value: Any


def collect(
    env: Environment,
    network: Network,
    params: PyTree,
    actor: Actor,
    key: jax.Array,
    num_steps: int,
    truncation: str = "final_obs",
    length: int | None = None,
    valued: bool = True,
    keep_next_obs: bool = False,
    episodic: tuple[bool, ...] = (),
    info: tuple[str, ...] = (),
    episode_info: tuple[str, ...] = (),
) -> tuple[Actor, Rollout, dict[str, Any]]:
    """Acts for `T = num_steps` steps in every environment.

    All random numbers are drawn before the loop: drawing them in each step takes half as long again. Log-probabilities,
    and without a memory all values, are computed after it, in batches.

    Args:
        env: the environments.
        network: policy and value function.
        params: its parameters.
        actor: where the environments stand, `[B]`.
        key: consumed.
        num_steps: T.
        truncation: what follows a step that a time limit ended (the vector `gae_mixed` has the numbers of each):

            final_obs    the value of the observation before the reset: right, since the episode could have gone on from it
            current_obs  the value of the step's own observation (rsl_rl, skrl 1.4), even of a terminal step: one step late
            zero         nothing, as if the state were terminal (rlib, cleanrl): values learn the time limit, not the task
            ignore       the next episode, as if it were the same one (skrl 2.0): values leak across the reset

        length: steps of a training sequence, a divisor of T; None for T.
        valued: False leaves `value` and `next_value` out, for who computes them later.
        keep_next_obs: the rollout has `next_obs`.
        episodic: of several reward streams, whether each ends with an episode.
        info: entries of the environment's info whose mean over all steps is a metric.
        episode_info: those whose mean over the ends of episodes is one, of a vector each entry's.

    Returns:
        The actor after the rollout; the rollout, with the memory from before the first step of each sequence; and metrics of
        steps, rewards and finished episodes.
    """
    recurrent = bool(jax.tree.leaves(actor.carry))
    forward = functools.partial(one_step, network)
    outputs, _ = jax.eval_shape(forward, params, actor.carry, actor.obs, actor.first)
    noise = outputs.policy.noise(named_key(key, "action"), num_steps)
    env_keys = split_keys(named_key(key, "environment"), num_steps, 2, actor.first.shape[0])

    def bootstrap(carry, obs):
        """The value of an observation that continues an episode."""
        return forward(params, carry, obs, jnp.zeros_like(actor.first))[0].value

    def step(actor, draw):
        outputs, carry = forward(params, actor.carry, actor.obs, actor.first)
        action = outputs.policy.sample(draw[0])
        after = env.step(draw[1], actor.env_state, outputs.policy.env_action(action, env.action_space))
        value, final_value = (), ()
        if recurrent and valued:
            value = outputs.value
            nothing = lambda: jnp.zeros_like(value)
            if truncation == "final_obs":
                final_value = jax.lax.cond(after.truncated.any(), lambda: bootstrap(carry, after.next_obs), nothing)
        episode_return, episode_length = actor.episode_return + after.reward, actor.episode_length + 1
        done = after.terminated | after.truncated
        following = Actor(
            env_state=after.env_state,
            obs=after.obs,
            first=done,
            carry=carry,
            episode_return=jnp.where(done, jnp.float32(0), episode_return),
            episode_length=jnp.where(done, jnp.int32(0), episode_length),
        )
        kept = after.replace(env_state=(), obs=(), next_obs=_rows(after.next_obs))  # without what the next step keeps
        episode = (episode_return, episode_length)
        return following, _Step(_rows(actor.obs), actor.first, outputs.policy, action, kept, *episode, value, final_value)

    last, steps, carries = _scan_sequences(step, actor, (noise, env_keys), num_steps // (length or num_steps))
    obs, next_obs = (_unrows(x, actor.obs) for x in (steps.obs, steps.after.next_obs))
    steps = steps._replace(obs=obs, after=steps.after.replace(next_obs=next_obs))
    transition = _transition(steps, truncation)
    if valued:
        value = steps.value if recurrent else network.apply(params, (), steps.obs, steps.first)[0].value
        if truncation == "final_obs":
            truncated = steps.after.truncated
            final_value = steps.final_value if recurrent else final_values(network, params, truncated, next_obs, value)
        else:
            final_value = value if truncation == "current_obs" else jnp.zeros_like(value)
        last_value = forward(params, last.carry, last.obs, last.first)[0].value
        following = next_values(value, transition.truncated, final_value, last_value, episodic)
        transition = transition.replace(value=value, next_value=following)
    metrics = _rollout_metrics(steps, transition) | _info_metrics(steps.after, info, episode_info)
    return last, Rollout(transition.replace(next_obs=next_obs) if keep_next_obs else transition, carries), metrics


def _scan_sequences(step: Callable, actor: Actor, draws: PyTree, count: int) -> tuple[Actor, PyTree, PyTree]:
    """A scan over time in `count` sequences: the last actor, all steps `[T, ...]`, and the memories before each sequence."""
    if count == 1:
        last, steps = jax.lax.scan(step, actor, draws)
        return last, steps, jax.tree.map(lambda x: x[None], actor.carry)

    def sequence(actor, draws):
        after, steps = jax.lax.scan(step, actor, draws)
        return after, (steps, actor.carry)

    draws = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), draws)
    last, (steps, carries) = jax.lax.scan(sequence, actor, draws)
    return last, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps), carries


def _rows(obs: PyTree) -> PyTree:
    """Observations `[B, ...]` as one row each: XLA takes a third less time to keep 400 numbers than 10 x 10 x 4 on a CPU."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0], -1), obs)


def _unrows(rows: PyTree, obs: PyTree) -> PyTree:
    """Rows `[T, B, size]` in the shape of the observations `[B, ...]` they were made of."""
    return jax.tree.map(lambda x, like: x.reshape(*x.shape[:2], *like.shape[1:]), rows, obs)


def _transition(steps: _Step, truncation: str) -> Transition:
    """The rows of a rollout, without values."""
    after = steps.after
    if truncation == "ignore":
        after = after.replace(truncated=jnp.zeros_like(after.truncated))
    if truncation == "current_obs":
        after = after.replace(terminated=after.terminated & ~after.truncated)
    return Transition(
        obs=steps.obs,
        first=steps.first,
        action=steps.action,
        log_prob=steps.policy.log_prob(steps.action),
        value=(),
        reward=after.reward,
        terminated=after.terminated,
        truncated=after.truncated,
        next_value=(),
        policy=steps.policy,
    )


def next_values(
    value: jax.Array, truncated: jax.Array, final_value: jax.Array, last_value: jax.Array, episodic: tuple[bool, ...] = ()
) -> jax.Array:
    """`Transition.next_value`: of the next row's observation, or of the last one before a reset where a time limit ended it.

    Args:
        value: `[T, B(, K)]`.
        truncated: `[T, B]`.
        final_value: `[T, B(, K)]`, read where `truncated`.
        last_value: `[B(, K)]`, of the observation after the last step.
        episodic: of K streams, whether each ends with an episode: the value of one that does not is that of the next row.
    """
    truncated = truncated.reshape(truncated.shape + (1,) * (value.ndim - truncated.ndim))
    truncated = truncated & np.array(episodic).reshape((1,) * (value.ndim - 1) + (-1,)) if episodic else truncated
    return jnp.where(truncated, final_value, jnp.concatenate([value[1:], last_value[None]]))


def final_values(network: Network, params: PyTree, truncated: jax.Array, next_obs: PyTree, value: jax.Array) -> jax.Array:
    """Values of the last observations of truncated episodes, without a memory. `[T, B(, K)]`, 0 elsewhere.

    The successor of a step is the next row's observation, except at the end of an episode. Where a time limit ended it,
    the observation before the reset was kept, and its value is computed after the rollout, B of them at a time and no more
    than there are. Next to valuing every successor that makes an update 4 % faster with 2048 CartPoles on a CPU; next to
    valuing them in the step, 15 %.
    """
    T, B = truncated.shape
    rows = jnp.nonzero(truncated.ravel(), size=T * B, fill_value=0)[0]
    successors = jax.tree.map(lambda x: x.reshape(T * B, *x.shape[2:]), next_obs)

    def next_batch(state):
        i, final_value = state
        chosen = jax.lax.dynamic_slice(rows, (i * B,), (B,))
        obs = jax.tree.map(lambda x: x[chosen][None], successors)
        outputs, _ = network.apply(params, (), obs, jnp.zeros((1, B), bool))
        return i + 1, final_value.at[chosen].set(outputs.value[0])

    count = truncated.sum(dtype=jnp.int32)
    empty = jnp.zeros((T * B, *value.shape[2:]), value.dtype)
    _, final_value = jax.lax.while_loop(lambda state: state[0] * B < count, next_batch, (jnp.int32(0), empty))
    return final_value.reshape(value.shape)


def _rollout_metrics(steps: _Step, transition: Transition) -> dict[str, Any]:
    done = steps.after.terminated | steps.after.truncated
    return {
        "steps": Sum(jnp.int32(done.size)),
        "episodes": Sum(total(done.astype(jnp.int32))),
        "episode_return": mean_where(steps.episode_return, done),
        "episode_length": mean_where(steps.episode_length, done),
        "reward": mean_of(transition.reward),
        "reward_max": Max(largest(transition.reward)),
        "log_prob": mean_of(transition.log_prob),
        **({"value": mean_of(extrinsic(transition.value, done))} if isinstance(transition.value, jax.Array) else {}),
        **steps.policy.metrics(),
    }


def _info_metrics(after: TimeStep, info: tuple[str, ...], episode_info: tuple[str, ...]) -> dict[str, Any]:
    """Means of entries of the environment's info, over all steps and over the ends of episodes."""
    done = after.terminated | after.truncated
    metrics = {f"info/{name}": mean_of(after.info[name]) for name in info}
    for name in episode_info:
        x = after.info[name]  # [T, B], or [T, B, n]
        parts = {name: x} if x.ndim == done.ndim else {f"{name}/{i}": x[..., i] for i in range(x.shape[-1])}
        metrics |= {f"episode_info/{part}": mean_where(x, done) for part, x in parts.items()}
    return metrics
