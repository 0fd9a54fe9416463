"""`make_train` as a user calls it: jit, vmap over seeds and configs, evaluate."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from purerl.acting.normalize import Statistics
from purerl.config.fields import is_float_leaf
from purerl.core.keys import clock_at
from purerl.core.types import TrainState
from purerl.runs.fit import evaluation_of
from purerl.runs.run import Run
from purerl.runs.trainer import Trainer
from tests.helpers import probes
from tests.helpers.tiny import CFG, at, digest, tiny

KEY = jax.random.key(0)
LEAVES = [f.name for f in dataclasses.fields(PPOConfig) if is_float_leaf(f)]


@pytest.fixture(scope="module")
def run():
    return jax.jit(tiny())


@pytest.fixture(scope="module")
def sweep_run():
    """Return a run whose config is an argument, so that changed floats do not recompile it."""
    return jax.jit(lambda cfg, key: tiny(cfg)(key))


# --- a run ------------------------------------------------------------------------------------------------------------


def test_metrics_have_one_row_per_update(run):
    metrics = purerl.summarize(run(KEY).metrics)
    assert {
        "steps", "episodes", "episode_return", "episode_length", "loss", "policy_loss", "value_loss", "entropy", "approx_kl",
        "clip_fraction", "explained_variance", "grad_norm", "grad_norm/policy", "grad_norm/value", "log_prob", "value",
        "reward", "reward_max", "lr", "stopped",
    } == set(metrics)  # fmt: skip
    assert {x.shape for x in metrics.values()} == {(4,)}
    np.testing.assert_array_equal(metrics["steps"], 64)
    np.testing.assert_allclose(metrics["lr"], 1e-3 * np.array([1, 0.75, 0.5, 0.25]), rtol=1e-6)
    assert (metrics["grad_norm"] >= metrics["grad_norm/policy"]).all()
    assert metrics["reward_max"].max() == 1.5
    assert (metrics["approx_kl"] >= 0).all()


def test_jit_vmap_and_map_give_the_same_run(run):
    train = tiny()
    alone = run(KEY)
    keys = jax.random.split(KEY, 3)
    raw = jax.random.PRNGKey(0)
    assert digest(run(raw)) == digest(alone)
    one = jax.tree.map(lambda x: x[1], jax.jit(jax.vmap(train))(keys))
    for other in (jax.vmap(run)(keys), jax.lax.map(train, keys)):
        other = jax.tree.map(lambda x: x[1], other)
        for got, want in zip(
            jax.tree.leaves((other.state.params, other.metrics)), jax.tree.leaves((one.state.params, one.metrics)), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-4)


def test_single_updates_equal_the_whole_run(run):
    train = tiny()
    state, update = train.init(KEY), jax.jit(train.update)
    for _ in range(train.plan.num_updates):
        state, _ = update(state)
    for got, want in zip(jax.tree.leaves(state.params), jax.tree.leaves(run(KEY).state.params), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert int(state.clock) == 4


def test_rows_of_a_batch_are_independent():
    many = jax.jit(jax.vmap(tiny()))
    key_of = lambda seeds: jax.vmap(jax.random.key)(np.array(seeds))
    row = lambda result: jax.tree.map(lambda x: x[0], result)
    assert digest(row(many(key_of([0, 1, 2, 3])))) == digest(row(many(key_of([0, 9, 8, 7]))))


@pytest.mark.slow
def test_another_process_gives_the_same_bits(run, fresh_python, tmp_path):
    code = "from tests.helpers.tiny import *; print(digest(jax.jit(tiny())(jax.random.key(0))))"
    assert fresh_python(code, cwd=tmp_path, PYTHONHASHSEED="1").strip() == digest(run(KEY))


# --- sweeps -----------------------------------------------------------------------------------------------------------

SWEPT = CFG.replace(normalize_obs=True, normalize_reward=True)
TO = {
    "lr": 1e-2,
    "lr_final": 1e-3,
    "value_clip_eps": 1e-3,
    "clip_eps": 1e-3,
    "max_grad_norm": 1e-3,
    "log_std_init": 0.7,
    "log_std_max": -0.5,
    "vf_coef": 5.0,
    "desired_kl": 10.0,
    "lr_kl_tolerance": 1e3,
    "lr_kl_factor": 3.0,
    "lr_min": 5e-3,
    "lr_max": 1.1e-3,
    "lr_power": 3.0,
    "kl_coef_tolerance": 1e3,
    "kl_coef_raise": 5.0,
    "kl_coef_lower": 0.2,
    "target_kl": 1e-6,
}
SCHEDULES = {"clip_schedule": "linear", "ent_schedule": "linear", "kl_penalty": "adaptive", "optimizer": "adamw"}
FOLLOWING = SWEPT.replace(lr_schedule="kl_adaptive", desired_kl=1e-6, **SCHEDULES)
BASES = dict.fromkeys(("weight_decay", "ent_coef_final"), FOLLOWING)
BASES |= dict.fromkeys(("desired_kl", "lr_kl_tolerance", "lr_kl_factor", "lr_min"), FOLLOWING)
BASES |= dict.fromkeys(("kl_coef", "kl_coef_tolerance", "kl_coef_raise"), FOLLOWING)
BASES |= {"clip_eps_final": SWEPT.replace(clip_schedule="linear", clip_eps=1e-3)}
BASES |= {"kl_coef_lower": FOLLOWING.replace(desired_kl=10.0)}
BASES |= {"lr_max": FOLLOWING.replace(desired_kl=10.0), "lr_power": SWEPT.replace(lr_schedule="polynomial")}


@pytest.mark.each_landing("lr_power")
# Fields that need another program are run with the slow tests.
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in BASES else name for name in LEAVES])
def test_every_float_field_can_be_swept_and_has_an_effect(name):
    base = BASES.get(name, SWEPT)
    values = jnp.array([getattr(base, name), TO.get(name, 0.5)], jnp.float32)
    sweep = jax.vmap(lambda x: strong(base.replace(**{name: x})))(values)
    many = swept(sweep, KEY)
    rows = [digest(at(many.state.params, i)) for i in (0, 1)]
    assert rows[0] != rows[1]
    alone = one(strong(base.replace(**{name: values[1]})), KEY)
    for got, want in zip(jax.tree.leaves(many.state.params), jax.tree.leaves(alone.state.params), strict=True):
        np.testing.assert_allclose(got[1], want, rtol=2e-3, atol=2e-4)


def strong(cfg):
    """Return floats as float32 arrays, so that one compiled program serves every swept field of these tests."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), cfg)


one = jax.jit(lambda cfg, key: tiny(cfg, box=True)(key))
swept = jax.jit(jax.vmap(lambda cfg, key: tiny(cfg, box=True)(key), in_axes=(0, None)))


def test_changed_float_does_not_recompile(sweep_run):
    for lr in (1e-3, 2e-3, np.float32(3e-3)):
        sweep_run(CFG.replace(lr=lr), KEY)
    before = sweep_run._cache_size()
    sweep_run(CFG.replace(lr=4e-3, gamma=0.5, max_grad_norm=math.inf), KEY)
    assert sweep_run._cache_size() == before


@pytest.mark.slow
def test_sweeps_work_outside_jit():
    sweep = jax.vmap(lambda lr: CFG.replace(lr=lr, total_timesteps=64))(jnp.array([0.0, 1e-2]))
    states = jax.vmap(lambda cfg: tiny(cfg)(KEY).state, in_axes=0)(sweep)
    assert not jnp.allclose(*states.params["policy"]["head"]["Linear_0"]["kernel"])


def test_environment_parameters_can_be_swept():
    run = lambda limit: purerl.make_train(
        PPOConfig(total_timesteps=64, num_steps=16, env_params={"max_steps_in_episode": limit}), env=probes.TimeLimit()
    )(KEY)
    episodes = jax.jit(jax.vmap(run))(jnp.array([2, 4])).metrics["episodes"].total
    np.testing.assert_array_equal(episodes[:, 0], [4 * 8, 4 * 4])


# --- long runs --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("start", [2**31 - 100, 2**32 - 100])
def test_counters_stay_exact_beyond_32_bits(start):
    train = tiny(CFG.replace(total_timesteps=2 * 64 * start))
    state = train.init(KEY).replace(clock=clock_at(start))
    state, metrics = jax.jit(lambda state: jax.lax.scan(lambda s, _: train.update(s), state, length=200))(state)
    assert int(state.clock) == start + 200
    assert purerl.summarize(metrics)["steps"].astype(int).sum() == 200 * 64
    np.testing.assert_allclose(purerl.summarize(metrics)["lr"], 5e-4, rtol=1e-5)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))


# --- policy and evaluation --------------------------------------------------------------------------------------------


def test_evaluation_keeps_the_state_and_follows_its_own_key(run):
    train, state = tiny(), run(KEY).state
    before = digest(state)
    scores = [train.evaluate(state, jax.random.key(seed), 64, max_steps=3).returns for seed in (0, 0, 1)]
    assert digest(state) == before
    np.testing.assert_array_equal(scores[0], scores[1])
    assert (scores[0] != scores[2]).any()


def leaning():
    """Return a network that prefers the right action of `ActionDependent` by 0.5, whatever its input."""
    init = lambda key, obs: {"policy": jnp.array([0.0, 0.5]), "value": jnp.zeros(1)}

    def apply(params, carry, obs, first):
        logits = jnp.broadcast_to(params["policy"], (*first.shape, 2))
        return purerl.Outputs(purerl.distributions.Categorical(logits), jnp.zeros(first.shape)), carry

    return purerl.Network(init, apply)


def test_deterministic_evaluation_takes_the_mode():
    """The mode's return is 1; a random action's is 1 / (1 + exp(-0.5)) = 0.62 on average."""
    train = purerl.make_train(CFG, env=probes.ActionDependent(), network=leaning())
    state = TrainState(train.network.init(KEY, None), (), (), clock_at(0), KEY, Statistics(), {})
    options = ({"deterministic": True}, {"deterministic": False}, {})
    run = lambda state: [train.evaluate(state, KEY, 400, max_steps=1, **chosen).returns for chosen in options]
    mode, sampled, default = jax.jit(run)(state)
    np.testing.assert_array_equal(mode, np.ones(400))
    assert abs(sampled.mean() - 0.62) < 0.1
    np.testing.assert_array_equal(default, sampled)


def test_evaluation_parameters_may_change_the_bounds_of_actions():
    train = purerl.make_train(PPOConfig(env="Pendulum-v1", hidden=(8,)))
    env = train.make_env({"max_torque": 1.0})
    assert (env.action_space.high != train.env.action_space.high).all()


def test_evaluation_plays_in_another_environment_with_the_same_spaces():
    train = purerl.make_train(CFG, env=probes.Constant())
    state = train.init(KEY)
    own, other = (train.evaluate(state, KEY, 4, max_steps=8, env=env) for env in (None, probes.TimeLimit()))
    np.testing.assert_array_equal(own.lengths, np.ones(4))
    np.testing.assert_array_equal(other.lengths, np.full(4, 8))
    with pytest.raises(purerl.ConfigError, match="has other observations than the training environment") as error:
        train.evaluate(state, KEY, 4, max_steps=8, env=probes.boxed(probes.Varied)())
    assert "has other actions than the training environment" in str(error.value)


def test_evaluation_takes_the_id_of_another_environment():
    train = purerl.make_train(PPOConfig(env="FourRooms-misc", hidden=(8,)))
    grid = train.evaluate(train.init(KEY), KEY, 4, env="FourRooms-misc")
    assert grid.lengths.shape == (4,)
    with pytest.raises(purerl.ConfigError, match="env = 'CartPole-v1': has other observations than the training environment"):
        train.evaluate(train.init(KEY), KEY, 4, env="CartPole-v1")


@pytest.mark.slow
def test_runs_and_fit_forward_the_deterministic_option():
    runs = Trainer(CFG, 0, 1, False, {"env": probes.ActionDependent(), "network": leaning()}, 1)
    state, options = runs.init(), {"eval_every": 1, "eval_episodes": 400, "eval_max_steps": 1}
    for deterministic in (True, False):
        found = Run(runs, state, (0,)).evaluate(400, 0, deterministic, max_steps=1).returns.mean()
        reported = evaluation_of(runs, options | {"eval_deterministic": deterministic})(state)["episode_return"]
        assert [found == 1, reported[0] == 1] == [deterministic, deterministic]


# --- separate processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sixteen_seeds_do_not_hang(fresh_python):
    """Orthogonal weights are drawn one after the other, since their batched initialisation hung on two cores."""
    code = """
import jax, purerl
train = purerl.make_train(purerl.PPOConfig(total_timesteps=2048))
print(jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 16)).state.clock.low.shape)
"""
    assert fresh_python(code) == "(16,)\n"


@pytest.mark.slow
def test_make_train_compiles_nothing_of_the_run(fresh_python):
    code = """
import logging, jax, purerl
compiled = []
class Names(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith("Compiling"):
            compiled.append(record.getMessage().split()[1])
logging.getLogger("jax").addHandler(Names())
jax.config.update("jax_log_compiles", True)
purerl.make_train(purerl.PPOConfig(total_timesteps=2048))
print(sorted({name for name in compiled if "split" in name or "fold" in name or "bits" in name}), "jit(negative)" in compiled)
"""
    assert fresh_python(code) == "[] True\n"


def test_missing_info_entry_is_named_with_its_field():
    with pytest.raises(purerl.ConfigError, match="episode_info = 'foo': the environment's info has no such entry"):
        purerl.make_train(purerl.PPOConfig(episode_info=("foo",)))
