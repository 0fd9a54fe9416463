"""Several processes that train together, one per host: decisions of the first process, and data that all processes share.

All processes run the same program, and read and write checkpoints together. Only the first process writes other files, and makes
decisions that depend on time. `agree`, `broadcast_from_first`, `call_in_first` and `gather_to_host` are collectives: every
process must call them, in the same order. With one process, these functions do not communicate.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from purerl.core.errors import CheckpointError, config_error
from purerl.core.types import PyTree
from purerl.runs.devices.over_devices import add_xla_flags

Arrays = dict[str, np.ndarray]
# On CPUs, XLA by default starts independent operations in any order, collectives included. Each device of a process would then
# use its own order, and gloo's messages would not match.
IN_ONE_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
HEARTBEAT_SECONDS = 60  # a process that is silent for this long counts as ended, and the other processes end too


def join(coordinator: str = "", num_processes: int = 0, process_id: int = -1) -> None:
    """Connect this process to the other processes of its job.

    Call `join` before JAX computes anything and before an environment suite is imported. Without arguments, JAX finds the job
    by itself under Slurm, Open MPI or Kubernetes (with `jax[k8s]`), or on a TPU pod.

    Args:
        coordinator: host and port on which the first process listens.
        num_processes: total number of processes.
        process_id: index of this process, from 0.

    Raises:
        ConfigError: some arguments are missing, JAX finds no job, or the processes of the job did not connect.
    """
    given = {"coordinator": bool(coordinator), "num_processes": num_processes > 0, "process_id": process_id >= 0}
    if any(given.values()) and not all(given.values()):
        missing = next(name for name, there in given.items() if not there)
        raise config_error(missing, ..., f"is missing; {', '.join(given)} must be given together")
    add_xla_flags(IN_ONE_ORDER)
    named = {"coordinator_address": coordinator, "num_processes": num_processes, "process_id": process_id} if coordinator else {}
    try:
        jax.distributed.initialize(**named, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    except (ValueError, RuntimeError) as error:
        hint = "JAX cannot connect the processes" if named else f"JAX finds no cluster; set {', '.join(given)}"
        raise config_error("distributed", True, f"{hint}: {str(error).strip().splitlines()[0]}") from error


def process_count() -> int:
    """Return the number of processes. The call does not start JAX, so JAX's devices can still be chosen afterwards."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def is_first() -> bool:
    """Return True in the first process, which writes files and makes decisions."""
    return process_count() == 1 or jax.process_index() == 0


def agree(*values: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first process's values, and for each value the maximum over all processes. Values must fit in 32 bits."""
    if process_count() == 1:
        return values, values
    of_all = multihost_utils.process_allgather(np.array(values, np.int32))
    return tuple(of_all[0].tolist()), tuple(of_all.max(0).tolist())


def broadcast_from_first(arrays: Arrays | None, record: dict[str, Any]) -> tuple[Arrays | None, dict[str, Any]]:
    """Return, in every process, the first process's arrays (a dict by name, or None) and its JSON record."""
    if process_count() == 1:
        return arrays, record
    shapes = None if arrays is None else {name: [str(x.dtype), list(x.shape)] for name, x in arrays.items()}
    head = json.loads(_bytes_from_first(json.dumps([shapes, record]).encode()))
    if head[0] is None:
        return None, head[1]
    found = {}
    for name, (dtype, shape) in head[0].items():
        data = _bytes_from_first(np.ascontiguousarray(arrays[name]).tobytes() if arrays and is_first() else b"")
        found[name] = np.frombuffer(data, jnp.dtype(dtype)).reshape(shape)
    return found, head[1]


def call_in_first(function: Callable[[], Any]) -> Any:
    """Call `function` in the first process only; return its result there, None elsewhere. `function` must not call a collective.

    Raises:
        Exception: the function's error; in the other processes, a CheckpointError with the same message. Without this error, the
          other processes would wait for the first process until it counts as ended.
    """
    if process_count() == 1:
        return function()
    found = failed = None
    if is_first():
        try:
            found = function()
        except Exception as error:  # custom code, such as a recorder, may raise anything
            failed = error
    _, record = broadcast_from_first(None, {"failed": None if failed is None else str(failed)})
    if failed is not None:
        raise failed
    if record["failed"] is not None:
        raise CheckpointError(f"in the first process: {record['failed']}")
    return found


def _bytes_from_first(data: bytes) -> bytes:
    (high, low), _ = agree(*divmod(len(data), 2**30))  # `agree` takes 32-bit numbers
    size = high * 2**30 + low
    buffer = np.frombuffer(data, np.uint8) if is_first() else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(buffer)).astype(np.uint8).tobytes() if size else b""


def gather_to_host(tree: PyTree) -> PyTree:
    """Return a tree whose arrays are whole in every process; arrays on devices of other processes are gathered."""

    def whole(x):
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(whole(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        return multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(whole, tree)


def place_array(x: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    """Place an array on the devices of `sharding`, even those of other processes. Every process must pass the whole array."""
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(place_array(jax.random.key_data(x), sharding), impl=jax.random.key_impl(x))
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
