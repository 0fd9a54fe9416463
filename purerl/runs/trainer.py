"""Training of a batch of runs, over seeds, configs or both, as one compiled program."""

import copy
import json
import pathlib
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from purerl.config.base import OnPolicyConfig
from purerl.core import reductions
from purerl.core.errors import config_error, warn
from purerl.core.finite import is_finite
from purerl.core.keys import clock_at, fold_in_name
from purerl.core.metrics import mean_where
from purerl.core.plan import needed_bytes
from purerl.core.reductions import on_axis, pall
from purerl.core.types import TrainState
from purerl.envs.external.host import Handle, restore, snapshot
from purerl.learning.nonfinite import LEARNT, finite_leaves
from purerl.pure import Train
from purerl.runs.analysis.rendering import render
from purerl.runs.devices.processes import gather_to_host
from purerl.runs.run_batch import Batch, state_at, swept_fields
from purerl.runs.storage.checkpoint import Checkpoint

Score = Callable[[TrainState], dict[str, np.ndarray]]
MAX_CHUNK = 1024  # largest number of updates in a chunk: the size of the metrics buffer


class Trainer(Batch):
    """A batch of runs that are trained together. All arguments except `exact` are those of `Batch`.

    Args:
        exact: make every run bit-identical to the same run alone.
    """

    pairs: tuple[tuple[int | None, int], ...]  # here all seeds are known

    def __init__(
        self, cfg: OnPolicyConfig, seed: int, num_seeds: int, exact: bool, objects: dict[str, Any], devices_per_run: int
    ):
        super().__init__(cfg, seed, num_seeds, objects, devices_per_run=devices_per_run)
        self._exact = exact
        self._first = self._over(lambda train, key: train.init(key), (0,), Train.seed_axes)
        self._jitted_first = jax.jit(self._first_of_data)
        self._row = jax.eval_shape(lambda: self.train.update(self.train.init(jax.random.key(seed)))[1])

    @property
    def share(self) -> int:
        """Return the number of runs per device or group of devices. Without `exact`, a run's last bits depend on this number."""
        return -(-len(self.labels) // self.rows)

    def template(self) -> TrainState:
        """Return the shapes of the initial state. Nothing is compiled."""
        return jax.eval_shape(lambda: self._first(self.cfgs, self._keys()))

    def init(self, updates: int = 0) -> TrainState:
        """Return an initial state. Its random keys depend on the seeds and on `updates`."""
        return self._jitted_first(self.cfgs, np.asarray(jax.random.key_data(self._keys(updates))))

    def _first_of_data(self, cfgs: dict[str, Any], data: jax.Array) -> TrainState:
        return self._first(cfgs, jax.random.wrap_key_data(data, impl=jax.random.key_impl(self._keys())))

    def with_configs(self, cfg: OnPolicyConfig) -> Self:
        """Return a copy with new swept values; the compiled program is reused.

        Args:
            cfg: a batch with the same number of configs, which differs from the current batch only in swept fields.
        """
        cfg, other = cfg.resolve(self.train.env), copy.copy(self)
        other.cfgs = {path: np.repeat(x, self.num_seeds).astype(self.cfgs[path].dtype) for path, x in swept_fields(cfg).items()}
        return other

    def snapshots(self, state: TrainState) -> dict[str, np.ndarray]:
        """Return a dict from the run's index, as text, to a snapshot of the run's external (Python) environments, bytes `[size]`.

        The state of external environments is not part of the training state. Without such environments, the dict is empty.
        """
        texts = (json.dumps(snapshot(handle)).encode() for handle in _handles(state)) if self.on_host else ()
        return {str(i): np.frombuffer(text, np.uint8) for i, text in enumerate(texts)}

    def restore_environments(self, state: TrainState, fresh: TrainState, saved: Checkpoint) -> TrainState:
        """Return a checkpoint's state with its external environments restored; if that is impossible, warn and restart them.

        Args:
            state: the checkpoint's state.
            fresh: a new initial state of these runs. Its environments are restored from the snapshots, and used in the result.
            saved: the checkpoint.
        """
        if not self.on_host:
            return state
        snapshots = [json.loads(saved.arrays[f"['environments']['{i}']"].tobytes()) for i in range(len(self.labels))]
        if missing := sorted({x["missing"] for x in snapshots if "missing" in x}):
            warn(f"the resumed run is not bit-identical: environments restart, since {'; '.join(missing)}")
            return state.replace(actor=self.init(saved.updates).actor)
        for handle, kept in zip(_handles(fresh), snapshots, strict=True):
            restore(handle, kept)
        return state.replace(actor=state.actor.replace(env_state=fresh.actor.env_state))

    def restart(self, state: TrainState) -> TrainState:
        """Recompute the derived parts of an initial state that has the parameters and statistics of another run."""
        restart = self._over(lambda train, state: train.restart(state), (Train.seed_axes,), Train.seed_axes)
        return jax.jit(restart)(self.cfgs, state)

    def _keys(self, updates: int = 0) -> jax.Array:
        keys = [jax.random.key(seed) for _, seed in self.pairs]
        keys = [fold_in_name(key, "again", clock_at(updates)) for key in keys] if updates else keys
        return jnp.stack(keys) if self.batched else keys[0]

    def row(self) -> dict[str, Any]:
        """Return the shapes of the metrics of one update, `[]`, or `[runs]` if batched."""
        lead = (len(self.labels),) if self.batched else ()
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), self._row)

    def chunk(self, state: TrainState, length: int) -> tuple[TrainState, dict[str, Any], np.ndarray]:
        """Run `length <= MAX_CHUNK` updates; return state, metrics `[(runs,) length]`, finite `[runs]`. May donate `state`."""
        state, buffer, finite = self._chunk(self.cfgs, state, np.int32(length))
        buffer, finite = jax.device_get(gather_to_host((buffer, finite)))
        return state, jax.tree.map(lambda x: x[..., :length], buffer), np.atleast_1d(finite)

    def compile(self, state: TrainState) -> None:
        """Compile `chunk`, as one program for all lengths of chunks."""
        chunk = self._over(self._run_chunk, (Train.seed_axes, None), (Train.seed_axes, 0, 0))
        donated = () if self.on_host else (1,)  # if external environments fail in a chunk, the state before that chunk is saved
        self._chunk = jax.jit(chunk, donate_argnums=donated).lower(self.cfgs, state, np.int32(1)).compile()

    def needed_bytes(self) -> int:
        """Return the bytes that `chunk` needs on each device, as reported by the compiler."""
        return needed_bytes(self._chunk)

    def evaluation(self, num_episodes: int, best_by: str = "episode_return", **options: Any) -> Score:
        """Return a function from a state to means over `num_episodes` episodes, each `[runs]`.

        The means are those of returns, lengths, finished episodes and each scalar entry of `info/...` and `episode_info/...`.
        With `nonfinite="reset"`, numbers that are not finite are left out.
        The function uses its own random key, so that evaluation does not affect training. The function is traced here, and
        compiled at its first call.

        Raises:
            ConfigError: an argument of `Train.evaluate` is invalid, or none of the means has the name `best_by`.
        """

        def evaluate(train, state):
            key = fold_in_name(state.key, "evaluation", state.clock)
            average = _mean_of_finite if train.cfg.nonfinite == "reset" else reductions.mean
            episodes, mean = train.evaluate(state, key, num_episodes, **options), on_axis(average, train.axis)
            columns = {"episode_return": episodes.returns, "episode_length": episodes.lengths, "finished": episodes.finished}
            return {name: mean(x.astype(jnp.float32)) for name, x in (columns | episodes.named_info()).items()}

        evaluate = self._over(evaluate, (Train.seed_axes,), 0)
        names = list(jax.eval_shape(evaluate, self.cfgs, self.template()))
        if best_by not in names:
            raise config_error("best_by", best_by, f"must be one of {', '.join(names)}")
        compiled = jax.jit(evaluate)
        found = lambda state: jax.device_get(gather_to_host(compiled(self.cfgs, state)))
        return lambda state: {name: np.atleast_1d(x) for name, x in found(state).items()}

    def render(self, state: TrainState, path: pathlib.Path) -> None:
        """Render an episode of the first run's policy to a file."""
        render(self.train, state_at(state, 0) if self.batched else state, path)

    def _over(self, function: Callable, in_axes: tuple, out_axes: Any) -> Callable:
        return self.over(function, in_axes, out_axes, self._exact)

    def _run_chunk(self, train, state, length):
        def body(i, carry):
            state, metrics = train.update(carry[0])
            return state, jax.tree.map(lambda row, x: row.at[i].set(x), carry[1], metrics)

        buffer = jax.tree.map(lambda x: jnp.zeros((MAX_CHUNK, *x.shape), x.dtype), self._row)
        state, buffer = jax.lax.fori_loop(0, length, body, (state, buffer))
        finite = jnp.stack(finite_leaves({name: getattr(state, name) for name in LEARNT})).all()
        return state, buffer, on_axis(pall, train.axis)(finite)


def _mean_of_finite(x: jax.Array) -> jax.Array:
    """Return the mean of all finite entries of `x` over all devices; NaN if there are none."""
    mean = mean_where(x, is_finite(x))
    return mean.total / mean.count


def _handles(state: TrainState) -> list[Handle]:
    """Return the environment handle of each run."""
    handle = jax.device_get(state.actor.env_state)
    return [Handle(*row) for row in zip(np.atleast_2d(handle.number), np.atleast_2d(handle.steps), strict=True)]
