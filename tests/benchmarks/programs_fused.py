"""Kernels and bytes of a minibatch with `kernels="xla"` and `kernels="fused"`, and registers of the fused kernels, on an H100.

    .venv-programs/bin/python -m tests.benchmarks.programs_fused [--registers] [--record]

`programs.py` says how to make the virtual environment, and no H100 is needed. `--registers` instead compiles the kernels of
several layer sizes; ptxas reports the registers and spilled bytes of a thread, of which the maxima over all activations count.
"""

import functools
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from tests.benchmarks.programs import ENVIRONMENT, IMAGES, LARGE, SMALL

WORKLOADS = {  # hyperparameters, seeds, minibatches in an update
    "B": (LARGE, 1, 128),
    "B, 65,536 environments": (LARGE | {"num_envs": 65_536}, 1, 128),
    "C": (IMAGES | {"torso": "mlp"}, 1, 128),
    "D, 256 seeds": (SMALL, 256, 16),
    "D, 2048 seeds": (SMALL, 2048, 16),
}
FORMS = [  # sizes of the observation, the layers and the head; dtype; precision
    ((4, 32, 32, 2), "float32", "default"),
    ((4, 64, 64, 2), "float32", "default"),
    ((4, 64, 64, 2), "bfloat16", "default"),
    ((4, 64, 64, 2), "float32", "highest"),
    ((64, 64, 64, 64, 8), "float32", "default"),
    ((64, 64, 64, 17), "float32", "default"),
    ((64, 64, 64, 64), "float32", "highest"),
    ((400, 64, 64, 6), "float32", "default"),
    ((4, 128, 128, 2), "float32", "default"),
    ((16, 128, 128, 8), "float32", "default"),
    ((16, 128, 128, 8), "bfloat16", "default"),
    ((376, 128, 128, 17), "float32", "default"),
]
USED = r"function '(\w+)_kernel\w*'.*?(\d+) bytes spill stores.*?Used (\d+) reg"


def counted(name, kernels):
    """Count the kernels of an update and of a minibatch, and the bytes that a minibatch accesses per batch row."""
    import jax

    import purerl
    from tests.benchmarks.programs_counting import compiled_for, counts

    changes, seeds, times = WORKLOADS[name]
    train = purerl.make_train(purerl.PPOConfig(**changes, kernels=kernels))
    axes = train.seed_axes
    states = jax.eval_shape(jax.vmap(train.init, out_axes=axes), jax.random.split(jax.random.key(0), seeds))
    update = jax.vmap(train.update, in_axes=(axes,), out_axes=(axes, 0))
    if seeds == 1:
        states, update = jax.eval_shape(train.init, jax.random.key(0)), train.update
    program = compiled_for("h100", update, states)
    whole, minibatch = counts(program), counts(program, times=times)
    rows = seeds * changes["num_envs"] * changes["num_steps"] / changes["num_minibatches"]
    return {"kernels": whole["kernels"], "of a minibatch": minibatch["kernels"], "bytes of a row": minibatch["accessed"] / rows}


def registers(sizes, dtype, precision, dump):
    """Return for each kernel the maxima, over all activations, of registers per thread and of spilled bytes.

    dump: the directory to which XLA writes compiled kernels (PTX).
    """
    import jax
    import jax.numpy as jnp

    from purerl.networks.fused import apply_fused_layers, pack_layers
    from purerl.networks.torsos import ACTIVATIONS
    from tests.benchmarks.programs_counting import compiled_for
    from tests.helpers.layers import group_of

    array = jax.ShapeDtypeStruct
    layers = lambda sizes: [
        {"kernel": array(x, jnp.float32), "bias": array(x[1:], jnp.float32)} for x in itertools.pairwise(sizes)
    ]
    groups = [group_of(layers(sizes)), group_of(layers((*sizes[:-1], 1)))]  # policy and value

    def loss(groups, x, activation):
        with jax.default_matmul_precision(None if precision == "default" else precision):
            return apply_fused_layers(pack_layers(groups), x, activation).sum()

    import nvidia

    ptxas, found = next(pathlib.Path(nvidia.__path__[0]).glob("*/bin/ptxas")), {}
    for activation in ACTIVATIONS.values():
        with_gradient = jax.value_and_grad(functools.partial(loss, activation=activation))
        compiled_for("h100", with_gradient, groups, array((65_536, sizes[0]), dtype))
        for path in sorted(pathlib.Path(dump).glob("*.ptx")):
            text = subprocess.run([ptxas, "-v", "-arch=sm_90a", path, "-o", "/dev/null"], capture_output=True, text=True).stderr
            path.unlink()
            for kernel, spilled, used in re.findall(USED, text, re.DOTALL):
                row = found.setdefault(kernel, {"registers": 0, "spilled": 0})
                row |= {"registers": max(int(used), row["registers"]), "spilled": max(int(spilled), row["spilled"])}
    return found


def main():
    dump = tempfile.TemporaryDirectory()
    os.environ.update(ENVIRONMENT)
    os.environ["XLA_FLAGS"] += f" --xla_dump_to={dump.name} --xla_dump_hlo_as_text=false" if "--registers" in sys.argv else ""
    from tests.benchmarks import recording  # imported late: JAX reads the environment variables when it is imported

    parser = recording.parser(__doc__)
    parser.add_argument("--registers", action="store_true")
    args = parser.parse_args()
    if args.registers:
        rows = {" ".join(map(str, form)): registers(*form, dump.name) for form in FORMS}
    else:
        rows = {name: {form: counted(name, form) for form in ("xla", "fused")} for name in WORKLOADS}
    for name, row in rows.items():
        print(name, row, flush=True)
    if args.record:
        part = "registers" if args.registers else "minibatches"
        recording.add("fused.json", part, rows | {"commit": recording.commit()})


if __name__ == "__main__":
    main()
