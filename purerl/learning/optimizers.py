"""Optimizers: from gradients to updates, the learning rate of each step, and early stopping.

An `Optimizer` wraps an optax transformation. The learning rate is not part of the transformation: the rate depends on the update
counter or the KL divergence, and is applied here. Checkpoints therefore hold no schedule counters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

from purerl.config.base import OnPolicyConfig
from purerl.config.rules import may_hold
from purerl.core.keys import Clock
from purerl.core.platform import by_platform, sums
from purerl.core.types import PyTree, Scalar
from purerl.learning.learning_rates import Rate, kl_adapted_lrs, learning_rates

ALL = "all groups"  # the key of the shared vector
SMALL = 2**14  # maximum number of parameters in a shared vector

Groups = dict[str, PyTree]  # group name -> parameters


class KLAdaptiveState(struct.PyTreeNode):
    """The state of a transformation, and the KL-adaptive learning rate, float32."""

    inner: PyTree
    lr: jax.Array


class UpdateState(struct.PyTreeNode):
    """The state of an optimizer within one update; unused entries are `()`.

    Attributes:
        kept: the state that persists from one update to the next.
        kl_sum: sum of the KL divergences of this epoch's minibatches so far.
        stopped: bool, True if the last step was skipped because the policy had moved too far.
    """

    kept: PyTree
    kl_sum: Any = ()
    stopped: Any = ()


def _no_rate(clock: Clock, step: jax.Array, steps: int) -> Scalar:
    raise ValueError("the optimizer has no learning rate; use `phase_optimizer`")


class Optimizer(NamedTuple):
    """An optax transformation with a learning rate and an early stop.

    `init` returns the state that persists from one update to the next. In each update, `begin` converts this state to an
    `UpdateState`. Each gradient step passes the `UpdateState` through `update`, which takes `clock`, `step` and `metrics` besides
    optax's arguments.

    Attributes:
        transformation: maps gradients to directions, without a learning rate.
        elementwise: True if the transformation treats every number alike; a group of parameters may then be one vector.
        rate: the learning rate of a step; required unless `adapts` is given.
        adapts: the config of a KL-adaptive learning rate, used instead of `rate`; or None.
        multipliers: a dict from group to a factor of the learning rate. The factor of an absent group is 1.
        target_kl: a step with `approx_kl` above this value is skipped, and starts an early stop; None for no early stop.
        kl_stop: `epoch` or `update`, after which an early stop ends.
    """

    transformation: optax.GradientTransformation
    elementwise: bool
    rate: Rate = _no_rate
    adapts: OnPolicyConfig | None = None
    multipliers: dict[str, Scalar] = {}
    target_kl: Scalar | None = None
    kl_stop: str = "epoch"

    @property
    def is_uniform(self) -> bool:
        """Return True if all groups are treated alike, so that one vector can hold them."""
        return self.elementwise and not self.multipliers

    def reads(self) -> list[str]:
        """Return the names of the metrics that the loss must return."""
        return ["kl"] * (self.adapts is not None) + ["approx_kl"] * (self.target_kl is not None)

    def init(self, params: Groups) -> PyTree:
        """Return the persistent state before the first update."""
        inner = self.transformation.init(params)
        return inner if self.adapts is None else KLAdaptiveState(inner, jnp.float32(self.adapts.lr))

    def begin(self, kept: PyTree) -> UpdateState:
        """Return the state before the first gradient step of an update."""
        sums = self.adapts is not None and self.adapts.lr_kl_every == "epoch"
        return UpdateState(kept, jnp.float32(0) if sums else (), () if self.target_kl is None else jnp.bool_(False))

    def update(
        self,
        gradient: Groups,
        state: UpdateState,
        params: Groups,
        *,
        clock: Clock,
        step: jax.Array,
        metrics: dict[str, jax.Array],
        epochs: int,
        minibatches: int,
    ) -> tuple[Groups, UpdateState]:
        """Return the updates to add to the parameters, and the next state.

        During an early stop, the updates are 0 and the transformation's state does not change. Gradients are still computed, so
        that one compiled program serves all seeds, stopped or not. A scheduled or KL-adaptive learning rate still changes.

        Args:
            gradient, params: the gradient and the parameters, each a dict from group to arrays.
            state: the state that `begin` or the previous step returned.
            clock: the update counter.
            step: uint32, gradient steps in this update so far.
            metrics: metrics of the loss on this minibatch: `kl` for a KL-adaptive rate, `approx_kl` for an early stop.
            epochs, minibatches: passes over the batch in each update, and gradient steps in each pass.
        """
        if self.adapts is None:
            inner, lr, kl_sum, following = state.kept, self.rate(clock, step, epochs * minibatches), (), None
        else:
            adapted = kl_adapted_lrs(self.adapts, state.kept.lr, state.kl_sum, step, metrics["kl"], minibatches)
            inner, (lr, following, kl_sum) = state.kept.inner, adapted
        with jax.numpy_dtype_promotion("standard"):  # optax relies on dtype promotion
            direction, after = cast(tuple[Groups, PyTree], self.transformation.update(gradient, inner, params))
        rates = {group: -lr * self.multipliers[group] if group in self.multipliers else -lr for group in direction}
        updates = {group: jax.tree.map(lambda d, rate=rates[group]: rate * d, tree) for group, tree in direction.items()}
        stopped = ()
        if self.target_kl is not None:
            period = np.uint32(minibatches * (epochs if self.kl_stop == "update" else 1))
            stopped = (state.stopped & (step % period > 0)) | (metrics["approx_kl"] > self.target_kl)
            updates = jax.tree.map(lambda x: jnp.where(stopped, jnp.zeros_like(x), x), updates)
            after = jax.tree.map(lambda old, new: jnp.where(stopped, old, new), inner, after)
        kept = after if following is None else KLAdaptiveState(after, following)
        return updates, UpdateState(kept, kl_sum, stopped)

    def lr(self, kept: PyTree, clock: Clock, steps: int) -> Scalar:
        """Return the learning rate of the first of an update's `steps`, float32; for a KL-adaptive rate, the current value."""
        return self.rate(clock, jnp.uint32(0), steps) if self.adapts is None else kept.lr

    def report(self, state: UpdateState) -> dict[str, jax.Array]:
        """Return the metrics of the last step: `stopped`, if the optimizer has an early stop."""
        return {} if self.target_kl is None else {"stopped": state.stopped.astype(jnp.float32)}


def base_optimizer(cfg: OnPolicyConfig, transformation: optax.GradientTransformation | None = None) -> Optimizer:
    """Return the config's optimizer, without a learning rate. A custom `transformation` replaces the config's optimizer."""
    if transformation is not None:
        return Optimizer(transformation, elementwise=False)
    adam = optax.scale_by_adam(eps=cfg.adam_eps)  # Kingma & Ba 2015, arXiv:1412.6980
    if cfg.optimizer == "adamw":  # Loshchilov & Hutter 2019, arXiv:1711.05101
        return Optimizer(optax.chain(adam, optax.add_decayed_weights(cfg.weight_decay, _weights)), elementwise=False)
    if cfg.optimizer == "muon":  # Jordan et al. 2024, kellerjordan.github.io/posts/muon; scaled to adam's RMS: Liu et al. 2025
        rule = {"consistent_rms": 0.2, "muon_weight_dimension_numbers": _hidden_matrices}
        return Optimizer(optax.contrib.muon(-1.0, eps=cfg.adam_eps, **rule), elementwise=False)  # optax negates the rate
    named = {"adam": adam, "rmsprop": optax.scale_by_rms(decay=0.99, eps=cfg.adam_eps), "sgd": optax.identity()}
    return Optimizer(named[cfg.optimizer], elementwise=True)


def _is_bias(path: tuple) -> bool:
    """Return True for the bias of a layer. Biases of gates have two axes."""
    return jax.tree_util.keystr(path[-1:], simple=True).endswith("bias")


def _weights(params: PyTree) -> PyTree:
    """Mark the arrays with weight decay: arrays of two or more axes, except biases. Standard deviations have one axis."""
    return jax.tree_util.tree_map_with_path(lambda path, x: x.ndim > 1 and not _is_bias(path), params)


def _hidden_matrices(params: PyTree) -> PyTree:
    """Mark the matrices that muon orthogonalises: all except those of layers named `Linear_...`, such as built-in heads."""
    is_head = lambda path: "/Linear_" in jax.tree_util.keystr(path, simple=True, separator="/")
    is_moved = lambda path, x: x.ndim == 2 and min(x.shape) > 1 and not (is_head(path) or _is_bias(path))
    mark = lambda path, x: optax.contrib.MuonDimensionNumbers() if is_moved(path, x) else None
    return jax.tree_util.tree_map_with_path(mark, params)


def phase_optimizer(cfg: OnPolicyConfig, optimizer: Optimizer, schedule: Callable | None) -> Optimizer:
    """Return the optimizer of a phase, with the learning rate and the early stop of a config.

    Args:
        cfg: `lr_schedule`, `critic_lr_scale`, `target_kl` and related fields are read.
        optimizer: an optimizer without a learning rate.
        schedule: `(gradient steps so far, int32) -> learning rate`; None to use the config's schedule.
    """
    adapts = schedule is None and cfg.lr_schedule == "kl_adaptive"
    rate = learning_rates(cfg, schedule)
    optimizer = optimizer._replace(rate=rate, adapts=cfg if adapts else None, multipliers=lr_multipliers(cfg))
    if not may_hold(cfg.target_kl, lambda x: x != np.inf):
        return optimizer
    return optimizer._replace(target_kl=cfg.target_kl, kl_stop=cfg.kl_stop)


def lr_multipliers(cfg: OnPolicyConfig) -> dict[str, Scalar]:
    """Return a dict from group to a factor of the learning rate. Groups whose factor is known to be 1 are absent."""
    scales = {"value": cfg.critic_lr_scale} | ({} if cfg.rnd is None else {"predictor": cfg.rnd.lr_scale})
    return {group: scale for group, scale in scales.items() if may_hold(scale, lambda x: x != 1)}


def without_kl_control(cfg: OnPolicyConfig) -> OnPolicyConfig:
    """Return the config without KL-adaptive learning rate and early stop, for phases that do not measure the KL divergence."""
    return cfg.replace(
        lr_schedule="constant" if cfg.lr_schedule == "kl_adaptive" else cfg.lr_schedule, target_kl=np.float32(np.inf)
    )


def clip_scale(norm: jax.Array, max_norm: Scalar) -> jax.Array:
    """Return the factor that clips a gradient of this norm to `max_norm`: `min(1, max_norm / norm)`.

    An infinite `max_norm` disables clipping. Unlike in optax's clipping, a gradient of 0 causes no NaN, which `jax.debug_nans`
    would report.
    """
    return jnp.minimum(1, max_norm / jnp.maximum(norm, 1e-12))


# --- vectors ----------------------------------------------------------------------------------------------------------


class Vectors(NamedTuple):
    """The flat storage of the parameter groups that a phase trains: one vector per group, or one shared vector for all groups.

    On a CPU, a gradient step on one vector per group takes 5 % less than on separate arrays (two 64-64 networks, 128 samples).
    On a GPU, a shared vector saves two more kernels per step. With the 79,000 parameters of a GRU, a shared vector takes a fifth
    longer on a CPU than one vector per group. Only small groups that the optimizer treats alike therefore share a vector.

    Attributes:
        restore: a dict from group to the function that converts the group's vector to parameters.
        ends: the split points between groups in the shared vector; None if each group has a vector of its own.
    """

    restore: dict[str, Callable[[jax.Array], PyTree]]
    ends: list[int] | None

    def flatten(self, params: Groups) -> Groups:
        """Return parameters as vectors."""
        return self.join({group: ravel_pytree(tree)[0] for group, tree in params.items()})

    def unflatten(self, vectors: Groups) -> Groups:
        """Return vectors as parameters."""
        vectors = self.split(vectors)
        return {group: restore(vectors[group]) for group, restore in self.restore.items()}

    def join(self, by_group: Groups) -> Groups:
        """Join one vector per group into the shared vector, if there is one."""
        return by_group if self.ends is None else {ALL: jnp.concatenate([by_group[group] for group in self.restore])}

    def split(self, vectors: Groups) -> Groups:
        """Split the shared vector, if there is one, into one vector per group."""
        return vectors if self.ends is None else dict(zip(self.restore, jnp.split(vectors[ALL], self.ends), strict=True))

    def squared_norms(self, gradient: Groups) -> dict[str, jax.Array]:
        """Return the squared norm of each group's gradient. The gradient is flat, like the result of `flatten`."""
        ends = self.ends or []

        def of_parts(gradient):
            return {group: jnp.sum(jnp.square(x)) for group, x in self.split(gradient).items()}

        def at_once(gradient):
            squares = jnp.square(gradient[ALL])
            owner = np.searchsorted(ends, np.arange(squares.size), side="right")
            masked = tuple(jnp.where(owner == i, squares, jnp.zeros_like(squares)) for i in range(len(self.restore)))
            return dict(zip(self.restore, sums(masked), strict=True))

        return of_parts(gradient) if self.ends is None else by_platform(gradient, cpu=of_parts, accelerator=at_once)

    def join_state(self, opt_state: PyTree) -> PyTree:
        """Join the vectors of every dict of groups in an optimizer state, if the groups share a vector."""
        return opt_state if self.ends is None else _replace_dicts(opt_state, self.restore.keys(), self.join)

    def split_state(self, opt_state: PyTree) -> PyTree:
        """Split every shared vector in an optimizer state into one vector per group."""
        return opt_state if self.ends is None else _replace_dicts(opt_state, {ALL}, self.split)


def vectors_of(groups: Groups, optimizer: Optimizer) -> Vectors:
    """Return the flat storage of these parameter groups, for a phase with this optimizer."""
    sizes = [sum(x.size for x in jax.tree.leaves(tree)) for tree in groups.values()]
    joined = optimizer.is_uniform and sum(sizes) <= SMALL
    restore = {group: ravel_pytree(tree)[1] for group, tree in groups.items()}
    return Vectors(restore, list(np.cumsum(sizes)[:-1]) if joined else None)


def _replace_dicts(tree: PyTree, keys: object, function: Callable[[Groups], Groups]) -> PyTree:
    """Apply a function to all dicts of a tree that have exactly these keys."""
    fits = lambda x: isinstance(x, dict) and x.keys() == keys
    return jax.tree.map(lambda x: function(x) if fits(x) else x, tree, is_leaf=fits)
