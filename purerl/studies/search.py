"""Proposals of new trials: Optuna samples their hyperparameters, given the batches trained so far."""

import dataclasses
import logging
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from purerl.config.base import OnPolicyConfig
from purerl.core.errors import config_error, warn
from purerl.studies import space
from purerl.studies.steps import Step, trials_of

FIRST_DRAWS = 8  # minimum number of random trials before TPE uses its model
MOST_ASKED = 20  # times that a sampler is asked for a new config, beyond the number of known ones
MOST_LISTED = 100_000  # longest list of combinations of static values; with more, Optuna samples

Point = dict[str, Any]  # the hyperparameters of a trial, by field


@dataclasses.dataclass
class Search:
    """Optuna's part of a study: proposals, custom pruning and importances, from the trained batches. Optuna saves no file.

    Args:
        cfg, values, trials: the config, the values to try by field, and the number of configs to try.
        options: options of the study: num_seeds, rungs, at_once, seed, the description of the objects, and their values.
        sampler, pruner: a function from a seed to an Optuna sampler, called for each batch, or None for TPE; an Optuna pruner, or
          None.
    """

    cfg: OnPolicyConfig
    values: dict[str, space.Values]
    trials: int
    options: dict[str, Any]
    sampler: Callable[[int], Any] | None = None
    pruner: Any = None

    def __post_init__(self) -> None:
        self._optuna = _import_optuna()
        self._attrs: dict[int, dict[str, Any]] = {}  # `system_attrs`, where Optuna's samplers and pruners keep data, by trial
        self._distributions = {path: self._distribution_of(path, x) for path, x in self.values.items()}

    def _distribution_of(self, path: str, values: space.Values) -> Any:
        kinds = self._optuna.distributions
        if isinstance(values, tuple):
            return kinds.CategoricalDistribution(list(map(_word, values)))
        if space.is_int_field(self.cfg, path):
            return kinds.IntDistribution(int(values.low), int(values.high), log=values.log)
        return kinds.FloatDistribution(values.low, values.high, log=values.log)

    def new_batch(self, steps: Sequence[Step]) -> Step | None:
        """Return new trials with the same static values; None if there are enough trials.

        If there are at most as many combinations of values as trials, each combination is tried once. If all fields are static
        and have at most `MOST_LISTED` combinations, none is tried twice.
        """
        known = [trial.point for trial in trials_of(steps, self.options["rungs"]).values()]
        count, points = min(self.options["at_once"], self.trials - len(known)), space.num_points(self.cfg, self.values)
        is_static = all(space.is_static(self.cfg, path) for path in self.values)
        if count <= 0:
            return None
        if points <= self.trials or (is_static and points <= MOST_LISTED):
            tried = {space.format_point(point, space.EXACT) for point in known}
            untried = [x for x in space.all_points(self.values) if space.format_point(x, space.EXACT) not in tried]
            if points > self.trials:  # the first combinations in order would be a biased sample
                np.random.default_rng([self.options["seed"], len(known)]).shuffle(untried)
            found = [x for x in untried if self._static(x) == self._static(untried[0])][:count]
            drawn = list(map(self._to_optuna, found))
        else:
            drawn = self._ask(steps, known, count)
            found = list(map(self._from_optuna, drawn))
        if not found:
            return None
        numbers = tuple(range(len(known), len(known) + len(found)))
        return Step(0, self._static(found[0]), numbers, tuple(found), drawn=tuple(drawn))

    def _ask(self, steps: Sequence[Step], known: list[Point], count: int) -> list[Point]:
        """Return Optuna's parameters of new trials. Each combination of static values comes first, if batches suffice."""
        static, fixed = {path: x for path, x in self.values.items() if space.is_static(self.cfg, path)}, {}
        if space.num_points(self.cfg, static) <= -(-self.trials // self.options["at_once"]):
            tried = [self._static(point) for point in known]
            fixed = next((self._to_optuna(x) for x in space.all_points(static) if self._static(x) not in tried), {})
        states, samplers, drawn = self._optuna.trial.TrialState, self._optuna.samplers, []
        seed, startup = self.options["seed"] + 1 + len(steps), max(self.options["at_once"], FIRST_DRAWS)
        tpe = {"multivariate": True, "constant_liar": True, "n_startup_trials": startup}
        sampler = samplers.TPESampler(seed=seed, **tpe) if self.sampler is None else self.sampler(seed)
        if not isinstance(sampler, samplers.BaseSampler):
            raise config_error("sampler", sampler, "must be a function from a seed to an Optuna sampler")
        # TPE treats running trials as bad, and does not count them as startup trials. But waiting trials are among the better
        # trials of their rung, so TPE receives them as pruned trials with their current scores.
        study, places = self._study(steps, states.PRUNED if self.sampler is None else states.RUNNING), list(range(len(known)))
        tried = {space.format_point(point, space.EXACT) for point in known}
        for _ in range(count):
            with warnings.catch_warnings(action="ignore"):  # PartialFixedSampler warns that it is experimental
                study.sampler = samplers.PartialFixedSampler(fixed, sampler) if fixed else sampler
            trial, words = self._ask_new(study, tried)
            if words in tried:
                if not drawn:
                    warn(f"the sampler gives no new config, so the search ends with {len(known)} of {self.trials} trials")
                break
            tried.add(words)
            places.append(trial.number)
            drawn.append(trial.params)
            fixed = {path: trial.params[path] for path in static}
        asked = study.trials  # a copy
        self._attrs |= {number: asked[place].system_attrs for number, place in enumerate(places)}
        return drawn

    def _ask_new(self, study: Any, tried: set[str]) -> tuple[Any, str]:
        """Return a trial of an Optuna study that is not in `tried`, if the sampler gives one, and the trial's config as text."""
        trial, words = None, ""
        for _ in range(len(tried) + MOST_ASKED):
            trial = study.ask(self._distributions)
            words = space.format_point(self._from_optuna(trial.params), space.EXACT)
            if words not in tried:
                break
        return trial, words

    def trials_to_prune(self, steps: Sequence[Step], step: Step) -> set[int]:
        """Return the numbers of the trials that the pruner stops, out of a batch that has just been trained."""
        study = self._study([*steps, step._replace(kept=step.trials)], self._optuna.trial.TrialState.RUNNING)
        trials = {number: study.get_trials(deepcopy=False)[number] for number in step.trials}
        found = {number for number, trial in trials.items() if number not in step.unknown and self.pruner.prune(study, trial)}
        self._attrs |= {trial.number: trial.system_attrs for trial in study.trials}
        return found

    def importance(self, steps: Sequence[Step]) -> dict[str, float]:
        """Return each parameter's importance for being in the best tenth of completed trials (sum 1); {} without trials."""
        try:
            with warnings.catch_warnings(action="ignore"):
                study = self._study(steps, self._optuna.trial.TrialState.RUNNING)
                return {path: float(x) for path, x in self._optuna.importance.get_param_importances(study).items()}
        except (ValueError, RuntimeError, ImportError):  # Optuna cannot compute importances
            return {}

    def _study(self, steps: Sequence[Step], waiting: Any) -> Any:
        """Return an Optuna study of all trials so far, in which trials that wait for their next rung have the state `waiting`."""
        states, drawn, values = self._optuna.trial.TrialState, {}, {}
        for step in steps:
            drawn |= zip(step.trials, step.drawn, strict=False)
            for number, value in zip(step.trials, step.values, strict=True):
                values.setdefault(number, {}).update({} if number in step.unknown else {2**step.rung: value})
        study = self._optuna.create_study(study_name="purerl", direction="maximize", pruner=self.pruner)
        for number, trial in sorted(trials_of(steps, self.options["rungs"]).items()):
            state = {"completed": states.COMPLETE, "waiting": waiting}.get(trial.status, states.PRUNED)
            if (trial.completed and math.isnan(trial.score)) or (state == waiting == states.PRUNED and not values[number]):
                state = states.FAIL  # the score of this trial is unknown
            made = self._optuna.trial.create_trial(
                state=state,
                value=trial.score if state == states.COMPLETE else None,
                params=drawn.get(number) or self._to_optuna(trial.point),  # older versions did not store Optuna's parameters
                distributions=self._distributions,
                intermediate_values=values[number],
                system_attrs=self._attrs.get(number),
            )
            study.add_trial(made)
        return study

    def restore(self, point: Point) -> Point:
        """Convert hyperparameters that were read from JSON back to their original types."""
        found = self._from_optuna(self._to_optuna(point))
        return {path: found[path] for path in self.values}  # an earlier call may have had the fields in another order

    def _from_optuna(self, drawn: Point) -> Point:
        """Convert Optuna's parameters to config values. Floats from a range are rounded to `Range.digits`."""
        point = dict(drawn)
        for path, x in self.values.items():
            if isinstance(x, tuple):
                point[path] = x[[_word(value) for value in x].index(drawn[path])]
            elif not space.is_int_field(self.cfg, path):
                point[path] = min(max(float(f"{drawn[path]:.{x.digits}g}"), x.low), x.high)
        return point

    def _to_optuna(self, point: Point) -> Point:
        """Convert config values to Optuna's parameters."""
        return {path: _word(x) if isinstance(self.values[path], tuple) else x for path, x in point.items()}

    def _static(self, point: Point) -> Point:
        return space.static_values(self.cfg, point)


def _word(value: Any) -> str:
    return space.format_value(value, space.EXACT)


def _import_optuna() -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # Optuna's progress bars warn about notebooks
            import optuna
    except ImportError as error:
        raise config_error("tune", ..., "needs optuna; run pip install '.[tune]'") from error
    logging.getLogger("optuna").setLevel(logging.WARNING)
    return optuna
