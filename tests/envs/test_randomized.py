"""Parameters that each episode draws: their distribution, the dynamics they set, and evaluations at fixed values."""

import dataclasses
import functools

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import purerl
from purerl.envs import make_env
from purerl.envs.randomized import with_randomized
from tests.helpers.suites import installed

KEY = jax.random.key(0)


@struct.dataclass
class Where:
    at: float = 0.0


def environments_made_at_the_parameter():
    """Return `(slow_reset, parameters) -> environment` whose episodes begin at the parameter `at` and end after 1 to 4 steps."""

    def made(slow_reset, overrides):
        place = jnp.float32(overrides.get("at", 0.0))

        class Stay:
            action_space = purerl.Box(-np.ones(1, np.float32), np.ones(1, np.float32))

            def reset(self, key):
                state = jnp.stack([place, jax.random.uniform(key)])
                return state, state

            def step(self, key, state, action):
                return state, state, jnp.float32(0), jax.random.uniform(key) < 0.4, False, {}

        return purerl.wrap_env(Stay(), slow_reset=slow_reset)

    return made


SMALL = {"num_envs": 8, "num_steps": 64, "total_timesteps": 1024, "hidden": (8,)}
PENDULUM = purerl.PPOConfig(**SMALL, env="Pendulum-v1", randomize={"g": purerl.Uniform(8, 12)}, info=("g",))


def environments(env_id="Pendulum-v1", overrides=None, **randomize):
    return make_env(env_id, (), overrides or {}, info=tuple(randomize), randomize=randomize)


def steps_of(env, length, count):
    """Return a rollout of zero actions: the outputs of every step, `[length, count, ...]`."""

    def one(state, key):
        action = jnp.zeros((count, *env.action_space.shape), env.action_space.low.dtype)
        after = env.step(jax.random.split(key, (2, count)), state, action)
        return after.env_state, after.replace(env_state=())

    state, _ = env.reset(jax.random.split(KEY, count))
    return jax.lax.scan(one, state, jax.random.split(KEY, length))[1]


def test_each_episode_draws_its_parameter_once():
    env = environments(g=purerl.Uniform(8, 12))
    steps = jax.jit(lambda: steps_of(env, 1000, 64))()
    drawn, ended = steps.info["g"], np.asarray(steps.truncated | steps.terminated)
    moved = np.diff(drawn, axis=0) != 0
    np.testing.assert_array_equal(moved, ended[:-1])
    of_episodes = np.asarray(drawn)[ended]
    assert len(np.unique(of_episodes)) == len(of_episodes) == 5 * 64
    assert 8 <= of_episodes.min() < 8.1
    assert 11.9 < of_episodes.max() < 12
    assert abs(of_episodes.mean() - 10) < 3 * np.sqrt(16 / 12 / len(of_episodes))


def test_parameters_of_each_environment_are_drawn_once():
    cfg = PENDULUM.replace(randomize_each="environment")
    env = purerl.make_train(cfg).env
    steps = jax.jit(lambda: steps_of(env, 450, 64))()
    drawn = np.asarray(steps.info["g"])
    assert (steps.truncated.sum(0) == 2).all()
    np.testing.assert_array_equal(drawn, drawn[:1].repeat(450, 0))
    assert len(np.unique(drawn[0])) == 64
    assert drawn[0].max() - drawn[0].min() > 3.5
    first, second = (np.asarray(steps.next_obs)[begin : begin + 199] for begin in (0, 200))
    assert (first != second).any((0, 2)).all()  # the states of later episodes are new
    result = jax.jit(jax.vmap(purerl.make_train(cfg)))(jax.random.split(KEY, 2))
    assert np.isfinite(purerl.summarize(result.metrics)["info/g"]).all()


def test_resets_that_would_sample_again_are_refused():
    with pytest.raises(purerl.ConfigError, match="randomize_each = 'environment': needs nonfinite='ignore' or 'freeze'"):
        purerl.make_train(PENDULUM.replace(randomize_each="environment", nonfinite="reset"))


def test_slow_resets_keep_the_parameters_of_an_environment():
    """A fast and a slow reset have the same states, and each reset uses the parameters of its environment."""
    made = environments_made_at_the_parameter()
    draw = {"at": purerl.Uniform(0, 1)}
    found = []
    for slow in (False, True):
        env = with_randomized(functools.partial(made, slow), Where(), {}, draw, once=True)
        steps = jax.jit(lambda env=env: steps_of(env, 12, 20))()
        np.testing.assert_array_equal(
            steps.obs[..., 0], np.asarray(steps.info["at"])
        )  # a reset puts the parameter into the state
        found.append(steps)
    assert found[0].terminated.sum() > 60
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_normal_distribution_has_its_mean_and_standard_deviation():
    env = environments(g=purerl.Normal(10, 0.5))
    state, _ = jax.jit(env.reset)(jax.random.split(KEY, 4000))
    drawn = np.asarray(state.params["g"])
    assert abs(drawn.mean() - 10) < 3 * 0.5 / np.sqrt(4000)
    assert abs(drawn.std() - 0.5) < 3 * 0.5 / np.sqrt(2 * 4000)


def test_dynamics_use_the_drawn_parameters():
    env = environments(g=purerl.Uniform(8, 12), m=purerl.Uniform(0.5, 2))
    keys = jax.random.split(KEY, 5)
    state, _ = env.reset(keys)
    action = jnp.ones((5, 1))
    after = env.step(jnp.stack([keys, keys]), state, action)
    bare, params = gymnax.make("Pendulum-v1")

    def expected(key, state, drawn, action):
        return bare.step_env(key, state, action, params.replace(**drawn))[0]

    wanted = jax.vmap(expected)(keys, state.env_state, state.params, action)
    np.testing.assert_allclose(after.obs, wanted, rtol=1e-6)


@struct.dataclass
class Weights:
    w: np.ndarray = dataclasses.field(default_factory=lambda: np.array([1, 2, 4], np.float32))
    count: int = 3


def environments_that_show_weights(overrides):
    shown = jnp.asarray(overrides.get("w", Weights().w))

    class Shows:
        action_space = purerl.Discrete(2)

        def reset(self, key):
            return shown, shown

        def step(self, key, state, action):
            return shown, shown, jnp.float32(0), False, False, {}

    return purerl.wrap_env(Shows(), max_steps=5)


@pytest.mark.parametrize("overrides", [{}, {"w": 3.0}])
def test_factor_scales_all_numbers_of_an_array(overrides):
    env = with_randomized(environments_that_show_weights, Weights(), overrides, {"w": purerl.Scale(0.5, 2)})
    state, obs = env.reset(jax.random.split(KEY, 100))
    after = env.step(jax.random.split(KEY, (2, 100)), state, jnp.zeros(100, jnp.int32))
    factors = after.info["w"]
    np.testing.assert_allclose(obs, factors[:, None] * Weights().w[None], rtol=1e-6)
    np.testing.assert_array_equal(obs, after.obs)
    if overrides:
        np.testing.assert_array_equal(factors, 3)
    else:
        assert 0.5 <= factors.min() < 0.6 < 1.9 < factors.max() < 2


@pytest.mark.parametrize(
    ("overrides", "randomize", "hint"),
    [
        ({"w": np.ones(3, np.float32)}, {"w": purerl.Scale(0.5, 2)}, "must be one finite number: randomize scales"),
        ({"w": "a"}, {"w": purerl.Scale(0.5, 2)}, "'a'.*must be one finite number"),
        ({"w": np.nan}, {"w": purerl.Scale(0.5, 2)}, "nan.*must be one finite number"),
        ({}, {"w": purerl.Uniform(0.5, 2)}, r"is an array in the environment; use purerl\.Scale"),
        ({}, {"count": purerl.Scale(0.5, 2)}, "is not a float in the environment"),
    ],
)
def test_arrays_are_only_scaled_and_by_one_number(overrides, randomize, hint):
    with pytest.raises(purerl.ConfigError, match=hint):
        with_randomized(environments_that_show_weights, Weights(), overrides, randomize)


def test_two_parameters_are_drawn_independently():
    state, _ = environments(g=purerl.Uniform(0, 1), m=purerl.Uniform(0, 1)).reset(jax.random.split(KEY, 2000))
    assert abs(np.corrcoef(state.params["g"], state.params["m"])[0, 1]) < 0.07


@pytest.mark.slow
def test_evaluation_at_a_fixed_value_is_that_of_the_plain_environment():
    train = purerl.make_train(PENDULUM)
    plain = purerl.make_train(PENDULUM.replace(randomize={}, info=()))
    state = train.init(KEY)
    fixed = train.evaluate(state, KEY, 8, env_params={"g": 9.0})
    np.testing.assert_allclose(fixed.info["g"], 9.0 * 200)
    same = plain.evaluate(plain.init(KEY), KEY, 8, env_params={"g": 9.0})
    np.testing.assert_allclose(fixed.returns, same.returns, rtol=1e-6)
    drawn = train.evaluate(state, KEY, 8).info["g"] / 200
    assert len(np.unique(drawn)) == 8


@pytest.mark.slow
def test_bounds_can_be_swept_in_one_program():
    cfgs = jax.vmap(lambda high: PENDULUM.replace(randomize={"g": purerl.Uniform(8.0, high)}))(jnp.array([8.5, 12.0]))
    purerl.validate(cfgs)
    run = lambda cfg: purerl.make_train(cfg)(KEY).metrics["info/g"]
    means = purerl.summarize({"g": jax.jit(jax.vmap(run))(cfgs)})["g"]
    assert 8 < means[0].max() < 8.5 < means[1].min() < 12


@pytest.mark.slow
def test_levels_have_their_own_parameters():
    with pytest.warns(UserWarning, match="a level has its own randomized parameters"):
        train = purerl.make_train(PENDULUM.replace(num_levels=3))
    params = jax.vmap(train.init)(jax.random.split(KEY, 8)).actor.env_state.params
    assert len(np.unique(params["g"])) == 3


@pytest.mark.long
@pytest.mark.slow
def test_runs_with_drawn_parameters_resume_to_the_same_bits(tmp_path):
    cfg = PENDULUM.replace(lr_schedule="constant")
    whole = purerl.fit(cfg, directory=tmp_path / "whole", progress=False)
    purerl.fit(cfg.replace(total_timesteps=512), directory=tmp_path / "half", progress=False)
    resumed = purerl.fit(cfg, directory=tmp_path / "half", progress=False, resume="must")
    for one, other in zip(jax.tree.leaves(whole.state.params), jax.tree.leaves(resumed.state.params), strict=True):
        np.testing.assert_array_equal(one, other)
    assert purerl.load(tmp_path / "half").cfg.randomize == PENDULUM.randomize


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"randomize": {"gg": purerl.Uniform(1, 2)}}, "did you mean 'g'"),
        ({"randomize": {"max_steps_in_episode": purerl.Uniform(1, 2)}}, "is a time limit"),
        ({"env": "CartPole-v1", "randomize": {"max_steps_in_episode": purerl.Uniform(5, 50)}}, "is a time limit"),
        ({"randomize": 3}, "must be a dict"),
        ({"env_params": {"g": 9.0}}, "are also in env_params"),
        ({"env": "DeepSea-bsuite", "randomize": {"unscaled_move_cost": purerl.Uniform(0, 1)}}, "resets itself"),
    ],
)
def test_wrong_distributions_are_refused(change, hint):
    with pytest.raises(purerl.ConfigError, match=hint) as error:
        purerl.make_train(PENDULUM.replace(info=(), **change))
    assert "randomize" in str(error.value)


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({"randomize": [1.0]}, r"such as randomize\.g\.low, randomize\.g\.high"),
        ({"randomize.mass.low": [1.0]}, r"such as randomize\.g\.low, randomize\.g\.high"),
        ({"randomize.g.high": [12.0, 7.0]}, r"randomize\.g\.high = 7\.0: g: needs low < high"),
        ({"randomize.g.high": ["a"]}, "needs finite numbers"),
    ],
)
def test_wrong_sweeps_of_distributions_are_refused(values, hint):
    with pytest.raises(purerl.ConfigError, match=hint):
        purerl.sweep(PENDULUM, values)


@pytest.mark.long
def test_sweeps_train_with_each_bound(tmp_path):
    sweep = purerl.sweep(PENDULUM, {"randomize.g.high": [12.0, 15.0], "lr": [1e-3]})
    result = sweep.fit(directory=tmp_path)
    drawn = [np.asarray(purerl.load(tmp_path).select(run).state.actor.env_state.params["g"]) for run in range(2)]
    assert len(sweep.programs()) == 1
    assert drawn[0].max() < 12 < drawn[1].max() < 15
    assert str(sweep.fit(directory=tmp_path)) == str(result)


def test_own_environments_draw_their_parameters_themselves():
    env = make_env("Pendulum-v1", (), {})
    with pytest.raises(purerl.ConfigError, match="draw them in its reset"):
        purerl.make_train(PENDULUM, env=env)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("ranks")
def test_brax_draws_its_float_parameters():
    installed("brax/")
    randomize = {"ang_damping": purerl.Uniform(-0.5, 0.0)}
    train = purerl.make_train(purerl.PPOConfig(**SMALL, env="brax/inverted_pendulum", randomize=randomize))
    state = jax.jit(train.init)(KEY)
    drawn = state.actor.env_state.params["ang_damping"]
    assert len(np.unique(drawn)) == 8
    assert -0.5 <= drawn.min() <= drawn.max() <= 0
    after = jax.jit(train.update)(state)[0]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.params))


def test_parameters_that_set_action_bounds_are_refused():
    with pytest.raises(purerl.ConfigError, match="sets the bounds of actions, which all episodes share"):
        purerl.make_train(purerl.PPOConfig(env="Pendulum-v1", randomize={"max_torque": purerl.Uniform(6, 8)}))


@struct.dataclass
class Force:
    g: float = 9.8


class Told:
    """An environment whose `info` has an entry with the name of its parameter."""

    action_space = purerl.Discrete(2)

    def __init__(self, g):
        self._g = g

    def reset(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def step(self, key, state, action):
        return state, state, jnp.float32(0), False, False, {"g": self._g - 1.0}


def test_parameter_that_hides_an_entry_of_info_warns():
    adapt = lambda values: purerl.wrap_env(Told(values.get("g", 9.8)), max_steps=5)
    with pytest.warns(UserWarning, match="info has an entry of this name, which shows the sampled parameter now"):
        with_randomized(adapt, Force(), {}, {"g": purerl.Uniform(8, 12)})
