"""The plan of a run: steps, sizes and bytes."""

import pytest

import purerl
from purerl import PPOConfig
from tests.helpers.probes import Varied
from tests.helpers.tiny import CFG


def test_plan_rounds_steps_up_to_whole_updates():
    plan = purerl.make_train(PPOConfig()).plan
    assert (plan.num_updates, plan.env_steps, plan.extra_steps) == (977, 500_224, 224)
    assert (plan.batch_size, plan.minibatch_size, plan.gradient_steps) == (512, 128, 977 * 16)
    assert plan.parameters == 2 * (4 * 64 + 64 + 64 * 64 + 64) + 64 * 2 + 2 + 64 + 1
    assert "extra_steps" in str(plan)
    assert "500,224" in str(plan)


def test_rollout_is_traced_only_when_its_size_is_read():
    steps = []

    class Counted(Varied):
        def step_env(self, *arguments):
            steps.append(arguments)
            return super().step_env(*arguments)

    train = purerl.make_train(CFG, env=Counted())
    steps.clear()
    plan = train.plan
    assert not steps
    assert plan.rollout_bytes > 0
    assert steps


@pytest.mark.slow
def test_plan_measures_the_memory_of_an_update():
    few, many = (purerl.make_train(PPOConfig(num_envs=num_envs)).plan for num_envs in (4, 64))
    for plan in (few, many):
        assert plan.state_bytes + plan.rollout_bytes < plan.update_bytes
    assert 8 < many.update_bytes / few.update_bytes < 16


@pytest.mark.slow
def test_plan_counts_stored_next_observations():
    ppo, appo, rnd = (cfg() for cfg in (PPOConfig, purerl.APPOConfig, lambda: PPOConfig(rnd=purerl.RNDConfig())))
    plain, *both = (purerl.make_train(cfg).plan.rollout_bytes for cfg in (ppo, appo, rnd))
    assert min(both) == plain + 4 * 4 * ppo.batch_size  # CartPole's four numbers
