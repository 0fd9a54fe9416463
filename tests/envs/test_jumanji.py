"""Environments of jumanji: specs, time limits, masks and plotting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.acting.rollout import collect
from purerl.envs import make_env
from tests.helpers.suites import IDS, installed
from tests.helpers.tiny import CFG

pytestmark = pytest.mark.usefixtures("ranks")

KEY = jax.random.key(0)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if env_id.startswith("jumanji/")])
def test_jumanji_environments_can_be_made_inside_a_trace(env_id):
    installed(env_id)
    reset = lambda key: make_env(env_id, (), {}).reset(jax.random.split(key, 2))[1]
    assert jax.tree.leaves(jax.eval_shape(reset, KEY))


def test_only_environments_with_costly_generators_have_slow_resets():
    installed("jumanji/")
    slow = {name: make_env(f"jumanji/{name}", (), {}).step.slow_reset for name in ("Maze-v0", "SlidingTilePuzzle-v0", "Snake-v1")}
    assert slow == {"Maze-v0": True, "SlidingTilePuzzle-v0": True, "Snake-v1": False}


@pytest.mark.slow
def test_time_limit_shown_in_the_observation_terminates():
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


@pytest.mark.long
@pytest.mark.slow
def test_joint_mask_flattens_the_action_to_one_discrete_choice():
    """The reference is jumanji's own environment, whose action is the row and the column of a field."""
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
def test_import_of_jumanji_keeps_the_plotting_backend(fresh_python):
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


@pytest.mark.slow
def test_separate_masks_keep_the_action_multi_discrete():
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
