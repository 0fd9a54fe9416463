"""Distributions of environment parameters in a config: JSON, batches, and values that are refused."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl

DRAWN = 11.790668, 1.6226422, 1.9215004  # of random key 0, recorded on a CPU
BOTH = {"gravity": purerl.Uniform(8, 12), "masspole": purerl.Normal(0.1, 0.01), "length": purerl.Scale(0.8, 1.2)}


def test_distributions_survive_json():
    cfg = purerl.PPOConfig(randomize=BOTH)
    again = purerl.PPOConfig.from_json(cfg.to_json())
    assert again == cfg
    assert again.randomize == BOTH
    assert hash(again) == hash(cfg)
    params = purerl.PPOConfig(env_params={"low": 0.0, "high": 1.0})
    assert purerl.PPOConfig.from_json(params.to_json()) == params
    in_another_order = json.dumps(json.loads(cfg.to_json()), sort_keys=True)
    assert purerl.PPOConfig.from_json(in_another_order) == cfg


def test_numbers_of_distributions_can_be_swept():
    cfgs = jax.vmap(lambda high: purerl.PPOConfig(randomize={"gravity": purerl.Uniform(8.0, high)}))(jnp.array([9.0, 10.0]))
    purerl.validate(cfgs)
    np.testing.assert_array_equal(cfgs.randomize["gravity"].high, [9, 10])
    with pytest.raises(purerl.ConfigError, match="needs low < high"):
        purerl.validate(cfgs.replace(randomize={"gravity": purerl.Uniform(9.5, cfgs.randomize["gravity"].high)}))


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (3, "must be a dict"),
        ({1: purerl.Uniform(1, 2)}, "must be a dict"),
        ({"g": (1, 2)}, "g: must be purerl.Uniform"),
        ({"g": purerl.Uniform(2, 1)}, "g: needs low < high"),
        ({"g": purerl.Scale(2, 1)}, "g: needs least < most"),
        ({"g": purerl.Normal(1, -1)}, "g: needs a std of at least 0"),
        ({"g": purerl.Uniform(1, np.inf)}, "g: needs finite numbers"),
        ({"g": purerl.Uniform("a", 2)}, "g: needs finite numbers"),
        ({"g": purerl.Uniform(True, 2)}, "g: needs finite numbers"),
        ({"g": purerl.Uniform(0, 1e39)}, "within the range of float32"),
        ({"g": purerl.Uniform(0, 10**400)}, "g: needs finite numbers"),
    ],
)
def test_wrong_distributions_are_refused(wrong, hint):
    with pytest.raises(purerl.ConfigError, match=hint):
        purerl.validate(purerl.PPOConfig(randomize=wrong))


def test_draws_lie_in_their_range():
    keys = jax.random.split(jax.random.key(0), 1000)
    drawn = jax.vmap(purerl.Uniform(8, 12).draw)(keys)
    assert 8 <= drawn.min() < 8.1 < 11.9 < drawn.max() < 12
    np.testing.assert_allclose(jax.vmap(purerl.Normal(5, 0).draw)(keys), 5)


@pytest.mark.gpu
def test_draws_are_equal_on_every_platform():
    drawn = [x.draw(jax.random.key(0)) for x in (purerl.Uniform(8, 12), purerl.Normal(0, 1), purerl.Scale(0.5, 2))]
    np.testing.assert_allclose(drawn, DRAWN, rtol=1e-6)
