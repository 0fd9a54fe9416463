"""Initial weights."""

import flax
import numpy as np
import pytest

from tests.helpers.networks import made
from tests.helpers.tiny import CFG


@pytest.mark.parametrize("scheme", ["orthogonal", "xavier_uniform", "xavier_normal", "lecun"])
def test_initial_weights_follow_the_scheme(scheme):
    _, params, _ = made(CFG.replace(init=scheme, hidden=(256, 128)))
    kernel = np.asarray(params["value"]["torso"]["Dense_1"]["kernel"])  # [256, 128]
    std = {"orthogonal": np.sqrt(2 / 256), "lecun": np.sqrt(1 / 256)}.get(scheme, np.sqrt(2 / (256 + 128)))
    np.testing.assert_allclose(kernel.std(), std, rtol=0.02)
    if scheme == "orthogonal":
        np.testing.assert_allclose(kernel.T @ kernel, 2 * np.eye(128), atol=1e-4)
    if scheme == "xavier_uniform":
        assert np.abs(kernel).max() <= np.sqrt(6 / (256 + 128))
    policy = np.asarray(params["policy"]["head"]["Linear_0"]["kernel"])
    assert np.abs(policy).max() < 0.05  # near uniform whatever the scheme
    assert not np.any([np.any(x) for path, x in flax.traverse_util.flatten_dict(params).items() if path[-1] == "bias"])
