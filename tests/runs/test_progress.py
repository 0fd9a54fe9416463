"""The progress that recorders see, and calls of recorders, some of which fail."""

import itertools

import pytest

from tests.helpers.interrupted import fitted


def test_progress_reports_updates_steps_and_time():
    seen = []
    fitted(chunk_seconds=1e-9, recorders=(seen.append,))
    assert [p.updates for p in seen] == list(range(1, 11))
    assert [p.steps for p in seen] == [64 * i for i in range(1, 11)]
    assert seen[-1].seconds_left == 0
    assert all(p.steps_per_second > 0 for p in seen)
    assert all(a.seconds < b.seconds for a, b in itertools.pairwise(seen))


def test_failing_recorder_warns_once_and_training_continues():
    calls = []

    def failing(progress):
        calls.append(progress.updates)
        raise OSError("disk on fire")

    with pytest.warns(UserWarning, match="disk on fire") as warned:
        result = fitted(chunk_seconds=1e-9, recorders=(failing, lambda progress: calls.append(-progress.updates)))
    assert len(warned) == 1
    assert result.progress.updates == 10
    assert calls == [1, *(-i for i in range(1, 11))]
