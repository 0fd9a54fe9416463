"""Phasic Policy Gradient (Cobbe et al. 2021, arXiv:2009.04416): what PPG adds to PPO.

    repeat
        n_pi times:  collect a rollout, improve the policy (e_pi epochs) and the value (e_v epochs), save observations and targets
        clone the policy, then train e_aux epochs over all stored steps on
            L = (V_aux - target)^2 / 2 + beta_clone * KL(clone || policy) + (V - target)^2 / 2

V_aux is a head on the policy's features. The auxiliary phase trains these features to predict values, while the KL term preserves
the policy's outputs.

**Where papers and implementations differ.** The value targets are those computed at collection, as in the paper. The auxiliary
phase has its own optimizer (`aux_optimizer`). If fewer than `n_pi` updates remain at the end of a run, no auxiliary phase follows
them. If `nonfinite="freeze"` skips an update, its place in the stored steps has those of the update before, or zeros before the
first stored rollout. Rewards are scaled by default, as in the paper's code. The scale is the standard deviation of returns
discounted with `gamma`; the paper's code discounts with 0.99. By default, `adam_eps` is 1e-5; in the paper's code, it is 1e-8.

**Defaults** are the paper's for Procgen: one policy epoch and one value epoch, no gradient clipping, `vf_coef = 1` on half the
squared error, `n_pi = 32`, `e_aux = 6`, 16 auxiliary minibatches for each rollout (with fewer than 16 environments, one for each
environment), a learning rate of 5e-4, `gamma = 0.999`.

**When to choose it.** For procedurally generated levels. After training in 200 mazes, PPG solved 41 % of unseen mazes (95 %
interval 39 to 43), PPO 34 % (31 to 38). PPO solved more of the 200 training mazes. After 250,000 steps of MinAtar, PPG was better
than PPO on Asterix and SpaceInvaders. On Breakout, PPG with four or more policy epochs was indistinguishable from PPO; with one,
PPG was worse. After five million steps, PPG was worse on Breakout (18 against 66) and on SpaceInvaders (120 against 157). With
four planes of noise added to Breakout's four planes, PPG was not better than PPO after one million steps
(`tests/benchmarks/RESULTS.md`). In these runs, `aux_columns` was `num_envs / 4`. With `aux_columns = num_envs`, PPG takes about
twice the time of PPO (`tests/benchmarks/speed.md`).

**Metrics** in addition to PPO's, in updates with an auxiliary phase:

- `aux/error_before`, `aux/error_after`: half the squared error of V_aux before and after the auxiliary phase. The error should
  fall.
- `aux/kl_after`: how far the policy moved in the phase, in nats. If this is far above `approx_kl`, raise `beta_clone`.
- `aux/aux_value_loss`, `aux/value_loss`, `aux/clone_loss`: the three terms of the loss, means over the phase.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from purerl.acting.normalize import standardize_values
from purerl.algorithms.ppo import ppo, ppo_loss, ppo_phases, value_term
from purerl.config.algorithms import DAACConfig, PPGConfig
from purerl.core.environment import Environment
from purerl.core.metrics import mean_of
from purerl.core.reductions import reduce_before
from purerl.core.streams import sum_over_streams
from purerl.core.types import Advantages, Network, Rollout, Sequences, TrainState
from purerl.learning import losses
from purerl.learning.learner import Components, Learner, Metrics
from purerl.learning.learning_rates import learning_rates
from purerl.learning.optimizers import Optimizer, lr_multipliers, without_kl_control
from purerl.learning.phases import Groups, Loss, Phase, if_due, init_phase, make_phase, run_epochs
from purerl.learning.update import Algorithm


class AuxBatch(struct.PyTreeNode):
    """The part of one step that the auxiliary phase reads.

    Attributes:
        obs, first: the observation, in the environment's dtypes, and its episode-start flag.
        target: the value target at collection; in the buffer, in units of reward.
        clone: the policy before the auxiliary phase; `()` in the buffer.
    """

    obs: Any
    first: jax.Array
    target: jax.Array
    clone: Any = ()


def ppg(cfg: PPGConfig, env: Environment, network: Network, parts: Components) -> Algorithm:
    """Return PPG as an `Algorithm`; the arguments are the first four of `ppo`. The network must have the head `aux_value`.

    The buffer has the last `n_pi` rollouts, `[T, n_pi, B, ...]`, which are concatenated for the auxiliary phase. A custom
    learning-rate schedule does not apply to the auxiliary phase, which has the config's schedule, starting at `aux_lr`.
    """
    learner, aux_optimizer = Learner(cfg, network, parts), "ppo" if cfg.aux_optimizer == "shared" else "aux"

    def buffer_write(state: TrainState, steps: AuxBatch, carry: Any) -> Sequences:
        """Overwrite the rollout from `n_pi` updates ago."""
        at = (state.clock % cfg.n_pi).astype(jnp.int32)
        write = lambda axis: lambda old, new: jax.lax.dynamic_update_index_in_dim(old, new, at, axis)
        buffer = state.extra["buffer"]
        return Sequences(jax.tree.map(write(1), buffer.steps, steps), jax.tree.map(write(0), buffer.carry, carry))

    def auxiliary_phase(state: TrainState, rollout: Rollout, advantages: Advantages) -> tuple[TrainState, Metrics]:
        """Store the rollout, and run the auxiliary phase if it is scheduled for this update."""
        steps = AuxBatch(rollout.steps.obs, rollout.steps.first, advantages.target)
        buffer = buffer_write(state, steps, jax.tree.map(lambda x: x[0], rollout.carry))
        state, width = state.replace(extra={**state.extra, "buffer": buffer}), rollout.steps.first.shape[1]
        current, opt_state = learner.at(state), state.opt_state[aux_optimizer]
        phase, evaluate = aux_phase(current), lambda params: policy_and_value_error(current.network, params)

        def run():
            wide = concatenate_rollouts(buffer)
            steps = wide.steps.replace(target=standardize_values(state.statistics, wide.steps.target))
            clone, error_before = apply_in_chunks(evaluate(state.params), wide.replace(steps=steps), width)
            batch = wide.replace(steps=steps.replace(clone=clone))
            before, key, batch = reduce_before({"aux/error_before": mean_of(error_before)}, state.key, batch)
            params, opt_state_after, metrics = run_epochs(phase, state.clock, key, state.params, opt_state, batch)
            # A shared optimizer would move the predictor, which has no gradient here, and forget its moments.
            is_frozen = lambda path: any(getattr(part, "key", None) in predictor_of(learner) for part in path)
            keep = lambda path, old, new: old if is_frozen(path) else new
            trained = (params, opt_state_after)
            params, opt_state_after = jax.tree_util.tree_map_with_path(keep, (state.params, opt_state), trained)
            policy, error_after = apply_in_chunks(evaluate(params), batch, width)
            after = {"aux/error_after": mean_of(error_after), "aux/kl_after": mean_of(clone.kl(policy))}
            return params, opt_state_after, metrics | before | after

        params, opt_state, metrics = if_due(phase, state.clock, run, (state.params, opt_state))
        return state.replace(params=params, opt_state={**state.opt_state, aux_optimizer: opt_state}), metrics

    def skipped(state: TrainState, after: TrainState) -> dict[str, Any]:
        """Store the previous rollout again after a skipped update (zeros if there is none)."""
        at = ((state.clock + (cfg.n_pi - 1)) % cfg.n_pi).astype(jnp.int32)
        read = lambda axis: lambda x: jax.lax.dynamic_index_in_dim(x, at, axis, keepdims=False)
        buffer = state.extra["buffer"]
        before = jax.tree.map(read(1), buffer.steps), jax.tree.map(read(0), buffer.carry)
        return {**state.extra, "buffer": buffer_write(state, *before)}

    base = ppo(cfg, env, network, parts, ppg_phases, auxiliary_phase)
    auxiliary = aux_phase(learner)

    def init(key: jax.Array) -> TrainState:
        state = base.init(key)
        rollouts = lambda x: jnp.zeros((cfg.num_steps, cfg.n_pi, *x.shape), x.dtype)
        first = state.actor.first
        target = jnp.zeros((*first.shape, cfg.streams) if cfg.streams > 1 else first.shape, jnp.float32)
        steps = AuxBatch(*jax.tree.map(rollouts, (state.actor.obs, first, target)))
        carry = jax.tree.map(lambda x: jnp.zeros((cfg.n_pi, *x.shape), x.dtype), state.actor.carry)
        buffer = Sequences(steps, carry)
        opt_state = {"aux": init_phase(auxiliary, state.params)} if aux_optimizer == "aux" else {}
        return state.replace(opt_state={**state.opt_state, **opt_state}, extra={**state.extra, "buffer": buffer})

    return base._replace(init=init, phases=(*base.phases, auxiliary), skipped=skipped)


def concatenate_rollouts(buffer: Sequences) -> Sequences:
    """Concatenate the rollouts of a buffer, `[T, n_pi, B, ...]`, along the environment axis: `[T, n_pi * B, ...]`."""
    steps = jax.tree.map(lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]), buffer.steps)
    return Sequences(steps, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), buffer.carry))


# --- phases -----------------------------------------------------------------------------------------------------------


def ppg_phases(learner: Learner[PPGConfig]) -> list[Phase]:
    """Return a joint phase of policy and value if both have the same number of epochs, else a value phase and a policy phase."""
    cfg = learner.cfg
    if cfg.e_pi == cfg.e_v:
        joint = ppo_phases(learner)
        return joint if cfg.aux_optimizer == "shared" else [phase._replace(frozen=("aux_value",)) for phase in joint]
    return [
        value_phase(learner, frozen=("policy", "aux_value", *predictor_of(learner))),
        make_phase(learner, "policy", ppo_loss(learner), cfg.e_pi, frozen=("value", "aux_value")),
    ]


def value_phase(learner: Learner[PPGConfig | DAACConfig], **options: Any) -> Phase:
    """Return the phase that trains only the value function, in `e_v` passes over the rollout; `options` are fields of `Phase`."""
    cfg, network, _ = learner

    def loss(params, minibatch):
        outputs, _ = network.apply(params, minibatch.carry, minibatch.steps.obs, minibatch.steps.first)
        return losses.combine([value_term(outputs, minibatch.steps, cfg)])

    return make_phase(learner, "value", loss, cfg.e_v, follows_kl=False, prefix="value/", **options)


def predictor_of(learner: Learner[PPGConfig]) -> tuple[str, ...]:
    """Return the name of the parameters that intrinsic rewards train, if there are any."""
    intrinsic = learner.parts.rewards.intrinsic
    return ("predictor",) if intrinsic is not None and intrinsic.loss is not None else ()


def aux_phase(learner: Learner[PPGConfig]) -> Phase:
    """Return the auxiliary phase, which runs in every `n_pi`-th update."""
    cfg, network, parts = learner
    phase = make_phase(learner, "aux", aux_loss(cfg, network), cfg.e_aux, follows_kl=False, prefix="aux/", every=cfg.n_pi)
    return phase._replace(
        optimizer=aux_phase_optimizer(cfg, parts.optimizer),
        minibatches=cfg.n_pi * cfg.num_envs // (cfg.aux_columns * cfg.aux_accumulation),
        accumulate=cfg.aux_accumulation,
        frozen=() if cfg.aux_optimizer == "shared" else predictor_of(learner),
        block=1,  # minibatches of whole environments, whatever those of the other phases are
        precompute=None,
    )


def aux_loss(cfg: PPGConfig, network: Network) -> Loss:
    """Return the joint loss of the auxiliary phase, `(params, minibatch of AuxBatch) -> (loss, metrics)`.

    With `arch = "detach"`, the gradient of the value term does not reach the torso.
    """

    def loss(params, batch):
        old = batch.steps
        outputs, _ = network.apply(params, batch.carry, old.obs, old.first)
        error = lambda value: sum_over_streams(losses.half_squared_error(value, old.target), old.first)
        aux = losses.Term("aux/aux_value_loss", 1.0, error(outputs.heads["aux_value"]))
        clone = losses.Term("aux/clone_loss", cfg.beta_clone, old.clone.kl(outputs.policy))
        total, found = losses.combine([aux, clone, losses.Term("aux/value_loss", 1.0, error(outputs.value))])
        return total, found | {"aux/loss": total}

    return loss


def aux_phase_optimizer(cfg: PPGConfig, optimizer: Optimizer) -> Optimizer:
    """Return an optimizer whose learning rate is constant within each auxiliary phase.

    The rate is the scheduled rate of the first update of the preceding policy phase. The last auxiliary phase therefore still
    learns if a linear schedule ends at 0.
    """
    rates = learning_rates(without_kl_control(cfg).replace(lr=cfg.aux_lr), None)
    at_first = lambda clock, step, steps: rates(clock - (cfg.n_pi - 1), jnp.uint32(0), cfg.e_pi * cfg.num_minibatches)
    return optimizer._replace(rate=at_first, multipliers=lr_multipliers(cfg))


def policy_and_value_error(network: Network, params: Groups) -> Callable[[Sequences], tuple[Any, jax.Array]]:
    """Return a function from `AuxBatch` sequences to the policy and half the squared error of the auxiliary value."""

    def outputs_of(data):
        outputs, _ = network.apply(params, data.carry, data.steps.obs, data.steps.first)
        error = losses.half_squared_error(outputs.heads["aux_value"], data.steps.target)
        return outputs.policy, sum_over_streams(error, data.steps.first)

    return outputs_of


def apply_in_chunks(function: Callable[[Sequences], Any], data: Sequences, size: int) -> Any:
    """Apply a function to N sequences, leaves `[L, N, ...]`, in chunks of `size` sequences; `size` divides N."""

    def one(i):
        cut = lambda axis: lambda x: jax.lax.dynamic_slice_in_dim(x, i * size, size, axis)
        return function(Sequences(jax.tree.map(cut(1), data.steps), jax.tree.map(cut(0), data.carry)))

    L, N = data.steps.first.shape
    chunks = jax.lax.map(one, jnp.arange(N // size))
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(L, N, *x.shape[3:]), chunks)
