"""One agent on several devices, compared with one device that has all environments and no device axis."""

import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import purerl
from purerl import APPOConfig, ConfigError, DAACConfig, PPGConfig, PPOConfig, RNDConfig
from purerl.acting import rollout
from purerl.acting.normalize import RewardScale
from purerl.algorithms import rnd
from purerl.core.keys import fold_in_name
from purerl.core.reductions import num_devices, total
from purerl.envs import make_env
from purerl.learning import phases, update
from purerl.runs.devices.data_parallel import check_replicas
from purerl.runs.run import Run
from purerl.runs.storage.checkpoint import saved_updates
from purerl.runs.trainer import Trainer
from tests.helpers.probes import Varied, boxed
from tests.helpers.tiny import digest

KEY = jax.random.key(0)
MINIBATCHES = 4
SIZES = {"total_timesteps": 128 * 20, "num_envs": 8, "num_steps": 16, "num_minibatches": MINIBATCHES, "hidden": (8,), "lr": 1e-3}
NORMALISED = {"normalize_obs": True, "normalize_reward": True, "normalize_value": True}
MEMORY = {"memory": "gru", "memory_size": 4, "sequence_length": 8}
PPO = PPOConfig(**SIZES, num_epochs=2)
CASES = {
    "ppo": PPO.replace(**NORMALISED, target_kl=1e-3, nonfinite="freeze", minibatches="env"),
    "kl": PPO.replace(lr_schedule="kl_adaptive", kl_penalty="adaptive", grad_clip="per_network", advantage_norm="batch"),
    "gru": PPO.replace(**MEMORY, normalize_obs=True, arch="shared"),
    "lru": PPO.replace(**MEMORY | {"memory": "lru"}),
    "rnd": PPO.replace(rnd=RNDConfig(features=4, hidden=(8,), init_steps=256, predictor_fraction=0.5)),
    "ppg": PPGConfig(**SIZES, n_pi=2, e_aux=2, aux_columns=4, **NORMALISED),
    "daac": DAACConfig(**SIZES, e_v=2, value_freq=2, normalize_reward=True),
    "appo": APPOConfig(**SIZES, num_epochs=2, replay=2, lag=1, replay_order="random", **NORMALISED),
    "appo, gru, rnd": APPOConfig(**SIZES, **MEMORY, replay=2, rnd=RNDConfig(features=4, hidden=(8,), init_steps=256)),
}


def trap(count):
    """Return environments whose rewards differ by device, so that any value not reduced over all devices is far off."""
    env = make_env("", (), {}, (boxed(Varied) if count < 8 else Varied)(), None, ())

    def step(keys, env_state, action):
        after, here = env.step(keys, env_state, action), keys.shape[1]
        device = jax.lax.axis_index("data") if num_devices() > 1 else jnp.arange(here) // (here // count)
        return after.replace(reward=after.reward + 100 * device.astype(jnp.float32))

    return env._replace(step=step)


def side_by_side(monkeypatch, count):
    """Draw for one device the numbers of `count` devices, in the order of its own environments."""
    reset, draws, permutation, bernoulli = rollout.reset_actor, rollout.random_draws, phases.permutation, jax.random.bernoulli

    def reset_all(env, network, num_envs, key):
        own = [jax.random.fold_in(fold_in_name(key, "start"), d) for d in range(count)]
        keys = jnp.concatenate([jax.random.split(one, num_envs // count) for one in own])
        return reset(env._replace(reset=lambda _: env.reset(keys)), network, num_envs, key)

    def draws_of_all(policy, key, num_steps, num_envs, rows):
        each = num_envs // count
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct((each, *x.shape[1:]), x.dtype), policy)
        drawn = [draws(one, jax.random.fold_in(key, d), num_steps, each, rows) for d in range(count)]
        join = lambda axis: lambda *xs: jnp.concatenate(xs, axis)
        return jax.tree.map(join(1), *(noise for noise, _ in drawn)), join(2)(*(keys for _, keys in drawn))

    def union(key, n):
        """Shuffle on each device; a minibatch is the union of theirs. Environments are the last axis of an index."""
        each = SIZES["num_envs"] // count
        own = jnp.stack([permutation(jax.random.fold_in(key, d), n // count) for d in range(count)])  # [devices, n / devices]
        place = own // each * SIZES["num_envs"] + jnp.arange(count)[:, None] * each + own % each
        return place.reshape(count, MINIBATCHES, -1).swapaxes(0, 1).reshape(-1).astype(jnp.int32)

    def counted(key, p, shape):
        """Draw `[T, R * B]`, of R rollouts."""
        each = SIZES["num_envs"] // count
        own = [bernoulli(jax.random.fold_in(key, d), p, (shape[0], shape[1] // count)) for d in range(count)]
        return jnp.concatenate([x.reshape(shape[0], -1, each) for x in own], 2).reshape(shape)

    for module in (update, rnd):
        monkeypatch.setattr(module, "reset_actor", reset_all)
    monkeypatch.setattr(rollout, "random_draws", draws_of_all)
    monkeypatch.setattr(phases, "permutation", union)
    monkeypatch.setattr(jax.random, "bernoulli", counted)


def on_devices(cfg, count, updates):
    """Return the states of each of `count` devices after `updates` updates, and the last metrics."""
    train = purerl.make_train(cfg, env=trap(count), axis_name="data", axis_size=count)
    options, axes = {"axis_name": "data", "axis_size": count}, train.seed_axes
    state = jax.jit(jax.vmap(train.init, in_axes=None, out_axes=axes, **options))(KEY)
    update = jax.jit(jax.vmap(train.update, in_axes=(axes,), out_axes=(axes, 0), **options))
    for _ in range(updates):
        state, metrics = update(state)
    return state, metrics


def shareable(cfg, count):
    """Return a config whose minibatches `count` devices can share equally."""
    if cfg.num_envs // count % MINIBATCHES and cfg.minibatches == "env":
        cfg = cfg.replace(minibatches="flat")
    if cfg.memory != "none" and count == 8:
        cfg = cfg.replace(sequence_length=4)
    return cfg.replace(aux_columns=8, n_pi=4) if hasattr(cfg, "aux_columns") and count == 8 else cfg


def learnt(state):
    """Return all that must be equal on all devices: not the reward sums of single environments."""
    kept = {name: x for name, x in state.extra.items() if name in ("published", "target", "kl_coef", "intrinsic")}
    everything = state.params, state.opt_state, state.statistics, kept
    is_scale = lambda x: isinstance(x, RewardScale)
    return jax.tree.map(lambda x: x.moments if is_scale(x) else x, everything, is_leaf=is_scale)


slow = [("kl", 2), ("gru", 4), ("lru", 2), ("rnd", 8), ("ppg", 2), ("appo", 4)]
product = [("ppo", 4)]
for case in ((name, count) for name in CASES for count in (2, 4, 8)):
    mark = pytest.mark.slow if case in slow else pytest.mark.long
    product += [pytest.param(*case, marks=mark)] if case not in product else []


@pytest.mark.slow
@pytest.mark.each_landing("ppg-2")
@pytest.mark.parametrize(("name", "count"), product)
def test_devices_together_equal_one_device_with_all_environments(name, count, monkeypatch):
    cfg = CASES[name]
    cfg = shareable(cfg, count)
    state, metrics = on_devices(cfg, count, 3)
    side_by_side(monkeypatch, count)
    train = purerl.make_train(cfg, env=trap(count))
    alone, update = jax.jit(train.init)(KEY), jax.jit(train.update)
    for _ in range(3):
        alone, metrics_alone = update(alone)
    got_leaves, want_leaves = jax.tree.leaves(learnt(state)), jax.tree.leaves(learnt(alone))
    for got, want in zip(got_leaves, want_leaves, strict=True):
        for device in range(count):
            np.testing.assert_allclose(got[device], want, rtol=1e-5, atol=1e-5)
    got, want = (purerl.summarize(m) for m in (jax.tree.map(lambda x: x[0], metrics), metrics_alone))
    assert got.keys() == want.keys()
    for metric in want:
        np.testing.assert_allclose(got[metric], want[metric], rtol=1e-4, atol=1e-5, err_msg=metric)


# --- data_parallel ----------------------------------------------------------------------------------------------------

TWENTY = """
import sys
import jax, numpy as np, purerl
from jax.sharding import Mesh, PartitionSpec
from tests.runs.test_data_parallel import CASES, KEY, shareable, trap, unequal
count = len(jax.devices())
for name, cfg in CASES.items():
    train = purerl.make_train(shareable(cfg, count), env=trap(count))
    spread = purerl.data_parallel(train, Mesh(np.array(jax.devices()), ("data",)))
    state, update = jax.jit(spread.init)(KEY), jax.jit(spread.update)
    for _ in range(20):
        state, _ = update(state)
    print(name, unequal(state, spread.specs), np.isfinite(jax.tree.leaves(state.params)[0]).all())
"""


def shards(x):
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(shard.data) if is_key else shard.data) for shard in x.addressable_shards]


def unequal(state, specs):
    """Return the paths of arrays that should be equal on all devices and differ."""
    differs = lambda x, spec: spec == PartitionSpec() and any((y != shards(x)[0]).any() for y in shards(x))
    found = jax.tree_util.tree_leaves_with_path(jax.tree.map(differs, state, specs))
    return [jax.tree_util.keystr(path) for path, different in found if different]


def mesh(count=2, name="data"):
    return Mesh(np.array(jax.local_devices()[:count]), (name,))


@pytest.fixture(scope="module")
def spread():
    return purerl.data_parallel(purerl.make_train(CASES["ppo"], env=trap(2)), jax.make_mesh((2,), ("data",)))


@pytest.mark.slow
def test_devices_stay_equal_and_communicate_only_by_all_reduce(spread):
    state, update = jax.jit(spread.init)(KEY), jax.jit(spread.update)
    update = update.lower(state).compile()
    for _ in range(5):
        state, metrics = update(state)
    assert unequal(state, spread.specs) == []
    obs = shards(state.actor.obs)
    assert obs[0].shape[0] == 4
    assert (obs[0] != obs[1]).any()
    assert metrics["steps"].total == 128
    program = update.as_text()
    assert "all-reduce" in program
    assert not any(kind in program for kind in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"))


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4, 8])
def test_devices_are_equal_after_twenty_updates(count, fresh_python):
    lines = fresh_python(TWENTY, JAX_NUM_CPU_DEVICES=str(count)).splitlines()
    assert lines == [f"{name} [] True" for name in CASES]


def episodes_of(train, state, key, count, devices):
    """Return each device's share of the episodes, computed on one device with the key of that device."""
    share = jax.jit(lambda device: train.evaluate(state, jax.random.fold_in(key, device), count // devices))
    return jax.tree.map(lambda *x: np.concatenate(x), *map(share, np.arange(devices)))


@pytest.mark.slow
@pytest.mark.each_landing("2")
@pytest.mark.parametrize("count", [2, 4])
def test_devices_evaluate_different_episodes(count):
    """The episodes equal, one by one, the episodes of one device with the same keys."""
    train = purerl.make_train(PPO, env=Varied())
    here, state = train.on_axis("data", count), train.init(KEY)
    one = lambda state: here.evaluate(state, KEY, 16)
    of_each = jax.jit(jax.vmap(one, in_axes=None, out_axes=0, axis_name="data", axis_size=count))(state)
    wanted = episodes_of(train, state, KEY, 16, count)
    for name in ("returns", "lengths"):
        found = getattr(of_each, name)
        assert found.shape == (count, 16 // count)
        np.testing.assert_allclose(found.reshape(-1), getattr(wanted, name), rtol=1e-6)
    assert len(set(map(tuple, of_each.returns.tolist()))) == count


@pytest.mark.long
@pytest.mark.slow
def test_evaluations_cover_the_episodes_of_all_devices():
    """Evaluations by `data_parallel`, by a run and by `fit` are compared with those of one device."""
    runs = Trainer(PPO, 0, 1, False, {"env": Varied()}, 2)
    state = runs.init()
    spread, whole = purerl.data_parallel(runs.train, mesh()), jax.device_put(state, jax.local_devices()[0])
    key = jax.random.fold_in(jax.random.key(0), 0)  # the key of the first run
    wanted = episodes_of(runs.train, whole, key, 16, 2)
    for found in (jax.jit(lambda state: spread.evaluate(state, key, 16))(state), Run(runs, state, (0,)).evaluate(16)):
        np.testing.assert_allclose(found.returns, wanted.returns, rtol=1e-6)
        np.testing.assert_array_equal(found.lengths, wanted.lengths)
    found = runs.evaluation(16)(state)
    wanted = episodes_of(runs.train, whole, fold_in_name(whole.key, "evaluation", whole.clock), 16, 2)
    np.testing.assert_allclose(found["episode_return"], wanted.returns.mean(), rtol=1e-6)
    np.testing.assert_allclose(found["episode_length"], wanted.lengths.mean(), rtol=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_data_parallel_run_evaluates_acts_and_trains(spread):
    state = jax.jit(spread.init)(KEY)
    episodes = jax.jit(lambda state, key: spread.evaluate(state, key, 6, max_steps=8))(state, KEY)
    assert episodes.returns.shape == (6,)
    policy = spread.policy(state)
    action, _ = policy(policy.initial_carry(1), jnp.zeros((1, *state.actor.obs.shape[1:])), jnp.ones(1, bool), KEY)
    assert action.shape == (1, 1)
    short = purerl.data_parallel(purerl.make_train(CASES["ppo"].replace(total_timesteps=256), env=trap(2)), mesh())
    result = jax.jit(short)(KEY)
    assert purerl.summarize(result.metrics)["steps"].tolist() == [128, 128]


@pytest.mark.long
@pytest.mark.slow
def test_state_is_saved_and_restored_on_its_devices(tmp_path):
    spread = purerl.data_parallel(purerl.make_train(PPO, env=Varied()), mesh())
    update = jax.jit(spread.update)
    state, _ = update(jax.jit(spread.init)(KEY))
    purerl.save(tmp_path, spread, state)
    restored = purerl.restore(tmp_path, spread)
    assert jax.tree.map(lambda x: x.sharding.spec, restored) == jax.tree.map(lambda x: x.sharding.spec, state)
    assert digest(update(restored)[0]) == digest(update(state)[0])
    assert digest(purerl.restore(tmp_path, spread.whole)) == digest(state)
    several = jax.vmap(spread.init, out_axes=spread.whole.seed_axes)(jax.random.split(KEY, 3))
    purerl.save(tmp_path / "several", spread, several)
    restored = purerl.restore(tmp_path / "several", spread)
    assert digest(restored) == digest(several)
    assert restored.actor.obs.sharding.spec == PartitionSpec(None, "data")


@pytest.mark.slow
def test_data_parallel_works_under_vmap_over_seeds_and_configs(spread):
    keys = jax.random.split(KEY, 2)
    axes = spread.train.seed_axes
    states = jax.jit(jax.vmap(spread.init, out_axes=axes))(keys)
    states, _ = jax.jit(jax.vmap(spread.update, in_axes=(axes,), out_axes=(axes, 0)))(states)
    update = jax.jit(spread.update)
    for i in range(2):
        state, _ = update(jax.jit(spread.init)(keys[i]))
        for got, want in zip(jax.tree.leaves(states.params), jax.tree.leaves(state.params), strict=True):
            np.testing.assert_allclose(got[i], want, rtol=1e-4, atol=1e-5)

    def rate(lr):
        one = purerl.data_parallel(purerl.make_train(PPO.replace(lr=lr, total_timesteps=256), env=trap(2)), mesh())
        return one(KEY).metrics["lr"].total

    rates = jax.jit(jax.vmap(rate))(jnp.float32([1e-3, 1e-2]))
    np.testing.assert_allclose(rates[1], 10 * rates[0], rtol=1e-5)


def test_plan_divides_state_and_rollout_between_devices():
    cfg = PPGConfig(num_envs=128, n_pi=4)
    alone, here = purerl.make_train(cfg).plan, purerl.make_train(cfg, axis_name="data", axis_size=8).plan
    assert (here.devices, here.num_updates, here.batch_size) == (8, alone.num_updates, alone.batch_size)
    assert here.rollout_bytes * 8 == alone.rollout_bytes
    assert here.kept_bytes * 8 == alone.kept_bytes
    assert here.state_bytes < alone.state_bytes / 2


@pytest.mark.long
def test_update_memory_is_divided_between_devices():
    train = purerl.make_train(PPO.replace(num_envs=256))
    spread = purerl.data_parallel(train, mesh())
    assert 0.4 < spread.plan.update_bytes / train.plan.update_bytes < 0.6
    with pytest.raises(ConfigError, match=r"data_parallel\(train, mesh\)\.plan\.update_bytes"):
        _ = spread.train.plan.update_bytes


@pytest.mark.parametrize(
    ("cfg", "count", "match"),
    [
        (PPO, 3, r"num_envs = 8: must be divisible by the number of devices, 3; 6 or 9 would work"),
        (PPO.replace(num_minibatches=64), 4, r"num_minibatches = 64: .*\(2 environments on each of 4 devices\)"),
        (PPO.replace(minibatches="env"), 4, r"num_minibatches = 4: .*num_envs = 2"),
        (PPO.replace(**MEMORY), 8, r"num_minibatches = 4: .*must divide the number of training sequences, 2"),
        (CASES["ppg"], 8, r"aux_columns = 4: must be divisible by the number of devices, 8"),
    ],
)
def test_indivisible_sizes_are_refused(cfg, count, match):
    with pytest.raises(ConfigError, match=match):
        purerl.make_train(cfg, axis_name="data", axis_size=count)


def test_invalid_arguments_are_refused():
    train = purerl.make_train(PPO)
    with pytest.raises(ConfigError, match=r"mesh = .*must be a jax.sharding.Mesh with an axis 'data'"):
        purerl.data_parallel(train, mesh(name="rows"))
    with pytest.raises(ConfigError, match="without axis_name"):
        purerl.data_parallel(train.on_axis("data", 2), mesh())
    with pytest.raises(ConfigError, match="axis_size = None"):
        purerl.make_train(PPO, axis_name="data")
    with pytest.raises(ConfigError, match="axis_name = None"):
        purerl.make_train(PPO, axis_size=2)
    evaluate = lambda state: purerl.data_parallel(train, mesh()).evaluate(state, KEY, 3)
    state = jax.eval_shape(train.init, KEY)
    with pytest.raises(ConfigError, match="num_episodes = 3: must be divisible by the number of devices, 2"):
        jax.eval_shape(evaluate, state)
    with pytest.raises(ConfigError, match=r"devices_per_run = 64: must be at most the number of devices, 2"):
        purerl.fit(PPO, devices_per_run=64)
    env = trap(2)

    def reset(keys):
        env_state, obs = env.reset(keys)
        return (env_state, jnp.int32(0)), obs

    def step(keys, env_state, action):
        after = env.step(keys, env_state[0], action)
        return after.replace(env_state=(after.env_state, env_state[1]))

    with pytest.raises(ConfigError, match="has no environment axis"):
        purerl.data_parallel(purerl.make_train(PPO, env=env._replace(reset=reset, step=step)), mesh())


# --- fit --------------------------------------------------------------------------------------------------------------

SHORT = PPO.replace(total_timesteps=128 * 6, normalize_obs=True, normalize_reward=True, lr_schedule="constant")


def stopped_after(updates):
    """Return a recorder that ends the process's run, as Ctrl-C does."""

    def stop(progress):
        if progress.updates >= updates:
            signal.raise_signal(signal.SIGINT)

    return stop


@pytest.mark.slow
@pytest.mark.each_landing("1")
@pytest.mark.parametrize("seeds", [1, 3])
def test_run_resumes_bit_for_bit_and_on_another_number_of_devices(seeds, tmp_path):
    options = {"num_seeds": seeds, "eval_every": 3, "eval_episodes": 4}
    whole = purerl.fit(SHORT, devices_per_run=2, **options)
    assert whole.run.evaluate(4, max_steps=8).returns.shape[-1] == 4
    stop = {"chunk_seconds": 1e-6, "recorders": (stopped_after(2),)}
    purerl.fit(SHORT, directory=tmp_path / "run", devices_per_run=2, **options, **stop)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resumed = purerl.fit(SHORT, directory=tmp_path / "run", **options)
    assert resumed.progress.began[0] == 2
    assert resumed.run.batch.devices_per_run == 2
    assert digest(resumed.state) == digest(whole.state)
    assert resumed.evaluations["episode_return"].tolist() == whole.evaluations["episode_return"].tolist()

    saved = purerl.load(tmp_path / "copy").state
    seen = []
    first = lambda progress: seen.append(progress.updates)
    with pytest.warns(UserWarning, match="may not be bit-identical: .*devices per run 2 before, 1 now"):
        other = purerl.fit(SHORT, directory=tmp_path / "copy", devices_per_run=1, recorders=(first,), **options)
    assert seen[-1] == other.progress.updates == 6
    assert jax.tree.map(jnp.shape, other.state) == jax.tree.map(jnp.shape, saved)


@pytest.mark.long
@pytest.mark.slow
def test_fit_in_a_fresh_process_uses_all_cores_as_devices(fresh_python, tmp_path):
    """Reading the directory and looking for other processes must not start JAX with a single device."""
    code = f"""
import jax, purerl
from purerl.runs.devices.over_devices import _cores
cfg = purerl.PPOConfig(env="CartPole-v1", num_envs=4, num_steps=8, num_minibatches=1, total_timesteps=64, lr_schedule="constant")
one = purerl.fit(cfg, num_seeds=2, directory={str(tmp_path)!r})
print(len(jax.devices()) == _cores(), len(one.run.labels))
"""
    for _ in range(2):
        assert fresh_python(code) == "True 2\n"


# --- values that must be equal on all devices -------------------------------------------------------------------------


def copies(*values):
    """Return a replicated array whose copies on the devices have these values."""
    devices = jax.local_devices()[: len(values)]
    everywhere = jax.sharding.NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec())
    parts = [jax.device_put(x, device) for x, device in zip(values, devices, strict=True)]
    return jax.make_array_from_single_device_arrays(parts[0].shape, everywhere, parts)


def test_unequal_replicas_are_named():
    spread = jax.device_put(jnp.arange(4), jax.sharding.NamedSharding(mesh(), PartitionSpec("data")))
    equal = {"params": copies(*[jnp.ones(3)] * 2), "key": copies(*[KEY] * 2), "env": spread}
    check_replicas(equal)
    apart = {"nan": copies(*[jnp.full(2, jnp.nan)] * 2), "counts": copies(jnp.zeros(5), jnp.zeros(5).at[3].set(1))}
    with pytest.raises(ConfigError, match=r"1 problem:\n  state\['counts'\]: .*axis_name = 'data'"):
        check_replicas(equal | apart)
    with pytest.raises(ConfigError, match=r"state\['key'\]"):
        check_replicas({"key": copies(KEY, jax.random.key(1))})


def visits(reduced):
    """Return an intrinsic reward for rarely seen kinds of observations; with `reduced`, the counts cover all devices."""

    def reward(counts, steps):
        kinds = steps.next_obs[..., :3]
        new = kinds.sum((0, 1))
        new = on_all(new) if reduced else new
        return (kinds @ jax.lax.rsqrt(counts + 1)[:, None])[..., 0], counts + new

    on_all = lambda x: jnp.stack([total(x[i]) for i in range(3)])
    return (lambda key, obs: jnp.zeros(3)), reward


@pytest.mark.long
@pytest.mark.slow
def test_state_not_reduced_over_devices_is_not_saved(tmp_path):
    cfg = SHORT.replace(num_epochs=1, num_minibatches=1, total_timesteps=256, normalize_obs=False)
    options = {"env": Varied(), "devices_per_run": 2, "chunk_seconds": 1e-6}
    with pytest.raises(ConfigError, match=r"state\.extra\['intrinsic'\]: .*axis_name = 'data'"):
        purerl.fit(cfg, directory=tmp_path / "apart", intrinsic=visits(False), **options)
    assert saved_updates(tmp_path / "apart" / "checkpoints") == []
    purerl.fit(cfg, directory=tmp_path / "equal", intrinsic=visits(True), **options)
    assert saved_updates(tmp_path / "equal" / "checkpoints")[-1] == 2


@pytest.mark.slow
def test_unequal_replicas_are_not_saved(tmp_path):
    spread = purerl.data_parallel(purerl.make_train(PPO, env=Varied()), mesh(name="here"), "here")
    state = jax.jit(spread.init)(KEY)
    with pytest.raises(ConfigError, match=r"state\.extra\['counts'\]: .*axis_name = 'here'"):
        purerl.save(tmp_path, spread, state.replace(extra={"counts": copies(jnp.zeros(2), jnp.ones(2))}))
