"""Short runs, and runs that stop after a given update."""

import os
import signal

import purerl
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG

UPDATES = 10


def fitted(updates=UPDATES, cfg=CFG, env=None, **kwargs):
    return purerl.fit(cfg.replace(total_timesteps=64 * updates), env=env or Varied(), **kwargs)


class StopAt:
    """A recorder that sends a signal to its process after an update, as a scheduler would."""

    def __init__(self, update, number=signal.SIGTERM):
        self.update, self.number = update, number

    def __call__(self, progress):
        if progress.updates == self.update:
            os.kill(os.getpid(), self.number)


def stopped(directory, update, **kwargs):
    result = fitted(directory=directory, chunk_seconds=1e-9, recorders=(StopAt(update),), **kwargs)
    assert result.progress.updates == update
    assert result.stopped_by == signal.SIGTERM
    return result
