"""Studies: the choice of the trials to train next, and the directory that records all decisions."""

import contextlib
import json
import math
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np

from purerl.config.algorithms import algorithm_of
from purerl.core.errors import CheckpointError, CheckpointMismatch, warn
from purerl.runs.directory import PLAN, STUDY
from purerl.runs.storage.checkpoint import Store, prepare, saved_updates
from purerl.runs.storage.files import AppendOnlyFile, atomic_write, read_file
from purerl.studies import space
from purerl.studies.reading import read_plan, refuse_another
from purerl.studies.rungs import Arrays, RungTrainer, is_kept, split
from purerl.studies.search import Search
from purerl.studies.steps import Step, Trial, line_of, step_of, trials_of


class Study:
    """The trained batches of a study, and the choice and the training of the next batch.

    With the default sampler and pruner, all choices depend only on these batches. Each batch is a line of `trials.jsonl`, written
    after the states for the next rung are saved.

    Attributes:
        search: proposes the hyperparameters to try.
        steps: the trained batches.

    Args:
        search, trainer: the search, which proposes trials, and the trainer of their batches.
        home: directory of the study; None saves nothing.
        search_hours: begin no new trials after this many hours of training trials; 0 for no limit.
        limit: a function that returns the reason to end early, or None to continue.
    """

    def __init__(
        self, search: Search, trainer: RungTrainer, home: pathlib.Path | None, search_hours: float, limit: Callable[[], Any]
    ):
        self.search, self.steps = search, []
        self._trainer, self._options, self._limit = trainer, search.options, limit
        self._search_seconds = 3600 * search_hours or math.inf
        self._states: dict[int, Arrays] = {}  # states of waiting trials, by number
        self._file, self._store = AppendOnlyFile(None, b""), None
        if home is not None:
            self._open(home)

    def _open(self, home: pathlib.Path) -> None:
        """Continue the study of a directory, or begin a study there."""
        plain = lambda x: list(map(space.to_json, x)) if isinstance(x, tuple) else str(x)
        plan = {"algorithm": algorithm_of(self.search.cfg), "config": json.loads(self.search.cfg.to_json())}
        plan |= {"values": {path: plain(x) for path, x in self.search.values.items()}, **self._options}
        if (saved := read_plan(home / STUDY)) is None:
            if saved_updates(home / "checkpoints") or (home / PLAN).exists():
                raise CheckpointMismatch(home, ["the directory contains a run or a sweep, not a study"])
            atomic_write(home / STUDY, json.dumps(plan, indent=1).encode())
        else:
            numbers = plan.pop("numbers", {})
            refuse_another(home / STUDY, saved, plan, numbers)
        prepare(home / "waiting")
        self._store = Store(home / "waiting", keep=2**31 - 1)
        journal, lines = home / "trials.jsonl", []
        for line in read_file(journal).splitlines():
            if (step := step_of(line)) is None:
                warn(f"{journal}: a line is damaged; the study continues without this and all later lines")
                break
            lines.append(line + b"\n")
            self.steps.append(step._replace(points=tuple(map(self.search.restore, step.points))))
        self._file = AppendOnlyFile(journal, b"".join(lines))
        source = self._sources()
        for i in {*source.values()} & {*self._store.updates()}:
            with contextlib.suppress(CheckpointError):  # trials without a state train from the beginning
                states = split(self._store.load(i).arrays, len(self.steps[i].kept))
                self._states |= {n: x for n, x in zip(self.steps[i].kept, states, strict=True) if source[n] == i}

    def _sources(self) -> dict[int, int]:
        """Return the index of the batch that saved each trial's latest state, by number of the trial."""
        return {number: i for i, step in enumerate(self.steps) for number in step.kept}

    def close(self) -> None:
        self._file.close()

    def _trials_by_number(self) -> dict[int, Trial]:
        return trials_of(self.steps, self._options["rungs"])

    # --- the next step ------------------------------------------------------------------------------------------------

    def next(self) -> Step | None:
        """Train the next batch and return it with scores; return None if the study is done or stopped."""
        batch = None if self._limit() is not None else self._next_batch()
        trained = None if batch is None else self._train(batch)
        if trained is None:
            return None
        step, states = trained
        step = step._replace(kept=self._judge(step))
        going = step.kept if step.rung + 1 < self._options["rungs"] else ()
        kept = {n: state for n, state in zip(step.trials, states, strict=False) if n in going}
        if self._store is not None and kept:
            arrays = {path: np.concatenate([state[path] for state in kept.values()]) for path in states[0]}
            described = {path: f"{x.dtype}{list(x.shape)}" for path, x in arrays.items()}
            self._store.write(len(self.steps), arrays, described, {})
            self._store.wait()
        self._file.add(line_of(step))
        self._file.flush()
        self.steps.append(step)
        self._states = {n: state for n, state in self._states.items() if n not in step.trials} | kept
        self._remove_old_states()
        return step

    def _next_batch(self) -> Step | None:
        """Return a full batch of waiting trials, else new trials, else the waiting trials of the earliest rung, else None.

        The earliest rung comes first, so that its survivors can fill the batches of later rungs.
        """
        is_over = sum(step.seconds for step in self.steps) > self._search_seconds
        new = lambda: None if is_over else self.search.new_batch(self.steps)
        return self._waiting_batch(self._options["at_once"], latest=True) or new() or self._waiting_batch(1, latest=False)

    def _waiting_batch(self, least: int, latest: bool) -> Step | None:
        """Return waiting trials with the same static values, for the latest or earliest rung with `least` or more; or None."""
        groups: dict[tuple[int, str], list[Trial]] = {}
        for trial in self._trials_by_number().values():
            if trial.status == "waiting":
                static = space.static_values(self.search.cfg, trial.point)
                groups.setdefault((trial.rung + 1, json.dumps(static)), []).append(trial)
        enough = sorted((key for key, trials in groups.items() if len(trials) >= least), reverse=latest)
        if not enough:
            return None
        batch = groups[enough[0]][: self._options["at_once"]]
        return Step(enough[0][0], json.loads(enough[0][1]), tuple(x.number for x in batch), tuple(x.point for x in batch))

    def _train(self, batch: Step) -> tuple[Step, list[Arrays]] | None:
        """Train a batch. Return it with scores, and each trial's state; None if the study is stopped before the rung's end."""
        states = [self._states[number] for number in batch.trials if number in self._states] if batch.rung else []
        return self._trainer.train(batch, states if len(states) == len(batch.trials) else None)

    def _judge(self, step: Step) -> tuple[int, ...]:
        """Return the numbers of the trials that continue; in the last rung, of all trials that did not diverge."""
        whole = tuple(number for number in step.trials if number not in step.diverged)
        if step.rung + 1 == self._options["rungs"]:
            return whole
        if self.search.pruner is not None:
            pruned = self.search.trials_to_prune(self.steps, step)
            return tuple(number for number in whole if number in step.unknown or number not in pruned)
        scores = [value for x in (*self.steps, step) if x.rung == step.rung for value in x.values]
        kept = {number for number, value in zip(step.trials, step.values, strict=True) if is_kept(value, scores)}
        return tuple(number for number in whole if number in kept)

    def _remove_old_states(self) -> None:
        """Remove the states from which no further rung begins."""
        if self._store is not None:
            source = self._sources()
            needed = {source[x.number] for x in self._trials_by_number().values() if x.status == "waiting"}
            for old in set(self._store.updates()) - needed:
                shutil.rmtree(self._store.directory / str(old), ignore_errors=True)

    # --- the result ---------------------------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """Return all trials that finished a rung: completed trials first, the others sorted by last rung, then by score."""
        return sorted(self._trials_by_number().values(), key=lambda x: (-x.completed, -x.rung, x.rank, x.number))

    def best(self, count: int) -> list[Trial]:
        """Return up to `count` completed trials that have a score, the best first; of equal configs, only the best."""
        trials = self._trials_by_number().values()
        scored = sorted((x for x in trials if x.completed and not math.isnan(x.score)), key=lambda x: x.number)
        different = {space.format_point(x.point, space.EXACT): x for x in sorted(scored, key=lambda x: x.rank, reverse=True)}
        return sorted(different.values(), key=lambda x: x.rank)[:count]
