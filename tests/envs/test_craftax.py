"""Flags of Craftax."""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers.suites import installed

pytestmark = pytest.mark.usefixtures("ranks")

KEY = jax.random.key(0)


@pytest.mark.slow
def test_craftax_deaths_terminate_and_time_limits_truncate():
    """Episodes end by death, by the time limit, and by both."""
    installed("craftax/")
    from craftax.craftax_env import make_craftax_env_from_name

    from purerl.envs.suites import craftax

    suite = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    bare = craftax._CraftaxEnv(suite, suite.default_params.replace(max_timesteps=7))
    state, _ = jax.jit(bare.reset)(KEY)
    step = jax.jit(lambda state: bare.step(KEY, state, jnp.int32(0))[3:5])
    dead = state.replace(player_health=jnp.int32(0) * state.player_health - 5)
    late = lambda state: state.replace(timestep=jnp.full_like(state.timestep, 6))
    flags = [tuple(bool(flag) for flag in step(x)) for x in (state, dead, late(state), late(dead))]
    assert flags == [(False, False), (True, False), (False, True), (True, True)]
