"""Custom modules: other dtypes, and infinite logits."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import purerl
from purerl.networks.distributions import ILLEGAL, Categorical
from purerl.networks.foreign import with_safe_outputs
from purerl.runs.storage.objects import qualified_name
from tests.helpers.tiny import tiny

KEY = jax.random.key(0)


class Half(nn.Module):
    """A network that computes in another dtype, with a head for PPG."""

    dtype: str

    @nn.compact
    def __call__(self, obs):
        dense = lambda size, name: nn.Dense(size, dtype=self.dtype, name=name)(obs)
        return dense(2, "policy"), dense(1, "value"), {"aux_value": dense(1, "aux_value")[..., 0]}


@pytest.mark.parametrize(("dtype", "step"), [("bfloat16", "2"), ("float16", "0.25"), ("float64", None)])
def test_outputs_of_any_network_are_float32(dtype, step):
    said = pytest.warns(UserWarning, match=f"outputs of {dtype}.* multiples of {step}") if step else contextlib.nullcontext()
    with jax.enable_x64(dtype == "float64"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "env: observations of float64")
        with said:
            train = tiny(network=purerl.from_linen(Half(dtype)))
        state = jax.eval_shape(train.init, KEY)
        obs, first = jax.ShapeDtypeStruct((1, 4, 4), jnp.float32), jax.ShapeDtypeStruct((1, 4), bool)
        outputs, _ = jax.eval_shape(train.network.apply, state.params, (), obs, first)
    assert {x.dtype for x in jax.tree.leaves(outputs)} == {np.dtype(np.float32)}


def test_probabilities_of_a_bfloat16_network_are_not_rounded():
    """The probabilities sum to 1 with the precision of float32."""
    with pytest.warns(UserWarning, match="outputs of bfloat16"):
        train = tiny(network=purerl.from_linen(Half("bfloat16")))
    obs = jax.random.normal(KEY, (1, 64, 4))
    policy = train.network.apply(train.network.init(KEY, obs), (), obs, jnp.ones((1, 64), bool))[0].policy
    total = sum(jnp.exp(policy.log_prob(jnp.full((1, 64), action, jnp.int32))) for action in range(2))
    np.testing.assert_allclose(total, 1, atol=1e-6)


def test_infinite_logits_of_a_custom_network_give_finite_results():
    logits = jnp.array([[[0.3, -jnp.inf, 1.0]]])
    apply = lambda params, carry, obs, first: (purerl.Outputs(Categorical(logits), jnp.zeros((1, 1))), carry)
    outputs, _ = with_safe_outputs(purerl.Network(lambda key, obs: {}, apply)).apply({}, (), None, None)
    p = np.exp([0.3, 1.0]) / np.exp([0.3, 1.0]).sum()
    np.testing.assert_allclose(outputs.policy.entropy(), -(p * np.log(p)).sum(), rtol=1e-6)
    assert (outputs.policy.kl(outputs.policy) == 0).all()
    gradient = jax.grad(lambda x: Categorical(jnp.maximum(x, ILLEGAL)).entropy().sum())(logits)
    assert np.isfinite(gradient).all()


def test_networks_of_other_modules_are_other_objects():
    class Other(Half):
        pass

    names = [qualified_name(purerl.from_linen(kind("float32"))) for kind in (Half, Half, Other)]
    assert names[0] == names[1] != names[2]
    assert "Other" in names[2]
