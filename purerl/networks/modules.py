"""Custom torsos and recurrent modules, as flax linen modules."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from purerl.core.errors import ConfigError, Problem, code_of
from purerl.core.types import Network, PyTree
from purerl.networks.distributions import ILLEGAL, Categorical, Joint, MultiCategorical

OWN = "own"  # the name of parameters that keep the initial values of a custom function


class Pair(nn.Module):
    """A module made of two pure functions, `init(key, x) -> params` and `apply(params, x) -> features`."""

    init_function: Callable
    apply_function: Callable

    @nn.compact
    def __call__(self, x: Any) -> jax.Array:
        made = self.has_variable("params", OWN)  # `param` would trace `init_function` again to check shapes
        params = self.get_variable("params", OWN) if made else self.param(OWN, lambda key: self.init_function(key, x))
        return self.apply_function(params, x)


def linen_module(module: Any, what: str) -> Any:
    """Instantiate a linen class; return anything else unchanged. `what` names the module in errors."""
    if not (isinstance(module, type) and issubclass(module, nn.Module)):
        return module
    with code_of(what, f"{module.__name__}()"):
        return module()


def applied(module: nn.Module, params: PyTree, *inputs: Any, **options: Any) -> Any:
    """Apply a module that has parameters only."""
    return module.apply({"params": params}, *inputs, **options)


def only_parameters(what: str, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a module's `init` made. Raise a ConfigError if `init` made other collections of variables."""
    if others := sorted(made.keys() - {"params"}):
        raise ConfigError([Problem(what, others, "the module may have only parameters; other collections are not supported")])
    return made.get("params", {})


def torso_module(torso: Any, what: str = "torso") -> nn.Module:
    """Return a custom torso as a module: `x [N, ...] -> features [N, size]`.

    Args:
        torso: a flax linen module, its class, or a pair `(init, apply)` of pure functions.
        what: the name of the torso in errors.

    Raises:
        ConfigError: `torso` is something else.
    """
    torso = linen_module(torso, what)
    if isinstance(torso, nn.Module):
        return torso
    if isinstance(torso, tuple | list) and len(torso) == 2 and all(map(callable, torso)):
        return Pair(*torso)
    hint = "must be a flax linen module or class, or a pair of functions (init(key, x) -> params, apply(params, x) -> features)"
    raise ConfigError([Problem(what, torso, hint)])


def memory_module(memory: Any) -> nn.Module:
    """Return a custom recurrent module: a linen module `(carry, x [L, N, F], first [L, N]) -> (y [L, N, size], carry)`.

    Raises:
        ConfigError: `memory` is something else, or has no `initial_carry`.
    """
    memory = linen_module(memory, "memory")
    if not isinstance(memory, nn.Module) or not callable(getattr(memory, "initial_carry", None)):
        hint = "must be a flax linen module with initial_carry(num_envs), called as memory(carry, x, first); see make_train"
        raise ConfigError([Problem("memory", memory, hint)])
    return memory


def check_torso(torso: nn.Module, x: Any) -> int:
    """Return the size of a torso's features, from shapes alone. Raise a ConfigError unless features are floats `[N, size]`."""
    return _check_floats("torso", _output_of("torso", torso, x), jax.tree.leaves(x)[0].shape[:1])


def check_memory(memory: nn.Module, x: jax.ShapeDtypeStruct) -> None:
    """Check, by shapes alone, that a recurrent module maps `[L, N, F]` to floats `[L, N, size]` and keeps the carry's shapes."""
    envs = x.shape[1]
    with code_of("memory", f"initial_carry({envs})"):
        carry = jax.eval_shape(lambda: memory.initial_carry(envs))
    axes = {leaf.shape[:1] for leaf in jax.tree.leaves(carry)}
    if axes != {(envs,)}:
        hint = f"initial_carry({envs}) must return arrays, each with a first axis of size {envs}"
        raise ConfigError([Problem("memory", carry, hint)])
    found = _output_of("memory", memory, carry, x, jax.ShapeDtypeStruct(x.shape[:2], bool))
    if not (isinstance(found, tuple) and len(found) == 2):
        raise ConfigError([Problem("memory", type(found).__name__, "must return a pair: the outputs and the carry")])
    y, after = found
    _check_floats("memory", y, x.shape[:2])
    if jax.tree.structure(after) != jax.tree.structure(carry) or jax.tree.leaves(after) != jax.tree.leaves(carry):
        raise ConfigError([Problem("memory", after, f"must return a carry with the shapes and dtypes of its input, {carry}")])


def _output_of(what: str, module: nn.Module, *inputs: Any) -> Any:
    """Return the shapes of a custom module's result. Raise a ConfigError if a call fails, or if it makes other variables."""
    with code_of(what, f"{what}({', '.join(str(jax.tree.map(lambda x: list(x.shape), x)) for x in inputs)})"):
        found, made = jax.eval_shape(lambda *inputs: module.init_with_output(jax.random.key(0), *inputs), *inputs)
    only_parameters(what, made)
    return found


def _check_floats(what: str, y: Any, lead: tuple[int, ...]) -> int:
    """Return the size of a module's outputs. Raise a ConfigError unless the outputs are floats `[*lead, size]`."""
    if getattr(y, "shape", (None,))[:-1] != lead or not jnp.issubdtype(y.dtype, jnp.floating):
        is_ = f"{y.dtype}{list(y.shape)}" if hasattr(y, "shape") else type(y).__name__
        raise ConfigError([Problem(what, is_, f"must return float features of shape {[*lead, 'size']}")])
    return y.shape[-1]


def with_float32_outputs(network: Network) -> Network:
    """Return a network whose float outputs are cast to float32, whatever its compute dtype."""
    is_float = lambda x: hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)

    def apply(params, carry, obs, first):
        outputs, carry = network.apply(params, carry, obs, first)
        return jax.tree.map(lambda x: x.astype(jnp.float32) if is_float(x) else x, outputs), carry

    return network._replace(apply=apply)


def with_finite_logits(network: Network) -> Network:
    """Return a network whose logits are at least `ILLEGAL`, so that entropy and divergences are not NaN for infinite logits."""

    def finite(policy):
        if isinstance(policy, Joint):
            return Joint(tuple(map(finite, policy.parts)))
        is_categorical = isinstance(policy, Categorical | MultiCategorical)
        return policy.replace(logits=jnp.maximum(policy.logits, ILLEGAL)) if is_categorical else policy

    def apply(params, carry, obs, first):
        outputs, carry = network.apply(params, carry, obs, first)
        return outputs._replace(policy=finite(outputs.policy)), carry

    return network._replace(apply=apply)
