"""The identity of a run: the JSON record that identifies the run in a checkpoint, and the differences between two runs."""

import json
from typing import Any

import jax
import numpy as np

from purerl.config.algorithms import ALGORITHMS, algorithm_of
from purerl.config.base import OnPolicyConfig
from purerl.config.fields import Config
from purerl.pure import Train
from purerl.runs.run_batch import collapse_equal_params, pairs_of
from purerl.runs.storage.object_values import numbers_of, other_numbers
from purerl.runs.storage.objects import describe_objects, object_differences, versions

KERNELS = {"auto": "xla"}  # earlier versions recorded "auto", which meant "xla"
WARM = ("['state'].params", "['state'].statistics")  # the leaves that a warm start takes from another run


def identity(train: Train, cfg: Config, seed: int | None = None, num_seeds: int | None = None, **more: Any) -> dict[str, Any]:
    """Return the JSON record that identifies a run in its checkpoints.

    Args:
        train: the run's `Train`, which holds the custom objects.
        cfg: config of the run, or a batch of configs.
        seed, num_seeds: first seed and number of runs per config; None for a state that `fit` did not make.
        more: `exact`, `share` (runs per device) and `devices_per_run`, which affect the last bits of results.
    """
    return {
        "algorithm": algorithm_of(cfg),
        "config": json.loads(cfg.to_json()),
        "seed": seed or 0,
        "num_seeds": num_seeds,
        "exact": False,
        "share": 1,
        "devices_per_run": 1,
        **more,
        "objects": describe_objects(train.given | custom_class(type(cfg)), train.env),
        "numbers": numbers_of(train.given, train.env),
        "action_unit": train.action_unit,
        "x64": bool(jax.config.values["jax_enable_x64"]),
        "versions": versions(train.cfg.env),
    }


def custom_class(cls: type[Config]) -> dict[str, type[Config]]:
    """Return `{"config_class": cls}` for a user-defined config class; otherwise {}."""
    return {} if cls in ALGORITHMS.values() else {"config_class": cls}


def differences(saved: dict[str, Any], current: dict[str, Any], cls: type[OnPolicyConfig]) -> list[str]:
    """Describe how two records differ in algorithm, seeds, `exact`, `x64`, config fields, unit of actions and custom objects."""
    text = lambda name, then, now: f"{name}: {then!r} in the checkpoint, {now!r} here"
    found = [text(n, saved[n], current[n]) for n in ("algorithm", "seed", "num_seeds", "exact", "x64") if saved[n] != current[n]]
    objects = saved["objects"], current["objects"]
    if saved["algorithm"] == current["algorithm"] and not object_differences(*objects, ("config_class",)):
        texts = [collapse_equal_params(config_of(record, cls)).to_json() for record in (saved, current)]
        then, now = map(json.loads, texts)
        before, after = (json.loads(text, parse_float=np.float32) for text in texts)  # integers are compared exactly
        changed = [name for name in now if name != "total_timesteps" and before[name] != after[name]]
        found += [text(name, then[name], now[name]) for name in changed]
    return found + unit_differences(saved, current["action_unit"]) + object_differences(saved["objects"], current["objects"])


def unit_differences(record: dict[str, Any], current: str) -> list[str]:
    """Describe how the unit of actions in a record differs from `current`. A record without a unit has the environment's unit."""
    saved = record.get("action_unit", "environment")
    if saved == current or "either" in (saved, current):
        return []
    hint = "the same policy output means a different action; train again, or use the purerl version that saved the run"
    return [f"action_unit: {saved!r} in the checkpoint, {current!r} here: {hint}"]


def restart_hint(path: Any, differences: list[str]) -> str:
    """Return a hint to use another directory, and `init_from` if the new run can start from the parameters in `path`."""
    fit = not any(text.startswith((*WARM, "action_unit")) and ".discounted" not in text for text in differences)
    with_these = "" if not fit else f"; to start from these parameters, use init_from={str(path)!r} (--init-from)"
    return f"choose another directory for a new run{with_these}"


def changes_of_numbers(saved: dict[str, Any], current: dict[str, Any], cls: type[OnPolicyConfig]) -> list[str]:
    """Return texts that say why a resumed run may differ from an uninterrupted run."""
    found, (then, now) = [], (config_of(record, cls) for record in (saved, current))
    schedules = schedules_over_training(current["config"], current["objects"])
    if then.total_timesteps != now.total_timesteps and schedules:
        text = f"was {then.total_timesteps:,}; the schedules that depend on it ({', '.join(schedules)}) jump at this update"
        found.append(f"total_timesteps = {now.total_timesteps:,}: {text}")
    found += other_numbers(saved.get("numbers", {}), current["numbers"])
    layout = lambda record: {"runs per device": record["share"], "devices per run": record.get("devices_per_run", 1)}
    saved, current = ({**record["versions"], **layout(record)} for record in (saved, current))
    known = [name for name in current if name in saved]
    changed = [f"{name} {saved[name]} before, {current[name]} now" for name in known if saved[name] != current[name]]
    return found + ([f"the resumed run may not be bit-identical: {'; '.join(changed)}"] if changed else [])


def schedules_over_training(config: dict[str, Any], objects: dict[str, Any]) -> list[str]:
    """Return the schedules of a saved config that depend on `total_timesteps`. `objects`: the descriptions of custom objects."""
    names = [name for name in ("lr_schedule", "clip_schedule", "ent_schedule") if config.get(name) == "linear"]
    names += ["lr_schedule"] if config.get("lr_schedule") == "polynomial" and not config.get("decay_steps") else []
    return [name for name in names if name not in objects]


def config_of(record: dict[str, Any], cls: type[OnPolicyConfig] | None = None) -> OnPolicyConfig:
    """Return the config in a checkpoint's record. `cls`: the class of the config, if user-defined.

    A record from an earlier version lacks newer float fields. In a batch of configs, each config has the default of such a field.
    """
    cfg = (cls or ALGORITHMS[record["algorithm"]]).from_json(json.dumps(record["config"]))
    cfg = cfg.replace(kernels=KERNELS.get(cfg.kernels, cfg.kernels))
    shape = next((x.shape for x in jax.tree.leaves(cfg) if np.ndim(x)), ())
    return jax.tree.map(lambda x: x if np.shape(x) == shape else np.full(shape, x, np.float32), cfg)


def num_runs(record: dict[str, Any]) -> int:
    """Return the number of runs in a checkpoint's record."""
    return len(pairs_of(config_of(record), record["seed"], record["num_seeds"] or 1))
