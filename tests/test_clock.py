import jax
import numpy as np
import pytest

from purerl.core.keys import clock_at


@pytest.mark.parametrize("start", [0, 2**31 - 2, 2**32 - 2, 2**33 - 2, 10**15])
def test_counts_exactly_across_words(start):
    clock = clock_at(start)
    for i in range(4):
        assert int(clock) == start + i
        clock = jax.jit(lambda clock: clock + 1)(clock)


@pytest.mark.parametrize("every", [1, 2, 3, 7, 32, 65_535])
def test_due_every_kth_update_also_past_a_word(every):
    for start in (0, 2**32 - 5, 3 * 2**32 - 5):
        for i in range(start, start + 10):
            assert bool(clock_at(i).is_due(every)) == (i % every == every - 1)


def test_progress():
    assert clock_at(0).progress(8) == 0
    assert clock_at(3).progress(8) == np.float32(3 / 8)
    assert clock_at(9).progress(8) == 1
    np.testing.assert_allclose(clock_at(2**32 + 2**31).progress(2**33), 0.75, rtol=1e-6)


@pytest.mark.parametrize("now", [0, 5, 2**32 - 1, 2**32 + 3, 7 * 2**32])
def test_counted_from_later_on(now):
    for start in (0, 1, 5, 2**32 - 1, 2**32 + 4):
        assert int(clock_at(now) - start) == max(0, now - start)
        assert bool(clock_at(now) < start) == (now < start)
