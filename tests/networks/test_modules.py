"""Outputs of custom modules."""

import jax
import jax.numpy as jnp
import numpy as np

import purerl
from purerl.networks.distributions import ILLEGAL, Categorical
from purerl.networks.modules import with_finite_logits


def test_infinite_logits_of_a_custom_network_give_finite_results():
    logits = jnp.array([[[0.3, -jnp.inf, 1.0]]])
    apply = lambda params, carry, obs, first: (purerl.Outputs(Categorical(logits), jnp.zeros((1, 1))), carry)
    outputs, _ = with_finite_logits(purerl.Network(lambda key, obs: {}, apply)).apply({}, (), None, None)
    p = np.exp([0.3, 1.0]) / np.exp([0.3, 1.0]).sum()
    np.testing.assert_allclose(outputs.policy.entropy(), -(p * np.log(p)).sum(), rtol=1e-6)
    assert (outputs.policy.kl(outputs.policy) == 0).all()
    gradient = jax.grad(lambda x: Categorical(jnp.maximum(x, ILLEGAL)).entropy().sum())(logits)
    assert np.isfinite(gradient).all()
