"""Phasic Policy Gradient (Cobbe et al. 2021, arXiv:2009.04416): what it adds to PPO.

    repeat
        n_pi times:  collect a rollout, improve the policy (e_pi passes) and the value (e_v passes), keep observations and targets
        clone the policy, then e_aux passes over all that was kept on
            L = (V_aux - target)^2 / 2 + beta_clone * KL(clone || policy) + (V - target)^2 / 2

V_aux is a head on the policy's features: they learn to predict values, while the clone holds the policy where it is.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from purerl import losses
from purerl.algorithms.ppo import phase_of, ppo, ppo_loss, ppo_phases, surrogate, value_phase_loss
from purerl.clock import advance, remainder, since
from purerl.config import PPGConfig
from purerl.metrics import mean_of
from purerl.normalize import standardize_values
from purerl.optimizers import Direction, descent, direction, group_scales, steady, unsteered
from purerl.phases import epochs, if_due, init_phase
from purerl.reductions import mean
from purerl.streams import summed, with_loss
from purerl.types import (
    Advantages,
    Algorithm,
    Clock,
    Descent,
    Environment,
    Intrinsic,
    Network,
    Phase,
    Rollout,
    Sequences,
    TrainState,
)
from purerl.wrappers import observing


@struct.dataclass
class Remembered:
    """What the auxiliary phase reads of one step.

    obs, first: as in `Transition`, in their own dtypes.
    target: what the value should have said when this was collected, in units of reward.
    clone: the policy before the auxiliary phase; `()` in the buffer.
    """

    obs: Any
    first: jax.Array
    target: jax.Array
    clone: Any = ()


def ppg(
    cfg: PPGConfig,
    env: Environment,
    network: Network,
    *,
    policy_loss: Callable[..., jax.Array] = surrogate,
    optimizer: Any = None,
    lr_schedule: Callable[[jax.Array], jax.Array] | None = None,
    intrinsic: Intrinsic | None = None,
    **parts,
) -> Algorithm:
    """PPG as two pure functions; the arguments are those of `ppo`. The network has the head `aux_value`.

    The buffer is `Sequences` of `n_pi * num_envs` columns, each the rollout of one environment: like one wide rollout.
    A schedule of one's own is the policy phase's; the auxiliary phase keeps to that of the config, from `aux_lr` on.
    """
    optimizer = direction(cfg, optimizer)
    T, B = cfg.num_steps, cfg.num_envs
    aux_optimizer = "ppo" if cfg.aux_optimizer == "shared" else "aux"

    def phases(cfg: PPGConfig, network: Network, clock: Clock | None) -> list[Phase]:
        if cfg.e_pi == cfg.e_v:
            joint = ppo_phases(policy_loss, optimizer, lr_schedule, intrinsic)(cfg, network, clock)
            return joint if cfg.aux_optimizer == "shared" else [phase._replace(still=("aux_value",)) for phase in joint]
        value = descent(unsteered(cfg), optimizer, lr_schedule, clock, cfg.e_v)
        policy = descent(cfg, optimizer, lr_schedule, clock, cfg.e_pi)
        fit = value_phase_loss(cfg, network)
        loss = ppo_loss(cfg, network, policy_loss, with_loss(lambda *_: (jnp.float32(0), {}), intrinsic))
        return [
            phase_of(cfg, network, "value", fit, value, cfg.e_v, prefix="value/", still=("policy", "aux_value", "predictor")),
            phase_of(cfg, network, "policy", loss, policy, cfg.e_pi, still=("value", "aux_value")),
        ]

    def auxiliary(network: Network, clock: Clock | None) -> Phase:
        return Phase(
            name="aux",
            loss=auxiliary_loss(cfg, network),
            descent=auxiliary_descent(cfg, optimizer, clock),
            group=None,
            epochs=cfg.e_aux,
            minibatches=cfg.n_pi * B // (cfg.aux_columns * cfg.aux_accumulation),
            accumulate=cfg.aux_accumulation,
            max_grad_norm=cfg.max_grad_norm,
            joint=cfg.grad_clip == "joint",
            length=T,
            every=cfg.n_pi,
            start=cfg.skipped_updates,
            prefix="aux/",
            still=() if cfg.aux_optimizer == "shared" else ("predictor",),
        )

    def column(slot: jax.Array) -> jax.Array:
        """The first of a rollout's columns in the buffer."""
        return (slot * jnp.uint32(B)).astype(jnp.int32)

    def written(state: TrainState, steps: Remembered, carry: Any) -> dict[str, Any]:
        """The buffer with these `B` columns in the place of those of a phase ago."""
        at = column(remainder(state.clock, cfg.n_pi))
        write = lambda axis: lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, at, axis)
        buffer = state.extra["buffer"]
        return {"buffer": Sequences(jax.tree.map(write(1), buffer.steps, steps), jax.tree.map(write(0), buffer.carry, carry))}

    def keep(state: TrainState, rollout: Rollout, advantages: Advantages) -> dict[str, Any]:
        steps = Remembered(rollout.steps.obs, rollout.steps.first, advantages.target)
        return written(state, steps, jax.tree.map(lambda x: x[0], rollout.carry))

    def skipped(state: TrainState, after: TrainState) -> dict[str, Any]:
        """In place of a rollout that is not learnt from, the one before it is there twice."""
        at = column(remainder(advance(state.clock, cfg.n_pi - 1), cfg.n_pi))
        read = lambda axis: lambda x: jax.lax.dynamic_slice_in_dim(x, at, B, axis)
        buffer = state.extra["buffer"]
        return {**state.extra, **written(state, jax.tree.map(read(1), buffer.steps), jax.tree.map(read(0), buffer.carry))}

    base = ppo(cfg, env, network, phases=phases, keep=keep, intrinsic=intrinsic, **parts)

    def init(key: jax.Array) -> TrainState:
        state = base.init(key)
        wide = lambda x: jnp.zeros((T, cfg.n_pi * B, *x.shape[1:]), x.dtype)
        target = jnp.zeros((B, cfg.streams) if cfg.streams > 1 else B, jnp.float32)
        steps = Remembered(*jax.tree.map(wide, (state.actor.obs, state.actor.first, target)))
        buffer = Sequences(steps, network.initial_carry(cfg.n_pi * B))
        opt_state = {"aux": init_phase(auxiliary(network, None), state.params)} if aux_optimizer == "aux" else {}
        return state.replace(opt_state={**state.opt_state, **opt_state}, extra={**state.extra, "buffer": buffer})

    def update(state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        after, metrics = base.update(state)
        seeing, opt_state = observing(cfg, network, after.statistics), after.opt_state[aux_optimizer]
        phase = auxiliary(seeing, state.clock)

        def run():
            buffer = after.extra["buffer"]
            steps = buffer.steps.replace(target=standardize_values(after.statistics, buffer.steps.target))
            clone, error_before = in_chunks(look(seeing, after.params), buffer.replace(steps=steps), B)
            data = buffer.replace(steps=steps.replace(clone=clone))
            params, moved, learnt = epochs(phase, state.clock, after.key, after.params, opt_state, data)
            policy, error_after = in_chunks(look(seeing, params), data, B)
            learnt |= {"aux/error_before": mean_of(error_before), "aux/error_after": mean_of(error_after)}
            return params, moved, learnt | {"aux/kl_after": mean_of(clone.kl(policy))}

        params, opt_state, learnt = if_due(phase, state.clock, run, (after.params, opt_state))
        after = after.replace(params=params, opt_state={**after.opt_state, aux_optimizer: opt_state})
        return after, {**metrics, **learnt}

    return Algorithm(init, update, (*base.phases, auxiliary(network, None)), skipped=skipped)


def auxiliary_loss(cfg: PPGConfig, network: Network) -> Callable:
    """The joint loss of an auxiliary phase, as a function of all parameters and a minibatch of `Remembered`.

    Where the value's gradient does not reach the torso (`arch = "detach"`), neither does that of its term here.
    """

    def loss(params, batch):
        old = batch.steps
        outputs, _ = network.apply(params, batch.carry, old.obs, old.first)
        error = lambda value: mean(summed(losses.half_squared_error(value, old.target), old.first))
        aux, value = error(outputs.heads["aux_value"]), error(outputs.value)
        clone = mean(old.clone.kl(outputs.policy))
        total = aux + cfg.beta_clone * clone + value
        return total, {"aux/loss": total, "aux/aux_value_loss": aux, "aux/clone_loss": clone, "aux/value_loss": value}

    return loss


def auxiliary_descent(cfg: PPGConfig, optimizer: Direction, clock: Clock | None) -> Descent:
    """Steps of one rate in an auxiliary phase: the schedule's when its policy phase began, so that the last one learns too."""
    plain = unsteered(cfg).replace(lr=cfg.aux_lr)
    rate = descent(plain, optimizer, None, since(clock, cfg.n_pi - 1), cfg.e_pi).lr(None) if clock else cfg.aux_lr
    return steady(optimizer, rate, group_scales(cfg))


def look(network: Network, params: Any) -> Callable[[Sequences], tuple[Any, jax.Array]]:
    """What a network says of sequences: the policy, and half the squared error of the auxiliary value."""

    def says(data):
        outputs, _ = network.apply(params, data.carry, data.steps.obs, data.steps.first)
        error = losses.half_squared_error(outputs.heads["aux_value"], data.steps.target)
        return outputs.policy, summed(error, data.steps.first)

    return says


def in_chunks(function: Callable[[Sequences], Any], data: Sequences, size: int) -> Any:
    """`function` of so many of N sequences at a time, N a multiple of it; leaves `[L, N, ...]`."""

    def one(i):
        cut = lambda axis: lambda x: jax.lax.dynamic_slice_in_dim(x, i * size, size, axis)
        return function(Sequences(jax.tree.map(cut(1), data.steps), jax.tree.map(cut(0), data.carry)))

    L, N = data.steps.first.shape
    chunks = jax.lax.map(one, jnp.arange(N // size))
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(L, N, *x.shape[3:]), chunks)
