import jax
import numpy as np
import pytest

import purerl
from purerl import ConfigError
from purerl.core.keys import clock_at, fold_in_name, typed_key


def test_named_keys_differ_by_name_and_counter():
    root = jax.random.key(0)
    clocks = [clock_at(i) for i in (0, 1, 2**32)]
    keys = [fold_in_name(root, name, clock, i) for name in ("action", "shuffle") for clock in clocks for i in range(3)]
    assert len({tuple(np.asarray(jax.random.key_data(key))) for key in keys}) == len(keys)


def test_named_key_is_independent_of_other_draws():
    first = fold_in_name(jax.random.key(0), "action", 3)
    fold_in_name(jax.random.key(0), "another", 3)
    assert (jax.random.key_data(fold_in_name(jax.random.key(0), "action", 3)) == jax.random.key_data(first)).all()


def test_raw_and_typed_keys_are_equivalent():
    assert typed_key(jax.random.PRNGKey(3)) == typed_key(jax.random.key(3))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [(0, "jax.random.key"), (None, "jax.random.key"), (np.float32(1), "jax.random.key"), (np.zeros(3), "jax.random.key")],
)
def test_invalid_keys_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        purerl.make_train(purerl.PPOConfig()).init(wrong)


def test_batch_of_keys_needs_vmap():
    with pytest.raises(ConfigError, match="vmap"):
        purerl.make_train(purerl.PPOConfig())(jax.random.split(jax.random.key(0), 3))


# --- the update counter -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 2**31 - 2, 2**32 - 2, 2**33 - 2, 10**15])
def test_counter_is_exact_beyond_32_bits(start):
    clock = clock_at(start)
    for i in range(4):
        assert int(clock) == start + i
        clock = jax.jit(lambda clock: clock + 1)(clock)


@pytest.mark.parametrize("every", [1, 2, 3, 7, 32, 65_535])
def test_is_due_at_every_kth_update_beyond_32_bits(every):
    for start in (0, 2**32 - 5, 3 * 2**32 - 5):
        for i in range(start, start + 10):
            assert bool(clock_at(i).is_due(every)) == (i % every == every - 1)


def test_progress_is_the_completed_fraction_and_at_most_one():
    assert clock_at(0).progress(8) == 0
    assert clock_at(3).progress(8) == np.float32(3 / 8)
    assert clock_at(9).progress(8) == 1
    np.testing.assert_allclose(clock_at(2**32 + 2**31).progress(2**33), 0.75, rtol=1e-6)


@pytest.mark.parametrize("now", [0, 5, 2**32 - 1, 2**32 + 3, 7 * 2**32])
def test_counter_difference_is_never_negative(now):
    for start in (0, 1, 5, 2**32 - 1, 2**32 + 4):
        assert int(clock_at(now) - start) == max(0, now - start)
        assert bool(clock_at(now) < start) == (now < start)
