"""Rollouts: the loop over time that collects the data of training."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.acting.bootstrap import Bootstrap, LoopStep, most_truncations, one_step, values_of
from purerl.acting.measures import reuse_metrics, rollout_metrics
from purerl.acting.wrappers import acting_network
from purerl.config.base import OnPolicyConfig
from purerl.core.auto_reset import draw_pool, has_slow_resets, restart_from_pool
from purerl.core.environment import Environment, TimeStep
from purerl.core.finite import any_of
from purerl.core.keys import Clock, fold_in_name, split_keys
from purerl.core.masks import mask_metrics
from purerl.core.platform import by_platform, pack, unpack
from purerl.core.reductions import local_batch, local_key, num_devices
from purerl.core.types import Actor, Network, PyTree, Rollout, TrainState, Transition


def reset_actor(env: Environment, network: Network, num_envs: int, key: jax.Array) -> Actor:
    """Reset this device's share of `num_envs` environments; return the actor before their first step."""
    num_envs = local_batch(num_envs)
    env_state, obs = env.reset(jax.random.split(local_key(key, "start"), num_envs))
    return Actor(
        env_state=env_state,
        obs=obs,
        first=jnp.ones(num_envs, bool),
        carry=network.initial_carry(num_envs),
        episode_return=jnp.zeros(num_envs, jnp.float32),
        episode_length=jnp.zeros(num_envs, jnp.int32),
    )


def local_pool(cfg: OnPolicyConfig) -> int:
    """Return the size of this device's share of the pool of first states."""
    return -(-(cfg.reset_pool or cfg.num_envs) // num_devices())


def step_counts(clock: Clock, num_steps: int, num_envs: int) -> jax.Array:
    """Return the number of environment steps before each time step of the next rollout, `[T, 1]`, rounded to float32."""
    rows = jnp.arange(num_steps, dtype=jnp.float32)[:, None]
    return np.float32(num_envs) * (clock.as_float() * np.float32(num_steps) + rows)


def collect_rollout(
    cfg: OnPolicyConfig,
    env: Environment,
    network: Network,
    state: TrainState,
    behaviour: TrainState | None = None,
    **options: Any,
) -> tuple[TrainState, Rollout, dict[str, Any]]:
    """Collect the rollout of an update. Return the training state after the rollout, the rollout, and metrics.

    Args:
        cfg: the config.
        env: environments.
        network: policy and value function.
        state: the training state before the rollout.
        behaviour: the state with the parameters and statistics of the acting policy; `state` if None.
        **options: arguments of `collect` that override the config.
    """
    behaviour = state if behaviour is None else behaviour
    acting = acting_network(cfg, network, behaviour, state, env.action_space)
    key = local_key(state.key, "rollout", state.clock)
    defaults = {"length": cfg.training_length if network.is_recurrent else None, "truncation": cfg.truncation}
    defaults |= {"info": cfg.info, "episode_info": cfg.episode_info, "keep_next_obs": cfg.keeps_next_obs}
    defaults |= {"reset_pool": local_pool(cfg)}
    actor, rollout, metrics = collect(env, acting, behaviour.params, state.actor, key, cfg.num_steps, **defaults | options)
    metrics |= mask_metrics(rollout.steps.obs[cfg.action_mask], env.action_space) if cfg.action_mask else {}
    return state.replace(actor=actor), rollout, metrics


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
    info: tuple[str, ...] = (),
    episode_info: tuple[str, ...] = (),
    reset_pool: int = 0,
) -> tuple[Actor, Rollout, dict[str, Any]]:
    """Act for `T = num_steps` steps in every environment.

    The noise of actions and the environments' keys are sampled before the loop. Sampling in each step would make the rollout take
    1.5 times as long. Log-probabilities are computed after the loop, in one batch. On a CPU, the values of a feed-forward network
    are also computed after the loop, which takes 5 to 12 % less time than in the loop. On an accelerator, where acting is as fast
    with values as without, the loop computes values, so that the activations of a whole rollout are never in memory.

    Args:
        env: the environments.
        network: policy and value function.
        params: parameters of the network.
        actor: the state of the B environments and of their current episodes.
        key: consumed.
        num_steps: T.
        truncation: the bootstrap value of a truncated step (`tests/acting/test_bootstrap.py` tests each option):

            final_obs    the value of the observation before the reset: correct, since the episode could have gone on
            current_obs  the value of the step's own observation (rsl_rl, skrl 1.4): one step too early; if a step
                         is both terminated and truncated, this option treats it as truncated
            zero         0, as if the state were terminal (cleanrl, rlib): values learn the time limit, not the task
            ignore       no end: bootstrap and trace go on into the next episode (skrl 2.0)

        length: steps of a training sequence, a divisor of T; None for T.
        valued: if False, leave out `value` and `next_value`, for callers that compute them later.
        keep_next_obs: if True, the rollout stores `next_obs`.
        info: entries of the environment's info to average over all steps.
        episode_info: entries of the environment's info to average over the last steps of episodes, vectors elementwise.
        reset_pool: number of first states for the episodes that begin in the rollout, if resets are slow; 0 means B.

    Returns:
        The actor after the rollout; the rollout, with the hidden state before the first step of each sequence; and metrics about
        steps, rewards and finished episodes.
    """
    recurrent, (T, B) = bool(jax.tree.leaves(actor.carry)), (num_steps, actor.first.shape[0])
    policy = jax.eval_shape(functools.partial(one_step, network), params, actor.carry, actor.obs, actor.first)[0].policy
    pooled, pool_size = has_slow_resets(env.step), reset_pool or B
    pool_key = fold_in_name(key, "first states") if pooled else key
    draws, count = random_draws(policy, key, T, B, 1 if pooled else 2), most_truncations(env, T)
    apart = truncation == "final_obs" and valued and not (recurrent or keep_next_obs) and count < min(T, 5)
    bootstrap = Bootstrap(network, truncation, count, recurrent and valued, apart)

    def step(params, pool, state, draw):
        (actor, kept, resets), (noise, keys) = state, draw
        outputs, carry = one_step(network, params, actor.carry, actor.obs, actor.first)
        action = outputs.policy.sample(noise)
        env_action = outputs.policy.env_action(action, env.action_space)
        if pooled:
            after = env.step.advance(keys[0], actor.env_state, env_action)
            after, resets = restart_from_pool(env.reset, pool_key, pool_size, pool, after, resets)
        else:
            after = env.step(keys, actor.env_state, env_action)
        value = outputs.value if valued else ()
        kept, final_value = bootstrap.after_step(params, kept, carry, after, value)
        following, episode = _next_actor(actor, after, carry)
        next_obs = () if apart else _rows(after.next_obs)
        after = after.replace(env_state=(), obs=(), next_obs=next_obs)  # drop the arrays that the next actor holds
        row = LoopStep(_rows(actor.obs), actor.first, outputs.policy, action, after, *episode, value, final_value)
        return (following, kept, resets), row

    begin = actor, bootstrap.begin(actor), jnp.int32(0) if pooled else ()
    first_states = lambda: draw_pool(env.reset, pool_key, pool_size) if pooled else None
    sequences, late = T // (length or T), valued and not recurrent
    (last, kept, resets), steps, carries = _scan_time(network, params, step, first_states, begin, draws, sequences, late)
    obs, next_obs = (_unrows(x, actor.obs) for x in (steps.obs, steps.after.next_obs))
    next_value = bootstrap.bootstrap_values(params, kept, last, steps, next_obs) if valued else steps.final_value
    steps = steps._replace(obs=obs, final_value=next_value)
    transition = _transition(steps, next_obs if keep_next_obs else (), truncation)
    metrics = rollout_metrics(transition, steps, info, episode_info)
    metrics |= reuse_metrics(resets, pool_size) if pooled else {}
    return last, Rollout(transition, carries), metrics


def _scan_time(
    network: Network,
    params: PyTree,
    step: Callable,
    first_states: Callable,
    begin: tuple[Actor, PyTree, PyTree],
    draws: PyTree,
    sequences: int,
    late: bool,
) -> tuple[tuple[Actor, PyTree, PyTree], LoopStep, PyTree]:
    """Scan `step(params, pool, state, draw)` over time; return the last state, all steps, and the carry before each sequence.

    If `late`, a CPU computes the values after the loop. An accelerator computes the pool of first states before the loop; a CPU
    has no pool.
    """
    actor, *_ = begin

    def on_cpu(begin, draws):
        state, steps, carries = _scan_packed(functools.partial(step, params, None), begin, draws, sequences, None)
        if late:
            steps = steps._replace(value=values_of(network, params, _unrows(steps.obs, actor.obs), steps.first))
        return state, steps, carries

    def on_accelerator(begin, draws):
        one = functools.partial(step, network.prepare(params), first_states())
        return _scan_packed(one, begin, draws, sequences, actor.first.shape)

    return by_platform(begin, draws, cpu=on_cpu, accelerator=on_accelerator)


def _next_actor(actor: Actor, after: TimeStep, carry: PyTree) -> tuple[Actor, tuple[jax.Array, jax.Array]]:
    """Return the actor after a step, and the return and length of each episode up to and including this step, `[B]`."""
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
    return following, (episode_return, episode_length)


def random_draws(policy: Any, key: jax.Array, num_steps: int, num_envs: int, rows: int = 2) -> tuple[PyTree, jax.Array]:
    """Sample the noise of a rollout's actions, `[T, B, ...]`, and the keys of the environments, `[T, rows, B]`.

    `policy` is a distribution over the actions of one step, or the shapes of such a distribution. The key is consumed.
    """
    noise = policy.noise(fold_in_name(key, "action"), num_steps)
    return noise, split_keys(fold_in_name(key, "environment"), num_steps, rows, num_envs)


def _scan_packed(
    step: Callable, start: tuple, draws: PyTree, count: int, lead: tuple[int, ...] | None
) -> tuple[tuple, PyTree, PyTree]:
    """Scan over time in `count` sequences; return the last state, all steps `[T, ...]`, and the carry before each sequence.

    The small arrays with the leading axes `lead` are packed: those of the state into one array, and those of a step's outputs
    into another. If `lead` is None, nothing is packed.
    """

    def packed_step(state, draw):
        state, row = step(unpack(state), draw)
        return pack(state, lead), pack(row, lead)

    def sequence(state, draws):
        after, steps = jax.lax.scan(packed_step, state, draws)
        return after, (steps, unpack(state)[0].carry)

    if count == 1:
        last, (steps, carry) = sequence(pack(start, lead), draws)
        return unpack(last), unpack(steps), jax.tree.map(lambda x: x[None], carry)
    draws = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), draws)
    last, (steps, carries) = jax.lax.scan(sequence, pack(start, lead), draws)
    return unpack(last), unpack(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)), carries


def _rows(obs: PyTree) -> PyTree:
    """Flatten observations `[B, ...]` to `[B, size]`. A CPU stores `[400]` in a third less time than `[10, 10, 4]`."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0], -1), obs)


def _unrows(rows: PyTree, obs: PyTree) -> PyTree:
    """Reshape rows `[T, B, size]` to `[T, B, ...]`, like `obs [B, ...]`."""
    return jax.tree.map(lambda x, like: x.reshape(*x.shape[:2], *like.shape[1:]), rows, obs) if jax.tree.leaves(rows) else ()


def _transition(steps: LoopStep, next_obs: PyTree, truncation: str) -> Transition:
    """Return the transitions of a rollout. `steps.final_value` becomes `next_value`, and `truncation` determines the flags."""
    after = steps.after
    if after.nonfinite and jax.tree.leaves(next_obs):  # otherwise, curiosity would pay for the zeros there
        pick, bad = jax.vmap(jax.vmap(jnp.where)), any_of(after.nonfinite)
        next_obs = jax.tree.map(lambda old, new: pick(bad, old, new), steps.obs, next_obs)
    if truncation == "ignore":
        after = after.replace(truncated=jnp.zeros_like(after.truncated))
    if truncation == "current_obs":
        after = after.replace(terminated=after.terminated & ~after.truncated)
    return Transition(
        obs=steps.obs,
        first=steps.first,
        action=steps.action,
        log_prob=steps.policy.log_prob(steps.action),
        value=steps.value,
        reward=after.reward,
        terminated=after.terminated,
        truncated=after.truncated,
        next_value=steps.final_value,
        next_obs=next_obs,
        policy=steps.policy,
        info=after.info,
    )
