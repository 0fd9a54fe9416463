"""Configs as trees, as JSON and as text."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from purerl.config.fields import is_float_leaf

LEAVES = [f.name for f in dataclasses.fields(PPOConfig) if is_float_leaf(f)]


def test_float_fields_are_leaves_and_other_fields_are_static():
    cfg = PPOConfig(env_params={"max_steps_in_episode": 100})
    assert len(jax.tree.leaves(cfg)) == len(LEAVES) + 1
    leaves, treedef = jax.tree.flatten(cfg)
    assert jax.tree.unflatten(treedef, leaves) == cfg
    assert jax.tree.structure(cfg) == jax.tree.structure(cfg.replace(lr=1.0, max_grad_norm=math.inf))
    assert jax.tree.structure(cfg) != jax.tree.structure(cfg.replace(num_envs=8))


def test_configs_keep_their_parameters_when_a_dict_changes():
    given = {"gravity": 5.0}
    first = PPOConfig(env_params=given)
    second = first.replace(lr=1e-3)
    given["gravity"] = 6.0
    assert first.env_params == second.env_params == {"gravity": 5.0}
    assert first.env_params is not second.env_params


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().lr = 1.0


def test_config_survives_a_json_round_trip():
    cfg = PPOConfig(
        env="DeepSea-bsuite",
        env_kwargs=(("size", 12),),
        env_params={"unscaled_move_cost": 0.02},
        hidden=(32, 16),
        max_grad_norm=math.inf,
    )
    assert PPOConfig.from_json(cfg.to_json()) == cfg
    assert '"max_grad_norm": "inf"' in cfg.to_json()
    assert PPOConfig.from_json('{"gamma": 0.5}') == PPOConfig(gamma=0.5)
    wrong = {'{"lr": ["a"]}': "lr = ", '{"env_params": {"g": ["x"]}}': "env_params = ", '{"rnd": {"x": 1}}': "x = 1"}
    for text, says in wrong.items():
        with pytest.raises(purerl.ConfigError, match=says):
            PPOConfig.from_json(text)


def test_json_keeps_swept_values():
    sweep = jax.vmap(lambda lr: PPOConfig().replace(lr=lr))(jnp.array([1e-3, 1e-4]))
    back = PPOConfig.from_json(sweep.to_json())
    for got, want in zip(jax.tree.leaves(back), jax.tree.leaves(sweep), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "build",
    [
        lambda: PPOConfig().replace(num_evns=8),
        lambda: PPOConfig.from_dict({"num_evns": 8}),
        lambda: PPOConfig.from_json('{"num_evns": 8}'),
    ],
)
def test_unknown_field_is_refused_with_the_nearest_name(build):
    with pytest.raises(ConfigError, match="did you mean 'num_envs'") as error:
        build()
    assert error.value.problems[0].field == "num_evns"


def test_str_shows_the_environment_and_changed_fields():
    cfg = PPOConfig(env="Acrobot-v1", lr=1e-3, rnd=purerl.RNDConfig(int_coef=0.5))
    changed = ["  lr = 0.001 (default 0.00025)", "  rnd = RNDConfig, int_coef = 0.5 (default 1) (default None)"]
    assert str(cfg).splitlines() == ["PPOConfig Acrobot-v1", *changed]
    assert str(PPOConfig()) == "PPOConfig CartPole-v1"
    sweep = jax.vmap(lambda lr: PPOConfig(lr=lr))(jnp.array([1e-3, 1e-4]))
    assert str(sweep).splitlines()[1:] == ["  lr = 2 values from 0.0001 to 0.001 (default 0.00025)"]


def test_configs_can_be_hashed():
    cfg = PPOConfig(env_params={"gravity": 9.0})
    assert len({cfg, cfg.replace(), cfg.replace(lr=1.0), dataclasses.replace(cfg, env_params={"gravity": 9.5})}) == 3


@pytest.mark.parametrize("name", ["batch_size", "num_updates", "replace"])
def test_fields_with_names_of_computed_numbers_are_refused(name):
    fields = {name: purerl.static(64), "__annotations__": {name: int}}
    with pytest.raises(ConfigError, match=f"Own.{name}: is the name of a number or function that the config computes"):
        purerl.configclass(type("Own", (PPOConfig,), fields))


def test_hook_with_its_former_name_is_refused():
    with pytest.raises(ConfigError, match=r"Late\.resolved: is not called; the method's name is resolve"):
        purerl.configclass(type("Late", (purerl.PPOConfig,), {"resolved": lambda self, env: self}))


def test_fields_of_an_own_config_can_be_replaced():
    base = purerl.configclass(type("Own", (PPOConfig,), {"act": purerl.static(jnp.tanh), "__annotations__": {"act": object}}))
    more = purerl.configclass(type("More", (base,), {"act": purerl.static(jnp.sin), "__annotations__": {"act": object}}))
    assert more().act is jnp.sin
