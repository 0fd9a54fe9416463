"""Environments with non-finite values under `nonfinite="reset"`: their episodes end and are counted, others are unchanged."""

import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.acting.normalize import initial_moments, merge
from purerl.acting.rollout import collect, reset_actor
from purerl.core.auto_reset import AutoReset
from purerl.core.metrics import Sum
from purerl.envs import make_env
from purerl.networks.actor_critic import actor_critic
from purerl.runs.watch import MetricWatch
from tests.helpers.tiny import CFG, at, digest

RESET = CFG.replace(nonfinite="reset")
KEY = jax.random.key(0)


class Faulty:
    """An environment with rewards of 1 or 2, and a bad number in step 3 of an episode, by its kind.

    Each reset draws the kind, the index of an entry of `KINDS`.
    """

    action_space = purerl.Discrete(2)
    max_steps = 8

    def __init__(self, *kinds):
        self._kinds = jnp.array([KINDS.index(kind) for kind in kinds or KINDS])

    def reset(self, key):
        kind = jax.random.choice(key, self._kinds)
        return (jnp.int32(0), kind), {"a": jnp.int32(0), "b": jnp.full(2, _bad("first", kind))}

    def step(self, key, state, action):
        time, noise = state[0] + 1, jax.random.normal(key)
        bad = lambda what: jnp.where(time == 3, _bad(what, state[1]), jnp.float32(0))
        obs = jnp.stack([time / 8, noise]).astype(jnp.float32) + bad("observation") + bad("large")
        reward = (1 + action).astype(jnp.float32) + bad("reward")
        return (time, state[1]), {"a": time, "b": obs}, reward, False, False, {"x": noise + bad("info")}


KINDS = ("none", "observation", "reward", "info", "large", "first")
BAD = {"observation": jnp.nan, "reward": -jnp.inf, "info": jnp.nan, "large": 1e30, "first": jnp.nan}


def _bad(what, kind):
    return jnp.where(kind == KINDS.index(what), jnp.float32(BAD[what]), jnp.float32(0))


@functools.cache
def rolled_out(finite):
    """Run 12 steps in 32 environments; return the kinds of the first episodes, the steps and the metrics."""
    env = make_env("", (), {}, purerl.wrap_env(Faulty()), info=("x",), finite=finite)
    network = actor_critic(CFG.replace(hidden=(4,)), env.observation_space, env.action_space)

    def run(key):
        actor = reset_actor(env, network, 32, key)
        params = network.init(KEY, jax.tree.map(lambda x: x[None], actor.obs))
        _, rollout, metrics = collect(env, network, params, actor, key, 12, keep_next_obs=True, info=("x",))
        kinds = (actor.env_state[0] if finite else actor.env_state)[0][1]
        return kinds, rollout.steps, metrics

    kinds, steps, metrics = jax.device_get(jax.jit(run)(KEY))
    return np.array(KINDS)[kinds], steps, {name: np.asarray(x.read()) for name, x in metrics.items()}


def test_reset_ends_the_episode_of_a_nonfinite_row():
    kinds, steps, metrics = rolled_out(finite=True)
    assert set(kinds) == set(KINDS)
    bad = np.isin(kinds, ["observation", "reward", "large"])
    np.testing.assert_array_equal(steps.terminated[2, kinds != "first"], bad[kinds != "first"])
    assert not steps.truncated[2].any()
    assert (steps.reward[2, bad] == 0).all()
    assert steps.first[3, bad].all()
    assert (steps.obs["a"][3, bad] == 0).all()
    numbers = [x for x in jax.tree.leaves(steps.replace(info={})) if x.dtype == np.float32]
    assert all((np.abs(x) < 1e18).all() for x in numbers)
    entries = metrics["nonfinite/observation/b"], metrics["nonfinite/reward"]
    assert metrics["nonfinite_resets"] == steps.terminated.sum() == sum(entries)
    assert min(entries) > 0
    same = jax.tree.map(lambda x, y: x[2, bad] == y[2, bad], steps.obs, steps.next_obs)  # so that curiosity pays for nothing new
    assert all(x.all() for x in jax.tree.leaves(same))


def test_environments_without_faults_are_unchanged_bit_for_bit():
    """Runs with the same keys, with and without a check, agree until the first fault of an environment."""
    (kinds, checked, _), (_, plain, _) = rolled_out(finite=True), rolled_out(finite=False)
    never = np.isin(kinds, ["none", "info"]) & ~checked.terminated.any(0)
    assert never.sum() > 2
    pick = lambda steps, rows: jax.tree.map(lambda x: x[:, rows], steps.replace(value=(), next_value=()))
    assert digest(pick(checked, never)) == digest(pick(plain, never))
    later = kinds != "first"
    assert digest(pick(at(checked, slice(0, 2)), later)) == digest(pick(at(plain, slice(0, 2)), later))


def test_nonfinite_first_observation_terminates_at_the_first_step():
    kinds, steps, _ = rolled_out(finite=True)
    np.testing.assert_array_equal(steps.terminated[0], kinds == "first")
    np.testing.assert_array_equal(steps.reward[0], np.where(kinds == "first", 0, 1 + steps.action[0]))
    assert (steps.obs["b"][0] == 0).all()


def test_nonfinite_info_is_excluded_from_the_mean_and_counted():
    kinds, steps, metrics = rolled_out(finite=True)
    assert metrics["nonfinite/info/x"] >= (kinds == "info").sum() > 0
    assert np.isfinite(metrics["info/x"])
    assert not steps.terminated[2, kinds == "info"].any()
    assert "nonfinite_resets" not in rolled_out(finite=False)[2]


@pytest.mark.slow
def test_nonfinite_resets_are_the_same_for_slow_resets_and_under_vmap():
    faulty = Faulty("none", "observation", "first")
    env = {slow: make_env("", (), {}, purerl.wrap_env(faulty, slow_reset=slow), finite=True) for slow in (False, True)}

    def run(env, key):
        state = env.reset(jax.random.split(key, 6))[0]

        def one(state, key):
            after = env.step(jax.random.split(key, (2, 6)), state, jnp.zeros(6, jnp.int32))
            return after.env_state, after

        return jax.lax.scan(one, state, jax.random.split(key, 10))[1]

    seeds = jax.random.split(KEY, 2)
    alone, slow = (jax.jit(lambda key, env=env[slow]: run(env, key)) for slow in (False, True))
    together = jax.jit(jax.vmap(lambda key: run(env[False], key)))(seeds)
    assert together.nonfinite["observation/b"].any()
    for i in range(2):
        assert digest(alone(seeds[i])) == digest(slow(seeds[i])) == digest(at(together, i))


def batch(shares):
    """Return a batched environment of purerl's protocol, whose environments share a part of the state if `shares`."""
    env, more = purerl.wrap_env(Faulty("none", "observation")), (jnp.zeros(2),) if shares else ()

    def reset(keys):
        env_state, obs = env.reset(keys)
        return (env_state, *more), obs

    def step(keys, state, action):
        after = env.step(keys, state[0], action)
        return after.replace(env_state=(after.env_state, *more))

    return env._replace(reset=reset, step=step)


def test_custom_batched_environment_is_reset_by_rows():
    env = make_env("", (), {}, batch(shares=False), finite=True)
    assert not isinstance(env.step, AutoReset)
    state, _ = env.reset(jax.random.split(KEY, 16))
    faulty, step = np.asarray(state[0][0][0][1]) > 0, jax.jit(env.step)
    for i in range(3):
        after = step(jax.random.split(jax.random.key(i), (2, 16)), state, jnp.zeros(16, jnp.int32))
        state = after.env_state
    assert 0 < faulty.sum() < 16
    np.testing.assert_array_equal(after.terminated, faulty)
    np.testing.assert_array_equal(np.asarray(after.obs["a"]), np.where(faulty, 0, 3))
    assert np.isfinite(after.obs["b"]).all()


def test_state_shared_by_environments_is_refused():
    with pytest.raises(purerl.ConfigError, match=r"nonfinite = 'reset'.*share a part of their state \(\[1\]\)"):
        purerl.make_train(RESET, env=batch(shares=True))
    purerl.make_train(CFG, env=batch(shares=True))


@pytest.mark.each_landing("fields1")
@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {
            "memory": "gru",
            "memory_size": 8,
            "memory_inputs": ("action", "reward"),
            "normalize_obs": True,
            "normalize_reward": True,
        },
        {"rnd": purerl.RNDConfig(features=4, hidden=(8,), init_steps=64)},
    ],
)
def test_learnt_state_stays_finite(fields):
    train = purerl.make_train(RESET.replace(**fields), env=purerl.wrap_env(Faulty()))
    result = jax.jit(train)(KEY)
    metrics = purerl.summarize(result.metrics)
    assert (metrics["nonfinite_resets"] > 0).all()
    assert np.isfinite(metrics["loss"]).all()
    learnt = jax.device_get((result.state.params, result.state.statistics))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(learnt))


def test_nonfinite_evaluation_episodes_end_unfinished():
    train = purerl.make_train(RESET.replace(info=("x",), hidden=(4,)), env=purerl.wrap_env(Faulty("none", "reward", "info")))
    state = jax.jit(train.init)(KEY)
    episodes = jax.device_get(jax.jit(lambda state: train.evaluate(state, KEY, 32))(state))
    assert np.isfinite(episodes.returns).all()
    assert np.isfinite(episodes.info["x"]).all()
    assert 0 < (~episodes.finished).sum() < 32
    np.testing.assert_array_equal(episodes.lengths, np.where(episodes.finished, 8, 3))


@pytest.mark.slow
def test_nonfinite_counts_are_summed_over_devices():
    train = purerl.make_train(RESET.replace(num_envs=8), env=purerl.wrap_env(Faulty()))
    spread = purerl.data_parallel(train, jax.make_mesh((2,), ("data",)))
    _, metrics = jax.jit(spread.update)(jax.jit(spread.init)(KEY))
    counts = {name: int(x.total) for name, x in metrics.items() if name.startswith("nonfinite")}
    assert counts["nonfinite_resets"] == counts["nonfinite/observation/b"] + counts["nonfinite/reward"] > 0
    assert int(metrics["episodes"].total) >= counts["nonfinite_resets"]


# --- fit --------------------------------------------------------------------------------------------------------------


def chunk(resets, entries):
    """Return metrics of two runs, `[2, length]`."""
    found = {"nonfinite_resets": resets} | {f"nonfinite/{name}": x for name, x in entries.items()}
    return {name: Sum(np.array(x)) for name, x in found.items()}


def test_first_nonfinite_entry_warns_once():
    watch = MetricWatch(("seed 0", "seed 1"), batch_size=64, updates=0)
    nothing = [[0, 0], [0, 0]]
    watch(chunk(nothing, {"observation": nothing, "info/x": nothing}), 2, False, True)
    some = chunk([[0, 1], [0, 3]], {"observation": [[0, 1], [0, 0]], "reward": [[0, 0], [0, 3]], "info/x": nothing})
    with pytest.warns(UserWarning, match="seed 0, update 4: the environment's observation is not finite.* 1 of 64 steps"):
        watch(some, 4, False, True)
    watch(some, 6, False, True)
    with pytest.warns(UserWarning, match="seed 1, update 1: the environment's info/x is not finite.* its mean excludes 2 steps"):
        MetricWatch(("seed 0", "seed 1"), 64, 0)(chunk(nothing, {"reward": nothing, "info/x": [[0, 0], [2, 0]]}), 2, False, True)


def test_update_without_a_finite_step_is_an_error():
    watch = MetricWatch(("seed 0", "seed 1"), batch_size=64, updates=0)
    every = chunk([[1, 0], [0, 64]], {"observation": [[1, 0], [0, 0]], "reward": [[0, 0], [0, 64]]})
    with pytest.raises(purerl.NotFiniteError, match="seed 1, update 2: the environment's reward is not finite"):
        watch(every, 2, False, True)
    with pytest.warns(UserWarning, match="seed 0, update 1: the environment's observation"):
        watch(every, 2, False, False)


def test_skipping_more_than_a_tenth_of_updates_warns():
    freeze = lambda *skipped: {"nonfinite": Sum(np.array(skipped))}
    watch = MetricWatch(("seed 0",), 64, 100)
    watch(freeze(1, 0, 0, 0, 0), 105, False, True)
    watch(freeze(0, 0, 0, 0, 0), 110, False, True)
    with pytest.warns(UserWarning, match="skipped 2 of 11 updates; .*nonfinite='reset'"):
        watch(freeze(1), 111, False, True)
    watch(freeze(1), 112, True, True)


@pytest.mark.slow
def test_fit_warns_once_of_nonfinite_values():
    env = purerl.wrap_env(Faulty("none", "reward"))
    with pytest.warns(UserWarning, match="reward is not finite") as caught:
        result = purerl.fit(RESET.replace(info=("x",)), env=env, chunk_seconds=1e-9)
    assert len([x for x in caught if "not finite" in str(x.message)]) == 1
    assert bool(result.finite[0])


@pytest.mark.slow
def test_fit_fails_if_every_first_observation_is_nan():
    with pytest.raises(purerl.NotFiniteError, match="update 1: the environment's observation/b is not finite"):
        purerl.fit(RESET, env=purerl.wrap_env(Faulty("first")))


# --- statistics -------------------------------------------------------------------------------------------------------


def test_one_large_number_leaves_statistics_finite():
    x = np.zeros((4, 8, 2), np.float32)
    x[1, 2, 0] = 1e30
    after = jax.jit(merge)(initial_moments((2,)), x)
    assert np.isfinite(after.variance).all()
    assert np.isfinite(after.mean).all()
    worse = jax.jit(merge)(after, -x)
    assert np.isfinite(worse.variance).all()
    x[1, 2, 0] = np.inf
    assert not np.isfinite(jax.jit(merge)(initial_moments((2,)), x).mean[0])


# --- gymnasium --------------------------------------------------------------------------------------------------------


class Host(gymnasium.Env):
    """An environment with reward 1 and episodes of 6 steps; with an odd seed, step 3 gives a bad number."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, what="observation"):
        self._what, self._faulty = what, False

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._faulty = self._faulty if seed is None else bool(seed % 2)
        self._time = 0
        first = np.nan if self._faulty and self._what == "first" else 0
        return np.array([0, first], np.float32), {}

    def step(self, action):
        self._time += 1
        bad = np.nan if self._faulty and self._time == 3 else 0
        obs = np.array([self._time, bad if self._what == "observation" else 0], np.float32)
        return obs, 1.0 + (bad if self._what == "reward" else 0), False, self._time == 6, {}


@pytest.mark.parametrize("mode", ["DISABLED", "SAME_STEP"])
@pytest.mark.parametrize("what", ["observation", "reward", "first"])
def test_gymnasium_episodes_end_at_nonfinite_values(what, mode):
    vector = lambda count: gymnasium.vector.SyncVectorEnv(
        [lambda: Host(what)] * count, autoreset_mode=gymnasium.vector.AutoresetMode[mode]
    )
    made = purerl.from_gymnasium(vector, "vector") if mode != "DISABLED" else purerl.from_gymnasium(lambda: Host(what))
    env = make_env("", (), {}, made, finite=True)
    keys = jax.random.wrap_key_data(jnp.array([[0, 0], [0, 1], [0, 2]], jnp.uint32))
    handle, _ = env.reset(keys)
    rows = []
    for _ in range(7):
        after = env.step(keys, handle, jnp.zeros(3, jnp.int32))
        handle = after.env_state
        rows.append(jax.device_get(after.replace(env_state=())))
    steps = jax.tree.map(lambda *x: np.stack(x), *rows)
    ends = {"first": [1] * 7, "observation": [0, 0, 1, 0, 0, 1, 0], "reward": [0, 0, 1, 0, 0, 1, 0]}[what]
    assert steps.terminated[:, 1].tolist() == [bool(x) for x in ends]
    assert not steps.terminated[:, ::2].any()
    assert steps.truncated[5].tolist() == [True, False, True]
    np.testing.assert_array_equal(steps.reward[:, 1], 1 - np.array(ends))
    assert np.isfinite(steps.obs).all()
    assert np.isfinite(steps.next_obs).all()
    assert steps.obs[:, 0, 0].tolist() == [1, 2, 3, 4, 5, 0, 1]
    name = "reward" if what == "reward" else "observation"
    np.testing.assert_array_equal(steps.nonfinite[name][:, 1], np.array(ends, bool))


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.as_users
def test_cartpole_is_learnt_with_one_nonfinite_step_in_5000():
    env = make_env("CartPole-v1", (), {})

    def step(keys, state, action):
        after = env.step(keys, state, action)
        bad = jax.vmap(jax.random.uniform)(keys[0]) < 1 / 5000
        return after.replace(next_obs=jnp.where(bad[:, None], jnp.nan, after.next_obs))

    sizes = {"num_envs": 8192, "num_steps": 16, "num_minibatches": 32, "total_timesteps": 8192 * 16 * 32}
    sizes |= {"lr": 1e-3, "gae_lambda": 0.9, "value_clip": "none"}
    train = purerl.make_train(purerl.PPOConfig(**sizes, nonfinite="reset"), env=env._replace(step=step))
    result = jax.jit(train)(KEY)
    assert (purerl.summarize(result.metrics)["nonfinite_resets"] > 0).all()
    clean = purerl.make_train(purerl.PPOConfig(**sizes))
    assert jax.jit(lambda state: clean.evaluate(state, KEY, 64).returns.mean())(result.state) > 475
