"""Encoding of observations as arrays, and choice of a torso: built-in, custom, or with an encoder for each observation entry."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from purerl.config.base import OnPolicyConfig
from purerl.core.errors import Problem, nearest
from purerl.core.spaces import Discrete, Indices, encoded_shape, entries_of, is_index
from purerl.core.types import PyTree
from purerl.networks.foreign import torso_module
from purerl.networks.layers import CNN, CONVOLUTIONS, MLP, Encoders

ACTIVATIONS = {"tanh": nn.tanh, "relu": nn.relu, "swish": nn.swish, "gelu": nn.gelu, "elu": nn.elu}


def encode(obs: PyTree, space: PyTree) -> jax.Array:
    """Encode observations of L steps and N environments, `[L, N, ...]`, as one float32 array `[L, N, ...]`.

    A categorical value becomes a one-hot vector, and an array of categorical values is one-hot encoded as described in `Indices`.
    An image of bytes (three dimensions, uint8) is divided by 255. Anything else is cast to float32. If an observation has several
    entries, the entries are flattened and concatenated in the order of `jax.tree.leaves`.
    """
    entries = list(encode_entries(obs, space).values())
    return entries[0] if len(entries) == 1 else jnp.concatenate([x.reshape(*x.shape[:2], -1) for x in entries], axis=-1)


def encode_entries(obs: PyTree, space: PyTree) -> dict[str, jax.Array]:
    """Return a dict from the name of each observation entry to the entry's encoding, which `encode` describes."""
    return {name: _encode_entry(x, kind) for (name, kind), x in zip(entries_of(space).items(), jax.tree.leaves(obs), strict=True)}


def _encode_entry(x: jax.Array, space: jax.ShapeDtypeStruct | Discrete | Indices) -> jax.Array:
    values = lambda x, size: jnp.arange(size, dtype=jnp.int32).reshape(*(1,) * x.ndim, -1)
    # A comparison, since ONNX's OneHot counts -1, an unknown category, from the end.
    one_hot = lambda x, size: (x[..., None].astype(jnp.int32) == values(x, size)).astype(jnp.float32)
    if isinstance(space, Discrete):
        return one_hot(x, space.n)
    if isinstance(space, Indices):
        if not isinstance(space.sizes, tuple):
            return one_hot(x, space.sizes)
        return jnp.concatenate([one_hot(x[..., i], size) for i, size in enumerate(space.sizes)], axis=-1)
    is_image = x.dtype == jnp.uint8 and len(space.shape) == 3
    return x.astype(jnp.float32) / 255 if is_image else x.astype(jnp.float32)


def drop_entries(obs: PyTree, names: tuple[str, ...]) -> PyTree:
    """Remove the named entries from a dict of observations. Return any other observation unchanged."""
    return {name: x for name, x in obs.items() if name not in names} if isinstance(obs, dict) else obs


def by_entry(cfg: OnPolicyConfig, space: PyTree, given: Any) -> bool:
    """Return True if the torso reads a dict of entries, in which images keep their shape; False if the torso reads one array.

    Args:
        cfg: the config. With `torso = "mlp"` and without custom encoders, all entries are flattened.
        space: the space of the observations that the torso reads.
        given: a custom torso, or a dict from entry to encoder; None for the built-in torso.
    """
    entries = entries_of(space)
    several = len(entries) > 1 and cfg.torso != "mlp" and any(_is_image(x) for x in entries.values())
    return several or isinstance(given, dict)


def torso_of(cfg: OnPolicyConfig, space: PyTree, given: Any = None) -> nn.Module:
    """Return the torso for observations of this space. The arguments are those of `by_entry`.

    Raises:
        ConfigError: a custom torso or encoder is neither a flax linen module nor a pair of functions.
    """
    activation = ACTIVATIONS[cfg.activation]
    if given is not None and not isinstance(given, dict):
        return torso_module(given)
    if not by_entry(cfg, space, given):
        kind, _ = torso_kind(cfg.torso, space)
        layers = (cfg.hidden, activation, cfg.kernels)
        return MLP(*layers) if kind == "mlp" else CNN(CONVOLUTIONS[kind][0], *layers)
    encoders = {name: _encoder(cfg, entry) for name, entry in entries_of(space).items()}
    own = given or {}
    for name in encoders.keys() & own.keys():  # this torso may not receive all entries
        encoders[name] = torso_module(own[name], f"torso[{name!r}]")
    return Encoders(encoders, cfg.hidden, activation, cfg.kernels)


def _encoder(cfg: OnPolicyConfig, entry: Any) -> nn.Module:
    """Return the encoder of an entry: convolutions for images, an embedding for categorical values, a dense layer for vectors."""
    activation = ACTIVATIONS[cfg.activation]
    if _is_image(entry) and cfg.torso != "mlp":
        kind = cfg.torso if cfg.torso in CONVOLUTIONS else torso_kind("auto", entry)[0]
        return CNN(CONVOLUTIONS[kind][0], cfg.hidden[:1], activation)
    return MLP(cfg.hidden[:1], (lambda x: x) if is_index(entry) else activation)


def _is_image(space: Any) -> bool:
    """Return True if an entry is an image that is large enough for convolutions."""
    shape = encoded_shape(space)
    return len(shape) == 3 and min(shape[:2]) >= CONVOLUTIONS["cnn"][1]


def torso_kind(chosen: str, space: PyTree) -> tuple[str, tuple[int, ...]]:
    """Return the kind of torso, with `auto` resolved for this space, and the encoded shape of a single entry, else ()."""
    entries = list(entries_of(space).values())
    shape = encoded_shape(entries[0]) if len(entries) == 1 else ()
    if chosen != "auto":
        return chosen, shape
    if len(shape) != 3:
        return "mlp", shape
    return ("nature_cnn" if min(shape[:2]) >= CONVOLUTIONS["nature_cnn"][1] else "cnn"), shape


def convolutions(space: PyTree) -> tuple | None:
    """Return the convolutions for observations of this space; None if the observations are not images, or are too small."""
    kind, shape = torso_kind("auto", space)
    layers, size = CONVOLUTIONS.get(kind, (None, 0))
    return layers if layers and min(shape[:2]) >= size else None


def torso_problems(cfg: OnPolicyConfig, space: PyTree, given: Any = None) -> list[Problem]:
    """Report where the config's torso, or the names of custom encoders, do not fit the observations."""
    entries, found = entries_of(space), []
    if given is not None:
        given = given if isinstance(given, dict) else entries
        unknown = [name for name in given if name not in entries]
        found = [Problem(f"torso[{name!r}]", given[name], f"no such entry; {nearest(str(name), entries)}") for name in unknown]
        entries = {name: x for name, x in entries.items() if name not in given}
    images = [x for x in entries.values() if _is_image(x)] if given is not None or by_entry(cfg, space, None) else [space]
    for kind, shape in (torso_kind(cfg.torso, image) for image in images):
        size = 0 if kind == "mlp" else CONVOLUTIONS[kind][1]
        if size and not (len(shape) == 3 and min(shape[:2]) >= size):
            hint = f"needs images [height, width, channels] of at least {size} x {size}, not {list(shape)}; use 'mlp'"
            found.append(Problem("torso", cfg.torso, hint))
    return found
