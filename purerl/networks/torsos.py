"""Choice of the torso for an observation space: a built-in torso, a custom torso, or encoders of single entries."""

from typing import Any

from flax import linen as nn

from purerl.config.base import OnPolicyConfig
from purerl.core.errors import Problem, nearest
from purerl.core.spaces import encoded_shape, entries_of, is_index
from purerl.core.types import PyTree
from purerl.networks.foreign import torso_module
from purerl.networks.layers import CNN, CONVOLUTIONS, MLP, Encoders

ACTIVATIONS = {"tanh": nn.tanh, "relu": nn.relu, "swish": nn.swish, "gelu": nn.gelu, "elu": nn.elu}


def by_entry(cfg: OnPolicyConfig, space: PyTree, given: Any) -> bool:
    """Return True if the torso reads a dict of entries, in which images keep their shape; False if the torso reads one array.

    Args:
        cfg: the config. With `torso = "mlp"`, all entries are flattened.
        space: the space of the observations that the torso sees.
        given: a custom torso, or a dict from entry to encoder; None for the built-in torso.
    """
    entries = entries_of(space)
    several = len(entries) > 1 and cfg.torso != "mlp" and any(_is_image(x) for x in entries.values())
    return several or isinstance(given, dict)


def torso_of(cfg: OnPolicyConfig, space: PyTree, given: Any = None) -> nn.Module:
    """Return the torso for observations of this space. The arguments are those of `by_entry`.

    Raises:
        ConfigError: the custom torso is not a module.
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
    for name in encoders.keys() & own.keys():  # this torso may not see all entries
        encoders[name] = torso_module(own[name], f"torso[{name!r}]")
    return Encoders(encoders, cfg.hidden, activation, cfg.kernels)


def _encoder(cfg: OnPolicyConfig, entry: Any) -> nn.Module:
    """Return the encoder of an entry: convolutions for images, an embedding for categorical values, a dense layer for vectors."""
    activation = ACTIVATIONS[cfg.activation]
    if _is_image(entry):
        kind = cfg.torso if cfg.torso in CONVOLUTIONS else torso_kind("auto", entry)[0]
        return CNN(CONVOLUTIONS[kind][0], cfg.hidden[:1], activation)
    return MLP(cfg.hidden[:1], (lambda x: x) if is_index(entry) else activation)


def _is_image(space: Any) -> bool:
    """Return True if an entry is an image that is large enough for convolutions."""
    shape = encoded_shape(space)
    return len(shape) == 3 and min(shape[:2]) >= CONVOLUTIONS["cnn"][1]


def torso_kind(chosen: str, space: PyTree) -> tuple[str, tuple[int, ...]]:
    """Return the kind of torso, with `auto` resolved for this space, and the encoded shape of observations that are one array."""
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
        unknown = [name for name in given if name not in entries] if isinstance(given, dict) else []
        return [Problem(f"torso[{name!r}]", given[name], f"no such entry; {nearest(str(name), entries)}") for name in unknown]
    images = [x for x in entries.values() if _is_image(x)] if by_entry(cfg, space, None) else [space]
    for kind, shape in (torso_kind(cfg.torso, image) for image in images):
        size = 0 if kind == "mlp" else CONVOLUTIONS[kind][1]
        if size and not (len(shape) == 3 and min(shape[:2]) >= size):
            hint = f"needs images [height, width, channels] of at least {size} x {size}, not {list(shape)}; use 'mlp'"
            found.append(Problem("torso", cfg.torso, hint))
    return found
