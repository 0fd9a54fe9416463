"""`fit`: the host loop around training, for everything that must happen while it runs.

It drives the same `Train.update` as `Train.__call__` does, a chunk of updates at a time. The length of a chunk is an
argument of one compiled program, and nothing on the device or in the program grows with the length of the run.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from purerl.clock import updates_at
from purerl.config import ConfigError, PPOConfig, Problem
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
    metrics: as in `TrainResult`, on the host; leaves `[updates]`, or `[num_seeds, updates]`.
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
        num_seeds: runs side by side in one program.
        chunk_seconds: about how long to run between two reports.
        recorders: called with a `Progress` after each chunk.
        **objects: `env`, `network` and the others, as `make_train` takes them.

    Raises:
        ConfigError: as `make_train`.
    """
    train = make_train(cfg, **objects)
    if num_seeds < 1:
        raise ConfigError([Problem("num_seeds", num_seeds, "must be at least 1")])
    state, run_chunk = _start(train, seed, num_seeds)
    total, updates, chunk = train.plan.num_updates, 0, 1
    history: list[PyTree] = []
    with _interruptible() as interrupted:
        began = time.perf_counter()
        while updates < total and not interrupted.is_set():
            before = time.perf_counter()
            chunk = min(chunk, total - updates, MAX_CHUNK)
            state, rows = run_chunk(state, np.int32(chunk))
            rows = jax.tree.map(lambda x: np.moveaxis(x[:chunk], 0, -1), jax.device_get(rows))
            updates += chunk
            history.append(rows)
            progress = Progress(train.plan, num_seeds, updates, time.perf_counter() - began, rows)
            for recorder in recorders:
                recorder(progress)
            chunk = max(1, round(chunk * min(4.0, chunk_seconds / (time.perf_counter() - before))))
    metrics = jax.tree.map(lambda *rows: np.concatenate(rows, axis=-1), *history)
    return FitResult(state, metrics, progress)


def _start(train: Train, seed: int, num_seeds: int) -> tuple[TrainState, Callable]:
    """The first state, and the compiled program that takes it through a chunk of updates."""
    if num_seeds == 1:
        init, update, keys = train.init, train.update, jax.random.key(seed)
    else:
        init = jax.vmap(train.init, out_axes=train.seed_axes)
        update = jax.vmap(train.update, in_axes=(train.seed_axes,), out_axes=(train.seed_axes, 0))
        keys = jax.vmap(jax.random.key)(np.arange(seed, seed + num_seeds, dtype=np.uint32))

    def run_chunk(state, length):
        """`length <= MAX_CHUNK` updates, and their metrics in the first rows of a buffer."""
        rows = jax.tree.map(lambda x: jnp.zeros((MAX_CHUNK, *x.shape), x.dtype), jax.eval_shape(update, state)[1])

        def body(i, carry):
            state, metrics = update(carry[0])
            return state, jax.tree.map(lambda row, x: row.at[i].set(x), carry[1], metrics)

        return jax.lax.fori_loop(0, length, body, (state, rows))

    state = jax.jit(init)(keys)
    return state, jax.jit(run_chunk, donate_argnums=0).lower(state, np.int32(1)).compile()


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
