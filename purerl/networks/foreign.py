"""Custom modules: networks from flax modules (`from_linen` and `from_nnx`), torsos, and recurrent modules."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from purerl.core.errors import config_error, convert_errors
from purerl.core.types import Network, Outputs, PyTree
from purerl.networks.distributions import ILLEGAL, Categorical, DiagGaussian, Joint, MultiCategorical
from purerl.networks.layers import OfAction


def from_linen(module: Any) -> Network:
    """Return a flax linen module as a network.

    The module is called with unencoded observations `[L, N, ...]` of L steps and N environments, and returns

        (policy, value)  or  (policy, value, heads)

    - `policy`: for Discrete actions, logits `[L, N, n]`. For a Box, `(mean, log_std)` in the environment's unit, each
      `[L, N, d]`; log_std can be `[d]`. For other actions or other units, a distribution from `purerl.distributions`.
    - `value`: `[L, N]` or `[L, N, 1]`; with two reward streams `[L, N, 2]`.
    - `heads`: a dict. PPG needs `aux_value`, shaped like the value, `[L, N]` or `[L, N, 2]`. DAAC needs `advantage`, a pair of a
      constant `[L, N]` and a weight `[L, N, d]` for the function `constant + weight . action`; discrete actions are one-hot.

    A recurrent module has a method `initial_carry(num_envs)`, is called as `module(carry, obs, first [L, N])`, and returns a
    pair: the tuple above and the next carry. Where `first` marks an episode start, the module must reset the carry before it
    reads the observation.

    The top-level submodules are the groups of parameters. PPG and DAAC train some groups separately, and need submodules named
    `policy`, `value`, and `aux_value` (PPG) or `advantage` (DAAC). The module must have parameters only, no batch statistics.

    Args:
        module: a linen module, or its class.

    Raises:
        ConfigError: `module` is not a linen module.

    Example:
        >>> class ActorCritic(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, obs):
        ...         x = nn.swish(nn.Dense(32)(obs))
        ...         return nn.Dense(2)(x), nn.Dense(1)(x)
        >>> train = purerl.make_train(purerl.PPOConfig(), network=purerl.from_linen(ActorCritic))
        >>> train.plan.parameters
        259
    """
    module = linen_module(module, "network", "from_linen needs a flax linen module or its class")
    init = lambda key, *inputs: only_parameters("network", module.init(key, *inputs))
    apply = functools.partial(apply_module, module)
    return _name_functions(_network(init, apply, getattr(module, "initial_carry", None)), type(module))


def from_nnx(make: Callable[[Any], Any]) -> Network:
    """Return a flax nnx module as a network.

    The module has the arguments and results that `from_linen` describes. The groups of parameters are the module's attributes.

    Args:
        make: `(rngs: nnx.Rngs) -> module`, such as the module's class, called for every seed. All random numbers must come from
          `rngs`. The module must have `nnx.Param` variables only, no batch statistics and no dropout.

    Raises:
        ConfigError: `make` does not return such a module.

    Example:
        >>> class ActorCritic(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.torso = nnx.Linear(4, 32, rngs=rngs)
        ...         self.policy, self.value = nnx.Linear(32, 2, rngs=rngs), nnx.Linear(32, 1, rngs=rngs)
        ...     def __call__(self, obs):
        ...         x = nnx.swish(self.torso(obs))
        ...         return self.policy(x), self.value(x)
        >>> train = purerl.make_train(purerl.PPOConfig(), network=purerl.from_nnx(ActorCritic))
        >>> train.plan.parameters
        259
    """
    from flax import nnx  # imported here, since the import of nnx takes a quarter of the time of importing purerl

    if isinstance(make, nnx.Module) or not callable(make):
        hint = "from_nnx needs a function of nnx.Rngs that returns a new module, such as the module's class"
        raise config_error("network", type(make), hint)
    with convert_errors("network", "make(nnx.Rngs(0))"):
        abstract = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
        graph, shapes, others = nnx.split(abstract, nnx.Param, ...)
    if jax.tree.leaves(others):
        raise config_error("network", type(abstract), "the module may have only nnx.Param variables")

    def init(key, *inputs):
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))

    def apply(params, *inputs):
        state = jax.tree.map(lambda x: x, shapes)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state, others)(*inputs)

    return _name_functions(_network(init, apply, getattr(abstract, "initial_carry", None)), type(abstract))


def _name_functions(network: Network, kind: type) -> Network:
    """Name a network's functions by the class of its module, so that a run resumes only with a network of this class."""
    for function in (network.init, network.apply):
        function.__module__, function.__qualname__ = kind.__module__, kind.__qualname__
    return network


def _network(init: Callable, apply: Callable, initial_carry: Callable | None) -> Network:
    """Return a network from `init(key, *inputs)` and `apply(params, *inputs)`; `inputs` are (obs) or (carry, obs, first)."""
    if initial_carry is None:
        return Network(init, lambda params, carry, obs, first: (_outputs(apply(params, obs)), carry))

    def init_recurrent(key, obs):
        first, carry = initial_inputs(obs, initial_carry)
        return init(key, carry, obs, first)

    def apply_recurrent(params, carry, obs, first):
        found = apply(params, carry, obs, first)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise config_error("network", type(found), "a recurrent module must return a pair: (policy, value) and the carry")
        return _outputs(found[0]), found[1]

    return Network(init_recurrent, apply_recurrent, initial_carry)


def initial_inputs(obs: PyTree, initial_carry: Callable) -> tuple[jax.Array, PyTree]:
    """Return `first`, True everywhere, and the initial carry for observations `[L, N, ...]`."""
    first = jnp.ones(jax.tree.leaves(obs)[0].shape[:2], bool)
    return first, initial_carry(first.shape[1])


def _outputs(found: Any) -> Outputs:
    """Convert the return value of a module to `Outputs`.

    Raises:
        ConfigError: the module returned a value that `from_linen` does not allow.
    """
    if isinstance(found, Outputs):
        return found
    parts = (*found, {})[:3] if isinstance(found, tuple) and len(found) in (2, 3) else (None, None, None)
    policy, value, heads = cast(tuple[Any, Any, Any], parts)
    gaussian = isinstance(policy, tuple) and len(policy) == 2 and all(map(_is_array, policy))
    policies = _is_array(policy) or gaussian or hasattr(policy, "log_prob")
    if not (policies and _is_array(value) and isinstance(heads, Mapping | None)):
        returns = "(policy, value) or (policy, value, heads)"
        hint = f"the module must return {returns}, where policy is logits or (mean, log_std); see help(purerl.from_linen)"
        raise config_error("network", describe(found), hint)
    if _is_array(policy):
        policy = Categorical(policy)
    elif gaussian:
        mean, log_std = policy
        policy = DiagGaussian(
            mean, jnp.broadcast_to(log_std.reshape((1,) * (mean.ndim - log_std.ndim) + log_std.shape), mean.shape)
        )
    single = lambda x: x.squeeze(-1) if x.ndim == 3 and x.shape[-1] == 1 else x
    as_head = lambda x: OfAction(single(x[0]), x[1]) if isinstance(x, tuple) and len(x) == 2 else x
    return Outputs(policy, single(value), {name: as_head(x) for name, x in heads.items()} if heads else ())


def _is_array(x: Any) -> TypeGuard[jax.Array]:
    return isinstance(x, jax.Array | np.ndarray)


def describe(x: Any) -> Any:
    """Describe a result of custom code for a message: arrays by their shapes, tuples by entry, anything else by its type."""
    if type(x) is tuple:
        return tuple(y.__name__ if isinstance(y, type) else y for y in map(describe, x))
    return list(x.shape) if hasattr(x, "shape") else type(x)


# --- torsos and recurrent modules -------------------------------------------------------------------------------------

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


def linen_module(module: Any, what: str, hint: str) -> Any:
    """Return a linen module, or an instance of a linen class. Raise a ConfigError about `what` with a hint for anything else."""
    if isinstance(module, type) and issubclass(module, nn.Module):
        with convert_errors(what, f"{module.__name__}()"):
            return module()
    if not isinstance(module, nn.Module):
        raise config_error(what, module, hint)
    return module


def apply_module(module: nn.Module, params: PyTree, *inputs: Any, **options: Any) -> Any:
    """Apply a module that has parameters only."""
    return module.apply({"params": params}, *inputs, **options)


def only_parameters(what: str, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a module's `init` made. Raise a ConfigError if `init` made other collections of variables."""
    if others := sorted(made.keys() - {"params"}):
        raise config_error(what, others, "the module may have only parameters; other collections are not supported")
    return made.get("params", {})


def torso_module(torso: Any, what: str = "torso") -> nn.Module:
    """Return a custom torso as a module: `x [N, ...] -> features [N, size]`.

    Args:
        torso: a flax linen module, its class, or a pair `(init, apply)` of pure functions.
        what: the name of the torso in errors.

    Raises:
        ConfigError: `torso` is something else.
    """
    if isinstance(torso, tuple | list) and len(torso) == 2 and all(map(callable, torso)):
        return Pair(*torso)
    hint = "must be a flax linen module or class, or a pair of functions (init(key, x) -> params, apply(params, x) -> features)"
    return linen_module(torso, what, hint)


def memory_module(memory: Any) -> nn.Module:
    """Return a custom recurrent module: a linen module `(carry, x [L, N, F], first [L, N]) -> (y [L, N, size], carry)`.

    L, N and F are the numbers of steps, environments and features.

    Raises:
        ConfigError: `memory` is something else, or has no `initial_carry`.
    """
    hint = "must be a flax linen module with initial_carry(num_envs), called as memory(carry, x, first); see make_train"
    memory = linen_module(memory, "memory", hint)
    if not callable(getattr(memory, "initial_carry", None)):
        raise config_error("memory", memory, hint)
    return memory


def check_torso(torso: nn.Module, x: Any) -> int:
    """Return the size of a torso's features, from shapes alone. Raise a ConfigError unless features are floats `[N, size]`."""
    return _check_floats("torso", _output_of("torso", torso, x), jax.tree.leaves(x)[0].shape[:1])


def check_memory(memory: nn.Module, x: jax.ShapeDtypeStruct) -> None:
    """Check, by shapes alone, that a recurrent module has a carry and maps `[L, N, F]` to floats `[L, N, size]`."""
    envs = x.shape[1]
    with convert_errors("memory", f"initial_carry({envs})"):
        carry = jax.eval_shape(lambda: memory.initial_carry(envs))
    axes = {leaf.shape[:1] for leaf in jax.tree.leaves(carry)}
    if axes != {(envs,)}:
        raise config_error("memory", carry, f"initial_carry({envs}) must return arrays, each with a first axis of size {envs}")
    found = _output_of("memory", memory, carry, x, jax.ShapeDtypeStruct(x.shape[:2], bool))
    if not (isinstance(found, tuple) and len(found) == 2):
        raise config_error("memory", type(found), "must return a pair: the outputs and the carry")
    _check_floats("memory", found[0], x.shape[:2])
    if found[1] != carry:
        raise config_error("memory", found[1], f"must return a carry with the shapes and dtypes of its input, {carry}")


def _output_of(what: str, module: nn.Module, *inputs: Any) -> Any:
    """Return the shapes of a custom module's result. Raise a ConfigError if the call fails or makes non-parameter variables."""
    with convert_errors(what, f"{what}({', '.join(str(jax.tree.map(lambda x: list(x.shape), x)) for x in inputs)})"):
        found, made = jax.eval_shape(lambda *inputs: module.init_with_output(jax.random.key(0), *inputs), *inputs)
    only_parameters(what, made)
    return found


def _check_floats(what: str, y: Any, lead: tuple[int, ...]) -> int:
    """Return the size of a module's outputs. Raise a ConfigError unless the outputs are floats `[*lead, size]`."""
    if getattr(y, "shape", (None,))[:-1] != lead or not jnp.issubdtype(y.dtype, jnp.floating):
        raise config_error(what, describe(y), f"must return float features of shape {[*lead, 'size']}")
    return y.shape[-1]


def with_safe_outputs(network: Network) -> Network:
    """Return a custom network whose float outputs are cast to float32, and whose logits are at least `ILLEGAL`.

    Entropy and divergences are therefore not NaN for logits of minus infinity.
    """
    is_float = lambda x: hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)

    def finite(policy):
        if isinstance(policy, Joint):
            return Joint(tuple(map(finite, policy.parts)))
        is_categorical = isinstance(policy, Categorical | MultiCategorical)
        return policy.replace(logits=jnp.maximum(policy.logits, ILLEGAL)) if is_categorical else policy

    def apply(params, carry, obs, first):
        outputs, carry = network.apply(params, carry, obs, first)
        outputs = jax.tree.map(lambda x: x.astype(jnp.float32) if is_float(x) else x, outputs)
        return outputs._replace(policy=finite(outputs.policy)), carry

    return network._replace(apply=apply)
