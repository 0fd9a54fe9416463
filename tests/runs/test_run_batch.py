"""Batches of configs, trained in one program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from purerl.runs.run_batch import Batch, collapse_equal_params, swept_fields
from tests.helpers.probes import Varied
from tests.helpers.tiny import digest


def test_swept_fields_of_a_batch_are_those_that_differ():
    cfg = PPOConfig(env_params={"max_steps_in_episode": 200})
    batch = collapse_equal_params(jax.vmap(lambda lr: cfg.replace(lr=lr))(jnp.array([1e-3, 1e-2])))
    assert list(swept_fields(batch)) == ["lr"]


def test_configs_with_equal_labels_are_numbered():
    alike = jax.vmap(lambda lr: PPOConfig().replace(lr=lr))(np.array([1e-3, 1e-3 * (1 + 3e-7)]))
    assert Batch(alike, 0, 1, {}).labels == ("config 0, seed 0", "config 1, seed 0")


SMALL = purerl.PPOConfig(total_timesteps=2048, num_envs=4, num_steps=16, hidden=(8,))


@pytest.mark.slow
def test_configs_of_a_batch_train_like_single_runs(tmp_path):
    sweep = jax.vmap(lambda lr: SMALL.replace(lr=lr))(np.float32([1e-3, 3e-3]))
    result = purerl.fit(sweep, num_seeds=2, directory=tmp_path, env=Varied())
    np.testing.assert_allclose(purerl.summarize(result.metrics)["lr"][:, 0], [1e-3, 1e-3, 3e-3, 3e-3])
    assert result.progress.labels[2] == "lr = 0.003, seed 0"
    loaded = purerl.load(tmp_path, env=Varied())
    assert digest(loaded.state) == digest(result.state)
    np.testing.assert_array_equal(loaded.cfg.lr, np.float32([1e-3, 3e-3]))
    lone = purerl.fit(SMALL.replace(lr=3e-3), seed=1, env=Varied())
    for got, want in zip(jax.tree.leaves(result.state.params), jax.tree.leaves(lone.state.params), strict=True):
        np.testing.assert_allclose(got[3], want, rtol=1e-3, atol=1e-4)
    with pytest.raises(purerl.ConfigError, match=r"lr.*at least 0; invalid: -1\.0"):
        purerl.fit(jax.vmap(lambda lr: SMALL.replace(lr=lr))(np.float32([1e-3, -1])), env=Varied())


@pytest.mark.parametrize("rates", [(2.5e-4, 1e-2), (1e-2, 2.5e-4)])  # the first is the default
def test_swept_fields_without_effect_are_named_whatever_the_first_value(rates):
    cfg = jax.vmap(lambda lr: PPOConfig().replace(lr=lr))(np.array(rates, np.float32))
    with pytest.warns(UserWarning, match=r"lr = 0.01.*: has no effect, since lr_schedule= replaces this field") as caught:
        Batch(cfg, 0, 1, {"lr_schedule": lambda step: 1e-3})
    assert len(caught) == 1


@pytest.mark.filterwarnings("error:fields without effect")
def test_fields_that_have_an_effect_in_some_config_are_not_named():
    cfg = PPOConfig(grad_clip="per_network", max_grad_norm=np.array([0.5, np.inf], np.float32))
    Batch(cfg, 0, 1, {})
