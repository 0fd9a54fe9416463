"""Export of a trained policy as a standalone program, which needs `jax` and `flatbuffers` but not purerl."""

import logging
import os
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from purerl.acting.policy import Policy
from purerl.acting.rollout import one_step
from purerl.core.errors import config_error
from purerl.core.platform import for_cpu_alone
from purerl.core.spaces import action_shapes, entries_of
from purerl.core.types import PyTree, TrainState
from purerl.pure import Train
from purerl.runs.storage.files import atomic_write, write_errors
from purerl.train import make_train

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
OTHER_FORMATS = {".pt", ".pth", ".tflite", ".pb", ".h5", ".keras", ".safetensors", ".pkl", ".npz", ".mlmodel", ".engine"}


def export(
    train: Train, state: TrainState, path: str | os.PathLike | None = None, platforms: tuple[str, ...] = ("cpu", "cuda", "tpu")
) -> bytes:
    """Return the policy of a state, with its parameters, as a serialized `jax.export` program, or as an ONNX model.

    If `path` ends in `.onnx`, the result is an ONNX model, which needs the extra `onnx`; `purerl.runs.analysis.export.onnx_of`
    describes its inputs, and `notebooks/15_onnx.ipynb` is a recipe. Otherwise, load and call the program with

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
        ConfigError: the suffix of the file belongs to another format, such as `.pt`; a platform is unknown; or `onnx_of` cannot
          convert the policy.

    Example:
        >>> run = purerl.load("runs/a").select(seed=0)
        >>> data = purerl.export(run.train, run.state, "policy.jaxexport")
        >>> act = jax.export.deserialize(bytearray(data)).call
        >>> key_data = jax.random.key_data(jax.random.key(0))
        >>> action, carry = act((), jnp.zeros((3, 4)), jnp.ones(3, bool), key_data, False)
        >>> action.shape
        (3,)
    """
    suffix = "" if path is None else pathlib.Path(path).suffix.lower()
    if suffix in OTHER_FORMATS:
        raise config_error("path", str(path), f"jax.export does not write {suffix} files; use the suffix .jaxexport")
    if not (isinstance(platforms, tuple | list) and platforms and all(x in PLATFORMS for x in platforms)):
        raise config_error("platforms", platforms, f"must be a tuple of {', '.join(PLATFORMS)}")
    if train.cfg.kernels == "fused":  # a kernel has a fixed size, but the program is for any number of environments
        train = make_train(train.cfg.replace(kernels="xla"), **train.given)
    policy, env = train.policy(state), train.env
    _, obs = jax.eval_shape(env.reset, jax.random.split(jax.random.key(0), train.cfg.num_envs))
    carry = jax.eval_shape(lambda: policy.initial_carry(1))
    data = onnx_of(policy, obs, carry) if suffix == ".onnx" else _program_of(policy, obs, carry, platforms)
    if path is not None:
        with write_errors(path):
            atomic_write(pathlib.Path(path).expanduser(), data)
    return data


def _program_of(policy: Policy, obs: PyTree, carry: PyTree, platforms: tuple[str, ...]) -> bytes:
    """Return a policy as a serialized `jax.export` program for any number of environments."""

    def act(carry, obs, first, key_data, deterministic):
        key = jax.random.wrap_key_data(key_data)
        either = [policy(carry, obs, first, key, mode) for mode in (True, False)]
        return jax.tree.map(lambda mode, sample: jnp.where(deterministic, mode, sample), *either)

    B = jax.export.symbolic_shape("B")[0]
    shaped = lambda x: jax.ShapeDtypeStruct((B, *x.shape[1:]), x.dtype)
    of_rows = jax.tree.map(shaped, (carry, obs, jax.ShapeDtypeStruct((1,), bool)))
    key_data, deterministic = jax.ShapeDtypeStruct((2,), jnp.uint32), jax.ShapeDtypeStruct((), bool)
    return bytes(jax.export.export(jax.jit(act), platforms=platforms)(*of_rows, key_data, deterministic).serialize())


def onnx_of(policy: Policy, obs: PyTree, carry: PyTree) -> bytes:
    """Return the most likely action of a policy as an ONNX model, for any number of environments B.

    Inputs are the observation, `obs [B, ...]`, or `obs/x` for the entry `x` of a dict. A recurrent policy also has the inputs
    `first [B]`, bool, which marks episode starts, and `carry/...`, its hidden state, which is ignored where `first` is True.
    Outputs are `action`, or `action/x` for the parts of a mixed action, and the next hidden state, `next/carry/...`. Observation
    entries that only the value network uses are not inputs. Before the model is returned, its outputs are compared with those of
    the policy over five steps of random observations.

    Args:
        policy: the policy.
        obs, carry: the shapes and dtypes of a batch of observations and of its hidden state.

    Raises:
        ConfigError: jax2onnx or onnxruntime is missing, or cannot convert the policy, such as the complex numbers of `lru`.
    """
    try:
        import jax2onnx  # pyright: ignore[reportMissingImports]
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        hint = "an .onnx file needs jax2onnx and onnxruntime; run pip install '.[onnx]', or use the suffix .jaxexport"
        raise config_error("path", ..., hint) from error
    recurrent = bool(jax.tree.leaves(carry))
    given = {"obs": obs} | ({"first": jax.ShapeDtypeStruct((1,), bool), "carry": carry} if recurrent else {})
    tree = jax.tree.structure(given)

    def act(*arrays):
        inputs = jax.tree.unflatten(tree, arrays)
        first = inputs.get("first", jnp.zeros(jax.tree.leaves(inputs)[0].shape[0], bool))
        # `policy(...)` would check the number of environments, which is unknown here.
        outputs, after = one_step(policy.network, policy.params, inputs.get("carry", ()), inputs["obs"], first)
        action = outputs.policy.env_action(outputs.policy.mode(), policy.action_space)
        return {"action": action} | ({"next": {"carry": after}} if recurrent else {})

    shapes = entries_of(given)
    names = list(entries_of({"action": action_shapes(policy.action_space)} | ({"next": {"carry": carry}} if recurrent else {})))
    try:
        for name in ("jax2onnx", "onnx_ir"):  # the converter warns about each of its parts that this machine does not support
            logging.getLogger(name).setLevel(logging.ERROR)
        with for_cpu_alone(), warnings.catch_warnings(action="ignore"):
            inputs = [jax.ShapeDtypeStruct(("B", *x.shape[1:]), x.dtype) for x in shapes.values()]
            outputs = lambda *arrays: tuple(jax.tree.leaves(act(*arrays)))
            model = jax2onnx.to_onnx(outputs, inputs, input_names=list(shapes), output_names=names)
        used = set(_inputs_of(model.graph))
        for x in [x for x in model.graph.input if x.name not in used]:
            model.graph.input.remove(x)
        data = model.SerializeToString()
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        inputs, trial, largest = [x.name for x in session.get_inputs()], _trial(shapes), 0.0
        for step in range(5):
            found = dict(zip(names, session.run(None, {name: trial[name] for name in inputs}), strict=True))
            expected = entries_of(act(*trial.values()))
            distance = lambda x, y: float((np.abs(np.asarray(x, float) - y) / (1 + np.abs(y))).max())
            largest = np.max([largest, *(distance(found[name], expected[name]) for name in names)])  # NaN stays
            kept = {name: np.asarray(expected[f"next/{name}"]) for name in shapes if f"next/{name}" in expected}
            trial = _trial(shapes, step + 1) | kept
    except Exception as error:  # the converter and the runtime raise errors of many kinds
        text = " ".join(str(error).split())[:300]
        hint = f"the policy cannot be converted, {type(error).__name__}: {text}; use the suffix .jaxexport"
        raise config_error("path", ..., hint) from error
    if not largest <= 1e-4:
        raise config_error("path", ..., f"the converted policy differs by {largest:.2g}; use the suffix .jaxexport")
    return data


def _trial(shapes: dict[str, Any], step: int = 0) -> dict[str, np.ndarray]:
    """Return inputs for three environments: normal samples for floats, 0 and -1 in turn for ints, random bools, 0 for others.

    The input `first` is True in step 0 only. A discrete action of -1 is the previous action at an episode start. The first bool
    of an array, such as an action mask, is True.
    """
    draw, found = np.random.default_rng(step), {}
    for name, x in shapes.items():
        shape = (3, *x.shape[1:])
        if np.issubdtype(x.dtype, np.floating):
            values = draw.normal(size=shape)
        elif x.dtype == bool:
            values = draw.integers(0, 2, shape)
            values[..., :1] = 1
        else:
            values = np.full(shape, -(step % 2) * np.issubdtype(x.dtype, np.signedinteger))
        found[name] = values.astype(x.dtype)
    return found | ({"first": np.full(3, step == 0)} if "first" in shapes else {})


def _inputs_of(graph: Any) -> Iterator[str]:
    """Yield the names that the nodes of an ONNX graph read, including nodes of graphs inside of nodes, such as loops."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            yield from _inputs_of(attribute.g)
