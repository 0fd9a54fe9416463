"""One agent on many devices: each device has an equal share of the environments, and all devices have the same parameters.

Every device collects rollouts in its own environments and learns from them. Gradients and statistics are averaged over all
devices (`purerl.core.reductions`), so parameters, optimizer states and statistics stay bit-identical on all devices. The amount
of communication does not grow with the number of environments.
"""

import collections
import dataclasses
import zlib
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from purerl.acting.evaluate import Episodes
from purerl.acting.policy import Policy
from purerl.core.errors import Problem, config_error, raise_if_any
from purerl.core.keys import typed_key
from purerl.core.reductions import shapes_on
from purerl.core.types import TrainResult, TrainState
from purerl.pure import Train
from purerl.runs.devices.processes import agree, place_array

DATA = "data"  # mesh axis of one agent's devices


def data_parallel(train: Train, mesh: Mesh, axis_name: str = DATA) -> "DataParallel":
    """Return a training run with one agent's environments spread over the devices of a mesh.

    On GPUs, XLA overlaps communication with other work, which can increase memory use by up to half. With
    `XLA_FLAGS=--xla_gpu_enable_analytical_sol_latency_estimator=false`, no extra memory is needed.

    Args:
        train: the result of `make_train`, for the whole run: `num_envs` and `total_timesteps` are totals over all devices.
        mesh: devices of one or several processes or, to compile only, devices described by `jax.experimental.topologies`.
        axis_name: name of the mesh axis that environments are spread over. Devices along other axes repeat the same computation.

    Raises:
        ConfigError: `train` or `mesh` is invalid, or the environments or minibatches cannot be divided equally among the devices.

    Example:
        >>> train = purerl.make_train(purerl.PPOConfig(total_timesteps=1024))
        >>> devices = np.array(jax.local_devices())
        >>> spread = purerl.data_parallel(train, jax.sharding.Mesh(devices, ("data",)))
        >>> state, metrics = jax.jit(spread.update)(jax.jit(spread.init)(jax.random.key(0)))
        >>> int(metrics["steps"].total)
        512
    """
    if not isinstance(train, Train) or train.axis is not None:
        raise config_error("train", train, "must be the result of make_train, without axis_name")
    if not isinstance(mesh, Mesh) or axis_name not in mesh.axis_names:
        there = f"Mesh with the axes {mesh.axis_names}" if isinstance(mesh, Mesh) else type(mesh).__name__
        raise config_error("mesh", there, f"must be a jax.sharding.Mesh with an axis {axis_name!r}")
    return DataParallel(train, mesh, axis_name)


class DataParallel:
    """A `Train` on a mesh of devices, as returned by `data_parallel`.

    A state consists of global arrays, with the same shapes as in a run on one device. `init` places the arrays on the mesh, and
    `update` returns arrays with the same placement.

    Attributes:
        train: the `Train` of one device's share of the run.
        whole: the `Train` of the whole run, as returned by `make_train`.
        axis_name: name of the mesh axis that environments are spread over.
        mesh: the mesh of devices.
        specs: a `TrainState` of `PartitionSpec`s: arrays with an environment axis are sharded along it, others are replicated.
    """

    def __init__(self, train: Train, mesh: Mesh, axis_name: str):
        self.train, self.whole, self.axis_name = train.on_axis(axis_name, mesh.shape[axis_name]), train, axis_name
        # `jax.make_mesh` makes axes of the type Explicit, for which `shard_map` refuses arrays that are not on the mesh.
        self.mesh = Mesh(mesh.devices, mesh.axis_names)
        self.cfg, self.env, self.network = train.cfg, train.env, train.network
        self.plan = dataclasses.replace(self.train.plan, compile_update=self._compile_update)
        self.specs, self._spread = state_specs(train, self.train), PartitionSpec(axis_name)

    def init(self, key: jax.Array) -> TrainState:
        """Return the initial state. `key`: one random key, typed or raw."""
        return self._shard(self.train.init, (PartitionSpec(),), self.specs)(typed_key(key))

    def update(self, state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """Run one update on all devices; metrics are aggregated over all devices."""
        return self._shard(self.train.update, (self.specs,), (self.specs, PartitionSpec()))(state)

    def __call__(self, key: jax.Array) -> TrainResult:
        """Train to the end and return the result, as `Train.__call__` does."""
        specs = TrainResult(self.specs, cast(Any, PartitionSpec()))  # one spec for all metrics
        return self._shard(self.train, (PartitionSpec(),), specs)(typed_key(key))

    def place(self, state: TrainState) -> TrainState:
        """Place a state on the mesh. Every process must pass the whole state.

        A state of several runs has a leading axis for seeds, or for configs. This axis is not sharded.
        """
        specs, lead = self.specs, [None] * state.key.ndim
        several = jax.tree.map(lambda spec: PartitionSpec(*lead, *spec), specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
        specs = several.replace(clock=specs.clock)  # the update counter has no run axis
        return jax.tree.map(lambda x, spec: place_array(x, NamedSharding(self.mesh, spec)), state, specs)

    def policy(self, state: TrainState) -> Policy:
        """Return the policy of a state, ready to act."""
        return self.whole.policy(state)

    def evaluate(self, state: TrainState, key: jax.Array, num_episodes: int = 128, **options: Any) -> Episodes:
        """Evaluate as `Train.evaluate` does, with an equal share of the episodes on each device."""
        run = lambda state, key: self.train.evaluate(state, key, num_episodes, **options)
        return self._shard(run, (self.specs, PartitionSpec()), self._spread)(state, typed_key(key))

    def _compile_update(self) -> Any:
        placed = lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(self.mesh, spec))
        state = jax.tree.map(placed, jax.eval_shape(self.init, jax.random.key(0)), self.specs)
        return jax.jit(self.update, donate_argnums=0).lower(state).compile()

    def _shard(self, function: Any, in_specs: Any, out_specs: Any) -> Any:
        return jax.shard_map(function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def state_specs(whole: Train, here: Train) -> TrainState:
    """Return each array's `PartitionSpec`: sharded on the axis that is shorter in `here` (one device) than in `whole`, if any.

    Raises:
        ConfigError: an array of `TrainState.actor`, the environments' part of the state, has no environment axis.
    """
    key = jax.random.key(0)
    shapes, shapes_here = jax.eval_shape(whole.init, key), shapes_on(here.axis, here.init, key)

    def spec(x, x_here):
        differ = [i for i, (n, n_here) in enumerate(zip(x.shape, x_here.shape, strict=True)) if n != n_here]
        return PartitionSpec(*[None] * differ[0], here.axis.name) if differ and here.axis is not None else PartitionSpec()

    specs = jax.tree.map(spec, shapes, shapes_here)
    for path, found in jax.tree_util.tree_leaves_with_path(specs.actor):
        if found == PartitionSpec() and here.axis is not None and here.axis.size > 1:
            hint = "this array of the environments' state has no environment axis, so it cannot be spread over devices"
            raise config_error("env", jax.tree_util.keystr(path), hint)
    return specs


def check_replicas(state: TrainState, axis_name: str = DATA) -> None:
    """Check that all copies of each replicated array are equal, within this process and between processes.

    Raises:
        ConfigError: the copies of an array differ.
    """
    found = [(f"state{jax.tree_util.keystr(path)}", _checksums(x)) for path, x in jax.tree_util.tree_leaves_with_path(state)]
    parts = [(name, sums) for name, by_place in found for sums in by_place]
    own = [max(sums, default=-1) for _, sums in parts]
    _, largest = agree(*own)
    differ = [len(sums) > 1 or -1 < x < y for (_, sums), x, y in zip(parts, own, largest, strict=True)]
    _, differ = agree(*differ)
    hint = "differs between devices, but must be equal on all of them; reduce it over axis_name = "
    hint += f"{axis_name!r}, with jax.lax.psum or the functions of purerl.core.reductions"
    names = dict.fromkeys(name for (name, _), different in zip(parts, differ, strict=True) if different)
    raise_if_any([Problem(name, ..., hint) for name in names])


def _checksums(x: jax.Array) -> list[set[int]]:
    """Return, for each replicated part of an array, the set of 31-bit checksums of its copies in this process."""
    x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    copies = collections.Counter(map(str, x.sharding.devices_indices_map(x.shape).values()))
    sums = {place: set() for place in sorted(copies) if copies[place] > 1}
    for shard in x.addressable_shards:
        if str(shard.index) in sums:
            sums[str(shard.index)].add(zlib.crc32(np.asarray(shard.data).tobytes()) >> 1)
    return list(sums.values())
