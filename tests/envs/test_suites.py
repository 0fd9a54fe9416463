"""The suites other than gymnax; tests skip a suite that is not installed."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from purerl.acting.rollout import collect, reset_actor
from purerl.core.keys import fold_in_name, split_keys
from purerl.envs import make_env
from purerl.envs.suites import SUITES
from purerl.networks.distributions import Categorical, DiagGaussian
from tests.helpers.configs import CONFIGS
from tests.helpers.suites import IDS, installed
from tests.helpers.tiny import CFG

pytestmark = pytest.mark.usefixtures("ranks")

KEY = jax.random.key(0)
ONE_EACH = (
    "brax/inverted_pendulum",
    "craftax/Craftax-Classic-Symbolic-v1",
    "playground/CartpoleBalance",
    "jumanji/Snake-v1",
    "navix/Navix-DoorKey-5x5-v0",
    "pgx/minatar-breakout",
    "xminigrid/MiniGrid-DoorKey-5x5",
)
IN_NORMAL_TESTS = ("brax/fast",)
LONGEST = ("craftax", "playground")  # half a minute or more to compile
LIMITS = {"craftax": "max_timesteps", "navix": "max_steps", "xminigrid": "max_steps"}  # `episode_length` elsewhere


def marked(env_id):
    if env_id in IN_NORMAL_TESTS:
        return env_id
    slow = env_id in ONE_EACH and not env_id.startswith((*LONGEST, "brax"))
    return pytest.param(env_id, marks=pytest.mark.slow if slow else pytest.mark.long)


# --- tests for every suite --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.each_landing("pgx/minatar-breakout")
@pytest.mark.parametrize("env_id", [marked(env_id) for env_id in IDS])
def test_suites_keep_the_environment_protocol(env_id):
    installed(env_id)
    env_kwargs, num_steps = IDS[env_id]
    report = purerl.check_env(env_id, env_kwargs=env_kwargs, num_envs=8, num_steps=num_steps)
    assert report.problems == ()


@pytest.mark.each_landing("pgx/minatar-breakout")
@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param(env_id, marks=pytest.mark.long if env_id.startswith(LONGEST) else pytest.mark.slow)
        for env_id in ONE_EACH
        if not env_id.startswith("jumanji")  # no limits in jumanji
    ],
)
def test_time_limits_bootstrap_from_the_final_observation(env_id):
    """The reference is the suite's own environment, stepped by hand with the same keys and actions."""
    installed(env_id)
    B, T, limit = 3, 8, 5
    name = LIMITS.get(env_id.partition("/")[0], "episode_length")
    limits = ((), {name: limit}) if env_id.startswith("craftax") else (((name, limit),), {})
    env = make_env(env_id, *limits)
    network = linear(env.action_space)
    params = network.init(KEY, jnp.zeros((1, 1, *env.observation_space.shape)))
    actor = reset_actor(env, network, B, KEY)
    _, rollout, _ = jax.jit(lambda actor: collect(env, network, params, actor, KEY, T))(actor)
    steps = jax.device_get(rollout.steps)
    assert steps.truncated[limit - 1].all()
    assert steps.truncated.sum() == B
    assert not steps.terminated.any()

    reset, step = by_hand(env_id)
    state = jax.vmap(reset)(jax.random.split(fold_in_name(KEY, "start"), B))
    keys = split_keys(fold_in_name(KEY, "environment"), T, 2, B)
    one_step = jax.jit(jax.vmap(step))
    for t in range(limit):
        state, last_obs = one_step(keys[t, 0], state, network_action(env, steps.action[t]))
    value = lambda obs: network.apply(params, (), obs[None], jnp.zeros((1, B), bool))[0].value[0]
    np.testing.assert_allclose(steps.next_value[limit - 1], value(last_obs), rtol=1e-5, atol=1e-5)
    after_reset = value(steps.obs[limit])
    moved = (last_obs != steps.obs[limit]).reshape(B, -1).any(1)  # on a grid an agent may stand where it started
    assert moved.any()
    assert (np.abs(steps.next_value[limit - 1] - after_reset) > 0.1)[moved].all()
    assert (np.abs(steps.next_value[limit - 1]) > 0.1).all()


def linear(action_space):
    """Return a network with a random policy, and a value function that tells observations apart."""

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
    """Return the action that the environment was given: a Gaussian's is clipped to the bounds."""
    return action if isinstance(env.action_space, purerl.Discrete) else jnp.clip(action, -1, 1)


def by_hand(env_id):
    """Return the reset `(key) -> state` and step `(key, state, action) -> (state, obs)` of the suite's single environment."""
    suite, _, name = env_id.partition("/")
    if suite == "pgx":
        import pgx

        env = pgx.make(name)
        observed = lambda state: (state, state.observation)
        return env.init, lambda key, state, action: observed(env.step(state, action, key))
    if suite == "xminigrid":
        import xminigrid

        env, params = xminigrid.make(name)
        observed = lambda state: (state, state.observation)
        return lambda key: env.reset(params, key), lambda key, state, action: observed(env.step(params, state, action))
    if suite == "navix":
        import navix

        env = navix.make(name)
        observed = lambda state: (state, state.observation)
        return env.reset, lambda key, state, action: observed(env._step(state, action))
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


@pytest.mark.long
def test_craftax_worlds_are_the_same_alone_and_batched():
    """XLA on a CPU miscompiles the noise of worlds from the ninth in a batch on, so worlds are made one after the other."""
    installed("craftax/")
    from craftax.craftax_env import make_craftax_env_from_name

    from purerl.envs.suites import craftax

    suite = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    bare = craftax._CraftaxEnv(suite, suite.default_params)
    keys = jax.random.split(KEY, 12)
    batch = jax.jit(jax.vmap(bare.reset))(keys)[0].map
    assert jnp.unique(batch.reshape(12, -1), axis=0).shape[0] == 12
    one = jax.jit(lambda key: suite.reset_env(key, suite.default_params)[1].map)
    np.testing.assert_array_equal(batch, jnp.stack([one(key) for key in keys]))


@pytest.mark.long
def test_craftax_worlds_have_the_distribution_of_plain_resets():
    """A chi-square test compares three fields of worlds from training's resets with those of plain resets."""
    installed("craftax/")
    from craftax.craftax_env import make_craftax_env_from_name

    B, T = 64, 8
    env = make_env("craftax/Craftax-Classic-Symbolic-v1", (), {"max_timesteps": 1})  # each step ends an episode
    state, _ = env.reset(jax.random.split(KEY, B))

    def step(state, key):
        after = env.step(jax.random.split(key, (2, B)), state, jnp.zeros(B, jnp.int32))
        return after.env_state, after.env_state[0].map

    drawn = jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(KEY, T))[1])(state)
    suite = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    plain = lambda key: suite.reset_env(key, suite.default_params)[1].map
    plain = jax.jit(lambda keys: jax.lax.map(plain, keys))(jax.random.split(jax.random.key(1), B * T))
    for row, column in ((10, 10), (32, 24), (50, 60)):
        kinds = [np.asarray(x).reshape(B * T, *plain.shape[1:])[:, row, column] for x in (drawn, plain)]
        assert unlike(*kinds) > 1e-3


def unlike(a, b):
    """Return the p-value of a chi-square test that two samples of kinds share one distribution; rare kinds are pooled."""
    from scipy.stats import chi2_contingency

    counts = np.array([np.bincount(x, minlength=32) for x in (a, b)])
    often = counts.sum(0) >= 20
    table = np.column_stack([counts[:, often], counts[:, ~often].sum(1)])
    return chi2_contingency(table[:, table.sum(0) > 0]).pvalue


@pytest.mark.long
@pytest.mark.parametrize("env_id", ["brax/reacher", *ONE_EACH[1:]])
@pytest.mark.parametrize("name", ["gru", "ppg", "appo", "rnd"])
def test_other_algorithms_update_on_every_suite(env_id, name):
    installed(env_id)
    cfg = CONFIGS[name].replace(env=env_id)
    train = purerl.make_train(cfg)
    before = jax.jit(train.init)(KEY)
    after, _ = jax.jit(train.update)(before)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(after.params))
    assert any((x != y).any() for x, y in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True))


@pytest.mark.slow
@pytest.mark.each_landing("jumanji/Snake-v1")
@pytest.mark.parametrize("env_id", [*ONE_EACH[3:], "jumanji/Maze-v0"])
def test_suites_can_be_made_inside_a_trace(env_id):
    """Sweeps over configs make environments inside a trace, and so do evaluations with other levels."""
    installed(env_id)
    cfg = CFG.replace(env=env_id, num_levels=2, num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=8)

    def run(lr):
        train = purerl.make_train(cfg.replace(lr=lr))
        return train.evaluate(train(KEY).state, KEY, num_episodes=3, max_steps=2).returns

    assert jax.eval_shape(jax.vmap(run), jnp.ones(2)).shape == (2, 3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("env_id", "name", "values"),
    [
        ("brax/inverted_pendulum", "ang_damping", [0.0, -5.0]),
        ("craftax/Craftax-Classic-Symbolic-v1", "max_timesteps", [3, 6]),
    ],
)
def test_environment_parameters_can_be_swept(env_id, name, values):
    installed(env_id)
    base = CFG.replace(env=env_id, num_envs=4, num_steps=8, total_timesteps=64, num_minibatches=1)
    sweep = jax.vmap(lambda value: base.replace(env_params={name: value}))(jnp.array(values))
    result = jax.jit(jax.vmap(lambda cfg: purerl.make_train(cfg)(KEY)))(sweep)
    state = result.state.actor.env_state
    assert any((x[0] != x[1]).any() for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.number))
    if name == "max_timesteps":
        assert purerl.summarize(result.metrics)["episode_length"][:, 0].tolist() == [3, 6]


# --- light suites -----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:scatter inputs:FutureWarning")  # from BinPack's own step
def test_every_jumanji_environment_can_be_traced():
    """The exceptions are environments for several agents, and Sokoban, which downloads its levels."""
    installed("jumanji/")
    import jumanji

    several = ("Connector-v3", "LevelBasedForaging-v0", "SearchAndRescue-v0", "Sokoban-v0")
    for name in set(jumanji.registered_environments()) - set(several):
        cfg = CFG.replace(env=f"jumanji/{name}", num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=8)
        train = purerl.make_train(cfg)
        assert train.cfg.action_mask == ("" if "RubiksCube" in name else "action_mask")
        jax.eval_shape(train.update, jax.eval_shape(train.init, KEY))


# --- refused inputs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "says"),
    [
        ("kinetix/s", "kinetix-env is not compatible"),
        ("jaxmarl/MPE_simple", "JaxMARL environments have several agents"),
        ("popgym_arcade/CartPoleEasy", "stable-gymnax"),
        ("brox/ant", "did you mean 'brax'"),
    ],
)
def test_unsupported_suite_says_why(env_id, says):
    with pytest.raises(ConfigError, match=says):
        purerl.make_train(PPOConfig(env=env_id))


@pytest.mark.parametrize("suite", SUITES)
def test_missing_suite_says_how_to_install_it(monkeypatch, suite):
    package = "external" if suite == "gymnasium" else "suites"
    monkeypatch.delitem(sys.modules, f"purerl.envs.{package}.{suite}", raising=False)
    monkeypatch.setitem(sys.modules, SUITES[suite], None)
    for module in [name for name in sys.modules if name.startswith(f"{SUITES[suite]}.")]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"not installed; run pip install '\.\[{suite}\]'") as raised:
        purerl.make_train(PPOConfig(env=f"{suite}/anything"))
    assert len(str(raised.value).splitlines()) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"env": "brax/antt"}, "did you mean 'ant'"),
        ({"env": "brax/ant", "env_kwargs": (("backend", "x"),)}, "brax/ant does not accept these arguments"),
        ({"env": "brax/ant", "env_kwargs": (("episode_length", "x"),)}, "must be an int of at least 1"),
        ({"env": "brax/ant", "env_params": {"gravty": 1.0}}, "did you mean 'gravity'"),
        ({"env": "craftax/Craftax-v1"}, "no such environment"),
        ({"env": "craftax/Craftax-Classic-Symbolic-v1", "env_params": {"fractal_noise_angles": 1.0}}, "is not a number"),
        ({"env": "craftax/Craftax-Classic-Symbolic-v1", "env_params": {"max_timesteps": 0}}, "between 1 and"),
        ({"env": "playground/Go1Getup"}, "MuJoCo Menagerie; run python -c"),
        ({"env": "playground/CartpoleBalance", "env_kwargs": (("episode_lenght", 5),)}, "does not accept these arguments"),
        ({"env": "playground/CartpoleBalance", "env_params": {"x": 1.0}}, "no such parameter"),
        ({"env": "jumanji/Snake-v1", "env_params": {"x": 1.0}}, "has no parameters"),
        ({"env": "pgx/go_9x9"}, "has 2 players"),
        ({"env": "pgx/minatar-brekout"}, "did you mean 'minatar-breakout'"),
        ({"env": "pgx/minatar-breakout", "env_kwargs": (("episode_length", 0),)}, "max_steps"),
        ({"env": "jumanji/Connector-v3"}, "has 10 agents"),
        ({"env": "jumanji/Snake-v2"}, "did you mean 'Snake-v1'"),
        (
            {"env": "jumanji/Maze-v0", "env_kwargs": (("generator", ("Random", ())),)},
            "jumanji/Maze-v0 does not accept these arguments",
        ),
        ({"env": "navix/Navix-DoorKey-v0"}, "no such environment"),
        ({"env": "navix/Navix-DoorKey-5x5-v0", "env_kwargs": (("observation_fn", "symbol"),)}, "did you mean 'symbolic'"),
        ({"env": "xminigrid/MiniGrid-DoorKey"}, "no such environment"),
        ({"env": "xminigrid/MiniGrid-DoorKey-5x5", "env_kwargs": (("max_step", 3),)}, "does not accept these arguments"),
        ({"env": "xminigrid/MiniGrid-DoorKey-5x5", "env_kwargs": (("benchmark", "x"),)}, "only the XLand-MiniGrid"),
        ({"env": "xminigrid/XLand-MiniGrid-R1-9x9", "env_kwargs": (("benchmark", "trivial"),)}, "did you mean 'trivial-21k'"),
    ],
)
def test_invalid_suite_options_are_refused(changes, says):
    installed(changes["env"])
    with pytest.raises(ConfigError, match=says):
        purerl.make_train(PPOConfig(**changes))
