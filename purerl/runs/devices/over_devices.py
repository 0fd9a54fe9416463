"""Rows of a batch, such as seeds, spread over the devices of this process: an outer `vmap` without communication."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from purerl.core.errors import config_error, is_count, warn

ROWS = "rows"
Devices = Sequence[jax.Device]  # pyright: ignore[reportInvalidTypeForm]


def over_devices(
    function: Callable, in_axes: Any = 0, out_axes: Any = 0, *, devices: Devices | None = None, exact: bool = False
) -> Callable:
    """Return `jax.vmap(function)` with its rows spread over devices: each device computes an equal share of the rows.

    Rows do not communicate. If the number of rows is not a multiple of the number of devices, the last row is computed more than
    once and the copies are dropped. With one device, or one row, nothing is spread.

    On a CPU every core can be a device: call `use_cores()` before JAX computes anything.

    Without `exact`, the float32 rounding errors of a row (about 1e-7) depend on the number of rows on its device, because XLA
    compiles a different program for each shape. With `exact`, each device computes its rows one after the other, and every row is
    bit-identical to `jax.jit(function)` on that row alone.

    On several CPU devices, XLA (jaxlib 0.10.2) does not free some memory of each large matrix product in a loop until the call of
    the compiled function returns: up to 15 MB a second with minibatches of thousands of steps. In `fit`, a call takes at most
    about 15 seconds.

    Args:
        function: any function of arrays, such as a `Train`.
        in_axes, out_axes: as in `jax.vmap`, but with 0 and None only; for a state, use `train.seed_axes`.
        devices: devices to use; `jax.local_devices()` if None.
        exact: compute the rows of each device one after the other.

    Example:
        >>> purerl.over_devices(lambda x: 2 * x)(jnp.arange(3.0)).tolist()
        [0.0, 2.0, 4.0]
        >>> train = purerl.make_train(purerl.PPOConfig(total_timesteps=1024))
        >>> many = jax.jit(purerl.over_devices(train))(jax.random.split(jax.random.key(0), 2))
        >>> purerl.summarize(many.metrics)["loss"].shape
        (2, 2)
    """

    def mesh_for(rows):
        chosen = jax.local_devices() if devices is None else list(devices)
        return Mesh(np.array(chosen[:rows]), (ROWS,))

    return over_rows(function, in_axes, out_axes, mesh_for, _specs, exact)


def over_rows(
    function: Callable, in_axes: Any, out_axes: Any, mesh_for: Callable[[int], Mesh], specs_of: Callable[[Any], Any], exact: bool
) -> Callable:
    """Return `function` mapped over rows as by `over_devices`, but on any mesh with an axis `ROWS`.

    Args:
        function, in_axes, out_axes, exact: as in `over_devices`.
        mesh_for: a function from the number of rows to the mesh.
        specs_of: a function from `in_axes` or `out_axes` to the `PartitionSpec`s of the arguments or results.
    """
    rowwise = _one_by_one if exact else jax.vmap

    def run_rows(*args):
        axes = tuple(in_axes) if isinstance(in_axes, tuple | list) else (in_axes,) * len(args)
        rows = jax.tree.leaves(_by_axis(axes, args, lambda x: x.shape[0], lambda x: None))[0]
        mesh = mesh_for(rows)
        padded = -(-rows // mesh.shape[ROWS]) * mesh.shape[ROWS]
        run = rowwise(function, axes, out_axes)
        if mesh.size > 1 or mesh.devices.flat[0] != jax.local_devices()[0]:
            run = jax.shard_map(run, mesh=mesh, in_specs=specs_of(axes), out_specs=specs_of(out_axes), check_vma=False)
        if rows == padded:
            return run(*args)
        places = np.minimum(np.arange(padded), rows - 1)
        return _by_axis(out_axes, run(*_by_axis(axes, args, lambda x: x[places])), lambda x: x[:rows])

    return run_rows


def _one_by_one(function: Callable, in_axes: tuple, out_axes: Any) -> Callable:
    """Return a function that computes `jax.vmap(function)` by a loop over the rows."""

    def loop(*args):
        leaves, structure = jax.tree.flatten(args)
        axes = jax.tree.leaves(_by_axis(in_axes, args, lambda x: True, lambda x: False))

        def one(row):
            row = iter(row)
            return function(*structure.unflatten([next(row) if batched else x for x, batched in zip(leaves, axes, strict=True)]))

        results = jax.lax.map(one, [x for x, batched in zip(leaves, axes, strict=True) if batched])
        return _by_axis(out_axes, results, lambda x: x, lambda x: x[0])

    return loop


def _by_axis(axes: Any, tree: Any, batched: Callable, shared: Callable = lambda x: x) -> Any:
    """Return `batched(x)` for leaves with a row axis and `shared(x)` for other leaves; `axes` is a prefix of the tree."""
    # None means "no row axis" here, but JAX treats None in a tree as no leaf at all, so -1 replaces None.
    axes = jax.tree.map(lambda axis: -1 if axis is None else axis, axes, is_leaf=lambda axis: axis is None)
    leaves, structure = jax.tree.flatten(tree)
    of_each = jax.tree.leaves(jax.tree.broadcast(axes, tree))
    return structure.unflatten([batched(x) if axis == 0 else shared(x) for axis, x in zip(of_each, leaves, strict=True)])


def _specs(axes: Any) -> Any:
    """Return the `PartitionSpec` for each axis: sharded by rows for 0, replicated for None."""
    return jax.tree.map(lambda axis: PartitionSpec(ROWS) if axis == 0 else PartitionSpec(), axes, is_leaf=lambda x: x is None)


def use_cores(count: int | None = None) -> None:
    """Make each CPU core a JAX device, so that `over_devices` can use it.

    Call `use_cores` before JAX computes anything. A later call changes nothing, and warns if JAX has started with one CPU device.
    If the number of CPU devices is already configured (`jax_num_cpu_devices`, or `XLA_FLAGS`), that number is kept.

    Args:
        count: number of devices; if None, the number of cores that this process may use.

    Raises:
        ConfigError: `count` is not an int of at least 1.

    Example:
        >>> purerl.use_cores()
    """
    if count is not None and not is_count(count):
        raise config_error("count", count, "must be an int of at least 1, or None for all cores")
    count = count or _cores()
    flags = os.environ.get("XLA_FLAGS", "")
    configured = jax.config.values["jax_num_cpu_devices"] > 0 or "xla_force_host_platform_device_count" in flags
    if configured or count == 1:
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has started
        if jax.local_devices() == jax.local_devices(backend="cpu")[:1]:
            warn(
                f"JAX has already started with one CPU device, so all runs use this device; to spread seeds over {count} cores, "
                "call purerl.use_cores() before JAX computes anything (in a notebook: in its first cell, after a restart)"
            )


def add_xla_flags(*flags: str) -> None:
    """Add flags to `XLA_FLAGS` before JAX computes anything, except flags that this version of XLA does not know.

    An unknown flag makes XLA end the process, so another process tries each flag first.
    """
    given = os.environ.get("XLA_FLAGS", "").split()
    known = [flag for flag in flags if flag not in given and _is_xla_flag(flag)]
    os.environ["XLA_FLAGS"] = " ".join([*given, *known])


def _is_xla_flag(flag: str) -> bool:
    """Return True if another process with this flag survives the creation of XLA's options."""
    command = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.CompileOptions()"]
    return not subprocess.run(command, env={**os.environ, "XLA_FLAGS": flag}, capture_output=True).returncode


def available_bytes() -> int:
    """Return the free memory of the first device in bytes; for a CPU device, an equal share of the machine's free memory."""
    device = jax.local_devices()[0]
    if stats := device.memory_stats():
        return stats["bytes_limit"] - stats["bytes_in_use"]
    try:
        with open("/proc/meminfo") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return free // len(jax.local_devices())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
