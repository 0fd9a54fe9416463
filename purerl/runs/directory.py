"""The directory of a run: all that resuming it bit-identically needs.

checkpoints/       the newest and the lasting ones, by number of updates
best/              the state of each run at its best evaluation
curves.jsonl       metrics, see `purerl.runs.storage.curves`
evaluations.jsonl  evaluations
renders/           drawings of evaluations

A directory is data: nothing in it is ever imported, called or executed.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import warnings
from typing import Any, Self

import jax
import numpy as np

from purerl.acting.normalize import RewardScale
from purerl.config.algorithms import ALGORITHMS, algorithm_of
from purerl.config.base import OnPolicyConfig
from purerl.config.fields import Config
from purerl.core.clock import clock_at
from purerl.core.errors import CheckpointError, CheckpointMismatch, ConfigError, Problem
from purerl.core.numbers import is_int
from purerl.core.plan import Plan
from purerl.core.reductions import gathered, on_axis
from purerl.core.types import Episodes, PyTree, TrainState
from purerl.envs.host import host_errors
from purerl.runs.data_parallel import DataParallel, check_replicas
from purerl.runs.devices import use_cores
from purerl.runs.evaluations import best_updates
from purerl.runs.processes import by_first, is_first, on_host
from purerl.runs.run_batch import Batch, pairs_of, settled, state_at
from purerl.runs.storage import checkpoint, objects
from purerl.runs.storage.checkpoint import (
    Checkpoint,
    Lock,
    Store,
    first_readable,
    newest_readable,
    prepare,
    saved_updates,
)
from purerl.runs.storage.curves import FILE, read_header
from purerl.runs.storage.files import read_errors
from purerl.train import Train

WARM = ("['state'].params", "['state'].statistics")  # what a run that begins with another's parameters takes from it


class Directory:
    """A directory that this process trains in, locked while it is entered; with None nothing is kept, and every save is none.

    In a job of several processes only the first one writes anything but its part of a checkpoint.

    Args:
        path: absolute, as `checkpoint.run_directory` gives it.
        identity: what must be the same for a run to resume: see `identity`.
        cls: the class of its config.
        keep, keep_every: as `Store` takes them.
    """

    def __init__(
        self, path: pathlib.Path | None, identity: dict[str, Any], cls: type[OnPolicyConfig], keep: int, keep_every: int
    ):
        self.path, self.identity, self._cls, self._keep, self._keep_every = path, identity, cls, keep, keep_every
        self._checkpoints = self.best = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if (path := self.path) is None:
            return self
        with read_errors(), contextlib.ExitStack() as entered:
            if lock := by_first(read_errors()(lambda: Lock(path))):
                entered.callback(lock.release)
            for name in ("checkpoints", "best"):
                by_first(functools.partial(prepare, path / name))
            self._checkpoints = Store(path / "checkpoints", self._keep, self._keep_every)
            self.best = Store(path / "best", keep=2)
            for name in (FILE, "evaluations.jsonl"):
                if (path / name).is_dir():
                    raise ConfigError([Problem("directory", str(path), f"{name} in it is a directory")])
            self._open = entered.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with self._open:
            for store in (self._checkpoints, self.best):
                try:
                    if store is not None:
                        store.wait()
                except CheckpointError as other:
                    if error is None:
                        raise
                    error.add_note(f"A checkpoint failed as well: {other}")

    def file(self, name: str) -> pathlib.Path | None:
        """Return the path of a file; None if nothing is kept, or another process keeps it."""
        return self.path / name if self.path is not None and is_first() else None

    def saved(self, resume: str, plan: Plan, wanted: dict[str, str]) -> Checkpoint | None:
        """Return the checkpoint to resume from, if any, read and verified. Nothing is compiled.

        Args:
            resume: `auto`, `must` or `never`.
            plan: of the run that resumes.
            wanted: what its state is like, from `checkpoint.describe`.

        Raises:
            ConfigError: there is a checkpoint and should be none, or the other way round.
            CheckpointMismatch: it is of another run, or of a later update than the last one asked for.
            CheckpointCorrupt: it cannot be read; with `auto` none of them can.
        """
        # All processes read, and not the first alone: Orbax counts what each does, and waits for ever where the counts differ.
        store = self._checkpoints
        there = store.updates() if store is not None else []
        if there and resume == "never":
            hint = f"has checkpoints, up to update {there[-1]}; resume='auto' resumes from them"
            raise ConfigError([Problem("directory", str(self.path), hint)])
        if store is None or not there:
            if resume == "must":
                raise ConfigError([Problem("directory", str(self.path), "has no checkpoint to resume from")])
            return None
        saved = store.load(there[-1]) if resume == "must" else first_readable(there, store.load)
        self._check(saved, plan, wanted)
        return saved

    def _check(self, saved: Checkpoint, plan: Plan, wanted: dict[str, str]) -> None:
        leaves = {path: described for path, (described, _) in saved.record["leaves"].items() if path.startswith("['state']")}
        shapes = checkpoint.leaf_differences(leaves, wanted)
        if found := _differences(saved.record, self.identity, self._cls) or shapes:
            raise CheckpointMismatch(self.path, found, _begin_anew(self.path, [*found, *shapes]))
        if saved.updates > plan.num_updates:
            text = f"the run is at update {saved.updates} already, and {plan.num_updates} are asked for"
            raise CheckpointMismatch(self.path, [f"total_timesteps: {text}; ask for more, or choose another directory"])
        for text in _changes_of_numbers(saved.record, self.identity, self._cls) if is_first() else ():
            warnings.warn(text, stacklevel=5)

    def save(self, updates: int, tree: PyTree, more: dict[str, Any]) -> None:
        """Begins to write a checkpoint, with more entries in its record than the run's identity.

        Raises:
            CheckpointError: the one before could not be written, or this one.
        """
        if self._checkpoints is not None:
            self._checkpoints.save(updates, tree, {**self.identity, **more})

    def wait(self) -> None:
        """Waits until the newest checkpoint is written.

        Raises:
            CheckpointError: it could not be written.
        """
        if self._checkpoints is not None:
            self._checkpoints.wait()


def identity(train: Train, cfg: Config, seed: int | None = None, num_seeds: int | None = None, **more: Any) -> dict[str, Any]:
    """Return what a checkpoint records of its run.

    Args:
        train: its objects are those of the run.
        cfg: of the run, or a batch of them.
        seed, num_seeds: None for a state that `fit` did not make.
        more: `exact`, `share` and `devices_per_run`, what the bits of runs depend on.
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
        "objects": objects.describe_objects(train.given | _own_class(type(cfg)), train.env),
        "action_unit": train.action_unit,
        "x64": bool(jax.config.values["jax_enable_x64"]),
        "versions": checkpoint.versions(),
    }


def _own_class(cls: type[Config]) -> dict[str, type[Config]]:
    """Return the class of a config as an object of the user's, if it is none of purerl's."""
    return {} if cls in ALGORITHMS.values() else {"config_class": cls}


def _differences(saved: dict[str, Any], current: dict[str, Any], cls: type[OnPolicyConfig]) -> list[str]:
    """The fields and objects in which two runs differ, in words; both have configs of this class, or that is the difference."""
    text = lambda name, then, now: f"{name}: {then!r} in the checkpoint, {now!r} here"
    found = [text(n, saved[n], current[n]) for n in ("algorithm", "seed", "num_seeds", "exact", "x64") if saved[n] != current[n]]
    if saved["algorithm"] == current["algorithm"] and not _object_differences(saved, current["objects"], ("config_class",)):
        then, now = (json.loads(settled(_config_of(record, cls)).to_json()) for record in (saved, current))
        changed = [name for name in now if name != "total_timesteps" and not _same(then[name], now[name])]
        found += [text(name, then[name], now[name]) for name in changed]
    return found + _unit_differences(saved, current["action_unit"]) + _object_differences(saved, current["objects"])


def _unit_differences(record: dict[str, Any], current: str) -> list[str]:
    """Describe how the unit of actions differs between two runs. A record without an entry is of the environment's unit."""
    saved = record.get("action_unit", "environment")
    if saved == current or "either" in (saved, current):
        return []
    hint = "the mean and the deviation of the policy mean other actions; train again, or use the version that saved it"
    return [f"action_unit: {saved!r} in the checkpoint, {current!r} here: {hint}"]


def _begin_anew(path: Any, differences: list[str]) -> str:
    """Return a hint to begin another run, with the parameters of this one if they mean the same there."""
    fit = not any(text.startswith((*WARM, "action_unit")) and ".discounted" not in text for text in differences)
    with_these = "" if not fit else f"; init_from={str(path)!r} (--init-from) begins it with these parameters"
    return f"another run needs another directory{with_these}"


def _changes_of_numbers(saved: dict[str, Any], current: dict[str, Any], cls: type[OnPolicyConfig]) -> list[str]:
    """List reasons why a resumed run may not be bit-identical."""
    found, (then, now) = [], (_config_of(record, cls) for record in (saved, current))
    schedules = [name for name in now.follows_progress if name not in current["objects"]]
    if then.total_timesteps != now.total_timesteps and schedules:
        text = f"was {then.total_timesteps:,}, and {' and '.join(schedules)} follows it: the values jump from here on"
        found.append(f"total_timesteps = {now.total_timesteps:,}: {text}")
    layout = lambda record: {"runs on each device": record["share"], "devices of a run": record.get("devices_per_run", 1)}
    saved, current = ({**record["versions"], **layout(record)} for record in (saved, current))
    changed = [f"{name} {saved.get(name)} then, {current[name]} now" for name in current if saved.get(name) != current[name]]
    return found + ([f"resuming, but not bit-identically: {'; '.join(changed)}"] if changed else [])


def _object_differences(record: dict[str, Any], current: dict[str, Any], names: tuple[str, ...] = objects.ARGUMENTS) -> list[str]:
    """Describe how the objects of these names differ between two runs."""
    of = lambda described: {name: x for name, x in described.items() if name in names}
    return objects.object_differences(of(record["objects"]), of(current))


def _same(a: Any, b: Any) -> bool:
    """Return True if two values of a config are the same int, or the same number in single precision, or else equal."""
    if is_int(a) and is_int(b):
        return a == b
    if all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b)):
        return np.float32(a) == np.float32(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    return a == b


def _config_of(record: dict[str, Any], cls: type[OnPolicyConfig] | None = None) -> OnPolicyConfig:
    """Return the config of a checkpoint, of the user's class if it is of one."""
    return (cls or ALGORITHMS[record["algorithm"]]).from_json(json.dumps(record["config"]))


# --- for users --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, or several side by side, with all that continuing it needs; what `load` and `fit` return.

    Attributes:
        batch: configs, seeds and objects.
        state: with a leading axis if there are several runs, but for the clock.
        finished: of each run, its finished updates; they differ where each run's best state was loaded.
        directory: where it was kept; None if it was not.
        place: of a run that was selected, among those it was selected from.

    Example:
        >>> run = purerl.load("runs/a")
        >>> one = run.select(seed=1)
        >>> one.evaluate(num_episodes=4).returns.shape
        (4,)
        >>> policy = one.train.policy(one.state)
    """

    batch: Batch = dataclasses.field(repr=False)
    state: TrainState = dataclasses.field(repr=False)
    finished: tuple[int, ...]
    directory: pathlib.Path | None = None
    place: int | None = None

    @property
    def cfg(self) -> OnPolicyConfig:
        """Return the config; of a batch of configs all of them, with leaves `[configs]`."""
        return self.batch.cfg

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the label of each run: "seed 3", or "config 0, seed 3"."""
        return self.batch.labels

    @property
    def updates(self) -> int:
        """Finished updates, of several runs the most."""
        return max(self.finished)

    @property
    def num_runs(self) -> int | None:
        """Return how many runs there are; None for one without a leading axis."""
        return len(self.labels) if self.batch.batched else None

    @property
    def train(self) -> Train:
        """Return the training function of the run's config.

        Raises:
            ConfigError: there are several configs; `select` one.
        """
        if len(self.batch.configs) > 1:
            hint = "each has a training function of its own: run.select(config=0, seed=...).train"
            raise ConfigError([Problem("config", f"{len(self.batch.configs)} configs", hint)])
        return self.batch.train

    def select(self, run: int | str | None = None, *, config: int | None = None, seed: int | None = None) -> "Run":
        """One run of several, with its own config, its state and a training function.

        Args:
            run: its place, or its label.
            config, seed: in place of that, the index of its config and its seed; one of them is enough where it is unique.

        Raises:
            ConfigError: there is no such run, or more than one.
        """
        i = self.batch.index(run, config, seed)
        state = state_at(self.state, i) if self.batch.batched else self.state
        state = jax.device_put(state, jax.local_devices()[0]) if self.batch.devices_per_run > 1 else state
        state, place = state.replace(clock=clock_at(self.finished[i])), i if self.place is None else self.place
        return Run(self.batch.one(i), state, (self.finished[i],), self.directory, place)

    def evaluate(
        self,
        num_episodes: int = 128,
        seed: int = 0,
        deterministic: bool = False,
        max_steps: int | None = None,
        env_params: dict[str, Any] | None = None,
    ) -> Episodes:
        """Whole episodes of each run's policy in its own environment. On the host, `[episodes]` or `[runs, episodes]`.

        Args:
            num_episodes: of each run.
            seed: of the episodes.
            deterministic, max_steps, env_params: as `Train.evaluate` takes them.
        """
        options = (num_episodes, deterministic, max_steps, env_params)
        of_run = lambda train, state, key: on_axis(gathered, train.axis)(train.evaluate(state, key, *options))
        evaluate = self.batch.over(of_run, (Train.seed_axes, 0), 0)
        key = jax.random.key(seed)
        keys = jax.random.split(key, len(self.labels)) if self.batch.batched else key
        with host_errors():
            return jax.device_get(jax.jit(evaluate)(self.batch.cfgs, self.state, keys))

    @functools.cached_property
    def best(self) -> "Run":
        """Each run's state at its best evaluation.

        Raises:
            CheckpointError: no evaluation was kept.
        """
        if self.directory is None:
            raise CheckpointError("the best states are kept in a directory only, and this run has none")
        best = load(self.directory, best=True, config_class=type(self.cfg), **self.batch.objects)
        return best if self.place is None else best.select(self.place)


def load(
    directory: Any, *, updates: int | None = None, best: bool = False, config_class: type[Config] | None = None, **given: Any
) -> Run:
    """Return the config, the state and a ready `Train` of a run. Reads only, also while another process writes.

    It warns of a damaged checkpoint, and loads the one before.

    Args:
        directory: as `fit` or `save` was given it.
        updates: which checkpoint; the newest if None.
        best: of each run the state with the best evaluation.
        config_class: of the run's config, if it is none of purerl's.
        **given: the environment, network and so on that `make_train` was given: they are not saved.

    Raises:
        CheckpointMismatch: an object is missing, or another one than the run had.
        CheckpointError: no checkpoint was found, it cannot be read, or it does not fit.
        ConfigError: as `make_train`.

    Example:
        >>> run = purerl.load("runs/a")
        >>> run.cfg.env, run.updates, run.labels
        ('CartPole-v1', 2, ('seed 0', 'seed 1'))
        >>> best = purerl.load("runs/a", best=True)
    """
    home = _absolute(directory)
    saved = newest_readable(home / ("best" if best else "checkpoints"), updates)
    record = saved.record
    if config_class is not None and not (isinstance(config_class, type) and issubclass(config_class, OnPolicyConfig)):
        raise ConfigError(
            [Problem("config_class", config_class, "must be the class of a config, as purerl.configclass makes it")]
        )
    own = {} if config_class is None else _own_class(config_class)
    missing = {name: x for name, x in record["objects"].items() if name not in given | own}
    if missing:
        raise CheckpointMismatch(directory, objects.object_differences(missing, {}))
    if found := _object_differences(
        record, {name: {"is": objects.qualified_name(x)} for name, x in own.items()}, ("config_class",)
    ):
        raise CheckpointMismatch(directory, found)
    lead = _lead(saved)
    known = record["num_seeds"] is not None
    count = record["num_seeds"] if known else (lead or (1,))[0]
    batch = Batch(_config_of(record, config_class), record["seed"] if known else None, count, given, batched=bool(lead))
    described = objects.describe_objects(batch.train.given | own, batch.train.env)
    if found := _unit_differences(record, batch.train.action_unit) + _object_differences(record, described):
        raise CheckpointMismatch(directory, found)
    runs = len(batch.labels)
    finished = best_updates(saved) if best else [saved.updates] * runs
    return Run(batch, _state(saved, batch.train, directory), tuple(finished), home)


def saved_values(directory: Any) -> dict[str, Any]:
    """Return the config of a run as it was saved, a value by field, whatever its class.

    Raises:
        CheckpointError: no checkpoint was found, or it cannot be read.
    """
    return newest_readable(_absolute(directory) / "checkpoints").record["config"]


def saved_layout(directory: pathlib.Path | None) -> int:
    """Return how many devices each run of a directory had; 1 without a checkpoint, and where there are no longer so many."""
    if directory is None or not saved_updates(directory / "checkpoints"):
        return 1
    header = read_header(directory / FILE)  # which does not start JAX, as Orbax does
    if header is None or header.devices_per_run == 1:
        return 1
    use_cores()
    return header.devices_per_run if header.devices_per_run <= len(jax.devices()) else 1


def num_runs(record: dict[str, Any]) -> int:
    """Return how many runs a checkpoint's record is of."""
    return len(pairs_of(_config_of(record), record["seed"], record["num_seeds"] or 1))


def save(directory: Any, train: Train | DataParallel, state: TrainState) -> None:
    """Writes a state, of one run or of many under `vmap`, as a checkpoint, and waits until it is written.

    Args:
        directory: made if it is not there.
        train: what `make_train` or `data_parallel` returned.
        state: of it.

    Raises:
        ConfigError: the directory cannot be written to, or has a run of `fit`; or devices differ where they should not.
        CheckpointError: the state could not be written.

    Example:
        >>> train = purerl.make_train(purerl.PPOConfig())
        >>> purerl.save("saved", train, train.init(jax.random.key(0)))
    """
    if isinstance(train, DataParallel):
        check_replicas(state, train.axis_name)
    path, train = by_first(lambda: checkpoint.run_directory(directory)) or _absolute(directory), _whole(train)
    if (path / FILE).exists():
        raise ConfigError([Problem("directory", str(path), "has a run of fit, which saves its states itself; name another one")])
    with Directory(path, identity(train, train.cfg), type(train.cfg), keep=2**31 - 1, keep_every=0) as home:
        home.save(int(state.clock), {"state": on_host(state)}, {"seconds": 0.0})


def restore(directory: Any, train: Train | DataParallel, *, updates: int | None = None) -> TrainState:
    """Return the state that `save` or `fit` wrote, for this `train`. Of a damaged checkpoint it warns, and takes the one before.

    Args:
        directory: that it was saved in.
        train: what `make_train` returned for it, or `data_parallel`, on whose devices the state then is.
        updates: how many it had finished; None for the newest.

    Raises:
        CheckpointMismatch: it was written for another config or with other objects, or its arrays do not fit.
        CheckpointError: there is none, or it cannot be read.

    Example:
        >>> train = purerl.make_train(purerl.PPOConfig())
        >>> purerl.save("kept", train, train.init(jax.random.key(0)))
        >>> state = purerl.restore("kept", train)
    """
    saved = newest_readable(_absolute(directory) / "checkpoints", updates)
    whole = _whole(train)
    same = ("algorithm", "config", "x64", "objects", "action_unit")
    current = {**saved.record, **{name: identity(whole, whole.cfg)[name] for name in same}}
    if found := _differences(saved.record, current, type(whole.cfg)):
        raise CheckpointMismatch(directory, found)
    state = _state(saved, whole, directory)
    return train.place(state) if isinstance(train, DataParallel) else state


def _whole(train: Train | DataParallel) -> Train:
    return train.whole if isinstance(train, DataParallel) else train


def require_checkpoint(directory: Any) -> None:
    """Raises a CheckpointError where a directory has none."""
    folder = _absolute(directory) / "checkpoints"
    if not saved_updates(folder):
        raise CheckpointError(f"no checkpoint in {folder}")


def warm_start(state: TrainState, directory: Any, action_unit: str) -> TrainState:
    """Return a state with the parameters and statistics of another run. Those of one run are copied to each of several.

    What intrinsic rewards keep comes along, if both have them: a predictor is useless without its target. Running sums of the
    rewards of single environments do not: they are no statistics, and there may be more or fewer environments.

    Raises:
        ConfigError: they do not fit.
        CheckpointError: there is no checkpoint, or it cannot be read.
    """
    saved = newest_readable(_absolute(directory) / "checkpoints")
    if found := _unit_differences(saved.record, action_unit):
        raise ConfigError([Problem("init_from", str(directory), text) for text in found])
    arrays = saved.arrays
    intrinsic = {"intrinsic": state.extra["intrinsic"]} if "intrinsic" in state.extra else {}
    if not any(name.startswith("['state'].extra['intrinsic']") for name in arrays):
        intrinsic = {}
    target = {"state": _without_sums(state.replace(opt_state=(), actor=(), clock=(), key=(), extra=intrinsic))}
    current = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(target)}
    kept_paths = (*WARM, *(("['state'].extra['intrinsic']",) if intrinsic else ()))
    saved_arrays = {name: x for name, x in arrays.items() if name.startswith(kept_paths) and not name.endswith(".discounted")}
    found = [f"{name} is only {'there' if name in saved_arrays else 'here'}" for name in saved_arrays.keys() ^ current.keys()]
    for name in current.keys() & saved_arrays.keys():
        if saved_arrays[name].shape not in (current[name].shape, current[name].shape[state.key.ndim :]):
            found.append(f"{name} is {list(saved_arrays[name].shape)} there, {list(current[name].shape)} here")
    if found:
        raise ConfigError([Problem("init_from", str(directory), text) for text in sorted(found)])

    def leaf(at, like):
        x = saved_arrays[jax.tree_util.keystr(at)]
        return jax.device_put(np.broadcast_to(x, like.shape).astype(like.dtype), like.sharding)

    target = jax.tree_util.tree_map_with_path(leaf, target)["state"]
    extra = {**state.extra, **{name: _with_sums(x, state.extra[name]) for name, x in target.extra.items()}}
    return state.replace(params=target.params, statistics=_with_sums(target.statistics, state.statistics), extra=extra)


def _is_scale(x: Any) -> bool:
    return isinstance(x, RewardScale)


def _without_sums(tree: PyTree) -> PyTree:
    """Return a tree whose reward scales have no sums of single environments."""
    return jax.tree.map(lambda x: x.replace(discounted=()) if _is_scale(x) else x, tree, is_leaf=_is_scale)


def _with_sums(tree: PyTree, own: PyTree) -> PyTree:
    """Return a tree whose reward scales have the sums of those of another one."""
    given = lambda x, other: x.replace(discounted=other.discounted) if _is_scale(x) else x
    return jax.tree.map(given, tree, own, is_leaf=_is_scale)


def _absolute(directory: Any) -> pathlib.Path:
    if not isinstance(directory, str | os.PathLike):
        raise ConfigError([Problem("directory", directory, "must be a path")])
    return pathlib.Path(directory).expanduser().absolute()


def _lead(saved: Checkpoint) -> tuple[int, ...]:
    """Return the leading axes that a state was saved with."""
    return checkpoint.shape_of(saved.record["leaves"].get("['state'].key", ["[]"])[0])


def _state(saved: Checkpoint, train: Train, directory: Any) -> TrainState:
    """Return the state of a checkpoint, with the leading axes that it was saved with."""
    lead, one = _lead(saved), {"state": jax.eval_shape(train.init, jax.random.key(0))}
    leaves, structure = jax.tree_util.tree_flatten_with_path(one)
    is_clock = lambda path: jax.tree_util.keystr(path).startswith(checkpoint.CLOCK)
    batched = lambda path, x: x if is_clock(path) else jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype)
    template = structure.unflatten([batched(path, x) for path, x in leaves])
    states = {name: x for name, (x, _) in saved.record["leaves"].items() if name.startswith("['state']")}
    if found := checkpoint.leaf_differences(states, checkpoint.describe(template)):
        raise CheckpointMismatch(directory, found)
    return checkpoint.to_tree(saved.arrays, template)["state"]
