"""Configs as text: a file of flags, and Python."""

import dataclasses
import json
import math
from typing import Any

import numpy as np

from purerl.config.base import OnPolicyConfig, RNDConfig
from purerl.config.documentation import default_of, shown


def changed_values(cfg: OnPolicyConfig | RNDConfig) -> dict[str, Any]:
    """Return what a config has in place of its class's defaults, by field; those of `rnd` as `rnd_int_coef`."""
    found = {}
    for field in dataclasses.fields(cfg):
        value = getattr(cfg, field.name)
        if isinstance(value, RNDConfig):
            found |= {"rnd": True} | {f"rnd_{name}": x for name, x in changed_values(value).items()}
        elif value != default_of(field):
            found[field.name] = shown(field, value.item() if isinstance(value, np.generic) else value)
    return found


def as_toml(cfg: OnPolicyConfig) -> str:
    """Return a config as a file of flags, for `--config`."""

    def text(value):
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{name} = {text(x)}" for name, x in value.items()) + " }"
        if isinstance(value, tuple | list):
            return "[" + ", ".join(map(text, value)) + "]"
        return repr(value) if isinstance(value, float) else json.dumps(value)

    values = changed_values(cfg)
    if "env_kwargs" in values:
        values["env_kwargs"] = dict(values["env_kwargs"])
    note = f"# with --env {values.pop('env')}\n" if ":" in values.get("env", "") else ""  # nothing of a file is imported
    return note + "".join(f"{name} = {text(x)}\n" for name, x in values.items())


def as_code(cfg: OnPolicyConfig) -> str:
    """Return a config as Python."""
    values = changed_values(cfg)
    inner = {name.removeprefix("rnd_"): values.pop(name) for name in list(values) if name.startswith("rnd_")}
    code = lambda x: "math.inf" if x == math.inf else repr(x)
    texts = {name: code(x) for name, x in values.items()}
    if "rnd" in texts:
        texts["rnd"] = f"RNDConfig({', '.join(f'{name}={code(x)}' for name, x in inner.items())})"
    return f"{type(cfg).__name__}({', '.join(f'{name}={x}' for name, x in texts.items())})"
