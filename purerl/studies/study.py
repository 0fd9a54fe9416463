"""The trials of a study: which to train next, their training, and what is kept of them."""

import json
import logging
import math
import pathlib
import re
import shutil
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from purerl.config.algorithms import algorithm_of
from purerl.config.base import OnPolicyConfig
from purerl.config.value_checks import problems
from purerl.core.errors import CheckpointMismatch, ConfigError, Problem, raise_if_any
from purerl.core.metrics import Mean, over_the_last
from purerl.core.numbers import is_int
from purerl.core.types import PyTree
from purerl.pure import Train
from purerl.runs.processes import placed
from purerl.runs.storage.checkpoint import Store, describe, prepare, to_arrays, to_tree
from purerl.runs.storage.files import AppendOnlyFile, atomic_write, checksum, read_file
from purerl.runs.trainer import MAX_CHUNK, Trainer
from purerl.studies import space
from purerl.studies.rungs import end_of_rung, going_on
from purerl.studies.space import Range

Scores = tuple[tuple[float, ...], ...]  # [trials][seeds]
SCORED = 0.2  # the share of a rung, at its end, whose episodes score it
CHUNK_SECONDS = 2.0  # after which a signal is answered
STUDY = "study.json"
FIRST_DRAWS = 8  # that TPE makes at random, at least
MOST_LISTED = 100_000  # combinations of static fields


class Step(NamedTuple):
    """A batch of trials that trained to the end of a rung.

    rung: from 0.
    static: what its program was made with, by field.
    trials: their numbers.
    points: the values of each, by field.
    scores: `[trials][seeds]`, the mean return of each at the end of the rung; NaN where no episode ended, or the run diverged.
    kept: the numbers of trials that go on to the next rung, or in the last one completed it.
    env_steps: environment steps that it took.
    seconds: that it took.
    diverged: the numbers of trials of which a run diverged.
    """

    rung: int
    static: dict[str, Any]
    trials: tuple[int, ...]
    points: tuple[dict[str, Any], ...]
    scores: tuple[tuple[float, ...], ...]
    kept: tuple[int, ...]
    env_steps: int
    seconds: float
    diverged: tuple[int, ...] = ()

    @property
    def values(self) -> list[float]:
        """Return the mean of each trial over seeds; NaN if a seed has no score."""
        return [float(np.mean(scores)) for scores in self.scores]

    @property
    def unknown(self) -> list[int]:
        """Return the numbers of trials that cannot be judged: with some seed no episode ended."""
        return [n for n, value in zip(self.trials, self.values, strict=True) if math.isnan(value) and n not in self.diverged]


class Trial(NamedTuple):
    """A config that was tried.

    number: from 0.
    point: its values, by field.
    rung: the last one that it finished, from 0.
    status: `waiting` for its next rung, `stopped` by the pruner, `diverged`, or `completed`.
    scores: `[seeds]` at the end of that rung; NaN of a seed that diverged, or with which no episode ended.
    """

    number: int
    point: dict[str, Any]
    rung: int
    status: str
    scores: np.ndarray

    @property
    def completed(self) -> bool:
        """Return True if the trial was trained to the end."""
        return self.status == "completed"

    @property
    def score(self) -> float:
        """Return the mean over the seeds that have a score; NaN without any."""
        known = self.scores[np.isfinite(self.scores)]
        return float(np.mean(known)) if known.size else math.nan

    @property
    def rank(self) -> tuple[bool, float]:
        """Return the key to sort trials by, the best first: those with a score of every seed come before others."""
        return not np.isfinite(self.scores).all(), -np.nan_to_num(self.score, nan=-np.inf)


class Study:
    """The results of all trials, and the next batch to train.

    All that was decided is in `trials.jsonl`, a line for each batch, written after the states that the next rung begins from.

    Attributes:
        cfg: what is not tuned.
        env_steps, seconds: spent so far.
        unjudged: how often a trial went on because with some seed no episode had ended in a rung.

    Args:
        cfg, values, trials, search_hours, sampler, pruner, objects: as `tune` takes them.
        options: what a study that goes on must have as before: num_seeds, rungs, at_once, seed, and the objects in words.
        home: its directory, or None.
        limit: a function that gives what ends it before its time, or None.
    """

    def __init__(
        self,
        cfg: OnPolicyConfig,
        values: dict[str, space.Values],
        trials: int,
        search_hours: float,
        options: dict[str, Any],
        home: pathlib.Path | None,
        sampler: Callable[[int], Any] | None,
        pruner: Any,
        objects: dict[str, Any],
        limit: Callable[[], Any],
    ):
        self.cfg, self._values, self._trials, self._options = cfg, values, trials, options
        self._search_seconds = 3600 * search_hours or math.inf
        self._optuna = _optuna()
        self._objects, self._limit = objects, limit
        self._sampler, self._counts_waiting = sampler or self._tpe, sampler is None
        self._study = self._optuna.create_study(direction="maximize", pruner=pruner, sampler=self._sampler(0))
        self._pruner, self._reported = pruner, []  # pairs of a rung and a value
        self._live: dict[int, Any] = {}  # of Optuna, by number
        self._found: dict[int, Trial] = {}
        self._waiting: list[tuple[int, int, dict[str, Any]]] = []  # rung to train, trial, its static values
        self._states: dict[int, dict[str, np.ndarray]] = {}  # of trials that wait
        self._where: dict[int, int] = {}  # trial to the checkpoint that has its state
        self._programs: dict[str, Trainer] = {}
        self._batches = 0
        self.env_steps, self.seconds, self.unjudged = 0, 0.0, 0
        self._file, self._store = AppendOnlyFile(None, b""), None
        if home is not None:
            self._open(home)

    def _tpe(self, seed: int) -> Any:
        startup = max(self._options["at_once"], FIRST_DRAWS)
        return self._optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=startup)

    # --- what is kept -------------------------------------------------------------------------------------------------

    def _open(self, home: pathlib.Path) -> None:
        """Goes on with the study of a directory, or begins one there."""
        who = {
            "algorithm": algorithm_of(self.cfg),
            "config": json.loads(self.cfg.to_json()),
            "values": {path: str(x) if isinstance(x, Range) else list(map(space.to_json, x)) for path, x in self._values.items()},
            **self._options,
        }
        journal = home / "trials.jsonl"
        wanted = json.loads(json.dumps(who))
        if (saved := _saved(home)) is not None:
            if changed := [name for name in wanted if saved.get(name) != wanted[name]]:
                raise CheckpointMismatch(
                    home, [f"{name}: {saved.get(name)} in the study, {wanted[name]} here" for name in changed]
                )
        else:
            atomic_write(home / STUDY, json.dumps(wanted, indent=1).encode())
        prepare(home / "states")
        self._store = Store(home / "states", keep=2**31 - 1)
        lines, steps = [], []
        for line in read_file(journal).splitlines():
            if (read := _step_of(line)) is None:
                warnings.warn(f"{journal}: a line is damaged; the study goes on from the one before", stacklevel=4)
                break
            lines.append(line + b"\n")
            steps.append(read)
        for step, drawn in steps:
            self._adopt(step, drawn)
        self._file = AppendOnlyFile(journal, b"".join(lines))

    def _adopt(self, step: Step, drawn: list[dict[str, Any]]) -> None:
        """Return a step that was trained before, and what Optuna drew for its new trials: points are rounded."""
        if step.rung == 0:
            for number, suggestion in zip(step.trials, drawn or map(self._suggestion, step.points), strict=True):
                self._study.enqueue_trial(suggestion)
                self._ask(number)
        self._report(step)
        self._apply(step)

    def _keep(self, step: Step, states: dict[int, dict[str, np.ndarray]], described: dict[str, str]) -> None:
        """Writes the states of trials that go on, and then what became of all."""
        if self._store is None:
            return
        if states:
            arrays = {f"{number}{path}": x for number, of_trial in states.items() for path, x in of_trial.items()}
            leaves = {f"{number}{path}": described[path] for number in states for path in described}
            self._store.write(self._batches, arrays, leaves, {"seconds": 0.0})
            self._store.wait()
        self._file.add(_line_of(step, [self._live[number].params for number in step.trials] if step.rung == 0 else []))
        self._file.flush()

    def _has_states(self, numbers: list[int]) -> bool:
        """Return True if the states that a rung begins from are there."""
        there = set() if self._store is None else set(self._store.updates())
        return all(number in self._states or self._where.get(number) in there for number in numbers)

    def _state_of(self, number: int) -> dict[str, np.ndarray]:
        """Return the state of a trial that waits, by path."""
        if number not in self._states and self._store is not None:
            saved, begin = self._store.load(self._where[number]).arrays, len(str(number))
            self._states[number] = {path[begin:]: x for path, x in saved.items() if path.startswith(f"{number}.")}
        return self._states[number]

    def close(self) -> None:
        self._file.close()

    # --- the search ---------------------------------------------------------------------------------------------------

    def next(self) -> Step | None:
        """Trains the next batch; None if there is none, or something ends the study."""
        if self._limit() is not None:
            return None
        job = self._full_batch() or self._new_batch() or self._rest()
        return None if job is None else self._train(*job)

    def _full_batch(self) -> tuple | None:
        """Return a batch of trials of one program that wait for the same rung, the latest one first."""
        return self._batch_of(self._options["at_once"], latest=True)

    def _rest(self) -> tuple | None:
        """Return leftover trials, earliest rung first, so that partial batches can be merged."""
        return self._batch_of(1, latest=False)

    def _batch_of(self, least: int, latest: bool) -> tuple | None:
        groups: dict[tuple[int, str], list[int]] = {}
        for rung, number, static in self._waiting:
            groups.setdefault((rung, json.dumps(static)), []).append(number)
        right = sorted((key for key, numbers in groups.items() if len(numbers) >= least), reverse=latest)
        if not right:
            return None
        rung, static = right[0]
        numbers = groups[right[0]][: self._options["at_once"]]
        self._waiting = [x for x in self._waiting if x[1] not in numbers]
        return rung, json.loads(static), numbers

    def _new_batch(self) -> tuple | None:
        """New trials, all of one program: that of the first. With batches enough each program is tried before Optuna chooses."""
        begun = len(self._found)
        count = min(self._options["at_once"], self._trials - begun)
        if count <= 0 or self.seconds > self._search_seconds:
            return None
        if space.num_points(self.cfg, self._values) <= self._trials:
            return self._batch_of_grid(count)
        static = {path: x for path, x in self._values.items() if space.is_static(self.cfg, path)}
        # Where there are more programs than batches, Optuna chooses from the start: the first ones would be no fair sample.
        few = space.num_points(self.cfg, static) <= -(-self._trials // self._options["at_once"])
        programs_alone = len(static) == len(self._values) and space.num_points(self.cfg, static) <= MOST_LISTED  # none twice
        known = {json.dumps(self._static(trial.point)) for trial in self._found.values()}
        listed = space.all_points(static) if few or programs_alone else []
        untried = [x for x in listed if json.dumps(self._as_json(x)) not in known]
        if not few:
            np.random.default_rng([self._options["seed"], begun]).shuffle(untried)
        base = self._sampler(self._options["seed"] + 1 + self._batches)
        fixed = self._suggestion(untried[0]) if untried else {}
        proposing = self._proposing() if self._counts_waiting else self._study
        for number in range(begun, begun + count):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that what is fixed is experimental
                proposing.sampler = self._optuna.samplers.PartialFixedSampler(fixed, base) if fixed else base
                if self._counts_waiting:
                    proposed = proposing.ask()
                    self._drawn(proposed)
                    self._study.enqueue_trial(proposed.params)
                point = self._ask(number)
            fixed = self._suggestion({path: point[path] for path in static})
        numbers = list(range(begun, begun + count))
        return 0, self._static(self._found[begun].point), numbers

    def _batch_of_grid(self, count: int) -> tuple | None:
        """New trials where all points can be tried: those that were not, in order, and of one program."""
        known, begun = {space.in_words(trial.point, space.EXACT) for trial in self._found.values()}, len(self._found)
        untried = [x for x in space.all_points(self._values) if space.in_words(x, space.EXACT) not in known]
        if not untried:
            return None
        static = self._static(untried[0])
        batch = [x for x in untried if self._static(x) == static][:count]
        for number, point in enumerate(batch, begun):
            self._study.enqueue_trial(self._suggestion(point))
            self._ask(number)
        return 0, static, list(range(begun, begun + len(batch)))

    def _proposing(self) -> Any:
        """Return a study of all trials so far, in which those that wait for their next rung have ended where they are.

        To TPE a trial that has not ended is a bad one, and no reason to stop drawing at random. The better half of a rung waits.
        """
        states, study = self._optuna.trial.TrialState, self._optuna.create_study(direction="maximize")
        for trial in self._study.get_trials(deepcopy=False):
            waits = trial.state == states.RUNNING
            if waits and not trial.intermediate_values:  # nothing is known of it yet
                continue
            study.add_trial(
                self._optuna.trial.create_trial(
                    state=states.PRUNED if waits else trial.state,
                    value=None if waits else trial.value,
                    params=trial.params,
                    distributions=trial.distributions,
                    intermediate_values=trial.intermediate_values,
                )
            )
        return study

    def _ask(self, number: int) -> dict[str, Any]:
        """Return a point that Optuna proposes, as the next trial."""
        trial = self._live[number] = self._study.ask()
        point = self._drawn(trial)
        self._found[number] = Trial(number, point, -1, "waiting", np.array([]))
        return point

    def _drawn(self, trial: Any) -> dict[str, Any]:
        """Return the point of a trial of Optuna's."""
        point = {}
        for path, values in self._values.items():
            if isinstance(values, tuple):
                words = [space.value_in_words(x, space.EXACT) for x in values]
                point[path] = values[words.index(trial.suggest_categorical(path, words))]
            elif space.is_int_field(self.cfg, path):
                point[path] = trial.suggest_int(path, int(values.low), int(values.high), log=values.log)
            else:
                share = trial.suggest_float(path, values.low, values.high, log=values.log)
                point[path] = min(max(float(f"{share:.{values.digits}g}"), values.low), values.high)
        return point

    def _suggestion(self, point: dict[str, Any]) -> dict[str, Any]:
        """Return a point as Optuna has it."""
        word = lambda x: space.value_in_words(x, space.EXACT)
        return {path: word(x) if isinstance(self._values[path], tuple) else x for path, x in point.items()}

    def _static(self, point: dict[str, Any]) -> dict[str, Any]:
        return self._as_json({path: x for path, x in point.items() if space.is_static(self.cfg, path)})

    def _as_json(self, point: dict[str, Any]) -> dict[str, Any]:
        return json.loads(json.dumps({path: space.to_json(x) for path, x in point.items()}))

    def _train(self, rung: int, static: dict[str, Any], numbers: list[int]) -> Step | None:
        """Trains trials to the end of a rung, and decides which of them go on."""
        before, points = time.perf_counter(), [self._found[number].point for number in numbers]
        runs = self._runs(static, points)
        plan, seeds = runs.here.plan, self._options["num_seeds"]
        begin, end = (end_of_rung(r, self._options["rungs"], plan.num_updates) for r in (rung - 1, rung))
        state = runs.init()
        if rung and self._has_states(numbers):
            state = self._resumed(state, runs.template(), numbers)
        elif rung:  # a line of the journal was lost, and what came after it had removed the states
            if (again := self._advance(runs, state, begin)) is None:
                return None
            state = again[0]
        trained = self._advance(runs, state, end - begin)
        if trained is None:
            return None
        state, scores, finite = trained
        count = len(numbers) * seeds * plan.batch_size * (end - begin)
        spent = time.perf_counter() - before
        diverged = tuple(number for number, is_finite in zip(numbers, finite, strict=False) if not is_finite)
        step = Step(rung, static, tuple(numbers), tuple(points), scores[: len(numbers)], (), count, spent, diverged)
        step = step._replace(kept=self._decide(step))
        last = rung + 1 == self._options["rungs"]
        states, described = ({}, {}) if last else self._parts(state, numbers, step.kept)
        self._keep(step, states, described)
        self._apply(step)
        self._forget()
        self._states |= states
        return step

    def _advance(self, runs: Trainer, state: PyTree, updates: int) -> tuple[PyTree, Scores, np.ndarray] | None:
        """Train a batch for so many updates, a chunk at a time, unless something ends the study before.

        Return the state, the scores, and which trials are finite with every seed.
        """
        rows, finite, done, length, before = [], np.ones(0, bool), 0, 1, time.perf_counter()
        while done < updates:
            length = min(length, MAX_CHUNK, updates - done)
            state, metrics, finite = runs.chunk(state, length)
            rows.append(metrics["episode_return"])
            done, now = done + length, time.perf_counter()
            length = max(1, round(length * min(4.0, CHUNK_SECONDS / (now - before))))
            before = now
            if self._limit() is not None and done < updates:
                return None
        episode_return, seeds = jax.tree.map(lambda *x: np.concatenate(x, -1), *rows), self._options["num_seeds"]
        return state, _scores(episode_return, finite, seeds), np.all(finite.reshape(-1, seeds), 1)

    def _parts(self, state: PyTree, numbers: list[int], kept: tuple[int, ...]) -> tuple[dict[int, Any], dict[str, str]]:
        """Return the state of each trial that goes on, by path, and what is in each path."""
        arrays, seeds = to_arrays(state), self._options["num_seeds"]
        part = lambda i: {path: x if _is_clock(path) else x[i * seeds : (i + 1) * seeds] for path, x in arrays.items()}
        fewer = lambda path, text: text if _is_clock(path) else re.sub(r"\[\d+", f"[{seeds}", text, count=1)
        states = {number: part(i) for i, number in enumerate(numbers) if number in kept}
        return states, {path: fewer(path, text) for path, text in describe(state).items()}

    def _rows(self, count: int) -> int:
        """The rows of a program for so many trials: `at_once`, or a power of 2 that is enough for the few that end a search.

        To compile once more costs less than to train long trials beside copies of themselves.
        """
        return min(self._options["at_once"], 1 << (count - 1).bit_length())

    def _runs(self, static: dict[str, Any], points: list[dict[str, Any]]) -> Trainer:
        """Return the runs of these points, with the program of their static values, and as many as it has rows."""
        points = points + [points[-1]] * (self._rows(len(points)) - len(points))
        configs = [space.with_values(self.cfg, point) for point in points]
        floats = tuple(path for path in self._values if not space.is_static(self.cfg, path))
        batch = jax.tree_util.tree_map_with_path(
            lambda path, *xs: (
                np.array(xs, np.float32) if jax.tree_util.keystr(path, simple=True, separator=".") in floats else xs[0]
            ),
            *configs,
        )
        name = json.dumps([static, len(points)])
        if name not in self._programs:
            raise_if_any(problems(batch))
            seeds = self._options["num_seeds"]
            if not floats:  # so that it is a batch
                batch = jax.tree.map(lambda x: np.full(len(points), x, np.float32), batch)
            runs = Trainer(batch, self._options["seed"], seeds, False, self._objects, 1)
            check_program(runs.train, self._options["rungs"])
            runs.compile(runs.init())
            self._programs[name] = runs
            return runs
        return self._programs[name].with_configs(batch)

    def _resumed(self, fresh: PyTree, template: PyTree, numbers: list[int]) -> PyTree:
        """Return the states of trials side by side, where the fresh ones are."""
        each = [self._state_of(number) for number in numbers]
        each += [each[-1]] * (self._rows(len(each)) - len(each))
        arrays = {path: x if _is_clock(path) else np.concatenate([one[path] for one in each]) for path, x in each[0].items()}
        return jax.tree.map(lambda x, like: placed(x, like.sharding), to_tree(arrays, template), fresh)

    def _decide(self, step: Step) -> tuple[int, ...]:
        """Report a step. Return the trials that go on, or in the last rung all that did not diverge."""
        self._report(step)
        whole = [number for number in step.trials if number not in step.diverged]
        if step.rung + 1 == self._options["rungs"]:
            return tuple(whole)
        if self._pruner is not None:
            return tuple(n for n in whole if n in step.unknown or not self._live[n].should_prune())
        rungs, values = zip(*self._reported, strict=True)
        kept = dict(zip(step.trials, going_on(values, rungs)[-len(step.trials) :], strict=True))
        return tuple(number for number in whole if kept[number])

    def _report(self, step: Step) -> None:
        """Report the value of each trial that has one, and the NaN of those that diverged, which to Optuna are the worst."""
        self._reported += [(step.rung, value) for value in step.values]
        self.unjudged += len(step.unknown)
        for number, value in zip(step.trials, step.values, strict=True):
            if number not in step.unknown:
                self._live[number].report(value, 2**step.rung)

    def _apply(self, step: Step) -> None:
        """Apply a step to the search."""
        last = step.rung + 1 == self._options["rungs"]
        states = self._optuna.trial.TrialState
        for number, scores in zip(step.trials, step.scores, strict=True):
            going = "completed" if last else "waiting"
            status = going if number in step.kept else "diverged" if number in step.diverged else "stopped"
            self._found[number] = self._found[number]._replace(rung=step.rung, status=status, scores=np.array(scores))
            if status == "completed":
                score = self._found[number].score
                known = {"state": states.FAIL} if math.isnan(score) else {"values": score}
                self._study.tell(self._live[number], **known)
            elif status != "waiting":
                self._study.tell(self._live[number], state=states.PRUNED)
        done = set(step.trials)
        self._waiting = [x for x in self._waiting if x[1] not in done]
        if not last:
            self._waiting += [(step.rung + 1, number, step.static) for number in step.kept]
        for number in done:
            self._states.pop(number, None)
            self._where.pop(number, None)
        self._where |= dict.fromkeys(step.kept, self._batches)
        self._batches += 1
        self.env_steps, self.seconds = self.env_steps + step.env_steps, self.seconds + step.seconds

    def _forget(self) -> None:
        """Removes states that no rung begins from any more."""
        if self._store is not None:
            for old in set(self._store.updates()) - set(self._where.values()):
                shutil.rmtree(self._store.directory / str(old), ignore_errors=True)

    # --- the result ---------------------------------------------------------------------------------------------------

    def best(self, count: int) -> list[Trial]:
        """Return the best trials that were trained to the end and have a score, the best first; of equal points one."""
        scored = (x for x in self._found.values() if x.completed and not math.isnan(x.score))
        different = {space.in_words(x.point, space.EXACT): x for x in sorted(scored, key=lambda x: x.rank, reverse=True)}
        return sorted(different.values(), key=lambda x: x.rank)[:count]

    def trials(self) -> list[Trial]:
        """Return all that finished a rung: completed ones first, then by the last rung and the score."""
        tried = [x for x in self._found.values() if x.rung >= 0]
        return sorted(tried, key=lambda x: (-x.completed, -x.rung, x.rank))

    def importance(self) -> dict[str, float]:
        """Return the share of the variance of completed trials' scores that each parameter explains; {} if it is not known."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return {path: float(x) for path, x in self._optuna.importance.get_param_importances(self._study).items()}
        except (ValueError, RuntimeError, ImportError):  # too few trials, or all alike
            return {}


def check_program(train: Train, rungs: int) -> None:
    """Raises a ConfigError where a study cannot train such runs."""
    if train.env.host is not None:
        hint = "lives on the host, and a study goes back to states of trials; purerl.sweep tries settings there"
        raise ConfigError([Problem("env", train.env.name, hint)])
    if train.plan.num_updates < 2 ** (rungs - 1):
        raise ConfigError([Problem("rungs", rungs, f"there are {train.plan.num_updates} updates, too few for so many rungs")])


def at_once_of(home: pathlib.Path | None) -> int | None:
    """Return how many trials a program has in the study of a directory; None if it has none."""
    return None if home is None else (_saved(home) or {}).get("at_once")


def _saved(home: pathlib.Path) -> dict[str, Any] | None:
    """Return the options that a directory's study was begun with; None if it has none."""
    if not (home / STUDY).exists():
        return None
    try:
        saved = json.loads(read_file(home / STUDY))
        if isinstance(saved, dict) and is_int(saved.get("at_once")):
            return saved
        reason = "it is no study's"
    except ValueError as error:
        reason = str(error)
    raise CheckpointMismatch(home, [f"{STUDY} cannot be read: {reason}"])


def _optuna() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its progress bars, about notebooks
            import optuna
    except ImportError as error:
        raise ConfigError([Problem("tune", "optuna", "is not installed: pip install 'purerl[tune]'")]) from error
    logging.getLogger("optuna").setLevel(logging.WARNING)
    return optuna


def _scores(episode_return: Mean, finite: np.ndarray, seeds: int) -> Scores:
    """Return `[trials][seeds]`, NaN where a run diverged or no episode ended."""
    scores = np.where(finite, over_the_last(episode_return, SCORED), np.nan).reshape(-1, seeds)
    return tuple(tuple(map(float, row)) for row in scores)


def _is_clock(path: str) -> bool:
    """Return True if a leaf of a state has no axis of runs."""
    return path.startswith(".clock")


def _line_of(step: Step, drawn: list[dict[str, Any]]) -> bytes:
    found = step._asdict() | {"drawn": drawn}
    found["points"] = [{path: space.to_json(x) for path, x in point.items()} for point in step.points]
    found["scores"] = [[x if math.isfinite(x) else None for x in row] for row in step.scores]
    return json.dumps({**found, "check": checksum(json.dumps(found).encode()).hex()}).encode() + b"\n"


def _step_of(line: bytes) -> tuple[Step, list[dict[str, Any]]] | None:
    """Parse a journal line into (step, sampled parameters), or None if it is corrupt."""
    try:
        found = json.loads(line)
        mark = found.pop("check")
        if checksum(json.dumps(found).encode()).hex() != mark:
            return None
        drawn = found.pop("drawn")
        tuples = lambda x: tuple(map(tuples, x)) if isinstance(x, list) else x
        points = [{path: tuples(x) for path, x in point.items()} for point in found["points"]]
        scores = [tuple(math.nan if x is None else x for x in row) for row in found["scores"]]
        lists = {"trials": tuple(found["trials"]), "kept": tuple(found["kept"])}
        without = [n for n, row in zip(lists["trials"], scores, strict=True) if not np.isfinite(row).all()]
        lists["diverged"] = tuple(found.get("diverged", without))  # studies of 0.3 stopped every trial without a score
        return Step(**{**found, **lists, "points": tuple(points), "scores": tuple(scores)}), drawn
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
