"""Phases: from a training set and a loss to the next parameters. The only loop over gradient steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from purerl.core.clock import is_before, is_due
from purerl.core.keys import named_key
from purerl.core.metrics import Mean, mean_of
from purerl.core.packing import pack, unpack
from purerl.core.reductions import key_here, moments, num_devices, pooled, share
from purerl.core.types import Clock, Network, Phase, PhaseOptimizer, Sample, Sequences, TrainState
from purerl.learning.optimizers import clip_scale
from purerl.learning.shuffle import permutation

PyTree = Any
WHOLE = "all groups"  # the name of their one vector
SMALL = 2**14  # numbers that are one vector


def make_phase(
    cfg: Any, network: Network, name: str, loss: Callable, optimizer: PhaseOptimizer, epochs: int, **options: Any
) -> Phase:
    """A phase that learns from one rollout, as configured; options are those of `Phase`."""
    sequence = cfg.training_length if network.is_recurrent else 1
    return Phase(
        name=name,
        loss=loss,
        optimizer=optimizer,
        epochs=epochs,
        minibatches=cfg.num_minibatches,
        max_grad_norm=cfg.max_grad_norm,
        joint=cfg.grad_clip == "joint",
        length=cfg.num_steps if cfg.minibatches == "env" else sequence,
        block=share(cfg.columns) if cfg.minibatches == "time" else 1,
        beforehand=_advantage_moments if cfg.advantage_norm == "minibatch" else None,
        start=cfg.skipped_updates,
        **{"groups": None, **options},
    )


def _advantage_moments(steps: Sample) -> dict[str, tuple[jax.Array, jax.Array]]:
    return {"advantage_moments": moments(steps.advantage, axis=(0, 2))}


def run_phases(phases: list[Phase], state: TrainState, data: Sequences) -> tuple[TrainState, dict[str, Any]]:
    """The state after all phases of an update, one after the other, and their metrics.

    Args:
        phases: the policy's phase is the last; `lr` and `stopped` are its metrics.
        state: before.
        data: the training set of the update.
    """
    params, opt_state, metrics = state.params, dict(state.opt_state), {}
    for phase in phases:
        params, opt_state[phase.name], phase_metrics = run_phase(
            phase, state.clock, state.key, params, opt_state[phase.name], data
        )
        metrics |= phase_metrics
    stopped = Mean(jnp.float32(0), metrics["loss"].count)  # where nothing stops a phase
    metrics = {"stopped": stopped, **metrics, "lr": mean_of(phase.optimizer.lr(opt_state[phase.name]))}
    return state.replace(params=params, opt_state=opt_state), metrics


def run_phase(
    phase: Phase,
    clock: Clock,
    key: jax.Array,
    params: dict[str, PyTree],
    opt_state: PyTree,
    data: Sequences,
) -> tuple[dict[str, PyTree], PyTree, dict[str, Mean]]:
    """Minimises a phase's loss over a training set, if the phase is due.

    Each epoch visits every sequence once, in a new random order. A gradient step is

        params[group] -= optimizer(clip(gradient))[group]

    where `clip` brings the norm of all groups together, or of each, to `max_grad_norm` at most. On several devices each has an
    equal share of every minibatch, and the gradient, with the loss's metrics, is the mean of theirs.

    Args:
        phase: the loss, the groups it moves and how, epochs, minibatches, and how often.
        clock: finished updates; must not be batched by `vmap`, or the phase would run in every update.
        key: root key; the names of the phase's keys begin with its own name.
        params: all groups; the loss sees all and moves those of the phase.
        opt_state: of the phase.
        data: the training set, `[L, N]`; of several devices this one's.

    Returns:
        Parameters, optimizer state, and the loss's metrics with `grad_norm` (before clipping, joint and per group),
        averaged over all gradient steps; counted 0 times where the phase was not due.
    """
    return if_due(phase, clock, lambda: epochs(phase, clock, key, params, opt_state, data), (params, opt_state))


def if_due(phase: Phase, clock: Clock, run: Callable, otherwise: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree, dict[str, Mean]]:
    """`run()` in an update that a phase is due in; else parameters and optimizer state as they are, and metrics of nothing."""
    if phase.every == 1 and not phase.start:
        return run()
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(run)[2])
    runs = is_due(clock, phase.every) & ~is_before(clock, phase.start)
    return jax.lax.cond(runs, run, lambda: (*otherwise, nothing))


def epochs(
    phase: Phase, clock: Clock, key: jax.Array, params: PyTree, opt_state: PyTree, data: Sequences
) -> tuple[dict[str, PyTree], PyTree, dict[str, Mean]]:
    """What `run_phase` does when the phase is due."""
    moving = moving_groups(phase, params)
    vectors = _vectors(phase, moving)
    L, num_sequences = jax.tree.leaves(data.steps)[0].shape[:2]
    # Single steps are gathered a tenth faster from one array of words; longer sequences need no copy.
    packed = pack(data.steps, (1, num_sequences) if L == 1 else None)

    exchanged = phase.beforehand if num_devices() > 1 else None

    def gradient_of(flat, rows, known):
        steps = unpack(jax.tree.map(lambda x: x[:, rows], packed))
        steps = steps.replace(**known) if known else steps
        minibatch = Sequences(steps, jax.tree.map(lambda x: x[rows], data.carry))
        return jax.grad(lambda flat: phase.loss({**params, **vectors.params(flat)}, minibatch), has_aux=True)(flat)

    def accumulated(flat, rows, known):
        parts = jax.lax.map(lambda part: gradient_of(flat, part, known), rows.reshape(phase.accumulate, -1))
        return jax.tree.map(lambda x: x.mean(0), parts)

    def gradient_step(carry, minibatch):
        flat, opt_carry = carry
        gradient, metrics = (gradient_of if phase.accumulate == 1 else accumulated)(flat, *minibatch)
        gradient, metrics = pooled((gradient, metrics))
        norms = {group: jnp.sqrt(jnp.sum(jnp.square(g))) for group, g in vectors.groups(gradient).items()}
        norm = jnp.sqrt(sum(jnp.square(n) for n in norms.values()))
        if phase.joint:
            scale = clip_scale(norm, phase.max_grad_norm)
            clipped = jax.tree.map(lambda g: scale * g, gradient)
        else:
            clip = lambda norm, g: clip_scale(norm, phase.max_grad_norm) * g
            clipped = vectors.vectors(jax.tree.map(clip, norms, vectors.groups(gradient)))
        step, opt_carry = phase.optimizer.step(vectors.shown(clipped), opt_carry, vectors.shown(flat), metrics)
        flat = jax.tree.map(jnp.subtract, flat, vectors.taken(step))
        norms = {"grad_norm": norm, **{f"grad_norm/{group}": n for group, n in norms.items()}}
        norms = {phase.prefix + name: n for name, n in norms.items()}
        return (flat, opt_carry), pack({**metrics, **norms, **phase.optimizer.report(opt_carry)}, ())

    def epoch(carry, index):
        order = permutation(key_here(named_key(key, f"{phase.name}/shuffle", clock, index)), num_sequences // phase.block)
        if phase.block > 1:
            order = order[:, None] * phase.block + jnp.arange(phase.block, dtype=order.dtype)[None]
        rows = order.reshape(phase.minibatches, -1)
        known = exchanged(jax.tree.map(lambda x: x[:, rows], data.steps)) if exchanged else {}
        return jax.lax.scan(gradient_step, carry, (rows, known))

    start = vectors.of(moving), phase.optimizer.begin(vectors.joined(opt_state))
    (flat, opt_carry), metrics = jax.lax.scan(epoch, start, jnp.arange(phase.epochs, dtype=jnp.uint32))
    averages = {name: Mean(x.sum(), jnp.int32(x.size)) for name, x in unpack(metrics).items()}
    return {**params, **vectors.params(flat)}, vectors.parted(phase.optimizer.end(opt_carry)), averages


class _Vectors(NamedTuple):
    """The groups that a phase moves as a few vectors, and how its optimizer sees them.

    The arithmetic of clipping and of an elementwise optimizer is then a few operations instead of several for each array: 5 %
    of a gradient step of two 64-64 networks on 128 samples, on a CPU. Small groups that are treated alike are one vector, which
    takes two more kernels from each gradient step on a GPU; with the 79,000 numbers of a GRU it takes a fifth longer on a CPU.

    of: from the groups' parameters to the vectors.
    params: back.
    groups: from the vectors to one of each group.
    vectors: back.
    shown, taken: from the vectors to what the optimizer sees, and back.
    joined, parted: from an optimizer state of a vector for each group to one of these vectors, and back.
    """

    of: Callable
    params: Callable
    groups: Callable
    vectors: Callable
    shown: Callable
    taken: Callable
    joined: Callable
    parted: Callable


def _vectors(phase: Phase, moving: dict[str, PyTree]) -> _Vectors:
    same = lambda x: x
    unravel = {group: ravel_pytree(tree)[1] for group, tree in moving.items()}
    as_groups = lambda params: {group: ravel_pytree(tree)[0] for group, tree in params.items()}
    as_params = lambda groups: {group: back(groups[group]) for group, back in unravel.items()}
    if not phase.optimizer.elementwise:
        return _Vectors(as_groups, as_params, same, same, as_params, as_groups, same, same)
    sizes = [sum(x.size for x in jax.tree.leaves(tree)) for tree in moving.values()]
    if not phase.optimizer.uniform or sum(sizes) > SMALL:
        return _Vectors(as_groups, as_params, same, same, same, same, same, same)
    join = lambda groups: {WHOLE: jnp.concatenate([groups[group] for group in moving])}
    part = lambda whole: dict(zip(moving, jnp.split(whole[WHOLE], np.cumsum(sizes)[:-1]), strict=True))

    def each(function, names):
        fits = lambda x: isinstance(x, dict) and x.keys() == names
        return lambda opt_state: jax.tree.map(lambda x: function(x) if fits(x) else x, opt_state, is_leaf=fits)

    joined, parted = each(join, moving.keys()), each(part, {WHOLE})
    of, params = (lambda params: join(as_groups(params))), (lambda whole: as_params(part(whole)))
    return _Vectors(of, params, part, join, same, same, joined, parted)


def moving_groups(phase: Phase, params: dict[str, PyTree]) -> dict[str, PyTree]:
    """Those groups of parameters that a phase moves."""
    return {group: params[group] for group in phase.groups or params if group not in phase.frozen}


def init_phase(phase: Phase, params: dict[str, PyTree]) -> PyTree:
    """The optimizer state that a phase starts from."""
    moving = moving_groups(phase, params)
    vectors = {group: ravel_pytree(tree)[0] for group, tree in moving.items()}
    return phase.optimizer.init(vectors if phase.optimizer.elementwise else moving)
