"""The built-in networks, by the fields of the config, and custom networks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import purerl
from purerl import Network, Outputs
from purerl.core.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from purerl.networks.distributions import Bernoulli, Beta, Categorical, DiagGaussian, MultiCategorical, TanhGaussian
from tests.helpers.networks import made, outputs
from tests.helpers.probes import Rich
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)
BOX = Box(np.full(2, -1, np.float32), np.full(2, 1, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actions", "distribution", "kind"),
    [
        (Discrete(3), "auto", Categorical),
        (MultiDiscrete((2, 3)), "auto", MultiCategorical),
        (MultiBinary(4), "auto", Bernoulli),
        (BOX, "auto", DiagGaussian),
        (BOX, "gaussian", DiagGaussian),
        (BOX, "tanh", TanhGaussian),
        (BOX, "beta", Beta),
    ],
)
def test_every_kind_of_action_has_a_distribution(actions, distribution, kind):
    out = outputs(*made(CFG.replace(action_distribution=distribution), actions=actions))
    assert isinstance(out.policy, kind)
    action = out.policy.sample(out.policy.noise(KEY))
    assert (action.shape, action.dtype) == ((2, 5, *actions.shape), actions.dtype)
    assert out.policy.env_action(action, actions).shape == action.shape
    for x in (out.value, out.policy.log_prob(action), out.policy.entropy(), out.policy.kl(out.policy)):
        assert x.shape == (2, 5)
        assert x.dtype == jnp.float32
    np.testing.assert_allclose(out.policy.kl(out.policy), 0, atol=1e-6)


# --- standard deviations ---------------------------------------------------------------------------------------------


def policy_of(obs_scale=1.0, **fields):
    """Return the policy of Pendulum's initial network at three observations, and the names of the policy head's parameters."""
    network = purerl.make_train(purerl.PPOConfig(env="Pendulum-v1", hidden=(8,), **fields)).network
    obs, first = obs_scale * jnp.arange(9.0).reshape(1, 3, 3), jnp.ones((1, 3), bool)
    params = network.init(KEY, obs)
    return network.apply(params, (), obs, first)[0].policy, sorted(params["policy"]["head"])


def test_standard_deviation_is_a_parameter_an_output_or_fixed():
    for std, names in {"parameter": ["Linear_0", "log_std"], "state": ["Linear_0"], "fixed": ["Linear_0"]}.items():
        policy, found = policy_of(std=std, log_std_init=-0.5)
        assert found == names
        np.testing.assert_allclose(policy.log_std, np.full((1, 3, 1), -0.5), atol=0.1)
        assert (np.ptp(policy.log_std) > 0) == (std == "state")


def test_standard_deviation_keeps_within_its_bounds():
    free, low, high = (
        policy_of(std="state", log_std_init=-0.5, **bounds)[0].log_std
        for bounds in ({}, {"log_std_min": -0.5}, {"log_std_max": -0.5})
    )
    assert (free != -0.5).any()
    np.testing.assert_array_equal(low, np.maximum(free, -0.5))
    np.testing.assert_array_equal(high, np.minimum(free, -0.5))
    with pytest.raises(purerl.ConfigError, match=r"log_std_init = 0\.0: must lie between log_std_min and log_std_max"):
        purerl.make_train(purerl.PPOConfig(env="Pendulum-v1", log_std_max=-1.0))


# --- observations -----------------------------------------------------------------------------------------------------


def test_only_the_critic_reads_its_entry_and_no_network_reads_the_mask():
    train = purerl.make_train(CFG.replace(critic_obs="secret", action_mask="legal"), env=Rich())
    params = train.init(KEY).params
    obs = jax.tree.map(lambda x: x[None], train.init(KEY).actor.obs)
    inputs = {group: params[group]["torso"]["Dense_0"]["kernel"].shape[0] for group in params}
    assert inputs == {"policy": 4 + 3, "value": 4 + 3 + 6}
    before = outputs(train.network, params, obs)
    other = outputs(train.network, params, obs | {"secret": obs["secret"] + 1})
    assert digest(before.policy) == digest(other.policy)
    assert digest(before.value) != digest(other.value)
    legal = jnp.array([True, False, False, True, True])
    masked = outputs(train.network, params, obs | {"legal": jnp.broadcast_to(legal, obs["legal"].shape)})
    assert digest(masked.value) == digest(before.value)
    assert (masked.policy.logits[..., ~legal] < -1e8).all()


# --- architecture -----------------------------------------------------------------------------------------------------


def test_value_network_may_have_other_widths():
    params = made(CFG.replace(hidden=(3, 4), critic_hidden=(5,)))[1]
    widths = {group: [x.shape[0] for x in jax.tree.leaves(params[group]["torso"]) if x.ndim == 1] for group in params}
    assert widths == {"policy": [3, 4], "value": [5]}
    with pytest.warns(UserWarning, match=r"critic_hidden = \(5,\): has no effect without arch = 'separate' or 'dual'"):
        purerl.make_train(CFG.replace(critic_hidden=(5,), arch="shared"))


@pytest.mark.parametrize("arch", ["separate", "shared", "detach"])
def test_architecture_decides_which_groups_the_value_loss_trains(arch):
    network, params, obs = made(CFG.replace(arch=arch))
    gradient = jax.grad(lambda params: jnp.square(outputs(network, params, obs).value - 1).sum())(params)
    reached = {group for group, g in gradient.items() if any((x != 0).any() for x in jax.tree.leaves(g))}
    assert reached == {"separate": {"value"}, "shared": {"torso", "value"}, "detach": {"value"}}[arch]
    assert set(params) == ({"policy", "value"} if arch == "separate" else {"torso", "policy", "value"})


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("arch", ["separate", "shared"])
def test_prepared_parameters_give_the_same_outputs(arch, memory):
    network, params, obs = made(CFG.replace(arch=arch, memory=memory, memory_size=8))
    params = jax.tree.map(lambda x: x + 0.1 * jnp.arange(x.size).reshape(x.shape) / x.size, params)
    first = jnp.zeros((2, 5), bool)
    plain, prepared = (network.apply(p, network.initial_carry(5), obs, first) for p in (params, network.prepare(params)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), plain, prepared)
    assert (set(network.prepare(params)) > set(params)) == (arch == "separate")


# --- other networks ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nnx_network_trains_by_split_and_merge():
    class Small(nnx.Module):
        def __init__(self, rngs):
            self.torso, self.policy, self.value = (
                nnx.Linear(4, 8, rngs=rngs),
                nnx.Linear(8, 2, rngs=rngs),
                nnx.Linear(8, 1, rngs=rngs),
            )

        def __call__(self, obs):
            x = nnx.tanh(self.torso(obs))
            return Outputs(Categorical(self.policy(x)), self.value(x)[..., 0])

    graph, _ = nnx.split(Small(nnx.Rngs(0)))

    def init(key, obs):
        return {"all": nnx.to_pure_dict(nnx.state(Small(nnx.Rngs(key))))}

    def apply(params, carry, obs, first):
        state = nnx.state(nnx.eval_shape(lambda: Small(nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, params["all"])
        return nnx.merge(graph, state)(obs), carry

    train = tiny(network=Network(init, apply))
    start, end = jax.jit(lambda key: (train.init(key).params, train(key).state.params))(KEY)
    assert digest(start) != digest(end)
    assert set(end) == {"all"}


@pytest.mark.slow
def test_additional_networks_are_trained_as_parameter_groups():
    """A feature extractor like that of MetaBox is a third network, which both others read, with its own gradient norm."""

    def init(key, obs):
        keys = jax.random.split(key, 3)
        shapes = {"features": (4, 8), "policy": (8, 2), "value": (8,)}
        return {name: 0.3 * jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items(), strict=True)}

    def apply(params, carry, obs, first):
        x = jnp.tanh(obs @ params["features"])
        return Outputs(Categorical(x @ params["policy"]), x @ params["value"]), carry

    train = tiny(CFG.replace(grad_clip="per_network"), network=Network(init, apply))
    result = jax.jit(train)(KEY)
    assert purerl.summarize(result.metrics)["grad_norm/features"].all()
    assert digest(result.state.params["features"]) != digest(train.init(KEY).params["features"])


@pytest.mark.slow
def test_custom_network_may_read_dict_observations():
    def init(key, obs):
        assert set(obs) == {"seen", "index", "legal", "secret"}
        return {"policy": 0.1 * jax.random.normal(key, (4, 5)), "value": jnp.zeros(6)}

    def apply(params, carry, obs, first):
        policy = MultiCategorical(obs["seen"] @ params["policy"], (2, 3))
        return Outputs(policy, obs["secret"] @ params["value"]), carry

    cfg = CFG.replace(action_mask="legal", info=("illegal",))
    result = jax.jit(purerl.make_train(cfg, env=Rich(), network=Network(init, apply)))(KEY)
    assert result.state.params["value"].any()
    assert not purerl.summarize(result.metrics)["info/illegal"].any()
