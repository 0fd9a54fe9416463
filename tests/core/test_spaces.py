"""The map from the policy's unit to the bounds of continuous actions."""

import numpy as np

from purerl.core.spaces import bounds_map

LARGEST = np.finfo(np.float32).max


def test_bounds_map_is_affine_for_finite_bounds_otherwise_the_identity():
    low = np.float32([-1, 5, -0.01, -np.inf, -np.inf, 0, -LARGEST, -1e6, -9e5])
    high = np.float32([1, 35, 0.01, np.inf, 3, np.inf, LARGEST, 1e6, 9e5])
    centre, half_width = bounds_map(low, high)
    np.testing.assert_array_equal(centre, np.float32([0, 20, 0, 0, 0, 0, 0, 0, 0]))
    np.testing.assert_array_equal(half_width, np.float32([1, 15, 0.01, 1, 1, 1, 1, 1, 9e5]))
