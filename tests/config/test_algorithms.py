"""Properties of the configs of single algorithms."""

import jax
import pytest

import purerl


@pytest.mark.parametrize("changes", [{"lag": 1}, {"publish_every": 4}, {"replay": 2}, {"target_update_freq": 2}, {"tau": 0.5}])
def test_each_staleness_field_sets_learns_from_others(changes):
    fresh = purerl.APPOConfig(lag=0, replay=1, target_update_freq=1)
    assert not fresh.learns_from_others
    assert fresh.replace(**changes).learns_from_others


def test_traced_tau_defers_learns_from_others_to_run_time():
    older = jax.jit(lambda tau: purerl.APPOConfig(lag=0, replay=1, target_update_freq=1, tau=tau).learns_from_others)
    assert (bool(older(1.0)), bool(older(0.5))) == (False, True)


@pytest.mark.slow
def test_aux_gradient_steps_are_bounded_for_many_environments():
    steps = lambda **sizes: dict(zip(("ppo", "aux"), purerl.make_train(purerl.PPGConfig(**sizes)).plan.phases, strict=True))[
        "aux"
    ]
    each = {n: steps(num_envs=n, total_timesteps=128 * n * 32).gradient_steps for n in (4, 64, 2048)}
    assert each == {4: 6 * 32 * 4, 64: 6 * 32 * 16, 2048: 6 * 32 * 16}  # 16 minibatches for each rollout of the phase
    columns = lambda **sizes: purerl.make_train(purerl.PPGConfig(total_timesteps=2**20, **sizes)).cfg.aux_columns
    assert columns(num_envs=64, num_steps=256) == 4  # the authors' number at the paper's size
    assert columns(num_envs=50) == 2  # 3 does not divide 32 * 50
    assert purerl.make_train(purerl.PPGConfig(num_envs=64, total_timesteps=2**20, aux_columns=4)).cfg.aux_columns == 4
