"""Networks whose outputs do not fit."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn

import purerl
from purerl import ConfigError, Network, Outputs
from purerl.networks.distributions import Categorical, DiagGaussian, Joint, MultiCategorical
from purerl.networks.layers import OfAction
from tests.helpers.probes import Varied, acting, boxed
from tests.helpers.programs import compiles
from tests.helpers.tiny import CFG, tiny


def outputs_of(logits=2, value_shape=lambda first: first.shape, carry=lambda c: c, params=None):
    from purerl import Network, Outputs
    from purerl.networks.distributions import Categorical

    def apply(params, c, obs, first):
        return Outputs(Categorical(jnp.zeros((*first.shape, logits))), jnp.zeros(value_shape(first))), carry(c)

    return Network(lambda key, obs: {"policy": jnp.zeros(1)} if params is None else params, apply)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (outputs_of(logits=3), "2 logits"),
        (outputs_of(value_shape=lambda f: (*f.shape, 1)), "without an output axis"),
        (outputs_of(carry=lambda c: jnp.zeros(3)), "carry"),
        (outputs_of(params=jnp.zeros(3)), "dict"),
        (object(), r"must be a purerl\.Network"),
    ],
)
def test_invalid_networks_are_refused(network, says):
    with pytest.raises(ConfigError, match=says):
        tiny(network=network)


@pytest.mark.parametrize(
    ("method", "cfg"),
    [("metrics", {}), ("mode", {}), ("uniform_sample", {"warmup_steps": 64}), ("kl", {"kl_penalty": "fixed"})],
)
def test_policies_without_a_needed_method_are_refused(method, cfg):
    class Lacking:
        def __init__(self, policy):
            self.policy = policy

        def __getattr__(self, name):
            if name == method:
                raise AttributeError(name)
            return getattr(self.policy, name)

    jax.tree_util.register_pytree_node(Lacking, lambda x: ((x.policy,), None), lambda _, parts: Lacking(*parts))
    full = outputs_of()

    def apply(params, carry, obs, first):
        outputs, carry = full.apply(params, carry, obs, first)
        return outputs._replace(policy=Lacking(outputs.policy)), carry

    network = full._replace(apply=apply)
    with pytest.raises(ConfigError, match=f"it has no method {method}"):
        tiny(CFG.replace(**cfg), network=network)


def test_optimizer_that_cannot_update_the_parameters_is_refused():
    def raises(updates, state, params=None):
        raise TypeError("only matrices of tungsten")

    broken = optax.GradientTransformation(lambda params: (), raises)
    flat = optax.GradientTransformation(lambda params: (), lambda g, s, p=None: (jax.tree.map(jnp.sum, g), s))
    tiny()  # imports the suite
    for optimizer, says in (
        (broken, "optimizer: .*only matrices of tungsten"),
        (flat, "optimizer = .*must have the shapes"),
        (optax.contrib.scale_by_muon(), "optimizer: .*raised ValueError"),
    ):
        before = compiles()
        with pytest.raises(purerl.ConfigError, match=says):
            tiny(optimizer=optimizer)
        assert compiles() == before


def test_critic_lr_scale_needs_a_value_group():
    net = Network(
        lambda key, obs: {"critic": jnp.zeros(4), "policy": jnp.zeros((4, 2))},
        lambda params, carry, obs, first: (Outputs(Categorical(obs @ params["policy"]), obs @ params["critic"]), ()),
    )
    tiny(network=net)
    with pytest.raises(purerl.ConfigError, match=r"critic_lr_scale = 0\.5.*'value'.*\['critic', 'policy'\]"):
        tiny(CFG.replace(critic_lr_scale=0.5), network=net)


def test_logits_that_do_not_fit_their_choices_are_refused():
    env = acting(Varied, "multi_discrete")()
    net = Network(
        lambda key, obs: {"policy": jnp.zeros(1)},
        lambda params, c, obs, first: (
            Outputs(MultiCategorical(jnp.zeros((*first.shape, 9)), (2, 3)), jnp.zeros(first.shape)),
            c,
        ),
    )
    with pytest.raises(ConfigError, match="network = 9: the policy must have 5 logits"):
        purerl.make_train(CFG, env=env, network=net)


@pytest.mark.parametrize(("constant", "weight"), [((1, 2), (1, 2, 1)), ((1, 2, 3), (1, 2, 2))])
def test_advantage_head_that_does_not_fit_the_action_is_refused(constant, weight):
    def apply(params, c, obs, first):
        head = OfAction(jnp.zeros(constant), jnp.zeros(weight))
        return Outputs(Categorical(jnp.zeros((*first.shape, 2))), jnp.zeros(first.shape), {"advantage": head}), c

    params = {name: jnp.zeros(1) for name in ("policy", "value", "advantage")}
    with pytest.raises(ConfigError, match="constant and the weight of the head 'advantage' must have the shapes"):
        purerl.make_train(purerl.DAACConfig(), network=Network(lambda key, obs: params, apply))


def counts(resets):
    """Return a network whose hidden state counts steps, of the episode or of the environment."""

    def step(count, first):
        count = jnp.where(first, 0.0, count) + 1
        return count, count

    def apply(params, carry, obs, first):
        after, seen = jax.lax.scan(step, carry, first & resets)
        return Outputs(Categorical(jnp.stack([seen, 2 * seen], -1)), jnp.zeros(first.shape)), after

    return Network(lambda key, obs: {"policy": jnp.zeros(1)}, apply, jnp.zeros)


def test_hidden_state_that_continues_across_episodes_warns():
    with pytest.warns(UserWarning, match="network: the hidden state continues from one episode to the next"):
        tiny(network=counts(False))
    tiny(network=counts(True))


class Normed(nn.Module):
    """A network whose layer norm is over features, or also over environments."""

    axes: tuple

    @nn.compact
    def __call__(self, obs):
        x = nn.tanh(nn.GroupNorm(num_groups=1, reduction_axes=self.axes)(nn.Dense(8)(obs)))
        return nn.Dense(2)(x), nn.Dense(1)(x)[..., 0]


class Normalised(nn.Module):
    """A network whose last layer is a softmax, or a logarithm of a softmax."""

    last: Callable

    @nn.compact
    def __call__(self, obs):
        return self.last(nn.Dense(2)(obs)), nn.Dense(1)(obs)[..., 0]


class NormedTorso(nn.Module):
    """A torso whose layer norm is over features, or also over environments."""

    axes: tuple

    @nn.compact
    def __call__(self, x):
        return nn.tanh(nn.GroupNorm(num_groups=1, reduction_axes=self.axes)(nn.Dense(8)(x)))


class FirstOfSequence(nn.Module):
    """A recurrent layer that resets its carry at the first step of a sequence only."""

    def initial_carry(self, num_envs):
        return jnp.zeros((num_envs, 8))

    @nn.compact
    def __call__(self, carry, x, first):
        carry = jnp.where(first[0][:, None], 0.0, carry)
        carry, y = nn.RNN(nn.SimpleCell(8), time_major=True, return_carry=True)(x, initial_carry=carry)
        return y, carry


def test_networks_that_treat_rows_differently_in_other_company_warn():
    tiny(network=purerl.from_linen(Normed((-1,))))
    with pytest.warns(UserWarning, match="network: outputs of an environment depend on other environments"):
        tiny(network=purerl.from_linen(Normed((-2, -1))))
    tiny(network=purerl.from_linen(Normalised(nn.log_softmax)))
    with pytest.warns(UserWarning, match="network: the logits are probabilities"):
        tiny(network=purerl.from_linen(Normalised(nn.softmax)))
    tiny(torso=NormedTorso((-1,)))
    with pytest.warns(UserWarning, match="torso: outputs of an environment depend on other environments"):
        tiny(torso=NormedTorso((-2, -1)))
    with pytest.warns(UserWarning, match="memory: the hidden state continues from one episode to the next"):
        tiny(memory=FirstOfSequence())


def test_parameters_that_are_not_floats_cannot_be_trained():
    apply = lambda params, c, obs, first: (Outputs(Categorical(jnp.zeros((*first.shape, 2))), jnp.zeros(first.shape)), c)
    with pytest.raises(ConfigError, match=r"uint32.*: trained parameters must be floats"):
        tiny(network=Network(lambda key, obs: {"policy": jnp.zeros(1, jnp.uint32)}, apply))


def test_policies_that_do_not_fit_a_mixed_action_are_refused():
    env = acting(Varied, "mixed")()
    with pytest.raises(ConfigError, match=r"must be purerl\.distributions\.Joint, with a distribution for each of 2 parts"):
        purerl.make_train(CFG, env=env, network=outputs_of())
    tool = lambda n: Categorical(jnp.zeros((1, 2, n)))
    force = DiagGaussian(jnp.zeros((1, 2, 1)), jnp.zeros((1, 2, 1)))
    cases = [((tool(2),), "each of 2 parts"), ((tool(3), force), "must have 2 logits")]
    cases += [((force, tool(2)), "policy's sample"), ((tool(2), tool(2)), "must have shape")]
    for parts, says in cases:
        apply = lambda params, c, obs, first, parts=parts: (Outputs(Joint(parts), jnp.zeros(first.shape)), c)
        with pytest.raises(ConfigError, match=says):
            purerl.make_train(CFG, env=env, network=Network(lambda key, obs: {"policy": jnp.zeros(1)}, apply))


def test_carry_needs_the_environments_first():
    """Refuse a carry `[layers, num_envs, size]`, also with as many layers as environments in the trial."""
    network = outputs_of()._replace(initial_carry=lambda count: jnp.zeros((2, count, 8)))
    with pytest.raises(ConfigError, match="must have the environments as their first axis"):
        tiny(network=network)


@pytest.mark.parametrize("name", ["kl", "entropy"])
def test_measures_of_a_policy_have_one_number_for_each_action(name):
    by_dimension = {"kl": lambda self, other: self.mean - other.mean, "entropy": lambda self: self.mean}
    kind = type("Mine", (DiagGaussian,), {name: by_dimension[name]})

    def apply(params, carry, obs, first):
        mean = jnp.zeros((*first.shape, 1))
        return Outputs(kind(mean, mean), jnp.zeros(first.shape)), carry

    env = boxed(Varied)()
    with pytest.raises(ConfigError, match=f"the policy's {name} must have one number for each action"):
        purerl.make_train(CFG, env=env, network=Network(lambda key, obs: {"policy": jnp.zeros(1)}, apply))
