import jax
import pytest

import purerl
from purerl.config.presets import presets
from purerl.envs.suites import SUITES


@pytest.mark.slow
@pytest.mark.each_landing(*(name for name in presets() if "/" not in name), "pgx/minatar-breakout")
@pytest.mark.parametrize("name", presets())
def test_make_train_accepts_every_preset(name):
    if "/" in name:
        pytest.importorskip(SUITES[name.partition("/")[0]])
    cfg = purerl.preset(name)
    assert cfg.env == name.removesuffix("-gru").removesuffix("-published")
    with jax.numpy_rank_promotion("allow"):  # some suites rely on rank promotion
        assert purerl.make_train(cfg).plan.env_steps >= cfg.total_timesteps


def test_unknown_preset_is_refused_with_the_nearest_name():
    with pytest.raises(purerl.ConfigError, match="did you mean 'Breakout-MinAtar'"):
        purerl.preset("Breakout")


@pytest.mark.slow
def test_presets_of_dm_control_translate_the_published_settings():
    params = pytest.importorskip("mujoco_playground.config.dm_control_suite_params")
    suite = pytest.importorskip("mujoco_playground").dm_control_suite
    changed = {"PendulumSwingup"}  # between releases
    for name in set(suite.ALL_ENVS) - changed:
        chosen = next(x for x in (f"playground/{name}-published", f"playground/{name}") if x in presets())
        cfg, published = purerl.preset(chosen), params.brax_ppo_config(name)
        assert cfg.total_timesteps == published.num_timesteps
        assert cfg.batch_size == published.unroll_length * published.batch_size * published.num_minibatches
        names = {"num_envs": "num_envs", "num_minibatches": "num_minibatches", "num_epochs": "num_updates_per_batch"}
        names |= {"gamma": "discounting", "lr": "learning_rate", "ent_coef": "entropy_cost"}
        assert {here: getattr(cfg, here) for here in names} == {here: published[there] for here, there in names.items()}


def test_presets_of_brax_translate_the_published_settings():
    """The numbers are those of brax's notebook `training.ipynb`."""
    published = {  # steps, unroll_length * batch_size * num_minibatches, updates per batch, discounting, learning rate, entropy
        "halfcheetah": (50e6, 20 * 512 * 32, 8, 0.95, 3e-4, 1e-3),
        "humanoid": (50e6, 10 * 1024 * 32, 8, 0.97, 3e-4, 1e-3),
        "inverted_pendulum-published": (2e6, 5 * 1024 * 32, 4, 0.97, 3e-4, 1e-2),
        "reacher-published": (50e6 / 4, 50 * 256 * 32, 8, 0.95, 3e-4, 1e-3),
        "humanoidstandup": (100e6, 15 * 1024 * 32, 8, 0.97, 6e-4, 1e-2),
        "inverted_double_pendulum": (20e6, 5 * 1024 * 32, 4, 0.97, 3e-4, 1e-2),
        "pusher": (50e6, 30 * 512 * 16, 8, 0.95, 3e-4, 1e-2),
    }
    for name, numbers in published.items():
        cfg = purerl.preset(f"brax/{name}")
        assert (cfg.total_timesteps, cfg.batch_size, cfg.num_epochs, cfg.gamma, cfg.lr, cfg.ent_coef) == numbers
        assert cfg.num_envs == 2048
        assert dict(cfg.env_kwargs)["backend"] == "positional"
