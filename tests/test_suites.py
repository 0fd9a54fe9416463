"""The suites beside gymnax, each skipped where it is not installed; and slow resets, without any of them."""

import importlib.metadata
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from purerl.acting.rollout import collect, start
from purerl.core.keys import named_key, split_keys
from purerl.envs import make_env
from purerl.envs.auto_reset import auto_reset
from purerl.envs.suites import SUITES
from purerl.networks.distributions import Categorical, DiagGaussian
from tests.test_platform import CONFIGS, on_accelerator
from tests.tiny import CFG

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def ranks():
    """Suites rely on what purerl's own code does without."""
    with jax.numpy_rank_promotion("allow"):
        yield


# Constructor arguments that make the time limit come soon, and steps of random actions to see it.
IDS = {
    "brax/fast": ((), 1100),
    "brax/inverted_pendulum": ((("episode_length", 60),), 300),
    "brax/reacher": ((("episode_length", 60),), 150),
    "craftax/Craftax-Classic-Symbolic-v1": ((), 150),
    "craftax/Craftax-Classic-Pixels-v1": ((), 150),
    "craftax/Craftax-Symbolic-v1": ((), 150),
    "playground/CartpoleBalance": ((("episode_length", 60),), 150),
    "playground/PendulumSwingup": ((("episode_length", 60),), 150),
    "playground/BallInCup": ((("episode_length", 60),), 150),
}
ONE_EACH = ("brax/inverted_pendulum", "craftax/Craftax-Classic-Symbolic-v1", "playground/CartpoleBalance")


def installed(env_id):
    pytest.importorskip(SUITES[env_id.partition("/")[0]])


def marked(env_id):
    return pytest.param(env_id, marks=pytest.mark.slow if env_id in ONE_EACH else pytest.mark.long)


# --- what any suite is held to ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["brax/fast", *(marked(env_id) for env_id in IDS if env_id != "brax/fast")])
def test_it_keeps_the_protocol(env_id):
    installed(env_id)
    env_kwargs, num_steps = IDS[env_id]
    report = purerl.check_env(env_id, env_kwargs=env_kwargs, num_envs=8, num_steps=num_steps)
    assert report.problems == ()


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ONE_EACH)
def test_a_time_limit_is_worth_the_true_last_observation(env_id):
    """Against the suite's own environment, stepped by hand with the same keys and actions."""
    installed(env_id)
    B, T, limit = 3, 8, 5
    craftax = env_id.startswith("craftax")
    limits = {"env_params": {"max_timesteps": limit}} if craftax else {"env_kwargs": (("episode_length", limit),)}
    env = make_env(env_id, limits.get("env_kwargs", ()), limits.get("env_params", {}))
    network = linear(env.action_space)
    params = network.init(KEY, jnp.zeros((1, 1, *env.observation_space.shape)))
    actor = start(env, network, B, KEY)
    _, rollout, _ = jax.jit(lambda actor: collect(env, network, params, actor, KEY, T))(actor)
    steps = jax.device_get(rollout.steps)
    assert steps.truncated[limit - 1].all()
    assert steps.truncated.sum() == B
    assert not steps.terminated.any()

    reset, step = by_hand(env_id)
    state = jax.vmap(reset)(jax.random.split(KEY, B))
    keys = split_keys(named_key(KEY, "environment"), T, 2, B)
    one_step = jax.jit(jax.vmap(step))
    for t in range(limit):
        state, last_obs = one_step(keys[t, 0], state, network_action(env, steps.action[t]))
    value = lambda obs: network.apply(params, (), obs[None], jnp.zeros((1, B), bool))[0].value[0]
    np.testing.assert_allclose(steps.next_value[limit - 1], value(last_obs), rtol=1e-5, atol=1e-5)
    after_reset = value(steps.obs[limit])
    assert (np.abs(steps.next_value[limit - 1] - after_reset) > 0.1).all()
    assert (np.abs(steps.next_value[limit - 1]) > 0.1).all()


def linear(action_space):
    """A random policy, and a value function that tells observations apart."""

    def policy(shape):
        if isinstance(action_space, purerl.Discrete):
            return Categorical(jnp.zeros((*shape, action_space.n)))
        return DiagGaussian(jnp.zeros((*shape, *action_space.shape)), jnp.zeros(action_space.shape))

    def init(key, obs):
        return {"value": 30 * jax.random.normal(key, (obs[0, 0].size,))}

    def apply(params, carry, obs, first):
        value = 5 + obs.reshape(*obs.shape[:2], -1) @ params["value"]
        return purerl.Outputs(policy(first.shape), value), carry

    return purerl.Network(init, apply)


def network_action(env, action):
    """What the environment was given: a Gaussian's action is clipped to the bounds."""
    return action if isinstance(env.action_space, purerl.Discrete) else jnp.clip(action, -1, 1)


def by_hand(env_id):
    """The suite's own reset, `(key) -> state`, and step, `(key, state, action) -> (state, obs)`, of its bare environment."""
    suite, _, name = env_id.partition("/")
    if suite == "craftax":
        from craftax.craftax_env import make_craftax_env_from_name

        env = make_craftax_env_from_name(name, auto_reset=False)
        params = env.default_params
        step = lambda key, state, action: env.step_env(key, state, action, params)[1::-1]
        return lambda key: env.reset_env(key, params)[1], step
    if suite == "brax":
        from brax import envs

        env = envs.get_environment(name, backend="spring")
    else:
        from mujoco_playground import registry

        env = registry.load(name, config_overrides={"impl": "jax"})

    def step(key, state, action):
        state = env.step(state, action)
        return state, state.obs

    return env.reset, step


@pytest.mark.slow
def test_the_flags_of_craftax():
    """Over by the game, over by the clock, over by both."""
    installed("craftax/")
    from purerl.envs import craftax

    suite = craftax.make("Craftax-Classic-Symbolic-v1", ())
    bare = craftax._Bare(suite, suite.default_params.replace(max_timesteps=7))
    state, _ = jax.jit(bare.reset)(KEY)
    step = jax.jit(lambda state: bare.step(KEY, state, jnp.int32(0))[3:5])
    dead = state.replace(player_health=jnp.int32(0) * state.player_health - 5)
    late = lambda state: state.replace(timestep=jnp.full_like(state.timestep, 6))
    flags = [tuple(bool(flag) for flag in step(x)) for x in (state, dead, late(state), late(dead))]
    assert flags == [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.slow
def test_the_flags_of_brax():
    installed("brax/")
    env = make_env("brax/inverted_pendulum", (("episode_length", 40),), {})

    def run(push):
        def step(state, key):
            after = env.step(jax.random.split(key, (2, 8)), state, jnp.full((8, 1), push))
            return after.env_state, (after.terminated, after.truncated)

        state, _ = env.reset(jax.random.split(KEY, 8))
        return jax.lax.scan(step, state, jax.random.split(KEY, 40))[1]

    terminated, truncated = jax.jit(run)(jnp.float32(1))
    assert terminated.any(0).all()
    assert not truncated.any()
    terminated, truncated = jax.jit(run)(jnp.float32(0))
    alone = ~terminated.any(0)  # those poles that did not fall in 40 steps
    assert truncated[39][alone].all()


@pytest.mark.slow
def test_worlds_of_craftax_are_the_same_alone_and_in_a_batch():
    """XLA miscompiles their noise from the ninth of a batch on, on a CPU: they are made one after the other."""
    installed("craftax/")
    from purerl.envs import craftax

    suite = craftax.make("Craftax-Classic-Symbolic-v1", ())
    bare = craftax._Bare(suite, suite.default_params)
    keys = jax.random.split(KEY, 12)
    batch = jax.jit(jax.vmap(bare.reset))(keys)[0].map
    assert jnp.unique(batch.reshape(12, -1), axis=0).shape[0] == 12
    one = jax.jit(lambda key: suite.reset_env(key, suite.default_params)[1].map)
    np.testing.assert_array_equal(batch, jnp.stack([one(key) for key in keys]))


@pytest.mark.long
@pytest.mark.parametrize("env_id", ["brax/reacher", "craftax/Craftax-Classic-Symbolic-v1", "playground/CartpoleBalance"])
@pytest.mark.parametrize("name", ["gru", "ppg", "appo", "rnd"])
def test_an_update_of_other_algorithms(env_id, name):
    installed(env_id)
    cfg = CONFIGS[name].replace(env=env_id)
    train = purerl.make_train(cfg)
    before = jax.jit(train.init)(KEY)
    after, _ = jax.jit(train.update)(before)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(after.params))
    assert any((x != y).any() for x, y in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "name", "values"),
    [
        ("brax/inverted_pendulum", "ang_damping", [0.0, -5.0]),
        ("craftax/Craftax-Classic-Symbolic-v1", "max_timesteps", [3, 6]),
    ],
)
def test_a_sweep_over_parameters(env_id, name, values):
    installed(env_id)
    base = CFG.replace(env=env_id, num_envs=4, num_steps=8, total_timesteps=64, num_minibatches=1)
    sweep = jax.vmap(lambda value: base.replace(env_params={name: value}))(jnp.array(values))
    result = jax.jit(jax.vmap(lambda cfg: purerl.make_train(cfg)(KEY)))(sweep)
    state = result.state.actor.env_state
    assert any((x[0] != x[1]).any() for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.number))
    if name == "max_timesteps":
        assert purerl.summarize(result.metrics)["episode_length"][:, 0].tolist() == [3, 6]


# --- slow resets ------------------------------------------------------------------------------------------------------


def ends_at_random(key, state, action):
    """An episode of one environment ends with a probability of a quarter; its state says where it began."""
    origin, steps = state
    done = jax.random.bernoulli(key, 0.25)
    return origin + steps, (origin, steps + 1), jnp.float32(1), done & (action == 0), done & (action == 1), {}


def begins(key):
    origin = jax.random.randint(key, (), 0, 2**30)
    return origin, (origin, jnp.int32(0))


def rollout_of(slow_reset, key, num_envs, num_steps=40):
    step = auto_reset(begins, ends_at_random, slow_reset)
    state = jax.vmap(begins)(jax.random.split(key, num_envs))[1]

    def one(state, key):
        after = step(jax.random.split(key, (2, num_envs)), state, jnp.arange(num_envs) % 2)
        return after.env_state, after

    return jax.lax.scan(one, state, jax.random.split(key, num_steps))[1]


@pytest.mark.parametrize("num_envs", [1, 7, 64])
def test_a_slow_reset_gives_the_same_episodes(num_envs, monkeypatch):
    """Which environments are reset, when, and with which keys; alone, under vmap over seeds, and as on an accelerator."""
    seeds = jax.random.split(KEY, 3)
    want = jax.jit(jax.vmap(lambda key: rollout_of(False, key, num_envs)))(seeds)
    assert want.terminated.sum() + want.truncated.sum() > 10
    run = lambda key: rollout_of(True, key, num_envs)
    alone = jax.jit(run)(seeds[0])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[0]), alone, want)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(jax.vmap(run))(seeds), want)
    monkeypatch.setattr(jax.lax, "platform_dependent", on_accelerator)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(jax.vmap(lambda key: run(key)))(seeds), want)


def test_a_slow_reset_is_computed_for_those_alone_that_need_it():
    made = []

    def slow(key):
        jax.debug.callback(lambda: made.append(1))
        return begins(key)

    step = auto_reset(slow, ends_at_random, slow_reset=True)
    state = jax.vmap(begins)(jax.random.split(KEY, 64))[1]
    after = jax.jit(step)(jax.random.split(KEY, (2, 64)), state, jnp.zeros(64, jnp.int32))
    jax.effects_barrier()
    assert len(made) == after.terminated.sum() > 0


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "says"),
    [
        ("kinetix/s", "kinetix-env cannot be installed"),
        ("jaxmarl/MPE_simple", "for several agents"),
        ("popgym_arcade/CartPoleEasy", "stable-gymnax"),
        ("brox/ant", "did you mean 'brax'"),
    ],
)
def test_a_suite_that_is_not_supported_says_why(env_id, says):
    with pytest.raises(ConfigError, match=says):
        purerl.make_train(PPOConfig(env=env_id))


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_that_is_not_installed_says_how_to_install_it(monkeypatch, suite):
    monkeypatch.delitem(sys.modules, f"purerl.envs.{suite}", raising=False)
    monkeypatch.setitem(sys.modules, SUITES[suite], None)
    for module in [name for name in sys.modules if name.startswith(f"{SUITES[suite]}.")]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"not installed: pip install 'purerl\[{suite}\]'") as raised:
        purerl.make_train(PPOConfig(env=f"{suite}/anything"))
    assert len(str(raised.value).splitlines()) <= 2


def test_a_package_in_the_place_of_gymnax_is_told(monkeypatch):
    found = importlib.metadata.distribution
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: found("jax" if name == "stable-gymnax" else name))
    monkeypatch.delitem(sys.modules, "purerl.envs.gymnax", raising=False)
    monkeypatch.delattr("gymnax.environments.environment.Environment")
    with pytest.raises(ConfigError, match="pip uninstall stable-gymnax"):
        purerl.make_train(PPOConfig())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"env": "brax/antt"}, "did you mean 'ant'"),
        ({"env": "brax/ant", "env_kwargs": (("backend", "x"),)}, "refused by brax/ant"),
        ({"env": "brax/ant", "env_kwargs": (("episode_length", "x"),)}, "must be an int of at least 1"),
        ({"env": "brax/ant", "env_params": {"gravty": 1.0}}, "did you mean 'gravity'"),
        ({"env": "craftax/Craftax-v1"}, "no environment of Craftax"),
        ({"env": "craftax/Craftax-Classic-Symbolic-v1", "env_params": {"fractal_noise_angles": 1.0}}, "is no number"),
        ({"env": "craftax/Craftax-Classic-Symbolic-v1", "env_params": {"max_timesteps": 0}}, "between 1 and"),
        ({"env": "playground/Go1Getup"}, "MuJoCo Menagerie, which this downloads: python -c"),
        ({"env": "playground/CartpoleBalance", "env_kwargs": (("episode_lenght", 5),)}, "refused by playground/CartpoleBalance"),
        ({"env": "playground/CartpoleBalance", "env_params": {"x": 1.0}}, "has no parameters"),
    ],
)
def test_bad_settings_of_a_suite(changes, says):
    installed(changes["env"])
    with pytest.raises(ConfigError, match=says):
        purerl.make_train(PPOConfig(**changes))
