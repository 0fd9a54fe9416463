"""Privileged observations of MuJoCo Playground, and its implementations of physics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from purerl.envs import make_env

pytestmark = pytest.mark.usefixtures("ranks")

KEY = jax.random.key(0)


@pytest.mark.slow
def test_only_the_value_network_reads_playgrounds_privileged_state():
    """A stand-in has the observations of playground's robots, whose models would need a download."""
    pytest.importorskip("mujoco_playground")
    from ml_collections import ConfigDict
    from mujoco_playground._src.mjx_env import State

    from purerl.envs.suites.playground import adapt

    class Robot:
        _config, action_size, dt = ConfigDict({"episode_length": 5, "action_repeat": 1}), 2, 0.02

        def reset(self, key):
            obs = {"state": jnp.ones(2), "privileged_state": jnp.ones(5)}
            return State(None, obs, jnp.float32(0), jnp.float32(0), {}, {})

        def step(self, state, action):
            return state.replace(reward=action.sum())

    assert purerl.make_train(PPOConfig(), env=adapt(Robot(), None)).cfg.critic_obs == "privileged_state"
    assert make_env("playground/CartpoleBalance", (), {}).critic_obs == ""


@pytest.mark.slow
def test_value_network_of_a_robot_reads_its_privileged_state(tmp_path, monkeypatch):
    """Tetrahedra stand for the meshes of the robot, which would need a download and are only drawn."""
    pytest.importorskip("mujoco_playground")
    from mujoco_playground._src import mjx_env

    points = 0.05 * np.eye(4, 3, dtype="<f4")
    faces = [bytes(12) + points[list(face)].tobytes() + bytes(2) for face in ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3))]
    meshes = tmp_path / "unitree_go1" / "assets"
    meshes.mkdir(parents=True)
    for part in ("calf", "hip", "thigh", "thigh_mirror", "trunk"):
        (meshes / f"{part}.stl").write_bytes(bytes(80) + np.uint32(4).tobytes() + b"".join(faces))
    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", tmp_path)
    cfg = PPOConfig(env="playground/Go1JoystickFlatTerrain", env_kwargs=(("impl", "jax"),), hidden=(8,))
    params = jax.eval_shape(purerl.make_train(cfg).init, KEY).params
    sizes = {group: params[group]["torso"]["Dense_0"]["kernel"].shape[0] for group in ("policy", "value")}
    assert sizes == {"policy": 48, "value": 48 + 123}


@pytest.mark.long  # a case of the MJX backend in test_brax.py runs for each landing
@pytest.mark.slow
def test_masses_of_a_model_are_scaled():
    """The same force moves heavy carts less."""
    pytest.importorskip("mujoco_playground")
    randomize = {"body_mass": purerl.Scale(0.5, 2)}
    env = make_env("playground/CartpoleBalance", (), {}, info=("body_mass",), randomize=randomize)
    state, obs = jax.jit(env.reset)(jax.random.split(KEY, 8))
    after = jax.jit(env.step)(jax.random.split(KEY, (2, 8)), state, jnp.ones((8, 1)))
    gains = (after.obs - obs)[:, 3][jnp.argsort(after.info["body_mass"])]  # of the cart's speed
    assert (jnp.diff(gains) < 0).all()


def test_warp_that_is_not_installed_is_named(monkeypatch):
    pytest.importorskip("mujoco_playground")
    monkeypatch.setattr("purerl.envs.suites.playground.WARP_INSTALLED", False)
    with pytest.raises(purerl.ConfigError, match=r"impl.*needs the package warp-lang; run pip install"):
        purerl.make_train(PPOConfig(env="playground/CartpoleBalance", env_kwargs=(("impl", "warp"),)))


@pytest.mark.slow
def test_warp_simulates_single_resets_and_seeds_in_one_vmap():
    """Warp keeps contacts of all environments in shared arrays, which no state may keep."""
    pytest.importorskip("mujoco_playground")
    from mujoco_playground import registry

    kwargs = {"impl": "warp", "episode_length": 40}
    env = make_env("playground/HopperHop", tuple(kwargs.items()), {})
    actions = jax.random.uniform(KEY, (50, 3, *env.action_space.shape), minval=-1, maxval=1)

    def rollout(keys):
        def step(state, action):
            after = env.step(jax.random.split(KEY, (2, 3)), state, action)
            return after.env_state, (after.next_obs, after.truncated)

        return jax.lax.scan(step, env.reset(keys)[0], actions)[1]

    keys = jax.random.split(KEY, (2, 3))
    run = jax.jit(jax.vmap(rollout))
    obs, ended = run(keys)
    assert ended[:, 39].all()
    assert ended.sum() == 2 * 3
    neighbours = run(keys.at[0].set(jax.random.split(jax.random.key(1), 3)))[0]
    assert (neighbours[0] != obs[0]).any()
    np.testing.assert_array_equal(neighbours[1], obs[1])
    alone = registry.load("HopperHop", config_overrides=kwargs)
    state, step = jax.jit(jax.vmap(alone.reset))(keys[1]), jax.jit(jax.vmap(alone.step))
    for i in range(25):  # contacts begin at 17 and amplify what two programs round differently, a hundredfold by now
        state = step(state, actions[i])
        np.testing.assert_allclose(state.obs, obs[1, i], atol=5e-4)
    assert state.data._impl.nacon[0] > 0
