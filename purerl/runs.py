"""Training runs side by side as one program: seeds, configs, or both."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purerl.devices import over_devices, use_cores
from purerl.errors import ConfigError, Problem
from purerl.fields import is_int, problems
from purerl.keys import stream
from purerl.metrics import mean_of
from purerl.nonfinite import LEARNT, finite_leaves
from purerl.rendering import render
from purerl.train import Train, make_train
from purerl.types import TrainState

PyTree = Any
MAX_CHUNK = 1024  # updates in one chunk, at most: the size of the buffer for their metrics


class Runs:
    """Runs that advance together.

    Attributes:
        train: the run; of a batch of configs, the first.
        labels: one for each run: "seed 3", or with a batch of configs "config 0, seed 3".
        batched: whether leaves have a leading axis of runs; one run alone has none.

    Args:
        cfg: a config, or a batch of them: leaves `[configs]`, as `jax.vmap` makes them.
        seed: of the first run; run i of a config begins with `jax.random.key(seed + i)`.
        num_seeds: runs of each config.
        exact: every run has the bits of its run alone.
        measure: `(state) -> {name: scalar}`, added to the metrics of each update.
        objects: as `make_train` takes them.

    Raises:
        ConfigError: as `make_train`, and for the seeds.
    """

    def __init__(self, cfg: Any, seed: int, num_seeds: int, exact: bool, measure: Callable | None, objects: dict[str, Any]):
        sizes = {np.shape(x)[0] for x in jax.tree.leaves(cfg) if np.ndim(x)}
        several = bool(sizes)
        found = _wrong_seeds(seed, num_seeds) + (problems(cfg) if several else [])
        if len(sizes) > 1:
            found.append(Problem("cfg", sorted(sizes), "a batch of configs needs as many values in every batched field"))
        if found:
            raise ConfigError(found)
        configs = sizes.pop() if several else 1
        pairs = [(i, seed + j) for i in range(configs) for j in range(num_seeds)]
        one = jax.tree.map(lambda x: np.asarray(x)[0] if np.ndim(x) else x, cfg)
        self.labels = tuple(f"config {i}, seed {s}" if several else f"seed {s}" for i, s in pairs)
        self.batched = several or num_seeds > 1
        if len(pairs) > 1:
            use_cores()
        self.train, self._exact, self._measure = make_train(one, **objects), exact, measure
        self._seeds = [s for _, s in pairs]
        # Configs of a batch are arguments of the program; a single one stays a part of it.
        self._cfgs = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x), num_seeds) if np.ndim(x) else x, cfg) if several else ()
        self._train_of = (lambda cfg: make_train(cfg, **objects)) if several else lambda _: self.train
        self._cfg_axes = jax.tree.map(lambda x: 0 if np.ndim(x) else None, self._cfgs)
        self._first = self._over(lambda cfg, key: self._train_of(cfg).init(key), (0,), Train.seed_axes)
        self._row = jax.eval_shape(lambda: self._measured(self.train, self.train.init(jax.random.key(seed)))[1])
        self._chunk = None

    @property
    def share(self) -> int:
        """Runs on each device: what their bits depend on, by rounding, if they are not exact."""
        return -(-len(self.labels) // min(len(jax.local_devices()), len(self.labels)))

    def template(self) -> TrainState:
        """The shapes of the first state. Nothing is compiled."""
        return jax.eval_shape(lambda: self._first(self._cfgs, self._keys()))

    def init(self) -> TrainState:
        """The first state."""
        return jax.jit(self._first)(self._cfgs, self._keys())

    def restart(self, state: TrainState) -> TrainState:
        """A first state that parameters and statistics of another run were put into, with all that follows from them."""
        restart = self._over(lambda cfg, state: self._train_of(cfg).restart(state), (Train.seed_axes,), Train.seed_axes)
        return jax.jit(restart)(self._cfgs, state)

    def _keys(self) -> jax.Array:
        keys = [jax.random.key(seed) for seed in self._seeds]
        return jnp.stack(keys) if self.batched else keys[0]

    def row(self) -> dict[str, Any]:
        """The shapes of the metrics of one update, `[(runs)]`."""
        lead = (len(self.labels),) if self.batched else ()
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), self._row)

    def chunk(self, state: TrainState, length: int) -> tuple[TrainState, dict[str, Any], np.ndarray]:
        """`length <= MAX_CHUNK` updates: the state, their metrics `[(runs,) length]`, and whether each run is finite. Donates."""
        state, buffer, finite = self._chunk(self._cfgs, state, np.int32(length))
        rows = jax.tree.map(lambda x: x[..., :length], jax.device_get(buffer))
        return state, rows, np.atleast_1d(jax.device_get(finite))

    def compile(self, state: TrainState) -> None:
        """Compiles `chunk`, one program for every length."""
        chunk = self._over(self._run_chunk, (Train.seed_axes, None), (Train.seed_axes, 0, 0))
        self._chunk = jax.jit(chunk, donate_argnums=1).lower(self._cfgs, state, np.int32(1)).compile()

    def evaluation(self, num_episodes: int, **options: Any) -> Callable[[TrainState], dict[str, np.ndarray]]:
        """A function from a state to the mean return and length of `num_episodes`, and the share that finished. `[runs]`.

        It draws from a stream of its own, so that evaluating moves no bit of training.
        """

        def evaluate(cfg, state):
            key = stream(state.key, "evaluation", state.clock)
            episodes = self._train_of(cfg).evaluate(state, key, num_episodes, **options)
            return {
                "episode_return": episodes.returns.mean(),
                "episode_length": episodes.lengths.mean(dtype=jnp.float32),
                "finished": episodes.finished.mean(dtype=jnp.float32),
            }

        compiled = jax.jit(self._over(evaluate, (Train.seed_axes,), 0))
        return lambda state: {name: np.atleast_1d(x) for name, x in jax.device_get(compiled(self._cfgs, state)).items()}

    def render(self, state: TrainState, path: pathlib.Path) -> None:
        """Draws an episode of the first run's policy."""
        render(self.train, first_of(state) if self.batched else state, path)

    def _over(self, function: Callable, in_axes: tuple, out_axes: Any) -> Callable:
        if not self.batched:
            return function
        return over_devices(function, in_axes=(self._cfg_axes, *in_axes), out_axes=out_axes, exact=self._exact)

    def _measured(self, train, state):
        state, metrics = train.update(state)
        if self._measure is not None:
            metrics |= {name: mean_of(jnp.asarray(value, jnp.float32)) for name, value in self._measure(state).items()}
        return state, metrics

    def _run_chunk(self, cfg, state, length):
        train = self._train_of(cfg)

        def body(i, carry):
            state, metrics = self._measured(train, carry[0])
            return state, jax.tree.map(lambda row, x: row.at[i].set(x), carry[1], metrics)

        buffer = jax.tree.map(lambda x: jnp.zeros((MAX_CHUNK, *x.shape), x.dtype), self._row)
        state, buffer = jax.lax.fori_loop(0, length, body, (state, buffer))
        return state, buffer, jnp.stack(finite_leaves({name: getattr(state, name) for name in LEARNT})).all()


def first_of(state: TrainState) -> TrainState:
    """The state of the first of several runs."""
    return jax.tree.map(lambda x: x[0] if x.ndim else x, state.replace(clock=None)).replace(clock=state.clock)


def _wrong_seeds(seed: Any, num_seeds: Any) -> list[Problem]:
    found = [Problem("seed", seed, "must be an int from 0 to 2**32 - 1")] if not (is_int(seed) and 0 <= seed < 2**32) else []
    if not (is_int(num_seeds) and num_seeds >= 1):
        found.append(Problem("num_seeds", num_seeds, "must be an int of at least 1"))
    elif not found and seed + num_seeds > 2**32:
        hint = f"the last seed would be above 2**32 - 1; at most {2**32 - seed} would work"
        found.append(Problem("num_seeds", num_seeds, hint))
    return found
