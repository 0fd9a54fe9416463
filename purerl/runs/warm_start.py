"""Warm starts: runs that begin with the parameters of another run."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.core.errors import ConfigError, Problem, config_error, raise_if_any, warn
from purerl.core.types import TrainState
from purerl.runs.identity import WARM, config_of, num_runs, unit_differences
from purerl.runs.run_batch import pairs_of
from purerl.runs.storage.checkpoint import Checkpoint
from purerl.runs.storage.object_values import CODE_NAME

INTRINSIC = "['state'].extra['intrinsic']"


def last_step(saved: Checkpoint) -> int:
    """Return the environment steps of one run at a checkpoint, including the steps of the runs that it continues."""
    config = saved.record["config"]
    batch_size = saved.record.get("batch_size", config["num_envs"] * config["num_steps"])
    return saved.record.get("first_step", 0) + saved.updates * batch_size


def check_layout(saved: Checkpoint, pairs: Sequence[tuple[int | None, int]], directory: Any) -> None:
    """Raise a ConfigError if runs start from several runs with other numbers of configs or seeds.

    Args:
        saved: checkpoint of the runs to start from.
        pairs: config, or None if there is only one, and seed of each new run.
        directory: directory of the checkpoint.
    """
    record = saved.record
    there = [config for config, _ in pairs_of(config_of(record), record["seed"], record["num_seeds"] or 1)]
    here = [config for config, _ in pairs]
    if len(there) > 1 and here != there:
        text = lambda configs: f"{len(set(configs))} config(s) with {len(configs) // len(set(configs))} seed(s)"
        hint = f"has runs of {text(there)}, but this call has {text(here)}; start from one run, or from as many configs and seeds"
        raise config_error("init_from", str(directory), hint)


def warn_of_other_networks(saved: Checkpoint, record: dict[str, Any], directory: Any, groups: tuple[str, ...] = ()) -> None:
    """Warn if the copied networks may compute something else in the run of `record` than in the saved run."""
    has_policy = not groups or any(group.partition("/")[0] == "policy" for group in groups)
    is_other = lambda name: saved.record["objects"].get(name) != record["objects"].get(name)
    changed = [f"{name}= was another" for name in ("network", "torso", "memory") if is_other(name)]
    of_policy = ("action_distribution", "std", "log_std_min", "log_std_max")
    fields = [("activation", {"network", "torso"}), *((name, {"network"}) for name in of_policy if has_policy)]
    fields += [("log_std_init", {"network"})] if has_policy and record["config"].get("std") != "parameter" else []
    entries = [("critic_obs", {"network"}), ("action_mask", set())]  # which entry `auto` means is not in a record
    fields += [x for x in entries if "auto" not in (saved.record["config"].get(x[0]), record["config"][x[0]])]
    fields += [("obs_clip", set())] if record["config"]["normalize_obs"] else []
    plain = lambda x: x if isinstance(x, str) else np.unique(np.float32(x)).tolist()  # configs of a batch may be equal
    for name, arguments in fields:
        then, now = saved.record["config"].get(name), record["config"][name]
        if then is not None and plain(then) != plain(now) and not arguments & record["objects"].keys():
            changed.append(f"{name} was {then!r}")
    before, parts = saved.record.get("numbers", {}), ("network.", "torso.", "memory.")
    numbers = {name: x for name, x in record["numbers"].items() if name.startswith(parts) and CODE_NAME not in name}
    changed += [f"{name} was {before[name]}" for name, x in numbers.items() if before.get(name, x) != x]
    if changed:
        warn(f"init_from = {str(directory)!r}: {', '.join(changed)}, so that the copied networks may compute something else here")


def warm_start(state: TrainState, saved: Checkpoint, directory: Any, unit: str, groups: tuple[str, ...] = ()) -> TrainState:
    """Return a state with the parameters and statistics of another run, from its checkpoint in a directory.

    With `groups`, only these groups of parameters, such as "policy/torso", are copied, and the statistics only if "statistics" is
    one of the groups. A warning names the parameters that keep their initial values.

    If several runs start from a single run, each of them gets a copy of that run's parameters and statistics.
    Without `groups`, or if "predictor" is one of them, the state of intrinsic rewards is copied too if both runs have one: a
    predictor is useless without its target. The discounted reward sum of each environment is not copied: the number of
    environments may differ.

    Raises:
        ConfigError: the parameters, the statistics or the units of actions do not fit, a group does not exist, or all saved runs
          have diverged.
    """
    if found := unit_differences(saved.record, unit):
        raise ConfigError([Problem("init_from", str(directory), text) for text in found])
    leaves = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path({"state": state})}
    both = all(any(name.startswith(INTRINSIC) for name in names) for names in (leaves, saved.arrays))
    chosen = _prefixes(groups, leaves, saved.arrays) if groups else WARM
    if both and (not groups or "predictor" in groups):
        chosen = (*chosen, INTRINSIC)
    is_taken = lambda name: _is_within(name, chosen) and not name.endswith(".discounted")
    here, there = ({name: x for name, x in arrays.items() if is_taken(name)} for arrays in (leaves, saved.arrays))
    found = {name: f"is only in the {'checkpoint' if name in there else 'new run'}" for name in there.keys() ^ here.keys()}
    for name in here.keys() & there.keys():
        if there[name].shape not in (here[name].shape, here[name].shape[state.key.ndim :]):
            found[name] = f"is {list(there[name].shape)} in the checkpoint, {list(here[name].shape)} here"
    if found:
        wrong = [Problem("init_from", str(directory), f"{name} {text}") for name, text in sorted(found.items())]
        if not groups and (fit := _groups_that_fit(here, found)):
            hint = f"use init_groups={fit} to copy the groups that fit"
            hint += (
                ", which may compute something else without the statistics" if "statistics" not in fit and _kinds(found) else ""
            )
            wrong.append(Problem("init_groups", groups, hint))
        raise ConfigError(wrong)
    _check_finite(saved, there, directory)

    def leaf(path, x):
        if (name := jax.tree_util.keystr(path)) not in here:
            return x
        return jax.device_put(np.broadcast_to(there[name], x.shape).astype(x.dtype), x.sharding)

    return jax.tree_util.tree_map_with_path(leaf, {"state": state})["state"]


def _check_finite(saved: Checkpoint, copied: dict[str, np.ndarray], directory: Any) -> None:
    """Raise a ConfigError if the copied arrays of all saved runs have numbers that are not finite; warn if those of some do."""
    runs = num_runs(saved.record)
    floats = [x for x in copied.values() if jnp.issubdtype(x.dtype, jnp.floating)]
    finite = np.all([np.isfinite(x.astype(np.float32)).reshape(runs, -1).all(1) for x in floats], axis=0)
    text = f"{runs - finite.sum()} of {runs} runs have diverged: their parameters or statistics are not finite"
    if not finite.any():
        raise config_error("init_from", str(directory), f"{text}; start from another run")
    if not finite.all():
        warn(f"init_from = {str(directory)!r}: {text}, and the runs that start from them diverge too")


def _prefixes(groups: tuple[str, ...], leaves: Collection[str], saved: Collection[str]) -> tuple[str, ...]:
    """Return the prefix of each group's array names. Warn about parameters in no group, which keep their initial values.

    Without the group "statistics", also warn about running statistics that only one of the runs has, or that begin anew.

    Args:
        groups: names of groups.
        leaves, saved: names of the arrays of the new run, and of the other run.

    Raises:
        ConfigError: a group has no arrays.
    """
    by_group = {group: _prefix(group) for group in groups}
    by_group |= {"statistics": WARM[1]} if "statistics" in groups else {}
    prefixes, params = tuple(by_group.values()), [name for name in leaves if name.startswith(WARM[0])]
    hint = f"this run has no such group; choose from {', '.join(sorted(set(map(_group_of, params))))}, statistics"
    unknown = [group for group, prefix in by_group.items() if not any(_is_within(name, (prefix,)) for name in leaves)]
    raise_if_any([Problem("init_groups", group, hint) for group in unknown])
    read = set() if "statistics" in groups else {"obs"} if all(x.startswith("policy") for x in groups) else {"obs", "value"}
    here, there = (_kinds(names) & read for names in (leaves, saved))
    if differ := sorted(here ^ there):
        fields = ", ".join(f"normalize_{kind}" for kind in differ)
        warn(f"init_groups = {groups!r}: {fields} differs between the runs, so that copied networks compute something else here")
    elif here:
        hint = "the running statistics begin anew, but copied networks expect those of the other run; add 'statistics'"
        warn(f"init_groups = {groups!r}: {hint}")
    if new := sorted({_group_of(name) for name in params if not _is_within(name, prefixes)}):
        warn(f"init_groups = {groups!r}: {', '.join(new)} begin with new parameters")
    return prefixes


def _kinds(names: Collection[str]) -> set[str]:
    """Return the kinds of numbers, "obs" or "value", of which some arrays are running statistics."""
    return {kind for kind in ("obs", "value") if any(_is_within(name, (f"{WARM[1]}.{kind}",)) for name in names)}


def _groups_that_fit(here: Collection[str], wrong: Collection[str]) -> tuple[str, ...]:
    """Return the groups of parameters, and "statistics", without an array in `wrong`; () without a group of parameters."""
    groups = {"predictor" if (group := _group_of(x)).startswith("predictor") else group for x in here if x.startswith(WARM[0])}
    prefixes = {group: _prefix(group) for group in sorted(groups)}
    prefixes |= {"statistics": WARM[1]} if any(_is_within(x, WARM[1:]) for x in here) else {}
    fit = tuple(group for group, prefix in prefixes.items() if not any(_is_within(x, (prefix,)) for x in wrong))
    return fit if set(fit) - {"statistics"} else ()


def _group_of(name: str) -> str:
    """Return the group of an array of parameters, "policy/torso"."""
    return "/".join(re.findall(r"\['(.*?)'\]", name.removeprefix(WARM[0]))[:2])


def _prefix(group: str) -> str:
    """Return the prefix of the names of a group's arrays."""
    return WARM[0] + "".join(f"['{part}']" for part in group.split("/"))


def _is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    """Return True if an array's name is one of these paths in a state, or lies below one of them."""
    return any(name.startswith(prefix) and name[len(prefix) : len(prefix) + 1] in ("", "[", ".") for prefix in prefixes)
