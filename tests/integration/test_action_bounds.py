"""Policies work in units of the bounds of an action; environments give and take their own units."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import purerl
from purerl.acting.rollout import collect_rollout
from purerl.networks.distributions import DiagGaussian, TanhGaussian
from purerl.pure import Train

KEY = jax.random.key(0)
LARGEST = np.finfo(np.float32).max
GOALS = np.float32([(-1, 1, 0.8), (5, 35, 32), (-2000, 2000, 1600), (-0.01, 0.01, 0.008), (100, 200, 190)])  # low, high, goal


class Target:
    """A task that pays the negative distance of an action to a goal; the observation is the last action."""

    def __init__(self, low, high, goal=0.0):
        self.action_space = purerl.Box(jnp.float32(low)[None], jnp.float32(high)[None])
        self.goal = goal

    def reset(self, key):
        return jnp.int32(0), jnp.zeros(1)

    def step(self, key, state, action):
        return state, action, -jnp.abs(action[0] - self.goal), False, False, {}


def make(low=5.0, high=35.0, goal=32.0, env=None, **changes):
    network = changes.pop("network", None)
    cfg = purerl.PPOConfig(num_envs=4, num_steps=8, num_minibatches=1, hidden=(4,)).replace(**changes)
    return purerl.make_train(cfg, env=env or purerl.wrap_env(Target(low, high, goal), max_steps=8), network=network)


def distances_to_goals(distribution):
    """Return each trained policy's distance to its goal in half widths of the bounds, `[goals, seeds]`."""
    changes = {"num_envs": 16, "num_steps": 32, "num_minibatches": 4, "lr": 1e-2, "total_timesteps": 60 * 512}

    def train_one(box, key):
        train = make(*box, action_distribution=distribution, **changes)
        state = train(key).state
        action, _ = train.policy(state)((), jnp.zeros((1, 1)), jnp.zeros(1, bool), key, deterministic=True)
        return jnp.abs(action[0, 0] - box[2]) / (0.5 * (box[1] - box[0]))

    return jax.jit(jax.vmap(jax.vmap(train_one, (None, 0)), (0, None)))(GOALS, jax.random.split(KEY, 2))


@pytest.mark.slow
def test_gaussian_policy_learns_a_goal_whatever_the_bounds():
    assert distances_to_goals("gaussian").max() < 0.02


@pytest.mark.long
def test_tanh_policy_learns_a_goal_whatever_the_bounds():
    assert distances_to_goals("tanh").max() < 0.02


def test_environment_receives_actions_in_its_own_unit():
    space = purerl.Box(np.float32([5, -1, -np.inf, 0, -LARGEST]), np.float32([35, 1, np.inf, np.inf, LARGEST]))
    policy = DiagGaussian(jnp.zeros(5), jnp.zeros(5), unit="bounds")
    sample = jnp.float32([[0.8, 0.3, 7.0, -2.0, 1e7], [2.0, -2.0, -7.0, 2.0, -1e7]])
    expected = np.float32([[32, 0.3, 7, 0, 1e7], [35, -1, -7, 2, -1e7]])
    np.testing.assert_allclose(policy.env_action(sample, space), expected, rtol=1e-6)
    np.testing.assert_array_equal(policy.replace(unit="environment").env_action(sample, space)[:, 0], [5, 5])


def test_rollouts_store_samples_and_environments_receive_scaled_actions():
    train = make(log_std_init=-1.0)
    state = train.init(KEY)
    _, rollout, _ = jax.jit(lambda state: collect_rollout(train.cfg, train.env, train.network, state))(state)
    steps = rollout.steps
    assert jnp.abs(steps.action).max() < 3
    received = jnp.clip(20 + 15 * steps.action[..., 0], 5, 35)
    np.testing.assert_allclose(steps.reward, -jnp.abs(received - 32), rtol=1e-5)
    np.testing.assert_allclose(steps.obs[1:, :, 0], jnp.where(steps.first[1:], 0, received[:-1]), rtol=1e-6)
    episodes = jax.jit(train.evaluate, static_argnums=(2, 3))(state, KEY, 4, True)
    np.testing.assert_allclose(episodes.returns / 8, -12, atol=1)  # the mode of an untrained policy is near the centre


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["gaussian", "tanh"])
def test_warmup_actions_cover_the_bounds_uniformly(distribution):
    train = make(warmup_steps=10_000, num_envs=64, num_steps=64, action_distribution=distribution)
    _, rollout, _ = jax.jit(lambda state: collect_rollout(train.cfg, train.env, train.network, state))(train.init(KEY))
    steps = rollout.steps
    received = np.sort(np.asarray(steps.obs)[1:][~np.asarray(steps.first)[1:]].ravel())
    ideal = 5 + 30 * (np.arange(received.size) + 0.5) / received.size
    np.testing.assert_allclose(received, ideal, atol=1.0)  # in the environment's unit
    if distribution == "gaussian":
        np.testing.assert_allclose(steps.log_prob, -np.log(2), rtol=1e-5)  # in units of the bounds


class MeanAndDeviation(nn.Module):
    unit: str = ""

    @nn.compact
    def __call__(self, obs):
        mean = nn.Dense(1)(obs)
        log_std = self.param("log_std", nn.initializers.zeros, (1,))
        policy = DiagGaussian(mean, jnp.broadcast_to(log_std, mean.shape), self.unit) if self.unit else (mean, log_std)
        return policy, nn.Dense(1)(obs)


def test_custom_networks_keep_the_environments_unit_unless_they_opt_in():
    unit_of = lambda module, **bounds: make(network=purerl.from_linen(module), **bounds).action_unit
    assert unit_of(MeanAndDeviation(), low=-2.0, high=2.0) == "environment"
    assert unit_of(MeanAndDeviation("bounds")) == "bounds"
    assert make().action_unit == "bounds"
    assert make(action_distribution="tanh").action_unit == "either"
    assert make(-1.0, 1.0, 0.8).action_unit == "either"
    with pytest.warns(UserWarning, match=r"network: the policy's means are in the environment's unit"):
        unit_of(MeanAndDeviation())
    with pytest.raises(purerl.ConfigError, match=r"unit.*'metres'.*'environment' or 'bounds'"):
        unit_of(MeanAndDeviation("metres"))


@pytest.mark.parametrize("kind", [DiagGaussian, TanhGaussian])
def test_bounds_may_be_traced(kind):
    policy = kind(jnp.zeros(1), jnp.zeros(1))
    scale = jax.vmap(lambda high: policy.env_action(jnp.ones(1), purerl.Box(-high[None], high[None])))
    assert scale(jnp.float32([2.0, 4.0])).shape == (2, 1)


def save_in_the_environments_unit(monkeypatch, directory, train):
    """Save a state whose record has no unit of actions, like records before 0.4."""
    with monkeypatch.context() as patched:
        patched.setattr(Train, "action_unit", "environment")
        purerl.save(directory, train, train.init(KEY))


@pytest.mark.slow
def test_states_of_another_action_unit_are_refused(monkeypatch, tmp_path):
    cfg = purerl.PPOConfig(env="Pendulum-v1", num_envs=4, num_steps=8, num_minibatches=1, hidden=(4,), total_timesteps=32)
    train = purerl.make_train(cfg)
    save_in_the_environments_unit(monkeypatch, tmp_path / "old", train)
    refused = pytest.raises(purerl.CheckpointMismatch, match="action_unit: 'environment' in the checkpoint, 'bounds' here")
    with refused:
        purerl.restore(tmp_path / "old", train)
    with refused:
        purerl.load(tmp_path / "old")
    with pytest.raises(purerl.ConfigError, match=r"init_from.*action_unit"):
        purerl.fit(cfg, init_from=tmp_path / "old")


def test_states_with_bounds_of_one_load_whatever_their_unit(monkeypatch, tmp_path):
    train = make(-1.0, 1.0, 0.8)
    save_in_the_environments_unit(monkeypatch, tmp_path, train)
    purerl.restore(tmp_path, train)
