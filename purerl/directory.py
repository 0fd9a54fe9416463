"""The directory of a run: what must be there to go on to the same bits, and how it is read back.

checkpoints/       the newest and the lasting ones, by number of updates
best/              the one with the best evaluation
curves.bin         metrics, see `purerl.curves`
evaluations.jsonl  evaluations
renders/           drawings of evaluations
"""

import json
import pathlib
import warnings
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from purerl import checkpoint
from purerl.checkpoint import Checkpoint, Lock, Store
from purerl.clock import updates_at
from purerl.config import ALGORITHMS, algorithm_of
from purerl.errors import CheckpointCorrupt, CheckpointError, CheckpointMismatch, ConfigError, Problem
from purerl.fields import Config
from purerl.plan import Plan
from purerl.train import Train, make_train
from purerl.types import TrainState

PyTree = Any
MAY_CHANGE = ("total_timesteps",)


class Directory:
    """A directory that this process trains in, locked while it is entered; with None nothing is kept, and every save is none.

    Args:
        path: absolute, as `checkpoint.run_directory` gives it.
        identity: what must be the same for a run to go on: see `identity`.
        keep, keep_every: as `Store` takes them.
    """

    def __init__(self, path: pathlib.Path | None, identity: dict[str, Any], keep: int, keep_every: int):
        self.path, self._identity, self._keep, self._keep_every = path, identity, keep, keep_every
        self._stores: dict[str, Store] = {}

    def __enter__(self) -> Self:
        if self.path is not None:
            self._lock = Lock(self.path)
            self._stores = {
                "checkpoints": Store(self.path / "checkpoints", self._keep, self._keep_every),
                "best": Store(self.path / "best", keep=1),
            }
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            for store in self._stores.values():
                store.close()
        except CheckpointError as other:
            if error is None:
                raise
            error.add_note(f"A checkpoint failed as well: {other}")
        finally:
            if self.path is not None:
                self._lock.release()

    def file(self, name: str) -> pathlib.Path | None:
        """Where a file of this name belongs; None if nothing is kept."""
        return self.path / name if self.path is not None else None

    def saved(self, resume: str, plan: Plan, wanted: dict[str, str]) -> Checkpoint | None:
        """The checkpoint to go on from, if any, read and verified. Nothing is compiled.

        Args:
            resume: `auto`, `must` or `never`.
            plan: of the run that wants to go on.
            wanted: what its tree of arrays is like, from `checkpoint.describe`.

        Raises:
            ConfigError: there is a checkpoint and should be none, or the other way round.
            CheckpointMismatch: it is of another run, or of a finished one.
            CheckpointCorrupt: it cannot be read; with `auto` none of them can.
        """
        store = self._stores.get("checkpoints")
        there = store.updates() if store else []
        if there and resume == "never":
            hint = f"has checkpoints, up to update {there[-1]}; resume='auto' goes on from them"
            raise ConfigError([Problem("directory", str(self.path), hint)])
        if not there and resume == "must":
            raise ConfigError([Problem("directory", str(self.path), "has no checkpoint to go on from")])
        for updates in reversed(there):
            try:
                record = store.record(updates)
                if updates >= plan.num_updates:
                    says = f"it is finished: update {updates} of {plan.num_updates}; raise total_timesteps, or purerl.load it"
                    raise CheckpointMismatch(self.path, [says])
                self._check(record, wanted)
                return store.load(updates)
            except CheckpointCorrupt as error:
                if resume == "must" or updates == there[0]:
                    raise
                warnings.warn(f"{error}; going on from the one before", stacklevel=4)
        return None

    def _check(self, record: dict[str, Any], wanted: dict[str, str]) -> None:
        leaves = {path: described for path, (described, _) in record["leaves"].items()}
        if found := _differences(record, self._identity) or checkpoint.differences(leaves, wanted):
            raise CheckpointMismatch(self.path, found)
        theirs, ours = ({**r["versions"], "runs on each device": r["share"]} for r in (record, self._identity))
        changed = [f"{name} {theirs.get(name)} then, {ours[name]} now" for name in ours if theirs.get(name) != ours[name]]
        if changed:
            warnings.warn(f"going on, but not to the same bits: {'; '.join(changed)}", stacklevel=5)

    def save(self, updates: int, tree: PyTree, seconds: float, to: str = "checkpoints") -> None:
        """Begins to write a checkpoint.

        Raises:
            CheckpointError: the one before could not be written, or this one.
        """
        if self._stores:
            self._stores[to].save(updates, tree, {**self._identity, "seconds": seconds})

    def wait(self) -> None:
        """Returns when every save is whole.

        Raises:
            CheckpointError: one is not.
        """
        for store in self._stores.values():
            store.wait()


def identity(cfg: Config, seed: int = 0, num_seeds: int | None = None, exact: bool = False, share: int = 1) -> dict[str, Any]:
    """What a checkpoint says of its run. `num_seeds` is None for a state that `fit` did not make."""
    return {
        "algorithm": algorithm_of(cfg),
        "config": json.loads(cfg.to_json()),
        "seed": seed,
        "num_seeds": num_seeds,
        "exact": exact,
        "share": share if not exact else 1,
        "x64": bool(jax.config.jax_enable_x64),
        "versions": checkpoint.versions(),
    }


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """The fields in which two runs differ, in words."""
    says = lambda name, then, now: f"{name}: {then!r} in the checkpoint, {now!r} here"
    found = [says(n, theirs[n], ours[n]) for n in ("algorithm", "seed", "num_seeds", "exact", "x64") if theirs[n] != ours[n]]
    if theirs["algorithm"] == ours["algorithm"]:
        then, now = (json.loads(_config_of(record).to_json()) for record in (theirs, ours))
        changed = [name for name in now if name not in MAY_CHANGE and not _same(then[name], now[name])]
        found += [says(name, then[name], now[name]) for name in changed]
    return found


def _same(a: Any, b: Any) -> bool:
    """Whether two values of a config are the same number in single precision, or else equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    return np.float32(a) == np.float32(b) if numbers else a == b


def _config_of(record: dict[str, Any]) -> Config:
    return ALGORITHMS[record["algorithm"]].from_json(json.dumps(record["config"]))


# --- for users --------------------------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """A run, read back.

    cfg: its config.
    train: made from it; from the first, of a batch of configs.
    state: with a leading axis if there are several runs, but for the clock.
    updates: finished updates.
    num_runs: None without a leading axis.
    seed: of the first run.
    """

    cfg: Config
    train: Train
    state: TrainState
    updates: int
    num_runs: int | None
    seed: int


def load(directory: Any, *, updates: int | None = None, best: bool = False, **objects: Any) -> Loaded:
    """The config, the state and a ready `Train` of a run. Reads only, also while another process writes.

    Args:
        directory: as `fit` or `save` was given it.
        updates: which checkpoint; the newest if None.
        best: the one with the best evaluation.
        **objects: the environment, network and so on that `make_train` was given: they are not saved.

    Raises:
        CheckpointError: there is none, it cannot be read, or it does not fit.
        ConfigError: as `make_train`.
    """
    saved = _read(directory, "best" if best else "checkpoints", updates)
    cfg = _config_of(saved.record)
    train = make_train(jax.tree.map(lambda x: np.asarray(x)[0] if np.ndim(x) else x, cfg), **objects)
    state = _state(saved, train, directory)
    return Loaded(cfg, train, state, saved.updates, state.key.shape[0] if state.key.ndim else None, saved.record["seed"])


def save(directory: Any, train: Train, state: TrainState) -> None:
    """Writes a state, of one run or of many under `vmap`, as a checkpoint of its number of updates, and waits until it is whole.

    Raises:
        ConfigError: the directory cannot be written to.
        CheckpointError: the state could not be written.
    """
    path = checkpoint.run_directory(directory)
    with Directory(path, identity(train.cfg), keep=2**31 - 1, keep_every=0) as home:
        home.save(updates_at(state.clock), {"state": state}, 0.0)


def restore(directory: Any, train: Train, *, updates: int | None = None) -> TrainState:
    """The state that `save` or `fit` wrote, for this `train`.

    Raises:
        CheckpointMismatch: it was written for another config, or its arrays do not fit.
        CheckpointError: there is none, or it cannot be read.
    """
    saved = _read(directory, "checkpoints", updates)
    ours = {**saved.record, **{name: identity(train.cfg)[name] for name in ("algorithm", "config", "x64")}}
    if found := _differences(saved.record, ours):
        raise CheckpointMismatch(directory, found)
    return _state(saved, train, directory)


def warm_start(state: TrainState, directory: Any) -> TrainState:
    """A state that starts from the parameters and statistics of another run; one run's go to every one of several.

    What intrinsic rewards keep comes along, if both have them: a predictor is none without its target.

    Raises:
        ConfigError: they do not fit.
        CheckpointError: there is no checkpoint, or it cannot be read.
    """
    arrays = _read(directory, "checkpoints").arrays
    curious = {"intrinsic": state.extra["intrinsic"]} if "intrinsic" in state.extra else {}
    if not any(name.startswith("['state'].extra['intrinsic']") for name in arrays):
        curious = {}
    taken = {"state": state.replace(opt_state=(), actor=(), clock=(), key=(), extra=curious)}
    ours = {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(taken)}
    mine = ("['state'].params", "['state'].statistics", *(("['state'].extra['intrinsic']",) if curious else ()))
    theirs = {name: x for name, x in arrays.items() if name.startswith(mine)}
    found = [f"{name} is only {'there' if name in theirs else 'here'}" for name in theirs.keys() ^ ours.keys()]
    for name in ours.keys() & theirs.keys():
        if theirs[name].shape not in (ours[name].shape, ours[name].shape[state.key.ndim :]):
            found.append(f"{name} is {list(theirs[name].shape)} there, {list(ours[name].shape)} here")
    if found:
        raise ConfigError([Problem("init_from", str(directory), says) for says in sorted(found)])

    def leaf(at, like):
        x = theirs[jax.tree_util.keystr(at)]
        return jax.device_put(np.broadcast_to(x, like.shape).astype(like.dtype), like.sharding)

    taken = jax.tree_util.tree_map_with_path(leaf, taken)["state"]
    return state.replace(params=taken.params, statistics=taken.statistics, extra={**state.extra, **taken.extra})


def _read(directory: Any, folder: str, updates: int | None = None) -> Checkpoint:
    path = pathlib.Path(directory).expanduser().absolute() / folder
    chosen = checkpoint.newest(path) if updates is None else path / str(updates)
    if chosen is None or not chosen.is_dir():
        raise CheckpointError(f"no checkpoint in {path}" + ("" if updates is None else f" of update {updates}"))
    return checkpoint.read(chosen)


def _state(saved: Checkpoint, train: Train, directory: Any) -> TrainState:
    """The state of a checkpoint, with the leading axes that it was saved with."""
    one = jax.eval_shape(train.init, jax.random.key(0))
    described = {name: x for name, (x, _) in saved.record["leaves"].items()}
    lead = checkpoint.shape_of(described.get("['state'].key", "[]"))
    batched = lambda axis, x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype) if axis == 0 else x
    is_axis = lambda x: x is None or x == 0
    axes = jax.tree.broadcast(train.seed_axes, one, is_leaf=is_axis)
    template = {"state": jax.tree.map(batched, axes, one, is_leaf=is_axis)}
    states = {name: x for name, x in described.items() if name.startswith("['state']")}
    if found := checkpoint.differences(states, checkpoint.describe(template)):
        raise CheckpointMismatch(directory, found)
    return checkpoint.to_tree(saved.arrays, template)["state"]
