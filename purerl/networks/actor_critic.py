"""The built-in networks: flax linen modules for torsos, recurrent layers and heads, combined into a `Network`."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.core import Tracer

from purerl.config.base import OnPolicyConfig
from purerl.config.rules import may_hold
from purerl.core.errors import Problem, raise_if_any
from purerl.core.keys import fold_in_name
from purerl.core.platform import by_platform
from purerl.core.spaces import WIDEST, Box, Mixed, MultiBinary, MultiDiscrete, Space, has_box, is_index, parts_of
from purerl.core.types import Network, Outputs, PyTree
from purerl.networks.distributions import Bernoulli, Categorical, DiagGaussian, MultiCategorical, TanhGaussian
from purerl.networks.foreign import OWN, apply_module, check_memory, check_torso, initial_inputs, memory_module, only_parameters
from purerl.networks.fused import OUTPUTS, apply_fused_layers, kernel_problems, pack_layers
from purerl.networks.initializers import initialize
from purerl.networks.layers import MLP, ActionHead, BetaHead, GaussianHead, Head, JointHead, LogitsHead, Trunk, ValueHead
from purerl.networks.recurrent import Memory
from purerl.networks.torsos import by_entry, drop_entries, encode, encode_entries, torso_of, torso_problems

STACKED = "trunks of policy and value, stacked"  # entry that `prepare` adds to the parameters
PACKED = "layers of policy and value, packed"  # entry that `prepare` adds to the parameters if kernels are fused
NEEDS_BOUNDS = "needs finite action bounds, and those of -1e6 and 1e6, or wider, count as missing; use"
# Policies start near constant (Huang et al. 2022, "37 details", number 2). Predictions of values and advantages are not scaled.
HEAD_GAINS = {"policy": 0.01, "value": 1.0, "aux_value": 1.0, "advantage": 1.0}


def actor_critic(
    cfg: OnPolicyConfig, observation_space: PyTree, action_space: Space, torso: Any = None, memory: Any = None
) -> Network:
    """Return the network that a config describes.

    The groups of the network's parameters:

        arch            groups                           the gradient of the value loss reaches
        separate, dual  policy, value                    the value's torso and recurrent layers ("37 details", number 13)
        shared          torso, (memory,) policy, value   the shared torso and recurrent layers
        detach          torso, (memory,) policy, value   the value's last layer

    Each of the config's `heads` is a further group with the head's name, and reads the same features as the policy's head. If
    observations are a dict, the policy does not read the entry that `critic_obs` names, no network reads the entry that
    `action_mask` names, and only recurrent layers read the previous action and reward (`memory_inputs`).

    Args:
        cfg: the config.
        observation_space, action_space: spaces of the environment.
        torso: a custom torso, or a dict from names of observation entries to encoders; None for the config's torso.
        memory: a custom recurrent module; None for the config's recurrent layers, if any.

    Raises:
        ConfigError: the config or a custom module does not fit the observations or the actions.
    """
    cfg = cfg.replace(critic_obs="") if cfg.critic_obs == "auto" else cfg  # for a config that was not resolved for an environment
    previous = tuple(f"previous_{name}" for name in cfg.memory_inputs)
    hidden = {"policy": (cfg.action_mask, cfg.critic_obs, *previous), "value": (cfg.action_mask, *previous)}
    spaces = {group: drop_entries(observation_space, names) for group, names in hidden.items()}
    apart, own_memory = cfg.arch in ("separate", "dual"), memory is not None
    raise_if_any(_problems(cfg, spaces, action_space, torso, own_memory))
    past_space = {name: observation_space[name] for name in previous}
    if own_memory:
        memory = memory_module(memory)
    elif cfg.memory != "none":
        memory = Memory(cfg.memory, cfg.memory_size, cfg.memory_layers)
    policy_head, value_head = _policy_head(cfg, action_space), ValueHead(cfg.streams)
    heads = {"policy": policy_head, "value": value_head}
    further = {"aux_value": value_head, "advantage": ActionHead(policy_head.size)}
    heads |= {name: further[name] for name in cfg.heads}
    dtype = jnp.dtype(cfg.compute_dtype)

    def view(obs, group):
        """Return the input of a group's torso for L steps of N environments, `[L * N, ...]`."""
        encode_all = encode_entries if by_entry(cfg, spaces[group], torso) else encode
        encoded = encode_all(drop_entries(obs, hidden[group]), spaces[group])
        return jax.tree.map(lambda x: x.astype(dtype).reshape(-1, *x.shape[2:]), encoded)

    def views(obs):
        """Return the torso input of each group (both may be one array), and the further input of recurrent layers, or None."""
        policy = view(obs, "policy")
        past = encode({name: obs[name] for name in past_space}, past_space).astype(dtype) if past_space else None
        past = past if past is None else past.reshape(*past.shape[:2], -1)
        return {"policy": policy, "value": view(obs, "value") if cfg.critic_obs else policy}, past

    sized = {"policy": cfg, "value": cfg.replace(hidden=cfg.critic_hidden or cfg.hidden)}
    torsos = {group: torso_of(sized[group], space, torso) for group, space in spaces.items()}
    if torso is not None or own_memory:
        _check_custom(views, observation_space, torsos, memory if own_memory else None)
    gain = _gain(cfg, own_memory)
    trunks = {group: Trunk(module, memory) for group, module in torsos.items()}
    if not apart:
        return _shared(cfg, trunks["policy"], heads, views, gain)
    network = _separate(cfg, trunks, heads, views, gain)
    dense = memory is None and not cfg.heads and all(isinstance(x, MLP) for x in torsos.values())
    fuses = cfg.kernels == "fused" and dense and policy_head.outputs <= OUTPUTS
    return _fused(network, torsos, heads, views, cfg.critic_obs) if fuses else network


def _problems(cfg: OnPolicyConfig, spaces: dict[str, PyTree], action_space: Space, torso: Any, own_memory: bool) -> list[Problem]:
    """Report where the config does not fit the actions, or the observations that policy and value read."""
    chosen, found = cfg.action_distribution, []
    if chosen != "auto" and not has_box(action_space):
        hint = f"needs continuous actions, not {type(action_space).__name__}; use 'auto'"
        found.append(Problem("action_distribution", chosen, hint))
    elif chosen in ("tanh", "beta") and not is_bounded(action_space):
        found.append(Problem("action_distribution", chosen, f"{NEEDS_BOUNDS} 'gaussian'"))
    if torso is None or isinstance(torso, dict):
        found += kernel_problems(cfg)
    if cfg.memory == "none" and not own_memory and cfg.memory_inputs:
        found.append(Problem("memory_inputs", cfg.memory_inputs, "needs a recurrent network; set memory, or use ()"))
    if cfg.arch not in ("separate", "dual") and cfg.critic_obs:
        hint = f"shows the policy {cfg.critic_obs!r}, which only the value network may see; use 'separate', or critic_obs=''"
        found.append(Problem("arch", cfg.arch, hint))
    if not jax.tree.leaves(spaces["policy"]):
        return [*found, Problem("critic_obs", cfg.critic_obs, "the policy would see nothing; hide fewer entries")]
    for space in [spaces["value"]] if isinstance(torso, dict) else spaces.values():
        found += [problem for problem in torso_problems(cfg, space, torso) if problem not in found]
    return found


def _check_custom(views: Callable, observation_space: PyTree, torsos: dict[str, nn.Module], memory: nn.Module | None) -> None:
    """Check custom torsos and a custom recurrent module with the shapes of 2 steps of 3 environments."""
    obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, 3, *x.shape), x.dtype), observation_space, is_leaf=is_index)
    seen, past = jax.eval_shape(views, obs)
    sizes = {group: check_torso(module, seen[group]) for group, module in torsos.items()}
    if memory is not None:
        size = sizes["policy"] + (0 if past is None else past.shape[-1])
        check_memory(memory, jax.ShapeDtypeStruct((2, 3, size), jax.tree.leaves(seen)[0].dtype))


def _separate(
    cfg: OnPolicyConfig, trunks: dict[str, Trunk], heads: dict[str, nn.Module], views: Callable, gain: Callable
) -> Network:
    """Return a network with separate trunks for policy and value. Both groups have the parameters of a trunk and its head.

    The carry of a recurrent network is a dict from group to hidden state. On an accelerator, two trunks with equal MLPs and the
    same input are computed together, with one product per layer. This saves 8 kernels in a minibatch of 64-64 networks. On a
    CPU, batched products would take a tenth longer.
    """
    memory = trunks["policy"].memory
    recurrent = memory is not None
    alike = trunks["policy"] == trunks["value"] and isinstance(trunks["policy"].torso, MLP) and not cfg.critic_obs
    carry_of = lambda carry, group: carry[group] if recurrent else ()
    both = lambda trees: jax.tree.map(lambda *ys: jnp.stack(ys), *trees.values())
    parts = lambda params: {group: {name: y for name, y in params[group].items() if name != "head"} for group in trunks}

    def initial_carry(num_envs):
        return () if memory is None else {group: memory.initial_carry(num_envs) for group in trunks}

    def init(key, obs):
        (x, past), (first, carry) = views(obs), initial_inputs(obs, initial_carry)
        params, features = {}, {}
        for group, trunk in trunks.items():
            key_of_group = fold_in_name(key, group)  # for what `initialize` keeps, such as a custom `memory`'s parameters
            inputs = x[group], past, carry_of(carry, group), first
            (features[group], _), made = trunk.init_with_output(key_of_group, *inputs)
            params[group] = only_parameters("network", made)
        for name, found in _head_params(heads, features).items():
            params[name] = {**params[name], "head": found} if name in trunks else found
        return initialize(key, params, cfg.init, gain, last=cfg.heads)

    def apply(params, carry, obs, first):
        x, past = views(obs)

        def one_by_one(params, carries):
            return {group: apply_module(trunks[group], params[group], x[group], past, carries[group], first) for group in trunks}

        def at_once(stacked, carries):
            run = lambda params, carry, x: apply_module(trunks["policy"], params, x, past, carry, first)
            shared = lambda x: jax.vmap(run, in_axes=(0, 0, None), axis_size=len(trunks))(stacked, both(carries), x)
            # With one input for both trunks, XLA would transpose the results of the first layers on a GPU.
            copied = lambda x: jax.vmap(run)(stacked, both(carries), jnp.broadcast_to(x[None], (len(trunks), *x.shape)))
            found = by_platform(x["policy"], cpu=shared, accelerator=copied, tpu=shared)
            return {group: jax.tree.map(lambda y: y[i], found) for i, group in enumerate(trunks)}  # noqa: B023

        carries = {group: carry_of(carry, group) for group in trunks}
        if STACKED in params:
            found = at_once(params[STACKED], carries)
        else:
            stack_and_run = lambda params, carries: at_once(both(params), carries)
            found = by_platform(parts(params), carries, cpu=one_by_one, accelerator=stack_and_run if alike else one_by_one)
        features = {group: x for group, (x, _) in found.items()}
        outputs = _outputs(heads, params | {group: params[group]["head"] for group in trunks}, features, first)
        return outputs, {group: after for group, (_, after) in found.items()} if recurrent else ()

    def prepare(params):
        return params | {STACKED: both(parts(params))} if alike else params

    return Network(init, apply, initial_carry, prepare)


def _fused(network: Network, torsos: dict[str, Any], heads: dict[str, nn.Module], views: Callable, critic_obs: str) -> Network:
    """Return a network whose fused layers a GPU computes with one kernel, or with one for each group if they differ."""
    alike = torsos["policy"] == torsos["value"] and not critic_obs  # equal layers of the same input
    together = [tuple(torsos)] if alike else [(group,) for group in torsos]

    def pack(params):
        return [pack_layers([params[group] for group in groups]) for groups in together]

    def apply(params, carry, obs, first):
        def fused(params):
            x, found = views(obs)[0], {}
            for groups, packed in zip(together, params.get(PACKED) or pack(params), strict=True):
                arrays = apply_fused_layers(packed, x[groups[0]], torsos[groups[0]].activation)
                found |= dict(zip(groups, arrays, strict=True))
            return _outputs(heads, {group: params[group]["head"] for group in heads}, found, first, linear=False)

        unfused = lambda params: network.apply(params, carry, obs, first)[0]
        return by_platform(params, cpu=unfused, accelerator=fused, tpu=unfused), carry

    return network._replace(apply=apply, prepare=lambda params: params | {PACKED: pack(params)})


def _shared(cfg: OnPolicyConfig, trunk: Trunk, heads: dict[str, nn.Module], views: Callable, gain: Callable) -> Network:
    """Return a network with one trunk for all heads. The carry is the trunk's hidden state."""

    def initial_carry(num_envs):
        return trunk.memory.initial_carry(num_envs) if trunk.memory is not None else ()

    def init(key, obs):
        (x, past), (first, carry) = views(obs), initial_inputs(obs, initial_carry)
        (features, _), made = trunk.init_with_output(key, x["policy"], past, carry, first)
        params = only_parameters("network", made) | _head_params(heads, {"policy": features})
        return initialize(key, params, cfg.init, gain, last=cfg.heads)

    def apply(params, carry, obs, first):
        x, past = views(obs)
        trunk_params = {name: params[name] for name in ("torso", "memory") if name in params}
        features, carry = apply_module(trunk, trunk_params, x["policy"], past, carry, first)
        seen = {"policy": features, "value": jax.lax.stop_gradient(features) if cfg.arch == "detach" else features}
        return _outputs(heads, params, seen, first), carry

    return Network(init, apply, initial_carry)


def _head_params(heads: dict[str, nn.Module], features: dict[str, jax.Array]) -> dict[str, PyTree]:
    """Return the initial parameters of heads, with kernels of zeros, which `initialize` replaces."""
    init = lambda name, head: head.init(jax.random.key(0), features.get(name, features["policy"]))["params"]
    return {name: init(name, head) for name, head in heads.items()}


def _outputs(
    heads: dict[str, nn.Module], params: PyTree, features: dict[str, jax.Array], first: jax.Array, **options: bool
) -> Outputs:
    """Return the outputs of all heads, `[L, N, ...]`. A head without an entry in `features` reads the policy's features."""
    call = lambda name, head: apply_module(head, params[name], features.get(name, features["policy"]), **options)
    made = {name: call(name, head) for name, head in heads.items()}
    made = jax.tree.map(lambda y: y.reshape(*first.shape, *y.shape[1:]), made)
    return Outputs(made.pop("policy"), made.pop("value"), made or ())


def _gain(cfg: OnPolicyConfig, own_memory: bool) -> Callable[[str], float | None]:
    """Return a function from the path of a kernel to the kernel's initial factor.

    The factor of torsos is sqrt(2) for `orthogonal`, and 1 for other schemes, which have their own scale. The factor is None for
    kernels that keep their custom initial values: in a custom recurrent module, and in an `(init, apply)` torso.
    """
    in_torso = math.sqrt(2) if cfg.init == "orthogonal" else 1.0  # computed here, since `gain` must not keep a traced config

    def gain(path):
        parts = path.split("/")
        if OWN in parts or ("memory" in parts and own_memory):
            return None
        if "memory" in parts:
            return 1.0  # "37 details", number 32
        return in_torso if "torso" in parts else HEAD_GAINS[parts[0]]

    return gain


def _policy_head(cfg: OnPolicyConfig, space: Space) -> Head:
    if isinstance(space, Mixed):
        parts = tuple(_policy_head(cfg, part) for part in parts_of(space))
        return JointHead(sum(head.size for head in parts), parts)
    if isinstance(space, Box):
        size = math.prod(space.shape)
        if cfg.action_distribution == "beta":
            return BetaHead(size)
        distribution = TanhGaussian if cfg.action_distribution == "tanh" else functools.partial(DiagGaussian, unit="bounds")
        bounded = may_hold(cfg.log_std_min, lambda x: x > -20) or may_hold(cfg.log_std_max, lambda x: x < 20)
        limits = (cfg.log_std_min, cfg.log_std_max) if bounded else None
        return GaussianHead(size, distribution, cfg.log_std_init, cfg.std, limits)
    if isinstance(space, MultiDiscrete):
        return LogitsHead(sum(space.sizes), functools.partial(MultiCategorical, sizes=space.sizes))
    return LogitsHead(space.n, Bernoulli if isinstance(space, MultiBinary) else Categorical)


def is_bounded(space: Space) -> bool:
    """Return True if all action bounds are finite. A pair of bounds of -1e6 and 1e6, or wider, counts as missing.

    Traced bounds are unknown and count as finite.
    """
    boxes = [part for part in parts_of(space) if isinstance(part, Box)]
    known = [box for box in boxes if not isinstance(box.low, Tracer) and not isinstance(box.high, Tracer)]
    bounds = [(np.asarray(box.low), np.asarray(box.high)) for box in known]
    finite = lambda low, high: np.isfinite(low) & np.isfinite(high) & ((low > -WIDEST) | (high < WIDEST))
    return all(finite(low, high).all() for low, high in bounds)
