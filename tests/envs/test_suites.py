"""The suites beside gymnax, each skipped if it is not installed; and slow resets, without any suite."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import ConfigError, PPOConfig
from purerl.acting.rollout import collect, reset_actor
from purerl.core.keys import named_key, split_keys
from purerl.envs import make_env
from purerl.envs.suites import SUITES
from purerl.networks.distributions import Categorical, DiagGaussian
from tests.helpers.configs import CONFIGS
from tests.helpers.suites import IDS
from tests.helpers.tiny import CFG

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def ranks():
    """Allow the rank promotion that suites rely on, unlike purerl's own code."""
    with jax.numpy_rank_promotion("allow"):
        yield


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


def installed(env_id):
    pytest.importorskip(SUITES[env_id.partition("/")[0]])


def marked(env_id):
    if env_id in IN_NORMAL_TESTS:
        return env_id
    slow = env_id in ONE_EACH and not env_id.startswith((*LONGEST, "brax"))
    return pytest.param(env_id, marks=pytest.mark.slow if slow else pytest.mark.long)


# --- tests for every suite --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", [marked(env_id) for env_id in IDS])
def test_it_keeps_the_protocol(env_id):
    installed(env_id)
    env_kwargs, num_steps = IDS[env_id]
    report = purerl.check_env(env_id, env_kwargs=env_kwargs, num_envs=8, num_steps=num_steps)
    assert report.problems == ()


@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param(env_id, marks=pytest.mark.long if env_id.startswith(LONGEST) else pytest.mark.slow)
        for env_id in ONE_EACH
        if not env_id.startswith("jumanji")  # no limits in jumanji
    ],
)
def test_a_time_limit_is_worth_the_true_last_observation(env_id):
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
    state = jax.vmap(reset)(jax.random.split(named_key(KEY, "start"), B))
    keys = split_keys(named_key(KEY, "environment"), T, 2, B)
    one_step = jax.jit(jax.vmap(step))
    for t in range(limit):
        state, last_obs = one_step(keys[t, 0], state, network_action(env, steps.action[t]))
    value = lambda obs: network.apply(params, (), obs[None], jnp.zeros((1, B), bool))[0].value[0]
    np.testing.assert_allclose(steps.next_value[limit - 1], value(last_obs), rtol=1e-5, atol=1e-5)
    after_reset = value(steps.obs[limit])
    moved = (last_obs != steps.obs[limit]).reshape(B, -1).any(1)  # on a grid an agent may stand where it began
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


@pytest.mark.slow
def test_the_flags_of_craftax():
    """Episodes end by the game, by the time limit, and by both."""
    installed("craftax/")
    from purerl.envs import craftax

    suite = craftax.make("Craftax-Classic-Symbolic-v1", ())
    bare = craftax._CraftaxEnv(suite, suite.default_params.replace(max_timesteps=7))
    state, _ = jax.jit(bare.reset)(KEY)
    step = jax.jit(lambda state: bare.step(KEY, state, jnp.int32(0))[3:5])
    dead = state.replace(player_health=jnp.int32(0) * state.player_health - 5)
    late = lambda state: state.replace(timestep=jnp.full_like(state.timestep, 6))
    flags = [tuple(bool(flag) for flag in step(x)) for x in (state, dead, late(state), late(dead))]
    assert flags == [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if env_id.startswith("jumanji/")])
def test_specs_that_are_computed_are_known_inside_a_trace(env_id):
    installed(env_id)
    reset = lambda key: make_env(env_id, (), {}).reset(jax.random.split(key, 2))[1]
    assert jax.tree.leaves(jax.eval_shape(reset, KEY))


@pytest.mark.slow
def test_rewards_of_repeated_actions_add_up():
    """Repeated actions are compared with single steps of brax. An action that ends the episode is not repeated."""
    installed("brax/")
    repeated, single = (make_env("brax/fast", (("action_repeat", count),), {}) for count in (3, 1))
    keys, action = jax.random.split(KEY, (2, 2)), jnp.array([[1.0], [-1.0]])
    state, _ = single.reset(keys[0])
    rewards = []
    for _ in range(3):
        after = single.step(keys, state, action)
        state = after.env_state
        rewards.append(np.asarray(after.reward))
    once = repeated.step(keys, repeated.reset(keys[0])[0], action)
    np.testing.assert_allclose(once.reward, sum(rewards), rtol=1e-5)
    assert rewards[2][0] > rewards[0][0] > 0
    np.testing.assert_array_equal(once.next_obs, after.next_obs)


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
    alone = ~terminated.any(0)  # the poles that did not fall in 40 steps
    assert truncated[39][alone].all()


@pytest.mark.long
def test_worlds_of_craftax_are_the_same_alone_and_in_a_batch():
    """XLA on a CPU miscompiles the noise of worlds from the ninth of a batch on: worlds are made one after the other."""
    installed("craftax/")
    from purerl.envs import craftax

    suite = craftax.make("Craftax-Classic-Symbolic-v1", ())
    bare = craftax._CraftaxEnv(suite, suite.default_params)
    keys = jax.random.split(KEY, 12)
    batch = jax.jit(jax.vmap(bare.reset))(keys)[0].map
    assert jnp.unique(batch.reshape(12, -1), axis=0).shape[0] == 12
    one = jax.jit(lambda key: suite.reset_env(key, suite.default_params)[1].map)
    np.testing.assert_array_equal(batch, jnp.stack([one(key) for key in keys]))


@pytest.mark.long
def test_worlds_of_craftax_are_as_many_of_each_kind_as_plain_resets_make():
    """A chi-square test compares the player's surroundings in worlds from training's resets with those of plain resets."""
    installed("craftax/")
    from purerl.envs import craftax

    B, T = 64, 8
    env = make_env("craftax/Craftax-Classic-Symbolic-v1", (), {"max_timesteps": 1})  # each step ends an episode
    state, _ = env.reset(jax.random.split(KEY, B))

    def step(state, key):
        after = env.step(jax.random.split(key, (2, B)), state, jnp.zeros(B, jnp.int32))
        return after.env_state, after.env_state[0].map

    drawn = jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(KEY, T))[1])(state)
    suite = craftax.make("Craftax-Classic-Symbolic-v1", ())
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
def test_an_update_of_other_algorithms(env_id, name):
    installed(env_id)
    cfg = CONFIGS[name].replace(env=env_id)
    train = purerl.make_train(cfg)
    before = jax.jit(train.init)(KEY)
    after, _ = jax.jit(train.update)(before)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(after.params))
    assert any((x != y).any() for x, y in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [*ONE_EACH[3:], "jumanji/Maze-v0"])
def test_it_may_be_made_inside_a_trace(env_id):
    """The environment is made as in a sweep over configs, and as in an evaluation with other levels."""
    installed(env_id)
    cfg = CFG.replace(env=env_id, num_levels=2, num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=8)

    def run(lr):
        train = purerl.make_train(cfg.replace(lr=lr))
        return train.evaluate(train(KEY).state, KEY, num_episodes=3, max_steps=2).returns

    assert jax.eval_shape(jax.vmap(run), jnp.ones(2)).shape == (2, 3)


@pytest.mark.parametrize(
    ("env_id", "name", "values"),
    [
        pytest.param("brax/inverted_pendulum", "ang_damping", [0.0, -5.0], marks=pytest.mark.slow),
        pytest.param("craftax/Craftax-Classic-Symbolic-v1", "max_timesteps", [3, 6], marks=pytest.mark.long),
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


# --- light suites -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_limit_that_jumanji_shows_is_part_of_its_task():
    installed("jumanji/")
    env = make_env("jumanji/Maze-v0", (("time_limit", 4),), {})
    state, obs = jax.jit(env.reset)(jax.random.split(KEY, 8))
    step = jax.jit(lambda t, state, obs: env.step(jax.random.split(jax.random.key(t), (2, 8)), state, legal(obs["action_mask"])))
    for t in range(4):
        after = step(t, state, obs)
        assert not after.truncated.any()
        assert t == 3 or not after.terminated.all()
        state, obs = after.env_state, after.obs
        np.testing.assert_allclose(after.next_obs["step_count"], (t + 1) / 4)
    assert after.terminated.all()


def legal(mask):
    return jnp.argmax(mask, axis=-1).astype(jnp.int32)


@pytest.mark.slow
def test_a_joint_mask_of_jumanji_makes_one_choice_of_combinations():
    """The reference is the suite's own environment, with the row and the column of a field."""
    installed("jumanji/")
    import jumanji

    env, bare = make_env("jumanji/Minesweeper-v0", (), {}), jumanji.make("Minesweeper-v0")
    assert env.action_space == purerl.Discrete(100)
    keys = jax.random.split(KEY, 4)
    state, _ = env.reset(keys)
    after = env.step(jnp.stack([keys, keys]), state, jnp.full(4, 37))
    assert not after.next_obs["action_mask"][:, 37].any()
    assert after.next_obs["action_mask"].shape == (4, 100)
    want = jax.vmap(lambda key: bare.step(bare.reset(key)[0], jnp.array([3, 7]))[1])(keys)
    np.testing.assert_array_equal(after.next_obs["board"], want.observation.board + 1)
    np.testing.assert_array_equal(after.reward, want.reward)


@pytest.mark.slow
def test_jumanji_leaves_a_notebooks_pictures_alone(fresh_python):
    installed("jumanji/")
    says = fresh_python("""
import builtins, matplotlib
matplotlib.use("svg")
builtins.__IPYTHON__ = True
import purerl
purerl.make_train(purerl.PPOConfig(env="jumanji/Maze-v0"))
print(matplotlib.get_backend(), builtins.__IPYTHON__)
""")
    assert "svg True" in says


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:scatter inputs:FutureWarning")  # from BinPack's own step
def test_every_environment_of_jumanji_makes_a_program():
    """All make a program except those for several agents, and Sokoban, which downloads its levels."""
    installed("jumanji/")
    import jumanji

    several = ("Connector-v3", "LevelBasedForaging-v0", "SearchAndRescue-v0", "Sokoban-v0")
    for name in set(jumanji.registered_environments()) - set(several):
        cfg = CFG.replace(env=f"jumanji/{name}", num_envs=2, num_steps=4, num_minibatches=1, total_timesteps=8)
        train = purerl.make_train(cfg)
        assert train.cfg.action_mask == ("" if "RubiksCube" in name else "action_mask")
        jax.eval_shape(train.update, jax.eval_shape(train.init, KEY))


@pytest.mark.slow
def test_masks_of_single_choices_keep_several():
    installed("jumanji/")
    env = make_env("jumanji/Cleaner-v0", (), {})
    assert env.action_space == purerl.MultiDiscrete((4, 4, 4))
    assert env.reset(KEY[None])[1]["action_mask"].shape == (1, 12)
    cfg = CFG.replace(env="jumanji/Cleaner-v0", num_envs=4, num_steps=8, total_timesteps=32, num_minibatches=1)
    train = purerl.make_train(cfg)
    assert train.cfg.action_mask == "action_mask"
    state = jax.jit(train.init)(KEY)
    _, rollout, _ = jax.jit(lambda s: collect(train.env, train.network, s.params, s.actor, KEY, 8))(state)
    marks = rollout.steps.obs["action_mask"].reshape(8, 4, 3, 4)
    assert jnp.take_along_axis(marks, rollout.steps.action[..., None], axis=-1).all()


@pytest.mark.slow
def test_rulesets_are_drawn_by_each_reset(tmp_path, monkeypatch):
    """Rulesets are drawn from a file like the suite's own, a part of which is left for evaluation."""
    installed("xminigrid/")
    from xminigrid import benchmarks

    from purerl.envs import xminigrid

    goals = np.tile(np.array([1, 3, 1, 0, 0], np.uint8), (4, 1))
    goals[:, 2] = [1, 2, 3, 4]
    empty = {"rules": np.zeros((4, 1, 7), np.uint8), "init_tiles": np.tile(np.array([3, 1], np.uint8), (4, 1, 1))}
    monkeypatch.setattr(benchmarks, "DATA_PATH", str(tmp_path))
    monkeypatch.setattr(xminigrid, "DATA_PATH", str(tmp_path))
    asked = (("benchmark", "trivial-21k"), ("rulesets", (0, 3)))
    with pytest.raises(ConfigError, match="is not on this machine; this downloads it"):
        make_env("xminigrid/XLand-MiniGrid-R1-9x9", asked, {})
    benchmarks.save_bz2_pickle({"goals": goals, "num_rules": np.ones(4, int), **empty}, tmp_path / "trivial_21k")
    env = make_env("xminigrid/XLand-MiniGrid-R1-9x9", asked, {})
    state, _ = env.reset(jax.random.split(KEY, 64))
    assert np.unique(state[0].state.goal_encoding[:, 2]).tolist() == [1, 2, 3]
    with pytest.raises(ConfigError, match="of 4"):
        make_env("xminigrid/XLand-MiniGrid-R1-9x9", (("benchmark", "trivial-21k"), ("rulesets", (3, 5))), {})


# --- refused inputs ---------------------------------------------------------------------------------------------------


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
        ({"env": "pgx/go_9x9"}, "for 2 players"),
        ({"env": "pgx/minatar-brekout"}, "did you mean 'minatar-breakout'"),
        ({"env": "pgx/minatar-breakout", "env_kwargs": (("episode_length", 0),)}, "max_steps"),
        ({"env": "jumanji/Connector-v3"}, "is for 10 agents"),
        ({"env": "jumanji/Snake-v2"}, "did you mean 'Snake-v1'"),
        ({"env": "jumanji/Maze-v0", "env_kwargs": (("generator", ("Random", ())),)}, "refused by jumanji/Maze-v0"),
        ({"env": "navix/Navix-DoorKey-v0"}, "no environment of Navix"),
        ({"env": "navix/Navix-DoorKey-5x5-v0", "env_kwargs": (("observation_fn", "symbol"),)}, "did you mean 'symbolic'"),
        ({"env": "xminigrid/MiniGrid-DoorKey"}, "no environment of XLand-MiniGrid"),
        ({"env": "xminigrid/MiniGrid-DoorKey-5x5", "env_kwargs": (("max_step", 3),)}, "refused by xminigrid"),
        ({"env": "xminigrid/MiniGrid-DoorKey-5x5", "env_kwargs": (("benchmark", "x"),)}, "only the XLand-MiniGrid"),
        ({"env": "xminigrid/XLand-MiniGrid-R1-9x9", "env_kwargs": (("benchmark", "trivial"),)}, "did you mean 'trivial-21k'"),
    ],
)
def test_bad_settings_of_a_suite(changes, says):
    installed(changes["env"])
    with pytest.raises(ConfigError, match=says):
        purerl.make_train(PPOConfig(**changes))


@pytest.mark.slow
def test_privileged_entries_of_playground_are_for_the_value_alone():
    """The environment here has the shape of playground's robots, whose models would need a download."""
    pytest.importorskip("mujoco_playground")
    from ml_collections import ConfigDict
    from mujoco_playground._src.mjx_env import State

    from purerl.envs.playground import adapt

    class Robot:
        _config, action_size, dt = ConfigDict({"episode_length": 5, "action_repeat": 1}), 2, 0.02

        def reset(self, key):
            obs = {"state": jnp.ones(2), "privileged_state": jnp.ones(5)}
            return State(None, obs, jnp.float32(0), jnp.float32(0), {}, {})

        def step(self, state, action):
            return state.replace(reward=action.sum())

    assert purerl.make_train(PPOConfig(), env=adapt(Robot(), None)).cfg.critic_obs == "privileged_state"
    assert make_env("playground/CartpoleBalance", (), {}).critic_obs == ""
