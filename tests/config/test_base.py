import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from purerl.config.algorithms import ALGORITHMS
from purerl.config.documentation import shown
from purerl.config.fields import is_float_leaf
from purerl.runs.identity import _same
from purerl.runs.run_batch import settled, swept
from purerl.studies.tune import as_code

LEAVES = [f.name for f in dataclasses.fields(PPOConfig) if is_float_leaf(f)]


def test_floats_are_leaves_and_the_rest_is_static():
    cfg = PPOConfig(env_params={"max_steps_in_episode": 100})
    assert len(jax.tree.leaves(cfg)) == len(LEAVES) + 1
    leaves, treedef = jax.tree.flatten(cfg)
    assert jax.tree.unflatten(treedef, leaves) == cfg
    assert jax.tree.structure(cfg) == jax.tree.structure(cfg.replace(lr=1.0, max_grad_norm=math.inf))
    assert jax.tree.structure(cfg) != jax.tree.structure(cfg.replace(num_envs=8))


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().lr = 1.0


def test_json_round_trip():
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


def test_json_keeps_a_sweep():
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
def test_an_unknown_name_is_refused_with_the_nearest(build):
    with pytest.raises(ConfigError, match="did you mean 'num_envs'") as error:
        build()
    assert error.value.problems[0].field == "num_evns"


def test_all_problems_at_once():
    cfg = PPOConfig(env="CartPol-v1", lr=-1.0, gamma=math.nan, num_minibatches=7, hidden=(0,), activation="sine", num_epochs=2.0)
    with pytest.raises(ConfigError) as error:
        purerl.make_train(cfg)
    fields = [problem.field for problem in error.value.problems]
    assert fields == ["lr", "gamma", "hidden", "activation", "num_epochs", "env"]
    for problem in error.value.problems:
        assert problem.field in str(error.value)
        assert repr(problem.value) in str(error.value)


def test_minibatches_must_divide_and_the_message_says_what_would_work():
    with pytest.raises(ConfigError, match=r"num_minibatches = 7: must divide num_envs \* num_steps = 512; 4 or 8 would work"):
        purerl.make_train(PPOConfig(num_minibatches=7))


def test_a_standardised_minibatch_of_one_step_is_refused():
    cfg = PPOConfig(num_envs=2, num_steps=4, num_minibatches=8)
    with pytest.raises(ConfigError, match="advantage"):
        purerl.make_train(cfg)
    purerl.make_train(cfg.replace(advantage_norm="batch"))


def test_whole_floats_are_welcome_where_people_write_1e6():
    assert PPOConfig(total_timesteps=1e6).num_updates == PPOConfig(total_timesteps=1_000_000).num_updates
    with pytest.raises(ConfigError, match="total_timesteps"):
        purerl.make_train(PPOConfig(total_timesteps=1.5))


def test_a_traced_static_field_is_refused():
    with pytest.raises(ConfigError, match=r"num_envs.*static"):
        jax.jit(lambda n: purerl.make_train(PPOConfig().replace(num_envs=n)).init(jax.random.key(0)))(4)


def test_an_array_of_rates_needs_vmap():
    with pytest.raises(ConfigError, match="vmap"):
        purerl.make_train(PPOConfig(lr=np.array([1e-3, 1e-4, 1e-5])))


def test_the_values_of_a_sweep_are_checked_where_they_can_be_seen():
    sweep = jax.vmap(lambda lr: PPOConfig().replace(lr=lr))(jnp.array([1e-3, -1.0, jnp.nan]))
    with pytest.raises(ConfigError, match=r"lr = .*wrong: -1.0, nan"):
        purerl.validate(sweep)
    purerl.validate(jax.vmap(lambda lr: PPOConfig().replace(lr=lr))(jnp.array([1e-3, 1e-4])))


@pytest.mark.parametrize("name", LEAVES)
def test_every_leaf_refuses_nan_and_text(name):
    for wrong in (math.nan, "0.1", True, None):
        with pytest.raises(ConfigError) as error:
            purerl.validate(PPOConfig().replace(**{name: wrong}))
        assert error.value.problems[0].field == name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_documented(name):
    """Every field is documented, with its default, on the class itself."""
    cls = ALGORITHMS[name]
    assert cls.field_docs.keys() == {f.name for f in dataclasses.fields(cls)}
    for field in dataclasses.fields(cls):
        assert f"    - `{field.name}` (`{shown(field, getattr(cls(), field.name))!r}`): " in cls.__doc__
        assert cls.field_docs[field.name].text


@pytest.mark.parametrize("value", ["0.2", None])
def test_a_wrong_number_is_refused_beside_its_schedule_too(value):
    with pytest.raises(ConfigError, match="clip_eps"):
        purerl.make_train(PPOConfig(clip_schedule="linear", clip_eps=value))


@pytest.mark.parametrize("changes", [{"lag": 1}, {"publish_every": 4}, {"replay": 2}, {"target_update_freq": 2}, {"tau": 0.5}])
def test_whether_an_update_learns_from_an_older_policy(changes):
    fresh = purerl.APPOConfig(lag=0, replay=1, target_update_freq=1)
    assert not fresh.learns_from_others
    assert fresh.replace(**changes).learns_from_others


def test_a_traced_tau_decides_when_it_is_known():
    older = jax.jit(lambda tau: purerl.APPOConfig(lag=0, replay=1, target_update_freq=1, tau=tau).learns_from_others)
    assert (bool(older(1.0)), bool(older(0.5))) == (False, True)


def test_what_a_row_of_metrics_counts_fits_its_integers():
    with pytest.raises(ConfigError, match="metrics_every = 2000000: a row of metrics would count"):
        purerl.make_train(purerl.APPOConfig(metrics_every=2_000_000, replay=4))  # 512 steps of each of four rollouts
    wide = purerl.distributions.DiagGaussian(jnp.zeros((8, 4, 17)), jnp.zeros((8, 4, 17)))
    assert wide.metrics()["policy_std"].count == 32


def test_configs_are_written_as_python_that_gives_them_back():
    cfg = PPOConfig(max_grad_norm=math.inf, rnd=purerl.RNDConfig(obs_clip=math.inf))
    assert eval(as_code(cfg), {"math": math, "PPOConfig": PPOConfig, "RNDConfig": purerl.RNDConfig}) == cfg


def test_the_fields_that_a_batch_varies_are_those_that_differ():
    cfg = PPOConfig(env_params={"max_steps_in_episode": 200})
    batch = settled(jax.vmap(lambda lr: cfg.replace(lr=lr))(jnp.array([1e-3, 1e-2])))
    assert list(swept(batch)) == ["lr"]


def test_two_runs_with_other_integers_are_not_the_same():
    assert not _same(16_777_217, 16_777_216)  # the same number in single precision
    assert _same({"lr": 1e-3}, {"lr": float(np.float32(1e-3))})


def test_str_shows_the_environment_and_what_differs_from_the_defaults():
    cfg = PPOConfig(env="Acrobot-v1", lr=1e-3, rnd=purerl.RNDConfig(int_coef=0.5))
    changed = ["  lr = 0.001 (default 0.00025)", "  rnd = RNDConfig, int_coef = 0.5 (default 1) (default None)"]
    assert str(cfg).splitlines() == ["PPOConfig Acrobot-v1", *changed]
    assert str(PPOConfig()) == "PPOConfig CartPole-v1"
    sweep = jax.vmap(lambda lr: PPOConfig(lr=lr))(jnp.array([1e-3, 1e-4]))
    assert str(sweep).splitlines()[1:] == ["  lr = 2 values from 0.0001 to 0.001 (default 0.00025)"]
