"""Batches of runs: the config and seed of each run, and the selection of one run."""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from purerl.checks.cautions import warn_of_batch
from purerl.config.base import OnPolicyConfig
from purerl.config.rules import AUTO
from purerl.config.value_checks import problems
from purerl.core.errors import Problem, config_error, is_int, raise_if_any
from purerl.core.types import TrainState
from purerl.envs import lives_on_host, swept_problems
from purerl.pure import Train
from purerl.runs.devices.data_parallel import DATA, state_specs
from purerl.runs.devices.over_devices import ROWS, over_devices, over_rows, use_cores
from purerl.runs.devices.processes import process_count
from purerl.train import make_train


class Batch:
    """Runs of one or several configs with one or several seeds, computed together.

    Attributes:
        cfg: a config, or a batch of configs with leaves `[configs]`.
        configs: all configs, one by one.
        pairs: for each run, the index of its config (None without a batch of configs) and its seed (None if unknown).
        cfgs: swept values of a batch of configs, by field, `[runs]`: arguments of the compiled program, which contains all other
          values as constants.
        differ: for each config of a batch, its swept values as text: "lr = 0.001, env_params.g = 10"; () without a batch.
        labels: the label of each run: "seed 3", or with a batch of configs "lr = 0.003, seed 3"; "run 3" if the seed is unknown.
        batched: True if states have a leading run axis.
        train: the `Train` made from the config, or from the first config of a batch.
        here: one device's share of `train` if an agent has several devices, otherwise `train` itself.
        devices_per_run: number of devices of one agent.

    Args:
        cfg: a config, or a batch of configs, whose fields (some, or all after `jax.vmap`) are arrays `[configs]`.
        seed: seed of the first run; run i of a config begins with `jax.random.key(seed + i)`. None if unknown.
        num_seeds: runs per config.
        objects: the other arguments of `make_train`, by name.
        batched: as above; if None, True for several runs or a batch of configs.
        devices_per_run: as above. Runs are spread over groups of this many devices.

    Raises:
        ConfigError: as in `make_train`; or the seeds, the batch of configs or `devices_per_run` is invalid.
    """

    def __init__(
        self,
        cfg: OnPolicyConfig,
        seed: int | None,
        num_seeds: int,
        objects: dict[str, Any],
        batched: bool | None = None,
        devices_per_run: int = 1,
    ):
        leaves = jax.tree_util.tree_leaves_with_path(cfg.replace(env_params={}))
        hint = "must be a number, or an array with one number for each config of a batch, not an array of shape"
        wrong = [(path, list(np.shape(x))) for path, x in leaves if np.ndim(x) > 1 or (np.ndim(x) and not np.size(x))]
        raise_if_any([Problem(_name(path), ..., f"{hint} {shape}") for path, shape in wrong])
        sizes = {np.shape(x)[0] for x in jax.tree.leaves(cfg) if np.ndim(x)}
        several = bool(sizes)
        found = _wrong_seeds(0 if seed is None else seed, num_seeds) + (problems(cfg) if several else [])
        if len(sizes) > 1:
            numbers = " and ".join(map(str, sorted(sizes)))
            found.append(Problem("cfg", ..., f"has fields of {numbers} values; all fields of a batch must have the same number"))
        raise_if_any(found)
        values = swept_fields(cfg)
        text = lambda i: ", ".join(f"{name} = {_number(x[i])}" for name, x in values.items()) or f"config {i}"
        self.pairs, self.differ = pairs_of(cfg, seed, num_seeds), tuple(map(text, range(max(sizes, default=0))))
        names = (f"run {n}" if s is None else f"seed {s}" for n, (_, s) in enumerate(self.pairs))
        unique = len(set(self.differ)) == len(self.differ)  # two texts can be equal, because their numbers are rounded
        config = lambda i: self.differ[i] if unique else f"config {i}"
        self.labels = tuple(x if i is None else f"{config(i)}, {x}" for (i, _), x in zip(self.pairs, names, strict=True))
        self.batched = len(self.pairs) > 1 or several if batched is None else batched
        if (len(self.pairs) > 1 or devices_per_run > 1) and not lives_on_host(cfg.env, objects.get("env")):
            use_cores()
        there = len(jax.devices())
        if devices_per_run > there:
            raise config_error("devices_per_run", devices_per_run, f"must be at most the number of devices, {there}")
        runs_at_once = min(there // devices_per_run, len(self.pairs))
        if process_count() > 1 and runs_at_once * devices_per_run < there:
            hint = f"leaves some of the {there} devices of {process_count()} processes idle; "
            hint += f"{there // runs_at_once} would use all" if there % runs_at_once == 0 else "change num_seeds"
            raise config_error("devices_per_run", devices_per_run, hint)
        cfg = collapse_equal_params(cfg)
        of_config = lambda i: jax.tree.map(lambda x: np.asarray(x)[i] if np.ndim(x) else x, cfg)
        self.num_seeds, self.seed = num_seeds, seed
        self.objects, self.train, self.devices_per_run = objects, make_train(of_config(0), **objects), devices_per_run
        if self.on_host and (devices_per_run > 1 or process_count() > 1):
            hint = "external (Python) environments run on one device of one process"
            raise config_error("devices_per_run", devices_per_run, hint)
        self.here = self._share_of(self.train)
        own = (objects.get("env"), objects.get("env_params"))
        raise_if_any(swept_problems(cfg.env, cfg.env_kwargs, cfg.env_params, *own) if several else [])
        self.cfg = cfg.resolve(self.train.env)
        self.configs = tuple(of_config(i).resolve(self.train.env) for i in range(sizes.pop() if several else 1))
        if several:
            warn_of_batch(self.configs, self.train.env, self.train.given)
        self.cfgs = {path: np.asarray(jnp.repeat(jnp.asarray(x), num_seeds)) for path, x in swept_fields(self.cfg).items()}

    def _share_of(self, train: Train) -> Train:
        return train if self.devices_per_run == 1 else train.on_axis(DATA, self.devices_per_run)

    def train_of(self, cfg: dict[str, Any]) -> Train:
        """Return the `Train` of one run, or of one device's share of it. `cfg`: the run's values from `cfgs`."""
        own = lambda path, x: cfg.get(_name(path), x)
        make = lambda: make_train(jax.tree_util.tree_map_with_path(own, self.configs[0]), **self.objects)
        train = self._share_of(make()) if cfg else self.here
        if self.on_host:
            train.env.host.runs = len(self.pairs)
        return train

    @property
    def on_host(self) -> bool:
        """Return True if the environments are external (Python). Runs are then computed one after the other, on one device."""
        return self.train.env.host is not None

    @property
    def rows(self) -> int:
        """Return the number of groups of devices that the runs are spread over."""
        return 1 if self.on_host else min(len(jax.devices()) // self.devices_per_run, len(self.pairs))

    def mesh(self, rows: int) -> Mesh:
        """Return the mesh `[groups of devices, devices_per_run]` for a number of runs."""
        groups = min(self.rows, rows)
        devices = np.array(jax.devices()[: groups * self.devices_per_run])
        return Mesh(devices.reshape(groups, self.devices_per_run), (ROWS, DATA))

    @functools.cached_property
    def _state_specs(self) -> TrainState:
        return state_specs(self.train, self.here)

    def _specs(self, axes: Any) -> Any:
        """Return the `PartitionSpec`s of arguments or results on the mesh, from their run axes (`seed_axes` for a state)."""
        of_leaf = lambda axis, spec: PartitionSpec(ROWS, *spec) if axis == 0 and self.batched else spec

        def of(axes):
            if not isinstance(axes, TrainState):
                return of_leaf(axes, PartitionSpec())
            each = lambda axis, specs: jax.tree.map(functools.partial(of_leaf, axis), specs)
            return jax.tree.map(each, axes, self._state_specs, is_leaf=lambda x: x is None)

        return jax.tree.map(of, axes, is_leaf=lambda x: x is None or isinstance(x, TrainState))

    def over(self, function: Callable, in_axes: tuple, out_axes: Any, exact: bool = False) -> Callable:
        """Return `function(train, ...)` mapped over all runs. The first argument of the returned function is `cfgs`, not `train`.

        Each run has the `Train` of its config. If an agent has several devices, all arguments and results other than its
        state must be equal on all of these devices.
        """
        of_run = lambda cfg, *args: function(self.train_of(cfg), *args)
        in_axes = (dict.fromkeys(self.cfgs, 0), *in_axes)
        on_mesh = self.devices_per_run > 1 or process_count() > 1
        if on_mesh and not self.batched:
            specs = {"in_specs": self._specs(in_axes), "out_specs": self._specs(out_axes)}
            return jax.shard_map(of_run, mesh=self.mesh(1), **specs, check_vma=False)
        if not self.batched:
            return of_run
        if on_mesh:
            return over_rows(of_run, in_axes, out_axes, self.mesh, self._specs, exact)
        options: dict[str, Any] = {"devices": jax.local_devices()[:1], "exact": True} if self.on_host else {"exact": exact}
        return over_devices(of_run, in_axes=in_axes, out_axes=out_axes, **options)

    def one(self, run: int) -> "Batch":
        """Return a batch that contains only the run with this index, with the same label."""
        alone = Batch(self.configs[run // self.num_seeds], self.pairs[run][1], 1, self.objects)
        alone.pairs, alone.labels = (self.pairs[run],), (self.labels[run],)
        return alone

    def index(self, run: int | str | None = None, config: int | None = None, seed: int | None = None) -> int:
        """Return the index of a run, given by its index (from the end if negative), its label, or its config and seed.

        Raises:
            ConfigError: no run matches, or more than one run does.
        """
        asked = {name: x for name, x in (("run", run), ("config", config), ("seed", seed)) if x is not None}
        count = len(self.labels)
        names = [(None, label, i, str(i), i - count, str(i - count)) for i, label in enumerate(self.labels)]
        runs = enumerate(zip(names, self.pairs, strict=True))
        found = [i for i, (name, (c, s)) in runs if run in name and config in (None, c or 0) and seed in (None, s)]
        if len(found) == 1:
            return found[0]
        shown = ", ".join(map(repr, self.labels[:8])) + (", ..." if len(self.labels) > 8 else "")
        hint = f"{'no run matches' if not found else 'several runs match'}; the {len(self.labels)} runs are {shown}"
        raise config_error(", ".join(asked) or "run", next(iter(asked.values()), None), hint)


def collapse_equal_params(cfg: OnPolicyConfig) -> Any:
    """Return a batch of configs with a single number for each environment parameter that is equal in all configs.

    `jax.vmap` turns all fields into arrays. A time limit in an array would be unknown when the program is compiled.
    """
    one = lambda x: np.asarray(x).flat[0] if np.ndim(x) and len(np.unique(x)) == 1 else x
    return cfg.replace(env_params={name: one(x) for name, x in cfg.env_params.items()}) if _is_vmapped(cfg) else cfg


def pairs_of(cfg: OnPolicyConfig, seed: int | None, num_seeds: int) -> tuple[tuple[int | None, int | None], ...]:
    """Return `Batch.pairs` for a config, or for a batch of configs."""
    sizes = [np.shape(x)[0] for x in jax.tree.leaves(cfg) if np.ndim(x)]
    configs = range(sizes[0]) if sizes else (None,)
    return tuple((i, None if seed is None else seed + j) for i in configs for j in range(num_seeds))


def swept_fields(cfg: OnPolicyConfig) -> dict[str, np.ndarray]:
    """Return the fields of a batch of configs that are arrays, `[configs]`, by name, such as "lr" or "env_params.g".

    In a batch made by `jax.vmap`, where all fields are arrays, only fields whose values differ are returned.
    """
    batched = {_name(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(cfg) if np.ndim(x)}
    return {name: x for name, x in batched.items() if not _is_vmapped(cfg) or len(np.unique(x)) > 1}


def _is_vmapped(cfg: OnPolicyConfig) -> bool:
    others = cfg.replace(env_params={})  # `collapse_equal_params` turns some of these into numbers
    return all(np.ndim(x) for x in jax.tree.leaves(others))


def _name(path: tuple) -> str:
    """Return the name of a config's leaf: "lr", "env_params.g"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _number(value: Any) -> str:
    return "auto" if value == AUTO else f"{value:.6g}"


def state_at(state: TrainState, run: int) -> TrainState:
    """Return the state of one of several runs."""
    return jax.tree.map(lambda x: x[run], state.replace(clock=None)).replace(clock=state.clock)


def _wrong_seeds(seed: Any, num_seeds: Any) -> list[Problem]:
    is_path = isinstance(seed, str | os.PathLike)
    hint = "must be an int from 0 to 2**32 - 1" + (f"; pass a directory as directory={str(seed)!r}" if is_path else "")
    found = [Problem("seed", seed, hint)] if not (is_int(seed) and 0 <= seed < 2**32) else []
    if not (is_int(num_seeds) and num_seeds >= 1):
        found.append(Problem("num_seeds", num_seeds, "must be an int of at least 1"))
    elif not found and seed + num_seeds > 2**32:
        hint = f"the last seed would be above 2**32 - 1; at most {2**32 - seed} would work"
        found.append(Problem("num_seeds", num_seeds, hint))
    return found
