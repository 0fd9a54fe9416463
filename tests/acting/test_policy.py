"""Trained policies: actions and values."""

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from purerl.acting.policy import _to_space_dtypes
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG, tiny

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def run():
    return jax.jit(tiny())


def test_policy_returns_actions_and_values(run):
    train, state = tiny(), run(KEY).state
    policy = train.policy(state)
    obs, first = jnp.eye(4)[:3], jnp.zeros(3, bool)
    carry = policy.initial_carry(3)
    action, carry = jax.jit(policy)(carry, obs, first, KEY)
    assert action.shape == (3,)
    assert action.dtype == jnp.int32
    greedy, _ = policy(carry, obs, first, KEY, deterministic=True)
    again, _ = policy(carry, obs, first, jax.random.key(9), deterministic=True)
    np.testing.assert_array_equal(greedy, again)
    assert policy.value(carry, obs).shape == (3,)
    np.testing.assert_array_equal(policy.value(carry, obs, first), policy.value(carry, obs))


def test_outputs_are_the_distribution_and_values_with_statistics_applied():
    train = tiny(CFG.replace(normalize_obs=True, normalize_value=True), box=True)
    state = jax.jit(train)(KEY).state
    policy, obs, first = train.policy(state), 3 * jnp.eye(4)[:3], jnp.zeros(3, bool)
    outputs, carry = policy.outputs(policy.initial_carry(3), obs, first)
    np.testing.assert_allclose(outputs.value, policy.value(carry, obs), rtol=1e-6)
    action, _ = policy(carry, obs, first, KEY, deterministic=True)
    np.testing.assert_allclose(outputs.policy.env_action(outputs.policy.mode(), train.env.action_space), action, rtol=1e-6)
    assert not np.allclose(outputs.policy.mean, train.network.apply(state.params, (), obs[None], first[None])[0].policy.mean[0])


def test_continuous_actions_stay_within_their_bounds():
    train = tiny(CFG.replace(log_std_init=3.0), box=True)
    action, _ = train.policy(train.init(KEY))((), jnp.eye(4)[:3], jnp.zeros(3, bool), KEY)
    assert action.shape == (3, 1)
    assert (jnp.abs(action) <= 1).all()
    assert (jnp.abs(action) == 1).any()


class Pictures:
    """A dict of an image and a position."""

    action_space = purerl.Discrete(2)

    def reset(self, key):
        return (), self.observe()

    def step(self, key, state, action):
        return state, self.observe(), 0.0, False, False, {}

    def observe(self):
        return {"image": jnp.zeros((8, 8, 1), jnp.uint8), "at": jnp.zeros(2)}


OBS = {"image": jnp.zeros((3, 8, 8, 1), jnp.uint8), "at": jnp.zeros((3, 2))}
WRONG = {
    "another name": ({"picture": OBS["image"], "at": OBS["at"]}, {}, r"obs = 'at, picture': must have the entries at, image"),
    "a tuple": (tuple(OBS.values()), {}, "obs = '0, 1': must have the entries at, image"),
    "floats for bytes": (OBS | {"image": jnp.zeros((3, 8, 8, 1))}, {}, r"obs/image = .*must be uint8\[B, 8, 8, 1\]"),
    "one environment": ({"image": OBS["image"][0], "at": OBS["at"][0]}, {}, r"obs/at = 'float32\[2\]'.*obs\[None\] is a batch"),
    "another number of environments": (OBS | {"at": jnp.zeros((4, 2))}, {}, "obs/at"),
    "one flag": (OBS, {"first": True}, r"first = \[\]: must be an array of 3 flags"),
    "an int as key": (OBS, {"key": 0}, "key = 0: must be a key"),
    "another hidden state": (OBS, {"carry": ()}, r"carry = \(\): must be the result of initial_carry\(3\)"),
}


@pytest.fixture(scope="module")
def gru():
    cfg = PPOConfig(num_envs=4, num_steps=16, total_timesteps=64, hidden=(4,), memory="gru", memory_size=4)
    train = purerl.make_train(cfg, env=purerl.wrap_env(Pictures(), max_steps=10))
    return train.policy(jax.jit(train.init)(jax.random.key(0)))


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_of_a_policy_are_named(gru, case):
    obs, changes, text = WRONG[case]
    inputs = {"carry": gru.initial_carry(3), "first": jnp.ones(3, bool), "key": jax.random.key(1)} | changes
    with pytest.raises(purerl.ConfigError, match=text):
        gru(inputs["carry"], obs, inputs["first"], inputs["key"])


def test_observations_of_another_library_are_converted(gru):
    obs = OrderedDict(image=np.full((3, 8, 8, 1), 100), at=np.zeros((3, 2)))
    value = gru.value(gru.initial_carry(3), obs)
    np.testing.assert_array_equal(value, gru.value(gru.initial_carry(3), OBS | {"image": OBS["image"] + np.uint8(100)}))


def test_results_in_place_of_states_are_named(run):
    train, result = tiny(), run(KEY)
    for function in (train.policy, train.update, lambda x: train.evaluate(x, KEY)):
        with pytest.raises(purerl.ConfigError, match="state = 'TrainResult': must be a TrainState"):
            function(result)
    with pytest.raises(purerl.ConfigError, match="metrics = 'TrainResult': must be a dict of metrics"):
        purerl.summarize(result)


def test_traced_choice_of_the_mode_is_named():
    train = tiny()
    policy = train.policy(train.init(KEY))
    args = (), jnp.eye(4)[:2], jnp.ones(2, bool), KEY
    with pytest.raises(purerl.ConfigError, match=r"use jax\.jit\(policy, static_argnums=4\)"):
        jax.jit(policy)(*args, True)
    jax.jit(policy, static_argnums=4)(*args, True)


@pytest.mark.parametrize("wrong", [9, 0, "False", None])
def test_deterministic_must_be_true_or_false(wrong):
    train = tiny()
    state = train.init(KEY)
    text = f"deterministic = {wrong!r}: must be True or False"
    with pytest.raises(purerl.ConfigError, match=text):
        train.policy(state)((), jnp.eye(4)[:2], jnp.ones(2, bool), KEY, wrong)
    with pytest.raises(purerl.ConfigError, match=text):
        train.evaluate(state, KEY, 6, wrong)  # as if the fourth argument were `max_steps`


@pytest.mark.parametrize("field", ["normalize_obs", "normalize_value"])
def test_statistics_that_a_train_does_not_apply_are_refused(field):
    train, other = tiny(CFG.replace(**{field: True})), tiny()
    state = train.init(KEY)
    for function in (other.policy, other.update, lambda x: other.evaluate(x, KEY)):
        with pytest.raises(purerl.ConfigError, match=f"which {field}=False ignores"):
            function(state)
    with pytest.raises(purerl.ConfigError, match=f"lacks running statistics, which {field}=True needs"):
        train.policy(other.init(KEY))


def test_states_of_another_config_are_refused():
    normal = purerl.make_train(CFG.replace(normalize_obs=True, normalize_reward=True), env=Varied())
    plain, small = purerl.make_train(CFG, env=Varied()), purerl.make_train(CFG.replace(num_envs=2), env=Varied())
    state = jax.eval_shape(plain.init, KEY)
    with pytest.raises(purerl.ConfigError, match="state: lacks running statistics, which normalize_obs=True needs"):
        normal.policy(state)
    with pytest.raises(purerl.ConfigError, match="lacks running statistics, which normalize_reward=True needs"):
        jax.eval_shape(normal.update, state)
    with pytest.raises(purerl.ConfigError, match="has running statistics, which normalize_reward=False ignores"):
        jax.eval_shape(plain.update, jax.eval_shape(normal.init, KEY))
    with pytest.raises(purerl.ConfigError, match="state: has 4 environments, but this train has 2"):
        jax.eval_shape(small.update, state)


def test_numbers_beyond_the_dtype_of_observations_are_refused():
    space = jax.ShapeDtypeStruct((3,), np.uint8)
    assert _to_space_dtypes(space, np.array([[0, 7, 255]]))[0].dtype == np.uint8
    for number in (-1, 300):
        with pytest.raises(purerl.ConfigError, match="must be ints from 0 to 255, the range of uint8"):
            _to_space_dtypes(space, np.array([[0, 7, number]]))
