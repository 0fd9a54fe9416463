import jax
import numpy as np
import pytest

import purerl
from purerl import ConfigError
from purerl.core.keys import clock_at, named_key, typed_key


def test_streams_differ_by_name_and_by_every_counter():
    root = jax.random.key(0)
    clocks = [clock_at(i) for i in (0, 1, 2**32)]
    keys = [named_key(root, name, clock, i) for name in ("action", "shuffle") for clock in clocks for i in range(3)]
    assert len({tuple(np.asarray(jax.random.key_data(key))) for key in keys}) == len(keys)


def test_a_stream_is_the_same_whatever_else_is_drawn():
    first = named_key(jax.random.key(0), "action", 3)
    named_key(jax.random.key(0), "another", 3)
    assert (jax.random.key_data(named_key(jax.random.key(0), "action", 3)) == jax.random.key_data(first)).all()


def test_both_key_forms_are_the_same_key():
    assert typed_key(jax.random.PRNGKey(3)) == typed_key(jax.random.key(3))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [(0, "jax.random.key"), (None, "jax.random.key"), (np.float32(1), "jax.random.key"), (np.zeros(3), "jax.random.key")],
)
def test_not_a_key(wrong, says):
    with pytest.raises(ConfigError, match=says):
        purerl.make_train(purerl.PPOConfig()).init(wrong)


def test_many_keys_are_for_vmap():
    with pytest.raises(ConfigError, match="vmap"):
        purerl.make_train(purerl.PPOConfig())(jax.random.split(jax.random.key(0), 3))
