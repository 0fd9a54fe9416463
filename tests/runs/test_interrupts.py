"""Signals that end a run."""

import os
import signal
import threading
import time

import pytest

import purerl
from tests.helpers.interrupted import fitted


def test_interrupt_ends_the_run_with_its_current_result():
    def interrupt(progress):
        if progress.updates == 3:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    result = fitted(chunk_seconds=1e-9, recorders=(interrupt,))
    assert result.progress.updates == int(result.state.clock) == 3
    assert purerl.summarize(result.metrics)["lr"].shape == (3,)
    assert signal.getsignal(signal.SIGINT) is before


def test_second_interrupt_raises_at_once():
    def interrupt(progress):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        fitted(recorders=(interrupt,))


@pytest.mark.slow
def test_fit_runs_in_a_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(fitted(updates=2)))
    thread.start()
    thread.join()
    assert results[0].progress.updates == 2
