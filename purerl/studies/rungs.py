"""Rungs: the parts into which each trial's training is divided, and the choice of the trials that continue after a rung."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from purerl.config.base import OnPolicyConfig
from purerl.config.value_checks import problems
from purerl.core.errors import config_error, raise_if_any
from purerl.core.keys import clock_at
from purerl.core.metrics import over_the_last
from purerl.core.types import TrainState
from purerl.pure import Train
from purerl.runs.devices.processes import place_array
from purerl.runs.storage.arrays import to_arrays, to_tree
from purerl.runs.trainer import MAX_CHUNK, Trainer
from purerl.studies import space
from purerl.studies.steps import Step

Arrays = dict[str, np.ndarray]  # the arrays of a state without its update counter, each with a run axis
SCORED = 0.2  # a score is the mean return of the last 20 % of a rung; if no episode ended in these, of the whole rung
UNEQUAL = 1.1  # largest ratio of the steps of two configs whose scores are compared without a note
CHUNK_SECONDS = 2.0  # approximate duration of a chunk; a signal takes effect at the end of a chunk


def end_of_rung(rung: int, rungs: int, num_updates: int) -> int:
    """Return the number of updates at the end of a rung, about twice those at the end of the previous rung."""
    return 0 if rung < 0 else max(rung + 1, num_updates >> (rungs - 1 - rung))


def is_kept(score: float, scores: Sequence[float]) -> bool:
    """Return True if a trial continues: its score is not below the median of all scores at its rung.

    The rule was chosen by a simulation, `tests/benchmarks/pruning.py`. A rule that allows for the noise of scores
    finds no better trials in the same number of steps: it favours noisy trials.

    Args:
        score: the trial's mean over its seeds after the rung; NaN if unknown. An unknown score stops no trial.
        scores: all scores at the rung so far, including this one.
    """
    known = [x for x in scores if not np.isnan(x)]
    return bool(np.isnan(score)) or score >= np.median(known)


def check_program(train: Train, rungs: int) -> None:
    """Raise a ConfigError if a study cannot train with this `Train`."""
    if train.env.host is not None:
        hint = "a study cannot restore the states of external (Python) environments; use purerl.sweep"
        raise config_error("env", train.env.name, hint)
    if train.plan.num_updates < 2 ** (rungs - 1):
        raise config_error("rungs", rungs, f"needs at least {2 ** (rungs - 1)} updates, not {train.plan.num_updates}")


def check_rungs(trains: Sequence[Train], rungs: int) -> list[str]:
    """Check that an episode fits into the first rung; return warnings.

    A warning says that an episode is longer than all of training, or that a rung ends after different numbers of steps.

    Raises:
        ConfigError: the first rung is too short, and fewer rungs would make it long enough.
    """
    found, warnings = {}, []  # `found`: hints, by the largest number of rungs that would work
    for train in trains:
        limit, updates = train.env.max_steps or 0, train.plan.num_updates
        steps = [end_of_rung(0, n, updates) * train.cfg.num_steps for n in range(1, rungs + 1)]
        most = sum(x >= limit for x in steps)
        found[most] = f"an episode may take {limit:,} steps, but the first rung has only {steps[-1]:,} steps per environment"
        if not most:
            text = f"an episode may take {limit:,} steps, but training has only {steps[0]:,} steps per environment; "
            warnings = [text + "a trial without a finished episode has no score, so use a larger total_timesteps"]
    if (most := min(filter(None, found), default=rungs)) < rungs:
        raise config_error("rungs", rungs, f"{found[most]}; use rungs={most}, or a larger total_timesteps")
    for rung in range(rungs) if len({float(train.cfg.total_timesteps) for train in trains}) == 1 else ():
        ends = [end_of_rung(rung, rungs, train.plan.num_updates) * train.plan.batch_size for train in trains]
        if max(ends) > UNEQUAL * min(ends):
            text = f"rung {rung + 1} of {rungs} ends after {min(ends):,} to {max(ends):,} steps, since batch sizes differ; "
            return [*warnings, text + "scores usually rise with the number of steps, so use a larger total_timesteps"]
    return warnings


class RungTrainer:
    """A trainer of trials in batches, from one rung to the next.

    Batches of the same size with the same static values share a compiled program, whose arguments are the tuned floats.

    Args:
        cfg: the config; a batch replaces its tuned fields.
        options: a dict with `num_seeds`, `rungs`, `at_once` and `seed`, as arguments of `tune`.
        objects: `env`, `network` and other arguments of `make_train`.
        limit: a function that returns the reason to stop training, or None to continue.
    """

    def __init__(self, cfg: OnPolicyConfig, options: dict[str, Any], objects: dict[str, Any], limit: Callable[[], Any]):
        self._cfg, self._options, self._objects, self._limit = cfg, options, objects, limit
        self._programs: dict[str, Trainer] = {}

    def train(self, batch: Step, states: list[Arrays] | None) -> tuple[Step, list[Arrays]] | None:
        """Train a batch. Return it with scores, and each trial's state; None if the study is stopped before the rung's end.

        Args:
            batch: the rung, the static values, the trials and their hyperparameters.
            states: state of each trial at the beginning of the rung; None to train from the first update.
        """
        before, count, seeds = time.perf_counter(), len(batch.trials), self._options["num_seeds"]
        # For the last few trials, compiling a smaller program is cheaper than filling up the batch with copies.
        rows = min(self._options["at_once"], 1 << (count - 1).bit_length())
        copies = lambda each: [*each, *[each[-1]] * (rows - count)]
        runs = self._runs(batch.static, copies(batch.points))
        plan = runs.here.plan
        begin, end = (end_of_rung(rung, self._options["rungs"], plan.num_updates) for rung in (batch.rung - 1, batch.rung))
        state, start = runs.init(), 0
        if states is not None:
            state, start = _join(copies(states), state, runs.template(), begin), begin
        if (trained := self._advance(runs, state, end - start, end - begin)) is None:
            return None
        state, scores, finite = trained
        diverged = tuple(number for number, is_finite in zip(batch.trials, finite, strict=False) if not is_finite)
        spent = {"env_steps": count * seeds * plan.batch_size * (end - begin), "seconds": time.perf_counter() - before}
        step = batch._replace(scores=tuple(map(tuple, scores[:count].tolist())), diverged=diverged, **spent)
        return step, split(to_arrays(state.replace(clock=None)), rows)[:count]

    def _advance(
        self, runs: Trainer, state: TrainState, updates: int, length_of_rung: int
    ) -> tuple[TrainState, np.ndarray, np.ndarray] | None:
        """Train a batch for this many updates, a chunk at a time; return None if the study is stopped before the end.

        Return the state, the scores in the rung `[trials, seeds]` (NaN if a run diverged or no episode ended), and a bool per
        trial, which is True if no seed diverged.
        """
        rows, finite, done, length, before = [], np.ones(0, bool), 0, 1, time.perf_counter()
        while done < updates:
            length = min(length, MAX_CHUNK, updates - done)
            state, metrics, finite = runs.chunk(state, length)
            rows.append({name: metrics[name] for name in ("episode_return", "steps")})
            done, now = done + length, time.perf_counter()
            length = max(1, round(length * min(4.0, CHUNK_SECONDS / (now - before))))
            before = now
            if self._limit() is not None and done < updates:
                return None
        rung = jax.tree.map(lambda *x: np.concatenate(x, -1)[..., -length_of_rung:], *rows)
        scores = np.where(finite, over_the_last(rung, "episode_return", SCORED), np.nan)
        shape = (-1, self._options["num_seeds"])
        return state, scores.reshape(shape), np.all(finite.reshape(shape), axis=1)

    def _runs(self, static: dict[str, Any], points: list[dict[str, Any]]) -> Trainer:
        """Return the `Trainer` of these hyperparameters, with the compiled program for the static values."""
        floats = [path for path in points[0] if not space.is_static(self._cfg, path)]
        batch = space.stack_configs(self._cfg, points, floats or None)
        name = json.dumps([static, len(points)])
        if name in self._programs:
            return self._programs[name].with_configs(batch)
        raise_if_any(problems(batch))
        runs = Trainer(batch, self._options["seed"], self._options["num_seeds"], False, self._objects, 1)
        check_program(runs.train, self._options["rungs"])
        runs.compile(runs.init())
        self._programs[name] = runs
        return runs


def split(arrays: Arrays, count: int) -> list[Arrays]:
    """Split the arrays of `count` trials, concatenated along the first axis, into the arrays of each trial."""
    return [dict(zip(arrays, parts, strict=True)) for parts in zip(*(np.split(x, count) for x in arrays.values()), strict=True)]


def _join(states: list[Arrays], fresh: TrainState, template: TrainState, updates: int) -> TrainState:
    """Concatenate the states of trials after `updates` updates, and place them on the devices of the state `fresh`."""
    arrays = {path: np.concatenate([state[path] for state in states]) for path in states[0]}
    joined = to_tree(arrays, template.replace(clock=None)).replace(clock=clock_at(updates))
    return jax.tree.map(lambda x, like: place_array(x, like.sharding), joined, fresh)
