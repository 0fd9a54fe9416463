"""The pool of first states, from which the slow resets of a rollout are taken."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.acting.rollout import collect, reset_actor
from purerl.core.auto_reset import first_state_keys
from purerl.core.keys import fold_in_name
from purerl.networks.actor_critic import actor_critic
from tests.helpers.programs import on_accelerator
from tests.helpers.tiny import CFG

KEY = jax.random.key(0)
SMALL = CFG.replace(num_envs=8, num_steps=16, total_timesteps=512, num_minibatches=2)


class Drawn:
    """A task that observes the face of a die, drawn by the reset; episodes end at random, after two steps on average."""

    action_space = purerl.Discrete(2)

    def __init__(self, faces=1000, chance=0.5):
        self.faces, self.chance = faces, chance

    def reset(self, key):
        face = jax.random.randint(key, (), 0, self.faces)
        return face, self.shown(face)

    def step(self, key, face, action):
        return face, self.shown(face), 1.0, jax.random.bernoulli(key, self.chance), False, {}

    def shown(self, face):
        return face[None].astype(jnp.float32)


def rolled_out(task, num_envs, num_steps, key=KEY, **options):
    env = purerl.wrap_env(task, slow_reset=True)
    network = actor_critic(CFG, env.observation_space, env.action_space)
    actor = reset_actor(env, network, num_envs, key)
    params = network.init(key, actor.obs[None])
    run = jax.jit(lambda key: collect(env, network, params, actor, key, num_steps, **options))
    return env, *run(key)


@pytest.mark.each_landing("5", "200")
@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 5, 200])
def test_nth_new_episode_begins_in_the_nth_state_of_the_pool(size, monkeypatch):
    env, last, rollout, metrics = rolled_out(Drawn(), 8, 16, reset_pool=size)
    done = np.asarray(rollout.steps.terminated)
    count = done.sum()
    assert count > 10
    following = np.concatenate([rollout.steps.obs[1:], last.obs[None]])[done][:, 0]  # by step, then by environment
    _, pool = env.reset(first_state_keys(fold_in_name(KEY, "first states"), jnp.arange(count) % size))
    np.testing.assert_array_equal(following, pool[:, 0])
    np.testing.assert_allclose(metrics["resets_reused"].total, max(count - size, 0))
    assert metrics["resets_reused"].count == count
    monkeypatch.setattr(jax.lax, "platform_dependent", on_accelerator)
    _, there, rollout_there, metrics_there = rolled_out(Drawn(), 8, 16, reset_pool=size)
    np.testing.assert_array_equal(there.obs, last.obs)
    np.testing.assert_array_equal(rollout_there.steps.obs, rollout.steps.obs)
    assert metrics_there["resets_reused"].total == metrics["resets_reused"].total


@pytest.mark.slow
def test_one_step_episodes_reuse_the_pool():
    _, _, rollout, metrics = rolled_out(Drawn(chance=1.0), 4, 8)
    assert rollout.steps.first.all()
    assert metrics["resets_reused"].count == 32
    assert metrics["resets_reused"].total == 28
    assert len(np.unique(rollout.steps.obs[1:])) <= 4


@pytest.mark.slow
def test_pooled_first_states_have_the_distribution_of_single_resets(monkeypatch):
    """Compare 6 faces by a chi-square test with 5 degrees of freedom, whose statistic exceeds 20.5 with a chance of 0.001."""
    monkeypatch.setattr(jax.lax, "platform_dependent", on_accelerator)
    _, _, rollout, _ = rolled_out(Drawn(faces=6, chance=1 / 16), 2000, 16)
    steps = jax.tree.map(lambda x: np.asarray(x), rollout.steps)
    begun = steps.obs[1:][steps.first[1:]][:, 0].astype(int)
    counts = np.bincount(begun, minlength=6)
    statistic = np.square(counts - begun.size / 6).sum() / (begun.size / 6)
    assert begun.size > 1000
    assert statistic < 20.5


@pytest.mark.each_landing("changes0")
@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"memory": "gru", "memory_inputs": ("action", "reward")}, {"num_levels": 3}, {"nonfinite": "reset"}]
)
def test_training_with_a_pool_equals_training_with_single_resets(changes, monkeypatch):
    def returns(**changes):
        train = purerl.make_train(SMALL.replace(**changes), env=purerl.wrap_env(Drawn(), max_steps=4, slow_reset=True))
        metrics = jax.jit(train)(KEY).metrics
        return purerl.summarize(metrics)["episode_return"], purerl.summarize(metrics)["entropy"]

    here, entropy = returns(**changes)
    assert (here > 1).all()
    monkeypatch.setattr(jax.lax, "platform_dependent", on_accelerator)
    there, entropy_there = returns(**changes)
    np.testing.assert_allclose(there, here, rtol=1e-5)
    np.testing.assert_allclose(entropy_there, entropy, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("spread", ["seeds", "devices"])
def test_pool_of_each_seed_and_device_equals_single_resets(spread, monkeypatch):
    def returns():
        cfg = SMALL.replace(nonfinite="reset")
        train = purerl.make_train(cfg, env=purerl.wrap_env(Drawn(), max_steps=4, slow_reset=True))
        mesh, keys = jax.make_mesh((2,), ("data",)), jax.random.split(KEY, 2)
        run, given = (jax.vmap(train), keys) if spread == "seeds" else (purerl.data_parallel(train, mesh), KEY)
        return purerl.summarize(jax.jit(run)(given).metrics)["episode_return"]

    here = returns()
    assert (here > 1).all()
    monkeypatch.setattr(jax.lax, "platform_dependent", on_accelerator)
    np.testing.assert_allclose(returns(), here, rtol=1e-5)


def test_evaluation_resets_each_environment_once():
    made = []

    class Counted(Drawn):
        def reset(self, key):
            jax.debug.callback(lambda _: made.append(1), key)
            return super().reset(key)

    train = purerl.make_train(SMALL, env=purerl.wrap_env(Counted(), max_steps=6, slow_reset=True))
    state = jax.jit(train.init)(KEY)
    jax.effects_barrier()
    made.clear()
    episodes = jax.jit(lambda state: train.evaluate(state, KEY, 16))(state)
    jax.effects_barrier()
    assert episodes.finished.all()
    assert len(made) == 16


@pytest.mark.slow
def test_plan_counts_the_pool_and_reuse_warns():
    slow = lambda **changes: purerl.make_train(SMALL.replace(**changes), env=purerl.wrap_env(Drawn(), slow_reset=True))
    # A state has a face, a step count and an observation of one number.
    assert slow(reset_pool=1000).plan.rollout_bytes - slow(reset_pool=10).plan.rollout_bytes == 990 * 3 * 4
    with pytest.warns(UserWarning, match=r"resets_reused: \d+% of new episodes"):
        purerl.fit(SMALL.replace(reset_pool=2), 0, env=purerl.wrap_env(Drawn(), slow_reset=True))
    with pytest.warns(UserWarning, match="reset_pool = 9: has no effect in an environment without slow resets"):
        purerl.make_train(SMALL.replace(reset_pool=9), env=purerl.wrap_env(Drawn()))
