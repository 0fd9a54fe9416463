"""Saved runs, for users: `load`, `save`, `restore`, and the `Run` that `load` returns."""

import contextlib
import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.acting.evaluate import Episodes
from purerl.config.base import OnPolicyConfig
from purerl.config.fields import Config
from purerl.core.errors import CheckpointError, CheckpointMismatch, Problem, config_error, raise_if_any, warn
from purerl.core.keys import clock_at
from purerl.core.metrics import LAST, over_the_last
from purerl.core.reductions import gather, on_axis
from purerl.core.types import TrainState
from purerl.envs.external.host import host_errors
from purerl.pure import Train
from purerl.runs.analysis.statistics import format_spread
from purerl.runs.devices.data_parallel import DataParallel, check_replicas
from purerl.runs.devices.over_devices import use_cores
from purerl.runs.devices.processes import gather_to_host
from purerl.runs.directory import Directory, absolute_path, run_directory
from purerl.runs.identity import config_of, custom_class, differences, identity, unit_differences
from purerl.runs.options import OBJECTS, SEED, wrong_values
from purerl.runs.run_batch import Batch, state_at
from purerl.runs.storage import arrays, checkpoint, curves
from purerl.runs.storage.checkpoint import Checkpoint, newest_readable, saved_updates
from purerl.runs.storage.object_values import numbers_of, other_numbers
from purerl.runs.storage.objects import describe_objects, object_differences, qualified_name


@dataclasses.dataclass(frozen=True)
class Run:
    """One or several runs, with everything needed to continue them; returned by `load` and `fit`.

    Attributes:
        batch: the runs' configs, seeds and objects.
        state: the training state; with several runs, leaves have a leading run axis, except the update counter.
        finished: finished updates of each run; these numbers can differ only if the best states were loaded.
        directory: directory of the run; None if the run was not saved.
        place: index of a selected run among all runs of its directory; None if no run was selected.

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

    def __repr__(self) -> str:
        """Describe the algorithm, the environment, the runs and their updates in one line."""
        apart = "; " if any("," in label for label in self.labels) else ", "
        runs = apart.join(self.labels) if len(self.labels) <= 4 else f"{len(self.labels)} runs"
        place = f"updates in {self.directory}" if self.directory else "updates"
        return f"{type(self.cfg).__name__.removesuffix('Config')} on {self.env_name}: {runs}{apart}{self.updates:,} {place}"

    def __str__(self) -> str:
        """Describe the run, its steps and, for the last saved state, its returns, in a few lines."""
        up_to, per_update = "up to " if len(set(self.finished)) > 1 else "", self.cfg.num_envs * self.cfg.num_steps
        lines = [repr(self), f"{up_to}{self.updates * per_update:,} steps" + " of each run" * (len(self.labels) > 1)]
        with contextlib.suppress(CheckpointError):
            metrics = curves.read(self.directory)[0] if self.directory else {}
            if metrics and np.atleast_2d(metrics["steps"].total)[0].sum() == min(self.finished) * per_update:
                every = over_the_last(metrics, "episode_return", LAST)
                returns = every if self.place is None else every[[self.place]]
                lines.append(f"return over the last tenth: {format_spread(returns)}")
        return "\n".join(lines)

    @property
    def env_name(self) -> str:
        """Return the id of the environment, or the name of the environment that was given as an object."""
        given = self.batch.objects.get("env")
        return self.cfg.env if given is None else qualified_name(given)

    @property
    def cfg(self) -> OnPolicyConfig:
        """Return the config, or the batch of configs with leaves `[configs]`."""
        return self.batch.cfg

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the label of each run: "seed 3", or "lr = 0.003, seed 3"."""
        return self.batch.labels

    @property
    def updates(self) -> int:
        """Return the number of finished updates; with several runs, the maximum."""
        return max(self.finished)

    @property
    def num_runs(self) -> int | None:
        """Return the number of runs; None for one run without a leading axis."""
        return len(self.labels) if self.batch.batched else None

    @property
    def train(self) -> Train:
        """Return the `Train` of the run's config.

        Raises:
            ConfigError: the batch has several configs; `select` one run first.
        """
        if len(self.batch.configs) > 1:
            hint = "each has its own training function; use run.select(config=0, seed=...).train"
            raise config_error("run", ..., f"has {len(self.batch.configs)} configs, and {hint}")
        return self.batch.train

    def select(self, run: int | str | None = None, *, config: int | None = None, seed: int | None = None) -> "Run":
        """Return one of several runs, with its own config, state and `Train`.

        Args:
            run: index or label of the run.
            config, seed: alternatively, index of the run's config and seed of the run; one is enough if only one run matches it.

        Raises:
            ConfigError: no run matches, or more than one run does.
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
        env: Any = None,
    ) -> Episodes:
        """Evaluate each run in its own environment; return the episodes on the host, `[episodes]` or `[runs, episodes]`.

        A run plays the same episodes whether it is evaluated with the other runs or, after `select`, alone.

        Args:
            num_episodes: episodes per run.
            seed: seed of the episodes.
            deterministic: take the mode of the policy instead of a random action.
            max_steps, env_params, env: overrides of the time limit, of environment parameters and of the environment.
        """
        raise_if_any(wrong_values({"seed": seed}, {("seed",): SEED}))
        options = (num_episodes, deterministic, max_steps, env_params, False, env)
        of_run = lambda train, state, key: on_axis(gather, train.axis)(train.evaluate(state, key, *options))
        evaluate = self.batch.over(of_run, (Train.seed_axes, 0), 0)
        places = range(len(self.labels)) if self.place is None else [self.place]
        keys = [jax.random.fold_in(jax.random.key(seed), place) for place in places]
        keys = jnp.stack(keys) if self.batch.batched else keys[0]
        with host_errors():
            return jax.device_get(jax.jit(evaluate)(self.batch.cfgs, self.state, keys))

    @functools.cached_property
    def best(self) -> "Run":
        """Return the same runs, each with its state at its best evaluation.

        Raises:
            CheckpointError: no best state was saved.
        """
        if self.directory is None:
            raise CheckpointError("best states are saved only in a directory, and this run has none; use fit(directory=...)")
        best = load(self.directory, best=True, config_class=type(self.cfg), **self.batch.objects)
        return best if self.place is None else best.select(self.place)


def load(
    directory: Any, *, updates: int | None = None, best: bool = False, config_class: type[Config] | None = None, **given: Any
) -> Run:
    """Return a run: its config, its state and its `Train`. `load` only reads, so another process can train meanwhile.

    If the newest checkpoint is damaged, `load` warns and reads the previous one. If a number in an object differs from when the
    run was saved, such as the goal of an environment, `load` warns of it.

    Args:
        directory: directory that was given to `fit` or `save`.
        updates: number of finished updates of the checkpoint to load; None loads the checkpoint with the most updates.
        best: load each run's state at its best evaluation; not with `updates`.
        config_class: class of the run's config, if user-defined.
        **given: the environment, network and other objects of the run, as in `make_train`; checkpoints do not contain these.

    Raises:
        CheckpointMismatch: an object is missing or differs from the run's, or the arrays of the checkpoint do not fit.
        CheckpointError: the directory has no checkpoint or best state, or the checkpoint cannot be read.
        ConfigError: an object is invalid, `config_class` is not a config class, `updates` is given with `best`, or the state has
          several axes of runs.

    Example:
        >>> run = purerl.load("runs/a")
        >>> run.cfg.env, run.updates, run.labels
        ('CartPole-v1', 2, ('seed 0', 'seed 1'))
        >>> best = purerl.load("runs/a", best=True)
    """
    home = absolute_path(directory)
    if best and updates is not None:
        raise config_error("updates", updates, "cannot be combined with best=True, which loads the best states so far")
    if best and not saved_updates(home / "best"):
        raise CheckpointError(f"no best state in {home}; train with eval_every (--eval-every)")
    saved = newest_readable(home / ("best" if best else "checkpoints"), updates)
    record = saved.record
    if config_class is not None and not (isinstance(config_class, type) and issubclass(config_class, OnPolicyConfig)):
        raise config_error("config_class", config_class, "must be a config class made with purerl.configclass")
    own = {} if config_class is None else custom_class(config_class)
    passed = {name: x for name, x in record["objects"].items() if name in given}  # compared below, when they are made
    passed |= {name: {"is": qualified_name(x)} for name, x in own.items()}
    if found := object_differences(record["objects"], passed):
        raise CheckpointMismatch(directory, found)
    hint = f"load has no such argument; the objects of a run are {', '.join(OBJECTS)}"
    raise_if_any([Problem(name, x, hint) for name, x in given.items() if name not in OBJECTS])
    lead, count = _lead(saved), record["num_seeds"]
    if len(lead) > 1:
        hint = f"has states with axes {list(lead)}; read them by purerl.restore"
        raise config_error("directory", str(directory), hint)
    seed = None if count is None else record["seed"]
    batch = Batch(config_of(record, config_class), seed, count or (*lead, 1)[0], given, batched=bool(lead))
    described = describe_objects(batch.train.given | own, batch.train.env)
    if found := unit_differences(record, batch.train.action_unit) + object_differences(record["objects"], described):
        raise CheckpointMismatch(directory, found)
    for text in other_numbers(record.get("numbers", {}), numbers_of(batch.train.given, batch.train.env)):
        warn(text)
    scores = record["best"]["returns"] if best else ()
    if unscored := [label for label, score in zip(batch.labels, scores, strict=False) if score == -np.inf]:
        warn(f"{directory}: no evaluation of {', '.join(unscored)} has a score, so the state is not a best one")
    finished = record["best"]["updates"] if best else [saved.updates] * len(batch.labels)
    return Run(batch, _state(saved, batch.train, directory), tuple(finished), home)


def saved_layout(directory: pathlib.Path | None) -> int:
    """Return the saved number of devices per run; 1 if the directory has no such number, or fewer devices are available."""
    if directory is None or not saved_updates(directory / "checkpoints"):
        return 1
    header = curves.read_header(directory / curves.FILE)  # unlike Orbax, this does not start JAX
    if header is None or header.devices_per_run == 1:
        return 1
    use_cores()
    return header.devices_per_run if header.devices_per_run <= len(jax.devices()) else 1


def save(directory: Any, train: Train | DataParallel, state: TrainState) -> None:
    """Save a state as a checkpoint, and wait until it is written. The state can have leading run axes, as under `vmap`.

    Args:
        directory: directory to save in; created if missing.
        train: the result of `make_train` or `data_parallel`.
        state: a state of `train`.

    Raises:
        ConfigError: the directory is not writable or has a run of `fit`; or the runs have different numbers of updates, or arrays
          that must be equal on all devices differ.
        CheckpointError: the state could not be written.

    Example:
        >>> train = purerl.make_train(purerl.PPOConfig())
        >>> purerl.save("saved", train, train.init(jax.random.key(0)))
    """
    if isinstance(train, DataParallel):
        check_replicas(state, train.axis_name)
    path, train = run_directory(directory), _whole(train)
    if np.ndim(state.clock.low):  # under `vmap`, every run has a counter
        if any(len(np.unique(x)) > 1 for x in jax.tree.leaves(gather_to_host(state.clock))):
            raise config_error("state", ..., "has runs with different numbers of updates; save each of them alone")
        state = state.replace(clock=jax.tree.map(lambda x: x.reshape(-1)[0], state.clock))
    if (path / curves.FILE).exists():
        raise config_error("directory", str(path), "belongs to a run of purerl.fit; choose another directory")
    with Directory(path, identity(train, train.cfg), type(train.cfg), keep=2**31 - 1, keep_every=0) as home:
        if (there := home.checkpoints.updates()) and there[-1] > int(state.clock):
            hint = f"also has a checkpoint after {there[-1]} updates, which load and restore read by default"
            warn(f"{path}, where the state after {int(state.clock)} updates is saved, {hint}")
        home.checkpoints.save(int(state.clock), {"state": gather_to_host(state)}, {**home.identity, "seconds": 0.0})


def restore(directory: Any, train: Train | DataParallel, *, updates: int | None = None) -> TrainState:
    """Return the state that `save` or `fit` wrote, for a `train` with the same config and objects.

    If the newest checkpoint is damaged, `restore` warns and reads the previous one. `restore` also warns if a value in
    an object differs from when the state was saved.

    Args:
        directory: directory that was given to `save` or `fit`.
        train: the result of `make_train` or `data_parallel`; with `data_parallel`, the state is placed on the mesh.
        updates: number of finished updates of the checkpoint to read; None reads the checkpoint with the most updates.

    Raises:
        CheckpointMismatch: the checkpoint has another config or other objects, or its arrays do not fit.
        CheckpointError: the directory has no checkpoint, or the checkpoint cannot be read.

    Example:
        >>> train = purerl.make_train(purerl.PPOConfig())
        >>> purerl.save("kept", train, train.init(jax.random.key(0)))
        >>> state = purerl.restore("kept", train)
    """
    saved = newest_readable(absolute_path(directory) / "checkpoints", updates)
    whole = _whole(train)
    same = ("algorithm", "config", "x64", "objects", "action_unit")
    current = {**saved.record, **{name: identity(whole, whole.cfg)[name] for name in same}}
    if found := differences(saved.record, current, type(whole.cfg)):
        raise CheckpointMismatch(directory, found)
    for text in other_numbers(saved.record.get("numbers", {}), numbers_of(whole.given, whole.env)):
        warn(text)
    state = _state(saved, whole, directory)
    return train.place(state) if isinstance(train, DataParallel) else state


def _whole(train: Train | DataParallel) -> Train:
    return train.whole if isinstance(train, DataParallel) else train


def _lead(saved: Checkpoint) -> tuple[int, ...]:
    """Return the sizes of the leading axes of a saved state."""
    return arrays.shape_of(saved.record["leaves"].get("['state'].key", ["[]"])[0])


def _state(saved: Checkpoint, train: Train, directory: Any) -> TrainState:
    """Return the state of a checkpoint, with its saved leading axes."""
    lead, kind = _lead(saved), saved.record["leaves"].get("['state'].key", ["key<fry>[]"])[0].partition("[")[0]
    one = {"state": jax.eval_shape(train.init, jax.random.key(0, impl=arrays.KEY_KINDS.get(kind)))}
    leaves, structure = jax.tree_util.tree_flatten_with_path(one)
    is_clock = lambda path: jax.tree_util.keystr(path).startswith(checkpoint.CLOCK)
    batched = lambda path, x: x if is_clock(path) else jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype)
    template = structure.unflatten([batched(path, x) for path, x in leaves])
    states = {name: x for name, (x, _) in saved.record["leaves"].items() if name.startswith("['state']")}
    if found := arrays.leaf_differences(states, arrays.describe(template)):
        raise CheckpointMismatch(directory, found)
    return arrays.to_tree(saved.arrays, template)["state"]
