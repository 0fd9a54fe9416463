"""Bootstrap values after time limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purerl import Network, Outputs
from purerl.acting.rollout import collect, reset_actor
from purerl.envs import make_env
from purerl.learning.advantages import gae
from purerl.networks.distributions import Categorical
from tests.helpers import probes

KEY = jax.random.key(0)


class Scripted:
    """An environment of the vector `gae_mixed`: observations are row numbers, plus 100 before a reset."""

    def __init__(self, given):
        self.rows = {name: jnp.asarray(given[name]) for name in ("rewards", "terminated", "truncated")}
        self.default_params = probes.Dose()  # `at` selects the environment of the vector

    def reset(self, key, params):
        return jnp.float32(0), jnp.int32(0)

    def step(self, key, row, action, params):
        reward, terminated, truncated = (x[row, params.at] for x in self.rows.values())
        after = row + 1
        final = jnp.where((terminated > 0) | (truncated > 0), row + 100, after).astype(jnp.float32)
        signals = jnp.float32(reward), terminated > 0, truncated > 0
        return after.astype(jnp.float32), after, *signals, {"final_observation": final}

    def action_space(self, params):
        from gymnax.environments.spaces import Discrete

        return Discrete(2)


MODES = {
    "final_obs": "reference",
    "zero": "done_is_terminal",
    "current_obs": "skrl_1_4_or_rsl_rl_time_limit_bootstrap",
    "ignore": "skrl_2_0_no_time_limit_bootstrap",
}


@pytest.mark.parametrize("mode", MODES)
def test_truncation_mode_sets_the_bootstrap_value_after_a_time_limit(vectors, mode):
    given, expected = vectors["gae_mixed"]
    values = jnp.asarray(np.concatenate([given["values"], given["bootstrap_value"][None]]), jnp.float32)
    final_values = jnp.asarray(given["final_values"], jnp.float32)

    @jax.jit
    def advantages(column):
        def apply(params, carry, obs, first):
            row = obs.astype(jnp.int32)
            value = jnp.where(row >= 100, final_values[row - 100, column], values[jnp.minimum(row, 6), column])
            return Outputs(Categorical(jnp.zeros((*first.shape, 2))), value), carry

        env, network = make_env("", (), {"at": column}, Scripted(given)), Network(lambda key, obs: {}, apply)
        _, rollout, metrics = collect(env, network, {}, reset_actor(env, network, 1, KEY), KEY, 6, mode)
        return gae(rollout.steps, jnp.float32(given["gamma"]), jnp.float32(given["lam"])).advantage[:, 0], metrics["episodes"]

    got, episodes = jax.vmap(advantages)(jnp.arange(3))
    np.testing.assert_allclose(got.T, expected[MODES[mode]]["advantages"], rtol=1e-5, atol=1e-6)
    assert episodes.total.sum() == ((given["terminated"] > 0) | (given["truncated"] > 0)).sum()
