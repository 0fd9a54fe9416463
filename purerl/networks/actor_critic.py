"""The built-in networks: a torso and a head each for policy and value, as flax linen modules behind `Network`."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from purerl.core.errors import ConfigError, Problem
from purerl.core.types import Box, Discrete, MultiBinary, MultiDiscrete, Network, Outputs, Space
from purerl.networks.distributions import Bernoulli, Categorical, DiagGaussian, MultiCategorical, TanhGaussian
from purerl.networks.initializers import initialize
from purerl.networks.layers import CNN, CONVOLUTIONS, MLP, ActionHead, GaussianHead, LogitsHead, Trunk, ValueHead
from purerl.networks.recurrent import Memory

PyTree = Any

# A policy that starts near uniform ("37 details", number 2); predictions of values and advantages as large as they come.
HEAD_GAINS = {"policy": 0.01, "value": 1.0, "aux_value": 1.0, "advantage": 1.0}
ACTIVATIONS = {"tanh": nn.tanh, "relu": nn.relu, "swish": nn.swish, "gelu": nn.gelu, "elu": nn.elu}


# --- observations -----------------------------------------------------------------------------------------------------


def encode(obs: PyTree, space: PyTree) -> jax.Array:
    """An observation as one array of float32, `[L, N, ...]` in and out.

    An index becomes one-hot, an image of bytes (three dimensions, uint8) is divided by 255, everything else is cast. Of several
    entries each is flattened, and they follow one another in the order of `jax.tree.leaves`.
    """
    spaces = jax.tree.leaves(space, is_leaf=lambda x: isinstance(x, Discrete))
    entries = [_encode_entry(x, kind) for x, kind in zip(jax.tree.leaves(obs), spaces, strict=True)]
    return entries[0] if len(entries) == 1 else jnp.concatenate([x.reshape(*x.shape[:2], -1) for x in entries], axis=-1)


def _encode_entry(x: jax.Array, space: jax.ShapeDtypeStruct | Discrete) -> jax.Array:
    if isinstance(space, Discrete):
        return jax.nn.one_hot(x, space.n, dtype=jnp.float32)
    is_image = x.dtype == jnp.uint8 and len(space.shape) == 3
    return x.astype(jnp.float32) / 255 if is_image else x.astype(jnp.float32)


def without(obs: PyTree, names: tuple[str, ...]) -> PyTree:
    """A dict of observations without these entries; anything else as it is."""
    return {name: x for name, x in obs.items() if name not in names} if isinstance(obs, dict) else obs


# --- the whole --------------------------------------------------------------------------------------------------------


def actor_critic(cfg: Any, observation_space: PyTree, action_space: Space) -> Network:
    """The network a config describes. Groups of parameters:

        arch            groups                           the value's gradient reaches
        separate, dual  policy, value                    its own torso and memory ("37 details", number 13)
        shared          torso, (memory,) policy, value   the one torso and memory
        detach          torso, (memory,) policy, value   its own last layer

    The config's `heads` are a group each, under their names, and read what the policy's head reads.
    Of a dict of observations the policy does not see the entry `critic_obs`, nothing sees the entry `action_mask`, and the memory
    alone sees what was done and paid before (`purerl.envs.previous`).

    Raises:
        ConfigError: the torso does not fit the observations, or the distribution the actions.
    """
    previous = tuple(f"previous_{name}" for name in cfg.memory_inputs)
    hidden = {"policy": (cfg.action_mask, cfg.critic_obs, *previous), "value": (cfg.action_mask, *previous)}
    found = _distribution_problems(cfg, action_space)
    if cfg.memory == "none" and previous:
        found.append(Problem("memory_inputs", cfg.memory_inputs, "nothing reads them with memory = 'none'"))
    apart = cfg.arch in ("separate", "dual")
    if not apart and cfg.critic_obs:
        found.append(Problem("arch", cfg.arch, "one torso would show the policy what only the value may see; use two"))
    spaces = {group: without(observation_space, names) for group, names in hidden.items()}
    if not jax.tree.leaves(spaces["policy"]):
        found.append(Problem("critic_obs", cfg.critic_obs, "leaves the policy nothing to see"))
        raise ConfigError(found)
    for space in spaces.values():
        found += [problem for problem in _torso_problems(cfg, space) if problem not in found]
    if found:
        raise ConfigError(found)
    past_space = {name: observation_space[name] for name in previous}
    memory = Memory(cfg.memory, cfg.memory_size, cfg.memory_layers) if cfg.memory != "none" else None
    heads = {"policy": _policy_head(cfg, action_space), "value": ValueHead(cfg.streams)}
    further = {"aux_value": ValueHead(cfg.streams), "advantage": ActionHead(heads["policy"].size)}
    further = {name: further[name] for name in cfg.heads}
    dtype = jnp.dtype(cfg.compute_dtype)

    def views(obs):
        """What the torso of each group sees, computed once where it is the same, and what a memory reads besides."""
        flat = lambda x: x.reshape(-1, *x.shape[2:])
        view = lambda group: flat(encode(without(obs, hidden[group]), spaces[group]).astype(dtype))
        policy = view("policy")
        past = encode({name: obs[name] for name in past_space}, past_space).astype(dtype) if past_space else None
        past = past if past is None else past.reshape(*past.shape[:2], -1)
        return {"policy": policy, "value": view("value") if cfg.critic_obs else policy}, past

    if apart:
        trunks = {group: Trunk(_torso(cfg, spaces[group]), memory, head) for group, head in heads.items()}
        return _separate(cfg, trunks, further, views)
    return _shared(cfg, Trunk(_torso(cfg, spaces["policy"]), memory, None), heads, further, views)


def _separate(cfg: Any, trunks: dict[str, Trunk], further: dict[str, nn.Module], views: Callable) -> Network:
    """A trunk with a head for each of policy and value, and further heads on the policy's; the carry is a dict of the trunks'."""
    recurrent = cfg.memory != "none"
    carry_of = lambda carry, group: carry[group] if recurrent else ()

    def initial_carry(num_envs):
        return {group: trunk.memory.initial_carry(num_envs) for group, trunk in trunks.items()} if recurrent else ()

    def init(key, obs):
        (x, past), (first, carry) = views(obs), _initial_inputs(obs, initial_carry, recurrent)
        params, features = {}, {}
        for group, trunk in trunks.items():
            found, made = trunk.init_with_output(key, x[group], past, carry_of(carry, group), first)
            params[group], features[group] = made["params"], found[0]
        params |= {name: head.init(key, features["policy"])["params"] for name, head in further.items()}
        return initialize(key, params, cfg.init, _gain(cfg), last=tuple(further))

    def apply(params, carry, obs, first):
        (x, past), found = views(obs), {}
        for group, trunk in trunks.items():
            found[group] = trunk.apply({"params": params[group]}, x[group], past, carry_of(carry, group), first)
        outputs = Outputs(**{group: y for group, (_, y, _) in found.items()})
        outputs = _with_heads(outputs, further, params, found["policy"][0])
        return _steps(outputs, first), {group: after for group, (_, _, after) in found.items()} if recurrent else ()

    return Network(init, apply, initial_carry)


def _with_heads(outputs: Outputs, further: dict[str, nn.Module], params: PyTree, features: jax.Array) -> Outputs:
    """Outputs with what further heads make of the policy's features."""
    if not further:
        return outputs
    return outputs._replace(heads={name: head.apply({"params": params[name]}, features) for name, head in further.items()})


def _shared(cfg: Any, trunk: Trunk, heads: dict[str, nn.Module], further: dict[str, nn.Module], views: Callable) -> Network:
    """One trunk and all heads; the carry is the trunk's."""

    def initial_carry(num_envs):
        return trunk.memory.initial_carry(num_envs) if cfg.memory != "none" else ()

    def init(key, obs):
        (x, past), (first, carry) = views(obs), _initial_inputs(obs, initial_carry, cfg.memory != "none")
        (features, *_), params = trunk.init_with_output(key, x["policy"], past, carry, first)
        params = params["params"] | {group: head.init(key, features)["params"] for group, head in (heads | further).items()}
        return initialize(key, params, cfg.init, _gain(cfg), last=tuple(further))

    def apply(params, carry, obs, first):
        x, past = views(obs)
        trunk_params = {name: params[name] for name in ("torso", "memory") if name in params}
        features, _, carry = trunk.apply({"params": trunk_params}, x["policy"], past, carry, first)
        seen = {"policy": features, "value": jax.lax.stop_gradient(features) if cfg.arch == "detach" else features}
        outputs = Outputs(**{group: head.apply({"params": params[group]}, seen[group]) for group, head in heads.items()})
        return _steps(_with_heads(outputs, further, params, features), first), carry

    return Network(init, apply, initial_carry)


def _initial_inputs(obs: PyTree, initial_carry: Callable, recurrent: bool) -> tuple[jax.Array | None, PyTree]:
    """`first` and the initial carry for observations `[L, N, ...]`; neither without a memory."""
    if not recurrent:
        return None, ()
    first = jnp.ones(jax.tree.leaves(obs)[0].shape[:2], bool)
    return first, initial_carry(first.shape[1])


def _steps(outputs: Outputs, first: jax.Array) -> Outputs:
    """Outputs `[L * N, ...]` as `[L, N, ...]`."""
    return jax.tree.map(lambda y: y.reshape(*first.shape, *y.shape[1:]), outputs)


def _gain(cfg: Any) -> Callable[[str], float]:
    """The factor of each kernel as it begins, by its path; the schemes but `orthogonal` have a scale of their own."""

    def gain(path):
        parts = path.split("/")
        if "memory" in parts:
            return 1.0  # "37 details", number 32
        return (math.sqrt(2) if cfg.init == "orthogonal" else 1.0) if "torso" in parts else HEAD_GAINS[parts[0]]

    return gain


def _torso_kind(chosen: str, space: PyTree) -> tuple[str, tuple[int, ...]]:
    """The torso for such observations if the choice is `auto`, and their shape if they are one array."""
    entries = jax.tree.leaves(space, is_leaf=lambda x: isinstance(x, Discrete))
    alone = len(entries) == 1 and not isinstance(entries[0], Discrete)
    shape = entries[0].shape if alone else ()
    if chosen != "auto":
        return chosen, shape
    if len(shape) != 3:
        return "mlp", shape
    return ("nature_cnn" if min(shape[:2]) >= CONVOLUTIONS["nature_cnn"][1] else "cnn"), shape


def _torso(cfg: Any, space: PyTree) -> nn.Module:
    kind, _ = _torso_kind(cfg.torso, space)
    activation = ACTIVATIONS[cfg.activation]
    return MLP(cfg.hidden, activation) if kind == "mlp" else CNN(CONVOLUTIONS[kind][0], cfg.hidden, activation)


def convolutions(space: PyTree) -> tuple | None:
    """The convolutions for observations of this space, if they are images, and large enough."""
    kind, shape = _torso_kind("auto", space)
    layers, size = CONVOLUTIONS.get(kind, (None, 0))
    return layers if layers and min(shape[:2]) >= size else None


def _torso_problems(cfg: Any, space: PyTree) -> list[Problem]:
    kind, shape = _torso_kind(cfg.torso, space)
    if kind == "mlp" or (len(shape) == 3 and min(shape[:2]) >= CONVOLUTIONS[kind][1]):
        return []
    size = CONVOLUTIONS[kind][1]
    hint = f"needs observations [height, width, channels] of at least {size} x {size}, not {list(shape)}; use 'mlp'"
    return [Problem("torso", cfg.torso, hint)]


def _policy_head(cfg: Any, space: Space) -> nn.Module:
    if isinstance(space, Box):
        distribution = TanhGaussian if cfg.action_distribution == "tanh" else DiagGaussian
        return GaussianHead(math.prod(space.shape), distribution, cfg.log_std_init)
    if isinstance(space, MultiDiscrete):
        return LogitsHead(sum(space.sizes), functools.partial(MultiCategorical, sizes=space.sizes))
    return LogitsHead(space.n, Bernoulli if isinstance(space, MultiBinary) else Categorical)


def _distribution_problems(cfg: Any, space: Space) -> list[Problem]:
    chosen = cfg.action_distribution
    if chosen != "auto" and not isinstance(space, Box):
        return [Problem("action_distribution", chosen, f"is for Box actions, not {type(space).__name__}; use 'auto'")]
    if chosen == "tanh" and not bounded(space):
        return [Problem("action_distribution", chosen, "needs finite bounds of the actions; use 'gaussian'")]
    return []


def bounded(space: Space) -> bool:
    """Whether an action has no infinite bound, as far as is known under a trace."""
    bounds = [x for x in (space.low, space.high) if not isinstance(x, jax.core.Tracer)] if isinstance(space, Box) else []
    return all(np.isfinite(x).all() for x in bounds)
