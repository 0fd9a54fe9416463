"""Counts of compiled programs, for `programs.py`. Imports only JAX and NumPy, since purejaxrl's virtual environment runs it too.

XLA compiles ahead of time for a device that is only described. The counts, in which a loop counts once per iteration, are:

    kernels   launches that the device runs one after the other; their number limits the speed of small networks
    waits     branches, and loops whose length the device decides: the host of a GPU waits there for a value
    memory    scratch memory, in bytes
    moved     bytes of the kernels' operands and results, an upper bound on the bytes read and written
    accessed  the same, but if a kernel only slices or gathers from an operand, only the bytes that it takes
    exchanges reductions over all devices
    exchanged bytes of the results of these reductions
    others    exchanges of any other kind

Counts are exactly reproducible. They are not times. Autotuning, which chooses kernels by their times, is off.
"""

import collections
import re

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84978434048
  shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 13 minor: 0 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency", "partition-id"}
EXCHANGES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
NAME = r"%([\w.\-]+)"
SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8}  # others 4


def mesh_of(target, count=1):
    """Return a mesh of devices that are only described; `target` is `h100` or `v5e`."""
    if target == "h100":
        topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology=f"1x1x{count}")
    else:
        shape = {1: "2x2", 8: "2x4", 256: "16x16"}[count]
        topology = topologies.get_topology_desc(platform="tpu", topology_name=f"{target}:{shape}")
    return Mesh(np.array(topology.devices)[:count], ("data",))


def compiled_for(target, function, *args, mesh=None, specs=None, options=None):
    """Compile `function` for the devices of `mesh`, by default one, with arguments sharded by `specs`, by default replicated.

    options: compiler options.
    """
    mesh = mesh_of(target) if mesh is None else mesh
    specs = (PartitionSpec(),) * len(args) if specs is None else specs
    placed = lambda spec, tree: jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)), tree
    )
    args = jax.tree.map(placed, tuple(specs), args)
    platform = "cuda" if target == "h100" else "tpu"
    return jax.jit(function).trace(*args).lower(lowering_platforms=(platform,)).compile(options)


def counts(compiled, every=None, times=None):
    """Count a compiled program, or one iteration of a loop. The result also lists the four largest loops, the largest first.

    Each loop has the number of times that its body runs in all, and the kernels and waits of the body.

    every: count one iteration of the outermost loop that has this number of iterations.
    times: count one iteration of the largest loop body that runs this number of times in all.
    """
    computations, name = _parsed(compiled.as_text())
    if every:
        name = next(body for _, body, trips in _whiles(computations, name) if trips == every)
    elif times:
        name = _body(computations, name, times)
    loops = []
    total = _count(computations, name, loops)
    loops.sort(key=lambda loop: -loop["times"] * loop["kernels"])
    return dict(total) | {"memory": compiled.memory_analysis().temp_size_in_bytes, "loops": loops[:4]}


def kernels(compiled, times):
    """Return `(name, result type, source operation)` of each kernel in the largest loop body that runs `times` times."""
    computations, entry = _parsed(compiled.as_text())
    body = _body(computations, entry, times)
    launched = [(rest, kind, name) for operation, rest, kind, name in computations[body] if not _is_free(operation, rest)]
    source = lambda rest: (re.search(r'op_name="([^"]*)"', rest) or [None, ""])[1].split("closed_call/")[-1]
    return [(name, re.sub(r"\{[^}]*\}", "", kind), source(rest)) for rest, kind, name in launched]


def _body(computations, entry, times):
    """Return the name of the largest loop body that runs `times` times."""
    loops = []
    _count(computations, entry, loops)
    return next(loop["body"] for loop in sorted(loops, key=lambda x: -x["kernels"]) if loop["times"] == times)


def _parsed(text):
    """Parse HLO; return the instructions `(operation, rest of line, type, name)` of each computation, and the entry's name."""
    computations, entry, current = {}, None, None
    for line in text.splitlines():
        header = re.match(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line)
        if header:
            current = header.group(2)
            computations[current] = []
            entry = current if header.group(1) else entry
        elif current and (made := re.match(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$", line)):
            kind, rest = _type_and_rest(made.group(2))
            operation = re.match(r"([\w\-]+)\(", rest)
            computations[current].append((operation.group(1) if operation else "?", rest, kind, made.group(1)))
    return computations, entry


def _type_and_rest(text):
    """Return the result type of an instruction, which may be a nested tuple, and the text after it."""
    if not text.startswith("("):
        kind, _, rest = text.partition(" ")
        return kind, rest
    depth = 0
    for end, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return text[: end + 1], text[end + 1 :].strip()
    return text, ""


def _is_free(operation, rest):
    return operation in FREE or operation.endswith("-done") or 'custom_call_target="Sharding"' in rest


def _whiles(computations, name):
    """Yield each loop of a computation: the rest of its line, its body, and its number of iterations, None if unknown."""
    for operation, rest, _, _ in computations[name]:
        if operation == "while":
            known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', rest)
            trips = int(known.group(1)) if known else _bound(computations, rest)
            yield rest, re.search(r"body=%?([\w.\-]+)", rest).group(1), trips


def _bound(computations, rest):
    """Return the constant with which a loop's condition compares the counter: HLO for TPUs does not state the loop's length."""
    condition = computations[re.search(r"condition=%?([\w.\-]+)", rest).group(1)]
    constants = {name: re.match(r"constant\((\d+)\)", rest) for operation, rest, _, name in condition if operation == "constant"}
    counters = {name for operation, _, _, name in condition if operation == "get-tuple-element"}
    for operation, rest, _, _ in condition:
        if operation == "compare" and "direction=LT" in rest:
            left, right = re.findall(r"%([\w.\-]+)", rest.partition("(")[2].partition(")")[0])[:2]
            if left in counters and constants.get(right):
                return int(constants[right].group(1))
    return None


def _count(computations, name, loops, times=1):
    """Count the kernels, waits and bytes of one run of a computation."""
    total = collections.Counter()
    of_loops = iter(_whiles(computations, name))
    sizes = {made: _size(kind) for _, _, kind, made in computations[name]}
    for operation, rest, kind, _ in computations[name]:
        if _is_free(operation, rest):
            continue
        if operation == "while":
            _, body, trips = next(of_loops)
            inner = _count(computations, body, loops, times * (trips or 1))
            total.update({key: n * (trips or 1) for key, n in inner.items()})
            total.update({"waits": trips is None})
            loops.append({"times": times * (trips or 1), "body": body, "kernels": inner["kernels"], "waits": inner["waits"]})
        elif operation == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", rest)
            names = branches.group(1).split(",") if branches else re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", rest)
            total.update(
                max((_count(computations, x.strip().lstrip("%"), loops, times) for x in names), key=lambda c: c["kernels"])
            )
            total.update({"waits": 1})
        elif operation == "call":
            total.update(_count(computations, re.search(r"to_apply=%?([\w.\-]+)", rest).group(1), loops, times))
        else:
            operands = [sizes.get(x, 0) for x in re.findall(NAME, rest.partition("(")[2].partition(")")[0])]
            taken = sum(_taken(computations, rest, i, size) for i, size in enumerate(operands))
            total.update({"kernels": 1, "moved": _size(kind) + sum(operands), "accessed": _size(kind) + taken})
            exchange = operation.removesuffix("-start")
            if exchange in EXCHANGES:
                total.update({"exchanges": 1, "exchanged": _size(kind)} if exchange == "all-reduce" else {"others": 1})
    return total


def _taken(computations, rest, index, size):
    """Return the bytes that a kernel reads of an operand: what it takes if it only slices or gathers from it, else `size`."""
    called = re.search(r"calls=%?([\w.\-]+)", rest)
    if not called:
        return size
    inside = computations[called.group(1)]
    names = {name for operation, text, _, name in inside if operation == "parameter" and text.startswith(f"parameter({index})")}
    taken = 0
    for operation, text, kind, name in inside:
        operands = re.findall(NAME, text.partition("(")[2].partition(")")[0])
        if operation == "parameter" or not names & set(operands):
            continue
        if operation in ("bitcast", "reshape"):
            names.add(name)
        elif operation in ("gather", "dynamic-slice", "slice") and operands[0] in names:
            taken += _size(kind)
        elif operation != "dynamic-update-slice" or operands[0] not in names:
            return size
    return min(taken, size)


def _size(kind):
    """Return the bytes of a result type."""
    found = re.findall(r"(\w+)\[([\d,]*)\]", kind)
    return sum(SIZES.get(dtype, 4) * int(np.prod([int(n) for n in shape.split(",") if n] or [1])) for dtype, shape in found)
