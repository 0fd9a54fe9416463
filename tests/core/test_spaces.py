"""The map from the policy's unit to the bounds of continuous actions."""

import jax
import numpy as np

from purerl.core.spaces import Box, Discrete, Mixed, MultiBinary, bounds_map, flat_bounds

LARGEST = np.finfo(np.float32).max


def test_bounds_map_is_affine_for_finite_bounds_otherwise_the_identity():
    low = np.float32([-1, 5, -0.01, -np.inf, -np.inf, 0, -LARGEST, -1e6, -9e5])
    high = np.float32([1, 35, 0.01, np.inf, 3, np.inf, LARGEST, 1e6, 9e5])
    centre, half_width = bounds_map(low, high)
    np.testing.assert_array_equal(centre, np.float32([0, 20, 0, 0, 0, 0, 0, 0, 0]))
    np.testing.assert_array_equal(half_width, np.float32([1, 15, 0.01, 1, 1, 1, 1, 1, 9e5]))


def test_mixed_actions_separate_into_the_declared_parts():
    box = Box(np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32))
    space = Mixed({"which": Discrete(3), "many": (MultiBinary(2), box)})
    assert space.shape == (1 + 2 + 4,)
    actions = np.arange(14, dtype=np.float32).reshape(2, 7)
    parts = space.separate(actions)
    assert jax.tree.map(lambda x: (x.shape, x.dtype.name), parts) == {
        "which": ((2,), "int32"),
        "many": (((2, 2), "int32"), ((2, 2, 2), "float32")),
    }
    np.testing.assert_array_equal(parts["which"], [0, 7])  # in the order of the declaration, which is not that of JAX
    np.testing.assert_array_equal(parts["many"][1][1], [[10, 11], [12, 13]])
    np.testing.assert_array_equal(space.join(parts), actions)


def test_flat_bounds_are_those_of_the_continuous_parts():
    assert flat_bounds(Discrete(3)) == ()
    low, high = flat_bounds(Mixed((Discrete(3), Box(np.float32([-1, 5]), np.float32([1, 35])), MultiBinary(1))))
    np.testing.assert_array_equal(low, [0, -1, 5, 0])
    np.testing.assert_array_equal(high, [0, 1, 35, 0])
