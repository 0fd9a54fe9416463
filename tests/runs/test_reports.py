"""Calls of recorders, some of which fail."""

import pytest

from tests.helpers.interrupted import fitted


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
