"""Updates on an accelerator: `python -m pytest -m gpu` on a machine with a GPU, or the slow tests on a CPU."""

import jax
import numpy as np
import pytest

import purerl
from tests.helpers.configs import CONFIGS


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("name", ["ppo", "gru", "ppg", "daac", "appo", "rnd"])
def test_updates_are_finite_and_repeat_bit_for_bit(name):
    train = purerl.make_train(CONFIGS[name])
    init, update = jax.jit(train.init), jax.jit(train.update)

    def after_two_updates():
        state = init(jax.random.key(0))
        for _ in range(2):
            state, _ = update(state)
        return jax.device_get(state.params)

    first, second = after_two_updates(), after_two_updates()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(first))
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.gpu
def test_initial_parameters_under_vmap_equal_those_of_single_seeds():
    train, keys = purerl.make_train(CONFIGS["ppo"]), jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(lambda key: train.init(key).params))(keys)
    alone = jax.jit(lambda key: train.init(key).params)(keys[1])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x[1], y, rtol=1e-5, atol=1e-5), together, alone)
