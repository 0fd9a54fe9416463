"""Phases: from a batch and a loss to the next parameters. This module has the only loop over gradient steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from purerl.config.base import OnPolicyConfig
from purerl.core.errors import Problem, config_error, is_count, is_int, raise_if_any
from purerl.core.keys import Clock
from purerl.core.metrics import Mean, mean_of
from purerl.core.platform import pack, unpack
from purerl.core.reductions import local_batch, local_key, pmean, reduce_before
from purerl.core.types import Network, PyTree, Sample, Sequences, TrainState
from purerl.learning.advantages import standardize
from purerl.learning.custom import warn_unless_trained
from purerl.learning.learner import Learner, Metrics
from purerl.learning.optimizers import Groups, Optimizer, Vectors, clip_scale, phase_optimizer, vectors_of, without_kl_control
from purerl.learning.shuffle import permutation

Loss = Callable[[Groups, Sequences], tuple[jax.Array, dict[str, jax.Array]]]
OPTIONAL = ("aux_value", "predictor")  # groups that only some configs of a built-in algorithm have


class Phase(NamedTuple):
    """A phase of training: a loss, the parameter groups to train, and a schedule.

    Attributes:
        name: name of the phase, from which its random keys are derived.
        loss: `(params, Sequences) -> (scalar, dict of scalar metrics)`. At least one phase's loss must return a metric `loss`.
        optimizer: maps gradients to updates.
        groups: names of the trained parameter groups; None for all.
        epochs, minibatches: passes over the batch, and gradient steps in each pass.
        accumulate: number of equal parts of a minibatch, processed one after the other; a gradient step uses the mean of their
          gradients.
        max_grad_norm: limit of the gradient norm, over all groups together, or over each group if `joint` is False; inf disables
          clipping.
        block: number of contiguous sequences that stay together in one minibatch. With sequences of one step, `block=B` keeps
          each time step of all B environments together.
        every: the phase runs in every `every`-th update. A learning-rate schedule in gradient steps also counts the steps of the
          other updates.
        start: number of updates at the start of training in which the phase does not run.
        prefix: prefix of the names of the phase's gradient-norm metrics.
        precompute: `(steps [L, M, n]) -> {field: [L, M, n]}`, computes fields of the steps once per epoch, for all M minibatches
          of n sequences of L steps. These fields replace the same fields of the batch. A gradient step then needs no further
          reductions over its minibatch and over devices to compute these fields. None to replace nothing.
        frozen: groups that the phase does not train, even if `groups` names them. Other names are refused.

    Example:
        >>> def halved(phase: purerl.Phase) -> purerl.Phase:
        ...     return phase._replace(minibatches=phase.minibatches // 2)
        >>> phases = lambda learner: [halved(phase) for phase in purerl.ppo_phases(learner)]
        >>> algorithm = lambda cfg, env, network, parts: purerl.ppo(cfg, env, network, parts, phases)
        >>> train = purerl.make_train(purerl.PPOConfig(), algorithm=algorithm)
    """

    name: str
    loss: Loss
    optimizer: Optimizer
    groups: tuple[str, ...] | None
    epochs: int
    minibatches: int
    max_grad_norm: Any
    joint: bool = True
    block: int = 1
    every: int = 1
    start: int = 0
    accumulate: int = 1
    prefix: str = ""
    precompute: Callable[[PyTree], dict[str, PyTree]] | None = None
    frozen: tuple[str, ...] = ()


def make_phase(
    learner: Learner[OnPolicyConfig], name: str, loss: Loss, epochs: int, follows_kl: bool = True, **options: Any
) -> Phase:
    """Return a phase that trains on the batch of an update, with the options of the config.

    Args:
        learner: config and parts.
        name: name of the phase.
        loss: `(params, Sequences) -> (scalar, dict of scalar metrics)`.
        epochs: passes over the batch.
        follows_kl: True if the loss returns the metrics that control the phase: `kl` for a KL-adaptive learning rate, `approx_kl`
          for an early stop.
        **options: fields of `Phase`, which replace the config's values.

    Example:
        >>> def phases(learner):
        ...     loss = lambda params, batch: (sum(jnp.vdot(x, x) for x in jax.tree.leaves(params["policy"])), {})
        ...     options = {"follows_kl": False, "groups": ("policy",), "prefix": "small/"}
        ...     return [purerl.make_phase(learner, "small", loss, 1, **options), *purerl.ppo_phases(learner)]
        >>> algorithm = lambda cfg, env, network, parts: purerl.ppo(cfg, env, network, parts, phases)
        >>> train = purerl.make_train(purerl.PPOConfig(), algorithm=algorithm)
    """
    cfg, _, parts = learner
    optimizer_cfg = cfg if follows_kl else without_kl_control(cfg)
    phase = Phase(
        name=name,
        loss=loss,
        optimizer=phase_optimizer(optimizer_cfg, parts.optimizer, parts.lr_schedule),
        epochs=epochs,
        minibatches=cfg.num_minibatches,
        max_grad_norm=cfg.max_grad_norm,
        joint=cfg.grad_clip == "joint",
        block=local_batch(cfg.columns) if cfg.minibatches == "time" else 1,
        precompute=_standardized_advantages if cfg.advantage_norm == "minibatch" else None,
        start=cfg.skipped_updates,
        groups=None,
    )
    return phase._replace(**options)


def sequence_length(cfg: OnPolicyConfig, network: Network) -> int:
    """Return the steps per training sequence: `num_steps` for `env` minibatches, else `training_length` if recurrent, else 1."""
    sequence = cfg.training_length if network.is_recurrent else 1
    return cfg.num_steps if cfg.minibatches == "env" else sequence


def _standardized_advantages(steps: Sample) -> dict[str, jax.Array]:
    return {"advantage": standardize(steps.advantage, axis=(0, 2))}


def run_phases(phases: list[Phase], state: TrainState, batch: Sequences, metrics: Metrics) -> tuple[TrainState, Metrics]:
    """Run all phases of an update in order; return the new state, and the given metrics plus those of the phases.

    Args:
        phases: the phases; the policy's phase must be the last, since the metric `lr` is its learning rate.
        state: the state before the phases.
        batch: the batch of the update.
        metrics: metrics of the update so far.
    """
    metrics, key, batch = reduce_before(metrics, state.key, batch)
    params, opt_state, found = state.params, dict(state.opt_state), {}
    names = [phase.name for phase in phases]
    hint = "is the name of two phases, which would share random keys and an optimizer state; rename one of them"
    raise_if_any([Problem("algorithm", name, hint) for name in set(names) if names.count(name) > 1])
    for phase in phases:
        params, opt_state[phase.name], phase_metrics = run_phase(phase, state.clock, key, params, opt_state[phase.name], batch)
        found |= phase_metrics
    refuse_taken(metrics, found)
    if "loss" not in found:
        raise config_error("algorithm", ..., "no phase's loss returns a metric named 'loss'; at least one must")
    stopped = Mean(jnp.float32(0), found["loss"].count)  # the default, if no phase has an early stop
    last = phases[-1]
    lr = mean_of(jnp.float32(last.optimizer.lr(opt_state[last.name], state.clock, last.epochs * last.minibatches)))
    return state.replace(params=params, opt_state=opt_state, key=key), metrics | {"stopped": stopped, **found, "lr": lr}


def refuse_taken(metrics: Metrics, new: Metrics) -> None:
    """Raise a ConfigError if a new metric has the name of another metric."""
    hint = "is already the name of a metric; choose another name"
    raise_if_any([Problem("algorithm", name, hint) for name in new if name in metrics])


def run_phase(
    phase: Phase, clock: Clock, key: jax.Array, params: Groups, opt_state: PyTree, batch: Sequences
) -> tuple[Groups, PyTree, dict[str, Mean]]:
    """Minimise a phase's loss over a batch, if the phase is scheduled for this update.

    Each epoch visits every sequence once, in a new random order. A gradient step is

        params[group] += optimizer(clip(gradient))[group]

    where `clip` limits the norm of all groups together, or of each group, to `max_grad_norm`. With several devices, each device
    has an equal share of every minibatch; gradients and loss metrics are averaged over devices.

    Args:
        phase: loss, trained groups, optimizer, epochs, minibatches and schedule.
        clock: the update counter; must not be batched by `vmap`, since the phase would then be computed in every update, and its
          result discarded in the updates for which the phase is not scheduled.
        key: root key, from which the keys of the phase are derived.
        params: the parameters of all groups; the loss can read all groups.
        opt_state: optimizer state of the phase.
        batch: N sequences of L steps, `[L, N]`; with several devices, this device's share.

    Returns:
        Parameters, optimizer state, and metrics: those of the loss and of the optimizer, and `grad_norm` (before clipping,
        joint and per group), averaged over all gradient steps. If the phase did not run, the metrics have a count of 0.
    """
    return if_due(phase, clock, lambda: run_epochs(phase, clock, key, params, opt_state, batch), (params, opt_state))


def if_due(phase: Phase, clock: Clock, run: Callable, otherwise: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree, dict[str, Mean]]:
    """Run the phase if it is scheduled for this update; otherwise return `otherwise` and metrics with a count of 0."""
    if phase.every == 1 and not phase.start:
        return run()
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(run)[2])
    runs = clock.is_due(phase.every) & ~(clock < phase.start)
    return jax.lax.cond(runs, run, lambda: (*otherwise, nothing))


def run_epochs(
    phase: Phase, clock: Clock, key: jax.Array, params: Groups, opt_state: PyTree, batch: Sequences
) -> tuple[Groups, PyTree, dict[str, Mean]]:
    """Take the gradient steps of all epochs; arguments and results are those of `run_phase`."""
    moving, num_sequences = moving_groups(phase, params), jax.tree.leaves(batch.steps)[0].shape[1]
    vectors = vectors_of(moving, phase.optimizer)
    same = lambda groups: groups
    show, hide = (same, same) if phase.optimizer.elementwise else (vectors.unflatten, vectors.flatten)
    gradient_of = minibatch_gradient(phase, lambda flat: {**params, **vectors.unflatten(flat)}, batch)

    def gradient_step(carry, minibatch):
        flat, opt_state = carry
        rows, recomputed, step = minibatch
        gradient, metrics = pmean(gradient_of(flat, rows, recomputed))
        hint = f"is not returned by the loss of the phase {phase.name!r}; use follows_kl=False"
        raise_if_any([Problem("algorithm", name, hint) for name in phase.optimizer.reads() if name not in metrics])
        gradient, norms = clip_gradient(phase, vectors, gradient)
        now = {"clock": clock, "step": step, "metrics": metrics, "epochs": phase.epochs, "minibatches": phase.minibatches}
        updates, opt_state = phase.optimizer.update(show(gradient), opt_state, show(flat), **now)
        flat = jax.tree.map(jnp.add, flat, hide(updates))
        return (flat, opt_state), pack({**metrics, **norms, **phase.optimizer.report(opt_state)}, ())

    def epoch(carry, index):
        rows = minibatch_rows(phase, local_key(key, f"{phase.name}/shuffle", clock, index), num_sequences)
        recomputed = phase.precompute(jax.tree.map(lambda x: x[:, rows], batch.steps)) if phase.precompute else {}
        recomputed = jax.tree.map(lambda x: x.swapaxes(0, 1), recomputed)
        steps = index * np.uint32(phase.minibatches) + jnp.arange(phase.minibatches, dtype=jnp.uint32)
        return jax.lax.scan(gradient_step, carry, (rows, recomputed, steps))

    start = vectors.flatten(moving), phase.optimizer.begin(vectors.join_state(opt_state))
    (flat, last), metrics = jax.lax.scan(epoch, start, jnp.arange(phase.epochs, dtype=jnp.uint32))
    averages = {name: Mean(x.sum(), jnp.int32(x.size)) for name, x in unpack(metrics).items()}
    return {**params, **vectors.unflatten(flat)}, vectors.split_state(last.kept), averages


def minibatch_rows(phase: Phase, key: jax.Array, num_sequences: int) -> jax.Array:
    """Return shuffled indices of the sequences in each minibatch of an epoch, `[minibatches, n]` int32. The key is consumed.

    Raises:
        ConfigError: the sequences, or blocks of them, cannot be divided into the minibatches of the phase, or into their parts.
    """
    if num_sequences % (phase.block * phase.minibatches):
        hint = f"must divide the {num_sequences // phase.block} sequences of an epoch in the phase {phase.name!r}"
        raise config_error("minibatches", phase.minibatches, hint)
    if (rows := num_sequences // phase.minibatches) % phase.accumulate:
        hint = f"must divide the {rows} sequences of a minibatch in the phase {phase.name!r}"
        raise config_error("accumulate", phase.accumulate, hint)
    order = permutation(key, num_sequences // phase.block)
    if phase.block > 1:
        order = order[:, None] * phase.block + jnp.arange(phase.block, dtype=order.dtype)[None]
    return order.reshape(phase.minibatches, -1)


def minibatch_gradient(phase: Phase, as_params: Callable[[Groups], Groups], batch: Sequences) -> Callable:
    """Return `(vectors, rows [n], recomputed) -> (gradient, metrics)` for a phase's loss on the sequences with indices `rows`.

    `recomputed` is a dict of fields, `[L, n]`, that replace the same fields of the steps.

    Args:
        phase: `loss` and `accumulate` are read.
        as_params: maps the vectors of the trained groups to all parameters.
        batch: N sequences of L steps, `[L, N]`.
    """
    L, N = jax.tree.leaves(batch.steps)[0].shape[:2]
    # Gathering single steps from one packed array is a tenth faster than leaf by leaf. Packing longer sequences does not pay.
    packed = pack(batch.steps, (1, N) if L == 1 else None)

    def gradient_of(flat, rows, recomputed):
        steps = unpack(jax.tree.map(lambda x: x[:, rows], packed))
        steps = steps.replace(**recomputed) if recomputed else steps
        minibatch = Sequences(steps, jax.tree.map(lambda x: x[rows], batch.carry))

        def loss(flat):
            found, metrics = phase.loss(as_params(flat), minibatch)
            return found, {name: jnp.asarray(x, jnp.float32) for name, x in metrics.items()}

        gradient, metrics = jax.grad(loss, has_aux=True)(flat)
        if "extra_loss" in metrics:
            params = as_params(flat)
            extra = lambda params: phase.loss(params, minibatch)[1]["extra_loss"]
            warn_unless_trained(phase.name, moving_groups(phase, params), extra, params)
        return gradient, metrics

    def accumulate(flat, rows, recomputed):
        parts = jax.tree.map(lambda x: jnp.stack(jnp.split(x, phase.accumulate, axis=-1)), (rows, recomputed))
        return jax.tree.map(lambda x: x.mean(0), jax.lax.map(lambda part: gradient_of(flat, *part), parts))

    return gradient_of if phase.accumulate == 1 else accumulate


def clip_gradient(phase: Phase, vectors: Vectors, gradient: Groups) -> tuple[Groups, dict[str, jax.Array]]:
    """Clip a gradient to `max_grad_norm`, jointly or per group; return the result, and the norms before clipping as metrics."""
    squares = vectors.squared_norms(gradient)
    norms, norm = jax.tree.map(jnp.sqrt, squares), jnp.sqrt(sum(squares.values()))
    if phase.joint:
        scale = clip_scale(norm, phase.max_grad_norm)
        gradient = jax.tree.map(lambda g: scale * g, gradient)
    else:
        gradient = vectors.join(
            jax.tree.map(lambda norm, g: clip_scale(norm, phase.max_grad_norm) * g, norms, vectors.split(gradient))
        )
    norms = {"grad_norm": norm, **{f"grad_norm/{group}": n for group, n in norms.items()}}
    return gradient, {phase.prefix + name: n for name, n in norms.items()}


def moving_groups(phase: Phase, params: Groups) -> Groups:
    """Return the parameter groups that a phase trains."""
    groups = params if phase.groups is None else phase.groups
    return {group: params[group] for group in groups if group not in phase.frozen}


def init_phase(phase: Phase, params: Groups) -> PyTree:
    """Return the initial optimizer state of a phase.

    Raises:
        ConfigError: `frozen` or `groups` is not a tuple of names of parameter groups; `minibatches`, `every` or `accumulate` is
          not an int of at least 1; or `epochs` or `start` is not an int of at least 0.
    """
    for field, names in (("frozen", phase.frozen), ("groups", params if phase.groups is None else phase.groups)):
        known = (*params, *OPTIONAL) if field == "frozen" else params
        if unknown := [name for name in names if name not in known]:
            hint = f"the phase {phase.name!r} must name parameter groups in a tuple, from {', '.join(sorted(params))}"
            raise config_error(field, names if isinstance(names, str) else unknown[0], hint)
    counts = {name: getattr(phase, name) for name in ("minibatches", "every", "accumulate")}
    hint = f"must be an int of at least 1 in the phase {phase.name!r}"
    found = [Problem(name, x, hint) for name, x in counts.items() if not is_count(x)]
    counts, hint = {"epochs": phase.epochs, "start": phase.start}, f"must be an int of at least 0 in the phase {phase.name!r}"
    raise_if_any(found + [Problem(name, x, hint) for name, x in counts.items() if not (is_int(x) and x >= 0)])
    moving = moving_groups(phase, params)
    if not moving:
        raise config_error("groups", phase.groups, f"the phase {phase.name!r} trains no group")
    vectors = {group: ravel_pytree(tree)[0] for group, tree in moving.items()}
    return phase.optimizer.init(vectors if phase.optimizer.elementwise else moving)
