"""The probe ladder: each environment's right answer is known, and all of five seeds must find it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from tests import probes

SEEDS = np.arange(5)
CFG = PPOConfig(
    total_timesteps=24_000,
    num_envs=16,
    num_steps=16,
    lr=5e-3,
    hidden=(32,),
    gamma=0.9,
    ent_coef=0.0,
    value_clip="none",
    log_std_init=-1.0,
)


def trained(probe, cfg=CFG):
    """What five trained seeds say of some observations: for each, `(action probabilities or mean [5, A], value [5])`."""
    train = purerl.make_train(cfg, env=probe())

    def run(seed, observations):
        policy = train.policy(train(jax.random.key(seed)).state)

        def says(obs):
            outputs = policy.network.apply(policy.params, (), obs[None, None], jnp.zeros((1, 1), bool))[0]
            actions = outputs.policy.mean if probe.box else jax.nn.softmax(outputs.policy.logits)
            return actions[0, 0], policy.value((), obs[None])[0]

        return [says(obs) for obs in observations]

    return lambda *observations: jax.jit(jax.vmap(run, in_axes=(0, None)))(SEEDS, [jnp.float32(obs) for obs in observations])


def both_kinds(probe):
    return pytest.mark.parametrize("probe", [probe, probes.boxed(probe)], ids=["discrete", "box"])


@both_kinds(probes.Constant)
def test_value_of_a_constant(probe):
    [(_, value)] = trained(probe)([1])
    np.testing.assert_allclose(value, 1, atol=0.05)


@both_kinds(probes.ObsDependent)
def test_value_depends_on_the_observation(probe):
    (_, low), (_, high) = trained(probe)([-1], [1])
    np.testing.assert_allclose(low, -1, atol=0.05)
    np.testing.assert_allclose(high, 1, atol=0.05)


@both_kinds(probes.Delayed)
def test_value_is_discounted(probe):
    (_, before), (_, after) = trained(probe)([0], [1])
    np.testing.assert_allclose(before, 0.9, atol=0.05)
    np.testing.assert_allclose(after, 1, atol=0.05)


def right(actions, target, probe):
    """Whether the policy takes the right action: with probability 0.95, or with a mean close to it."""
    return np.abs(actions[:, 0] - (target - 0.5)) < 0.1 if probe.box else actions[:, target] >= 0.95


@both_kinds(probes.ActionDependent)
def test_policy_finds_the_action(probe):
    [(actions, _)] = trained(probe)([1])
    assert right(actions, 1, probe).all()


@both_kinds(probes.Both)
def test_policy_depends_on_the_observation(probe):
    (low, _), (high, _) = trained(probe)([-1], [1])
    assert right(low, 0, probe).all()
    assert right(high, 1, probe).all()


def test_a_time_limit_is_no_ending():
    [(_, value)] = trained(probes.TimeLimit)([1])
    np.testing.assert_allclose(value, 10, atol=0.5)


def test_termination_wins_when_both_flags_are_set():
    [(_, value)] = trained(probes.BothFlags)([1, 0, 0, 0, 0])
    np.testing.assert_allclose(value, 3.439, atol=0.1)


def test_the_observation_before_the_reset_is_the_one_that_counts():
    (_, nothing), (_, before), (_, final) = trained(probes.FinalObs)(*np.eye(3))
    np.testing.assert_allclose(nothing, 0, atol=0.2)
    np.testing.assert_allclose(final, 5, atol=0.2)
    np.testing.assert_allclose(before, 1 + 0.9 * 5, atol=0.3)


def test_episodes_that_span_rollouts_are_counted_exactly():
    cfg = PPOConfig(total_timesteps=1, num_envs=3, num_steps=8)
    train = purerl.make_train(cfg, env=probes.Episodes37())
    state, update = train.init(jax.random.key(0)), jax.jit(train.update)
    rows = []
    for _ in range(40):
        state, metrics = update(state)
        rows.append(purerl.summarize(metrics))
    for i, row in enumerate(rows):
        ended = (i + 1) * 8 // 37 - i * 8 // 37
        assert row["episodes"] == 3 * ended
        assert np.isnan(row["episode_return"]) if not ended else row["episode_return"] == 37.0
        assert np.isnan(row["episode_length"]) if not ended else row["episode_length"] == 37.0
        assert row["steps"] == 24
