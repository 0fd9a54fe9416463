"""Probe environments: each has a known solution, which all of five seeds must find."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import PPOConfig
from purerl.core.spaces import action_shapes
from purerl.envs.converted_spaces import action_space_of
from tests.helpers import probes

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
    normalize_obs=False,
    normalize_reward=False,
    log_std_init=-1.0,
)


# For each kind of policy, the actions of the probe, and the distribution.
KINDS = {
    "discrete": ("discrete", "auto"),
    "box": ("box", "gaussian"),
    "tanh": ("box", "tanh"),
    "multi_discrete": ("multi_discrete", "auto"),
    "multi_binary": ("multi_binary", "auto"),
    "mixed": ("mixed", "gaussian"),
}
# If the actions of a probe have no effect, one kind is enough.
EMPTY = {(probe, kind) for probe in ("TimeLimit", "BothFlags", "FinalObs") for kind in KINDS if kind != "discrete"}


def trained(probe, kind="discrete"):
    """Return the outputs of five trained seeds for some observations: for each, `(right [5, 2], value [5])`.

    `right` is the probability of the right action, for target 0 and 1; for continuous actions, 1 less the distance from it, and
    for mixed actions the smaller of both.
    """
    actions, distribution = KINDS[kind]
    train = purerl.make_train(CFG.replace(action_distribution=distribution), env=probes.acting(probe, actions)())

    def rightness(policy, target):
        if actions == "box":
            return 1 - jnp.abs(policy.env_action(policy.mode(), train.env.action_space)[0, 0, 0] - (target - 0.5))
        if actions == "mixed":
            which, where = policy.parts
            near = 1 - jnp.abs(where.mode()[0, 0, 0] - (target - 0.5))
            return jnp.minimum(near, jnp.exp(which.log_prob(jnp.full((1, 1), target)))[0, 0])
        action = probes.right_action(actions, jnp.int32(target))
        return jnp.exp(policy.log_prob(jnp.broadcast_to(action, (1, 1, *action.shape))))[0, 0]

    def run(seed, observations):
        policy = train.policy(train(jax.random.key(seed)).state)

        def says(obs):
            outputs = policy.network.apply(policy.params, (), obs[None, None], jnp.zeros((1, 1), bool))[0]
            return jnp.stack([rightness(outputs.policy, t) for t in (0, 1)]), policy.value((), obs[None])[0]

        return [says(obs) for obs in observations]

    return lambda *observations: jax.jit(jax.vmap(run, in_axes=(0, None)))(SEEDS, [jnp.float32(obs) for obs in observations])


def kinds(*every_time):
    """Parametrize over all kinds: some for every run, the others marked slow."""
    return pytest.mark.parametrize("kind", [k if k in every_time else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])


discrete_first, box_first = kinds("discrete"), kinds("box")


@pytest.mark.each_landing("box")
@discrete_first
def test_value_learns_a_constant_reward(kind):
    [(_, value)] = trained(probes.Constant, kind)([1])
    np.testing.assert_allclose(value, 1, atol=0.05)


@pytest.mark.slow
@pytest.mark.each_landing("multi_binary")
@box_first
def test_value_depends_on_the_observation(kind):
    (_, low), (_, high) = trained(probes.ObsDependent, kind)([-1], [1])
    np.testing.assert_allclose(low, -1, atol=0.05)
    np.testing.assert_allclose(high, 1, atol=0.05)


@pytest.mark.each_landing("box")
@discrete_first
def test_value_is_discounted(kind):
    (_, before), (_, after) = trained(probes.Delayed, kind)([0], [1])
    np.testing.assert_allclose(before, 0.9, atol=0.05)
    np.testing.assert_allclose(after, 1, atol=0.05)


def is_right(rightness, target, kind):
    """Return True if the policy takes the right action: with probability 0.95, or with a mean close to it."""
    return rightness[:, target] >= (0.9 if KINDS[kind][0] in ("box", "mixed") else 0.95)


@pytest.mark.each_landing("discrete", "tanh")
@box_first
def test_policy_finds_the_best_action(kind):
    [(rightness, _)] = trained(probes.ActionDependent, kind)([1])
    assert is_right(rightness, 1, kind).all()


@pytest.mark.each_landing("discrete")
@box_first
def test_policy_depends_on_the_observation(kind):
    (low, _), (high, _) = trained(probes.Both, kind)([-1], [1])
    assert is_right(low, 0, kind).all()
    assert is_right(high, 1, kind).all()


def test_skipped_combinations_are_those_whose_rewards_ignore_actions():
    assert len(EMPTY) == 3 * (len(KINDS) - 1)
    for name, kind in EMPTY:
        probe = probes.acting(getattr(probes, name), KINDS[kind][0])()
        space, state = action_space_of(probe.action_space()), probes.State(jnp.int32(0), jnp.int32(1))
        of = lambda a: probe.reward_of(state, jax.tree.map(lambda x: jnp.full(x.shape, a, x.dtype), action_shapes(space)))  # noqa: B023
        rewards = {float(of(a)) for a in (0, 1)}
        assert len(rewards) == 1


def test_bootstraps_at_time_limits():
    [(_, value)] = trained(probes.TimeLimit)([1])
    np.testing.assert_allclose(value, 10, atol=0.5)


def test_termination_takes_precedence_over_truncation():
    [(_, value)] = trained(probes.BothFlags)([1, 0, 0, 0, 0])
    np.testing.assert_allclose(value, 3.439, atol=0.1)


@pytest.mark.slow
def test_bootstraps_from_the_observation_before_the_reset():
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
