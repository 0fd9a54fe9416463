"""Trainers that calls of `fit` with equal arguments share, since tests make many, and tracing an update takes seconds."""

import collections
import importlib
import pickle
import warnings

import jax

from purerl.runs.trainer import Trainer

KEPT = 32  # number of trainers whose programs are kept
_kept = collections.OrderedDict()


class SharedTrainer(Trainer):
    """A trainer that compiles its program and each of its evaluations once."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._scores = {}

    def evaluation(self, *args, **options):
        key = repr((args, options))
        if key not in self._scores:
            self._scores[key] = super().evaluation(*args, **options)
        return self._scores[key]

    def compile(self, state):
        if not hasattr(self, "_chunk"):
            super().compile(state)


def get_trainer(cfg, seed, num_seeds, exact, objects, devices_per_run):
    """Return `Trainer(...)`, or an earlier one that was made from the same config, objects and settings of JAX.

    Trainers of external environments, which have a state, and those that warn when they are made, are not shared.
    """
    arguments = (cfg, seed, num_seeds, exact, objects, devices_per_run)
    try:
        numbers = pickle.dumps((cfg, seed, num_seeds, exact, devices_per_run))
    except (AttributeError, TypeError, pickle.PicklingError):  # a class or a distribution that is defined within a test
        return Trainer(*arguments)
    key = numbers, tuple((name, _identity(x)) for name, x in objects.items()), str(jax.config.values)
    if key not in _kept:
        with warnings.catch_warnings(record=True) as said:
            made = SharedTrainer(*arguments)
        for x in said:
            warnings.warn(x.message, stacklevel=3)  # at the caller of `fit`
        if said or made.on_host:
            return made
        _kept[key] = made
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]


def _identity(x):
    """Return the class of an environment of the tests that has no attributes, else the object's id."""
    return type(x) if type(x).__module__.startswith("tests.") and not getattr(x, "__dict__", True) else id(x)


def share_trainers():
    """Let `fit` and sweeps share trainers."""
    for name in ("purerl.runs.fit", "purerl.studies.programs"):
        importlib.import_module(name).Trainer = get_trainer
