"""`fit`: the host loop around training, for everything that must happen while it runs.

It drives the same `Train.update` as `Train.__call__` does, a chunk of updates at a time. The length of a chunk is an
argument of one compiled program, and nothing on the device or in the program grows with the length of the run.
"""

import contextlib
import operator
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.config import PPOConfig
from purerl.devices import over_devices, use_cores
from purerl.errors import ConfigError, Problem
from purerl.fields import is_int
from purerl.metrics import add_rows
from purerl.plan import Plan
from purerl.train import Train, make_train
from purerl.types import TrainState

PyTree = Any
MAX_CHUNK = 1024  # updates in one chunk, at most: the size of the buffer for their metrics


class Progress(NamedTuple):
    """Where a run stands after a chunk.

    plan: the whole run.
    num_seeds: runs side by side.
    updates: finished updates.
    seconds: since the first update began, compilation left out.
    metrics: of this chunk's updates; leaves `[chunk]`, or `[num_seeds, chunk]`.
    """

    plan: Plan
    num_seeds: int
    updates: int
    seconds: float
    metrics: dict[str, Any]

    @property
    def steps(self) -> int:
        """Environment steps so far, over all seeds."""
        return self.updates * self.plan.batch_size * self.num_seeds

    @property
    def steps_per_second(self) -> float:
        return self.steps / self.seconds

    @property
    def seconds_left(self) -> float:
        return self.seconds * (self.plan.num_updates - self.updates) / self.updates


class FitResult(NamedTuple):
    """What a run gives, whole or interrupted.

    state: after the last finished chunk. With several seeds its leaves have a leading axis, but for the clock.
    metrics: as in `TrainResult`, on the host; leaves `[rows]`, or `[num_seeds, rows]`.
    progress: where the run stood at the end.
    """

    state: TrainState
    metrics: dict[str, Any]
    progress: Progress


def fit(
    cfg: PPOConfig,
    seed: int = 0,
    *,
    num_seeds: int = 1,
    exact: bool = False,
    chunk_seconds: float = 1.0,
    recorders: tuple[Callable[[Progress], None], ...] = (),
    **objects: Any,
) -> FitResult:
    """Trains, reporting after each chunk of updates.

    An interrupt (Ctrl-C) ends the run after the chunk in progress, and what was reached is returned; a second one raises
    KeyboardInterrupt at once.

    Args:
        cfg: what to train and how.
        seed: of the first run; the others follow it. Run i begins with `jax.random.key(seed + i)`.
        num_seeds: runs side by side in one program, spread over the devices; on a CPU over its cores, see `use_cores`.
        exact: every one of several seeds has the bits of its run alone: see `over_devices`.
        chunk_seconds: about how long to run between two reports.
        recorders: called with a `Progress` after each chunk.
        **objects: `env`, `network` and the others, as `make_train` takes them.

    Raises:
        ConfigError: as `make_train`.
    """
    if found := _wrong_seeds(seed, num_seeds):
        raise ConfigError(found)
    if num_seeds > 1:
        use_cores()
    train = make_train(cfg, **objects)
    state, run_chunk = _start(train, seed, num_seeds, exact)
    total, updates, chunk = train.plan.num_updates, 0, 1
    curves = _Curves(cfg.metrics_every)
    with _interruptible() as interrupted:
        began = time.perf_counter()
        while True:
            before = time.perf_counter()
            chunk = min(chunk, total - updates, MAX_CHUNK)
            state, buffer = run_chunk(state, np.int32(chunk))
            rows = jax.tree.map(operator.itemgetter((..., slice(chunk))), jax.device_get(buffer))
            updates += chunk
            curves.append(rows)
            progress = Progress(train.plan, num_seeds, updates, time.perf_counter() - began, rows)
            for recorder in recorders:
                recorder(progress)
            if updates == total or interrupted.is_set():
                return FitResult(state, curves.whole(), progress)
            chunk = max(1, round(chunk * min(4.0, chunk_seconds / (time.perf_counter() - before))))


def _wrong_seeds(seed: Any, num_seeds: Any) -> list[Problem]:
    found = [Problem("seed", seed, "must be an int from 0 to 2**32 - 1")] if not (is_int(seed) and 0 <= seed < 2**32) else []
    if not (is_int(num_seeds) and num_seeds >= 1):
        found.append(Problem("num_seeds", num_seeds, "must be an int of at least 1"))
    elif not found and seed + num_seeds > 2**32:
        hint = f"the last seed would be above 2**32 - 1; at most {2**32 - seed} would work"
        found.append(Problem("num_seeds", num_seeds, hint))
    return found


def _start(train: Train, seed: int, num_seeds: int, exact: bool) -> tuple[TrainState, Callable]:
    """The first state, and the compiled program that takes it through a chunk of updates."""

    def run_chunk(state, length):
        """`length <= MAX_CHUNK` updates, and their metrics in the first entries of a buffer."""
        buffer = jax.tree.map(lambda x: jnp.zeros((MAX_CHUNK, *x.shape), x.dtype), jax.eval_shape(train.update, state)[1])

        def body(i, carry):
            state, metrics = train.update(carry[0])
            return state, jax.tree.map(lambda row, x: row.at[i].set(x), carry[1], metrics)

        return jax.lax.fori_loop(0, length, body, (state, buffer))

    init, keys = train.init, jax.random.key(seed)
    if num_seeds > 1:
        keys = jnp.stack([jax.random.key(seed + i) for i in range(num_seeds)])
        init = over_devices(init, out_axes=train.seed_axes, exact=exact)
        run_chunk = over_devices(run_chunk, in_axes=(train.seed_axes, None), out_axes=(train.seed_axes, 0), exact=exact)
    state = jax.jit(init)(keys)
    return state, jax.jit(run_chunk, donate_argnums=0).lower(state, np.int32(1)).compile()


class _Curves:
    """Metrics on the host, one row for each `every` updates, whatever the chunks they come in."""

    def __init__(self, every: int):
        self._every, self._rows, self._pending = every, [], []

    def append(self, rows: dict[str, Any]) -> None:
        self._pending.append(rows)
        rows = _joined(self._pending)
        whole = jax.tree.leaves(rows)[0].shape[-1] // self._every * self._every
        if whole:
            self._rows.append(add_rows(jax.tree.map(lambda x: x[..., :whole], rows), self._every))
            rows = jax.tree.map(lambda x: x[..., whole:], rows)
        self._pending = [rows]

    def whole(self) -> dict[str, Any]:
        left = _joined(self._pending)
        last = [add_rows(left, self._every)] if jax.tree.leaves(left)[0].size else []
        return _joined(self._rows + last)


def _joined(rows: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *x: np.concatenate(x, axis=-1), *rows)


@contextlib.contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that the first interrupt sets; the second raises KeyboardInterrupt. Only the main thread may listen."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(*_):
        event.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, stop)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
