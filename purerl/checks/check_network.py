"""Checks of a network, and of a custom optimizer for its parameters."""

import collections
import contextlib
import operator
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from purerl.config.algorithms import algorithm_of
from purerl.config.base import OnPolicyConfig
from purerl.config.rules import surely_holds
from purerl.core.environment import Environment
from purerl.core.errors import Problem, convert_errors, raise_if_any, warn
from purerl.core.platform import to_strong_dtypes
from purerl.core.spaces import Box, Discrete, Mixed, MultiBinary, Space, action_shapes, parts_of
from purerl.core.types import Network, Outputs, PyTree
from purerl.learning.custom import optimizer_problems
from purerl.learning.phases import Phase, moving_groups
from purerl.networks.distributions import Bernoulli
from purerl.networks.layers import OfAction


def check_network(cfg: OnPolicyConfig, env: Environment, network: Network, optimizer: Any, distils: bool) -> None:
    """Raise unless the network and the custom optimizer, if there is one, suit the config and the environment.

    distils: True if the config's random network distillation is used.
    """
    raise_if_any(_network_problems(network, env, cfg, distils))
    raise_if_any(optimizer_problems(optimizer, shapes_of(cfg, network, env)[0]))


def _network_problems(network: Network, env: Environment, cfg: OnPolicyConfig, distils: bool) -> list[Problem]:
    """Report mismatches between the network and the environment or config. Nothing is compiled."""
    num_envs = 2
    params, obs = shapes_of(cfg, network, env, num_envs)
    first = jax.ShapeDtypeStruct((1, num_envs), bool)
    with convert_errors("network", f"initial_carry({num_envs})"):
        carry = jax.eval_shape(lambda: to_strong_dtypes(network.initial_carry(num_envs), "network.initial_carry"))
    shapes = jax.tree.map(lambda x: list(x.shape), obs)
    with convert_errors("network", f"apply(params, carry, obs {shapes}, first {list(first.shape)})"):
        result = jax.eval_shape(network.apply, params, carry, obs, first)
    if found := _output_problems(cfg, result, distils):
        return found
    names = {getattr(part, "key", None) for path, _ in jax.tree_util.tree_leaves_with_path(params) for part in path}
    if distils and "predictor" in names:
        return [Problem("network", "predictor", "is the name of the parameters of rnd; rename this part of the network")]
    outputs, carry_after = result
    _warn_of_rounding(outputs)
    found = _group_problems(cfg, params, outputs)
    if carry_after != carry:
        hint = f"apply must return a carry with the shapes and dtypes of its input, {carry}"
        found.append(Problem("network", carry_after, hint))
    streams = (cfg.streams,) if cfg.streams > 1 else ()
    if outputs.value.shape != (1, num_envs, *streams):
        axis = f"with an axis of {cfg.streams} reward streams" if streams else "without an output axis"
        hint = f"the value of {num_envs} observations must have shape {[1, num_envs, *streams]}, {axis}"
        found.append(Problem("network", list(outputs.value.shape), hint))
    found += _action_problems(outputs, env.action_space, num_envs)
    if network.is_recurrent:
        axes = {x.shape[:1] for x in jax.tree.leaves(jax.eval_shape(lambda: network.initial_carry(3)))}
        if axes - {(3,)}:
            hint = "the arrays of the carry must have the environments as their first axis, [num_envs, ...]"
            found.append(Problem("network", carry, hint))
        found += sequence_problems(cfg)
    elif cfg.sequence_length:
        found.append(Problem("sequence_length", cfg.sequence_length, "needs a recurrent network; set memory, or use 0"))
    return found


def _action_problems(outputs: Outputs, space: Space, num_envs: int) -> list[Problem]:
    """Report mismatches between the policy, or heads that read actions, and the action space."""
    key = jax.random.key(0)

    def act(policy):
        action = policy.sample(policy.noise(key))
        return policy.env_action(action, space), policy.log_prob(action)

    if isinstance(space, Mixed) and len(getattr(outputs.policy, "parts", ())) != len(parts_of(space)):
        hint = f"the policy must be purerl.distributions.Joint, with a distribution for each of {len(parts_of(space))} parts"
        return [Problem("network", type(outputs.policy), hint)]
    with convert_errors("network", "the policy's sample(noise), env_action and log_prob"):
        action, log_prob = jax.eval_shape(act, outputs.policy)
    expected, shapes = action_shapes(space, 1, num_envs), lambda tree: jax.tree.map(lambda x: list(x.shape), tree)
    dtypes = lambda tree: jax.tree.map(lambda x: x.dtype.name, tree)
    is_float, found = lambda tree: [np.issubdtype(x.dtype, np.floating) for x in jax.tree.leaves(tree)], []
    if shapes(action) != shapes(expected) or log_prob.shape != (1, num_envs):
        hint = f"actions must have shape {shapes(expected)}, with one log-probability each"
        hint += "; for a Box, return DiagGaussian, or (mean, log_std) from a module" if isinstance(space, Box) else ""
        found.append(Problem("network", shapes(action), hint))
    elif is_float(action) != is_float(expected):
        found.append(Problem("network", dtypes(action), f"actions must have dtype {dtypes(expected)}"))
    found += _measure_problems(outputs.policy, num_envs)
    encoded = lambda policy: policy.encode(policy.sample(policy.noise(key)))
    for name, head in dict(outputs.heads or {}).items():
        if isinstance(head, OfAction):
            shapes_of_head = head.constant.shape, head.weight.shape
            wanted = outputs.value.shape, jax.eval_shape(encoded, outputs.policy).shape
            hint = f"the constant and the weight of the head {name!r} must have the shapes {wanted}"
            found += [Problem("network", shapes_of_head, hint)] if shapes_of_head != wanted else []
    policies = outputs.policy.parts if isinstance(space, Mixed) else [outputs.policy]
    for policy, part in zip(policies, parts_of(space), strict=True):
        found += _choice_problems(policy, part)
    return found


def _measure_problems(policy: Any, num_envs: int) -> list[Problem]:
    """Report an entropy or a KL divergence that is not one number for each action, unless the policy does not implement it."""
    found, measures = [], {"entropy": lambda policy: policy.entropy(), "kl": lambda policy: policy.kl(policy)}
    for name in (name for name in measures if hasattr(policy, name)):
        shape = (1, num_envs)
        with convert_errors("network", f"the policy's {name}"), contextlib.suppress(NotImplementedError):
            shape = jax.eval_shape(measures[name], policy).shape
        if shape != (1, num_envs):
            hint = f"the policy's {name} must have one number for each action, [1, {num_envs}]"
            found.append(Problem("network", list(shape), hint))
    return found


def _group_problems(cfg: OnPolicyConfig, params: Any, outputs: Outputs) -> list[Problem]:
    """Report parameter groups and heads that the config needs and the network lacks."""
    found = []
    if not isinstance(params, dict):
        found.append(Problem("network", type(params), "init must return a dict from group names to parameters"))
    elif "value" not in params and surely_holds(cfg.critic_lr_scale, lambda x: x != 1):
        hint = f"the network has no parameter group 'value' to scale, only {sorted(params)}; use 1"
        found.append(Problem("critic_lr_scale", cfg.critic_lr_scale, hint))
    for name in cfg.heads:
        if name not in outputs.heads:
            hint = f"{algorithm_of(cfg)} needs the entry {name!r} in the heads of the outputs"
            found.append(Problem("network", sorted(outputs.heads), hint))
        elif getattr(outputs.heads[name], "shape", outputs.value.shape) != outputs.value.shape:
            hint = f"the head {name!r} must have the shape of the value, {list(outputs.value.shape)}"
            found.append(Problem("network", list(outputs.heads[name].shape), hint))
    return found


def _choice_problems(policy: Any, space: Any) -> list[Problem]:
    """Report a policy whose numbers of actions differ from those of a discrete action space."""
    found = []
    choices = (2,) * space.n if isinstance(space, MultiBinary) else getattr(space, "sizes", None)
    switches = policy.logits.shape[-1] if isinstance(policy, Bernoulli) else 0
    sizes, logits = getattr(policy, "sizes", None), getattr(policy, "logits", None)
    offered = sizes or (2,) * switches
    if choices and offered and tuple(offered) != tuple(choices):
        found.append(Problem("network", offered, f"the policy must have {choices} actions, like the environment"))
    count = sum(sizes) if sizes else space.n if isinstance(space, Discrete) else 0
    if count and logits is not None and logits.shape[-1] != count:
        found.append(Problem("network", logits.shape[-1], f"the policy must have {count} logits, one per action"))
    return found


def check_groups(cfg: OnPolicyConfig, network: Network, env: Environment, phases: tuple[Phase, ...]) -> None:
    """Raise if a phase trains groups of a custom network that are not floats; warn about groups that no phase trains."""
    params = shapes_of(cfg, network, env)[0]
    trained = {group for phase in phases for group in moving_groups(phase, params)}
    kinds = {x.dtype for group in trained for x in jax.tree.leaves(params.get(group))}
    wrong = sorted(kind.name for kind in kinds if not jax.numpy.issubdtype(kind, np.floating))
    raise_if_any([Problem("network", kind, "trained parameters must be floats") for kind in wrong])
    if idle := sorted(params.keys() - trained):
        hint = f"no phase of this algorithm trains the groups {', '.join(idle)}; its phases train {', '.join(sorted(trained))}"
        warn(str(Problem("network", ..., hint)))


# The parts that were tried, with their observation space, so that `load` and `select` do not try them again.
_tried: collections.deque[tuple[dict[str, Any], str]] = collections.deque(maxlen=8)


def warn_of_mixed_rows(cfg: OnPolicyConfig, network: Network, env: Environment, given: dict[str, Any]) -> None:
    """Warn about a custom network or part whose outputs in one environment depend on other environments or earlier episodes.

    With random parameters and observations, two steps of two environments are compared with the same steps one by one, and with
    those of the first environment alone. There, each step begins an episode. This compiles a small program. A network that cannot
    be tried, such as one with traced hyperparameters, is not compared. Also warn about logits that are probabilities.

    Args:
        cfg, network, env: the config, the network and the environment.
        given: the custom `network`, `torso` and `memory`, by the argument of `make_train`.
    """
    sizes, name, same = str(env.observation_space), " or ".join(given), operator.is_
    known = [x.keys() == given.keys() and all(map(same, x.values(), given.values())) for x, before in _tried if before == sizes]
    if isinstance(jax.numpy.zeros(()), Tracer) or any(known):
        return  # nothing can be computed inside of a trace
    _tried.append((given, sizes))
    draw, first = np.random.default_rng(0), np.array([[True, True], [True, False]])
    at = lambda tree, index: jax.tree.map(lambda x: x[index] if x.shape[:2] == (2, 2) else x, tree)

    def differences(params: PyTree, obs: PyTree, first: jax.Array) -> list[jax.Array]:
        run = lambda carry, index: network.apply(params, carry, at(obs, index), first[index])
        (whole, _), carry, steps = run(network.initial_carry(2), np.s_[:]), network.initial_carry(2), []
        differ = lambda index, outputs: jax.numpy.array(_differ(at(whole, index), outputs)).any()
        alone = [differ(one, run(network.initial_carry(1), one)[0]) for one in (np.s_[:1, :1], np.s_[1:, :1])]
        for row in (np.s_[:1], np.s_[1:]) if network.is_recurrent else ():
            outputs, carry = run(carry, row)
            steps.append(differ(row, outputs))
        return [*alone, jax.numpy.array(steps).any(), _are_probabilities(whole)]

    try:
        params, obs = shapes_of(cfg, network, env, 2)
        params = jax.tree.map(lambda x: draw.normal(0, 0.3, x.shape).astype(x.dtype), params)
        far = lambda x: np.reshape([1, 5], (2, *[1] * (x.ndim - 2)))  # the second environment is far from the first
        obs = jax.tree.map(lambda x: (far(x) * draw.uniform(0, 2, (2, *x.shape[1:]))).astype(x.dtype), obs)
        with jax.default_device(jax.local_devices(backend="cpu")[0]):  # quick to compile for
            mixes, keeps, differs, are_probabilities = map(bool, jax.jit(differences)(params, obs, first))
    except Exception:  # a custom network may raise anything here
        return
    if mixes:
        hint = "outputs of an environment depend on other environments, so that the policy acts as it was not trained; "
        warn(str(Problem(name, ..., f"{hint}normalise and attend over features only, such as GroupNorm(reduction_axes=-1)")))
    elif keeps:
        hint = "the hidden state continues from one episode to the next; reset the carry at each step of a sequence where"
        warn(str(Problem(name, ..., f"{hint} `first` is True, before the observation is read")))
    elif differs:
        warn(str(Problem(name, ..., "outputs of a sequence differ from those of its steps one by one")))
    if are_probabilities:
        warn(str(Problem(name, ..., "the logits are probabilities, so the policy is nearly uniform; remove the softmax")))


def _are_probabilities(outputs: Outputs) -> Any:
    """Return True if logits depend on observations, are not negative and have a sum of 1, as after a softmax."""
    logits = getattr(outputs.policy, "logits", -jax.numpy.ones((1, 1, 1)))
    varies = jax.numpy.any(abs(logits - logits[:1, :1]) > 1e-6)
    return varies & jax.numpy.all(logits >= 0) & jax.numpy.all(abs(jax.numpy.sum(logits, -1) - 1) < 1e-3)


def _differ(outputs: Outputs, others: Outputs) -> list[jax.Array]:
    """Return for each array of the outputs True if the same rows differ by more than rounding."""
    pairs = zip(jax.tree.leaves(outputs), jax.tree.leaves(others), strict=True)
    size = lambda x: jax.numpy.abs(x).max(initial=0)
    return [size(x - y) > 0.02 * size(x) + 1e-6 for x, y in pairs if x.shape == y.shape]


def _warn_of_rounding(outputs: Outputs) -> None:
    """Warn about outputs less precise than float32."""
    floats = {x.dtype for x in jax.tree.leaves(outputs) if jax.numpy.issubdtype(x.dtype, np.floating)}
    for kind in sorted(dtype.name for dtype in floats if dtype.itemsize < 4):
        step = float(jax.numpy.finfo(kind).eps) * 256
        hint = f"outputs of {kind} are rounded, values near 300 to multiples of {step:g}; compute the last layer in float32"
        warn(str(Problem("network", ..., f"{hint}: nn.Dense(1, dtype=jnp.float32)")))


def _output_problems(cfg: OnPolicyConfig, result: Any, distils: bool) -> list[Problem]:
    """Report a result of `apply` that is not a pair of `Outputs` and a carry, or a policy without a method that is needed."""
    outputs, *rest = result if isinstance(result, tuple) and result else (result,)
    if not isinstance(outputs, Outputs) or len(rest) != 1:
        hint = "apply must return a pair: (purerl.Outputs(policy, value), carry)"
        return [Problem("network", type(result), hint)]
    needed = ["sample", "log_prob", "noise", "env_action", "entropy", "mode", "metrics"]
    needed += ["kl"] if cfg.measures_kl else []
    needed += ["uniform_sample", "uniform_log_prob"] if cfg.warmup_steps or distils else []
    if missing := [method for method in needed if not hasattr(outputs.policy, method)]:
        hint = "the policy must be a distribution, such as purerl.distributions.Categorical (discrete) or DiagGaussian (Box)"
        return [Problem("network", outputs.policy, f"{hint}; it has no method {', '.join(missing)}")]
    if not hasattr(outputs.value, "shape"):
        return [Problem("network", outputs.value, "the value must be an array")]
    return []


def shapes_of(cfg: OnPolicyConfig, network: Network, env: Environment, num_envs: int = 1) -> tuple[PyTree, PyTree]:
    """Return the shapes of a network's parameters, and of its observations, `[1, num_envs, ...]`."""
    key = jax.random.key(0)
    _, obs = jax.eval_shape(lambda key: env.reset(jax.random.split(key, cfg.num_envs)), key)
    obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, num_envs, *x.shape[1:]), x.dtype), obs)
    with convert_errors("network", f"init(key, obs {jax.tree.map(lambda x: list(x.shape), obs)})"):
        return jax.eval_shape(network.init, key, obs), obs


def sequence_problems(cfg: OnPolicyConfig) -> list[Problem]:
    """Report minibatches that would split the sequences of a recurrent network."""
    if cfg.minibatches in ("flat", "time"):
        hint = "a recurrent network needs the steps of each environment in order; use 'auto'"
        return [Problem("minibatches", cfg.minibatches, hint)]
    if cfg.minibatches == "env" and cfg.training_length != cfg.num_steps:
        return [Problem("minibatches", cfg.minibatches, f"cannot be split into sequences of {cfg.sequence_length}; use 'auto'")]
    return cfg.minibatch_problems(recurrent=True)
