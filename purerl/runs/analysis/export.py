"""Export of a trained policy as a standalone program, which needs `jax` and `flatbuffers` but not purerl."""

import os
import pathlib

import jax
import jax.export
import jax.numpy as jnp

from purerl.core.errors import ConfigError, Problem
from purerl.core.types import TrainState
from purerl.pure import Train
from purerl.runs.storage.files import atomic_write, write_errors
from purerl.train import make_train

OTHER_FORMATS = {".onnx", ".pt", ".pth", ".tflite", ".pb", ".h5", ".keras", ".safetensors", ".pkl", ".npz", ".mlmodel", ".engine"}


def export(
    train: Train, state: TrainState, path: str | os.PathLike | None = None, platforms: tuple[str, ...] = ("cpu", "cuda", "tpu")
) -> bytes:
    """Return the policy of a state, with its parameters, as a serialized `jax.export` program.

    Load and call the program with

        act = jax.export.deserialize(bytearray(data)).call
        action, carry = act(carry, obs, first, key_data, deterministic)

    for any number of environments B. `obs [B, ...]` has the environment's dtype. `first [B]`, bool, marks episode starts. `carry`
    is the hidden state, at first `policy.initial_carry(B)`, and `()` without a recurrent network. `key_data` contains the two
    words of `jax.random.PRNGKey(seed)`. `deterministic` is a bool scalar.

    Args:
        train: the `Train` of the state's run.
        state: state of one run.
        path: file to write; None writes no file.
        platforms: platforms to export the program for.

    Raises:
        ConfigError: the suffix of the file belongs to another format, such as ONNX.

    Example:
        >>> run = purerl.load("runs/a").select(seed=0)
        >>> data = purerl.export(run.train, run.state, "policy.jaxexport")
        >>> act = jax.export.deserialize(bytearray(data)).call
        >>> key_data = jax.random.key_data(jax.random.key(0))
        >>> action, carry = act((), jnp.zeros((3, 4)), jnp.ones(3, bool), key_data, False)
        >>> action.shape
        (3,)
    """
    if path is not None and (suffix := pathlib.Path(path).suffix.lower()) in OTHER_FORMATS:
        hint = f"jax.export does not write {suffix} files; use the suffix .jaxexport"
        raise ConfigError([Problem("path", str(path), hint)])
    if train.cfg.kernels == "fused":  # a kernel has a size, where the program is for any number of environments
        train = make_train(train.cfg.replace(kernels="xla"), **train.given)
    policy, env = train.policy(state), train.env

    def act(carry, obs, first, key_data, deterministic):
        key = jax.random.wrap_key_data(key_data)
        either = [policy(carry, obs, first, key, mode) for mode in (True, False)]
        return jax.tree.map(lambda mode, sample: jnp.where(deterministic, mode, sample), *either)

    B = jax.export.symbolic_shape("B")[0]
    shaped = lambda x: jax.ShapeDtypeStruct((B, *x.shape[1:]), x.dtype)
    _, obs = jax.eval_shape(env.reset, jax.random.split(jax.random.key(0), train.cfg.num_envs))
    carry = jax.eval_shape(lambda: policy.initial_carry(1))
    arguments = (
        *jax.tree.map(shaped, (carry, obs, jax.ShapeDtypeStruct((1,), bool))),
        jax.ShapeDtypeStruct((2,), jnp.uint32),
        jax.ShapeDtypeStruct((), bool),
    )
    data = bytes(jax.export.export(jax.jit(act), platforms=platforms)(*arguments).serialize())
    if path is not None:
        with write_errors(path):
            atomic_write(pathlib.Path(path), data)
    return data
