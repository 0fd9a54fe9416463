import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import Network, Outputs, PPOConfig
from purerl.acting.rollout import collect, reset_actor
from purerl.envs import make_env
from purerl.networks.actor_critic import actor_critic
from purerl.networks.distributions import DiagGaussian
from tests.helpers import probes
from tests.helpers.recurrent import running_sum
from tests.ideas.simulator import simulator

KEY = jax.random.key(0)
CFG = PPOConfig(hidden=(8,))


def rolled_out(env, network, num_envs=3, num_steps=20, rollouts=1):
    """Return consecutive rollouts with the same parameters: each `(actor before, actor after, Rollout, metrics)`."""
    actor = reset_actor(env, network, num_envs, KEY)
    params = network.init(KEY, actor.obs[None])
    step = jax.jit(lambda actor, key: collect(env, network, params, actor, key, num_steps))
    found = []
    for i in range(rollouts):
        after, rollout, metrics = step(actor, jax.random.fold_in(KEY, i))
        found.append((actor, after, rollout, metrics))
        actor = after
    return params, found


def built_in(env):
    return actor_critic(CFG, env.observation_space, env.action_space)


def test_rollout_rows_are_consecutive_steps():
    env = make_env("", (), {}, probes.BothFlags())
    _, [(before, after, rollout, _)] = rolled_out(env, built_in(env))
    steps, done = rollout.steps, rollout.steps.terminated | rollout.steps.truncated
    np.testing.assert_array_equal(steps.first[1:], done[:-1])
    assert steps.first[0].all()
    np.testing.assert_array_equal(after.first, done[-1])
    np.testing.assert_array_equal(steps.obs[0], before.obs)
    assert (np.asarray(steps.obs).argmax(-1) == np.arange(20)[:, None] % 4).all()
    assert steps.reward.dtype == jnp.float32
    assert jax.tree.leaves(rollout.carry) == []


def test_rollout_stores_values_and_log_probabilities_of_the_acting_policy():
    env = make_env("", (), {}, probes.BothFlags())
    network = built_in(env)
    params, [(_, _, rollout, _)] = rolled_out(env, network)
    steps = rollout.steps
    outputs, _ = network.apply(params, (), steps.obs, steps.first)
    np.testing.assert_allclose(steps.value, outputs.value, rtol=1e-5)
    np.testing.assert_allclose(steps.log_prob, outputs.policy.log_prob(steps.action), rtol=1e-5)


def test_next_value_uses_the_observation_before_the_reset():
    env = make_env("", (), {}, probes.BothFlags())
    network = built_in(env)
    params, [(_, _, rollout, _)] = rolled_out(env, network)
    successor = jax.nn.one_hot(jnp.broadcast_to(jnp.arange(20)[:, None] % 4 + 1, (20, 3)), 5)
    value = network.apply(params, (), successor, rollout.steps.first)[0].value
    np.testing.assert_allclose(rollout.steps.next_value, value, rtol=1e-5)


def test_episodes_continue_across_rollouts():
    env = make_env("", (), {}, probes.Episodes37())
    _, found = rolled_out(env, built_in(env), num_steps=30, rollouts=3)
    np.testing.assert_array_equal(found[0][1].episode_length, np.full(3, 30))
    np.testing.assert_array_equal(found[1][1].episode_return, np.full(3, 60.0 - 37))
    np.testing.assert_array_equal(found[2][2].steps.first[:, 0], (60 + np.arange(30)) % 37 == 0)


def test_rollout_keeps_the_named_entries_of_info_for_own_advantages():
    seen = {}

    def by_distance(steps, cfg):
        seen.update({name: x.shape for name, x in steps.info.items()})
        return purerl.Advantages(advantage=-steps.info["distance"], target=steps.value)

    cfg = CFG.replace(total_timesteps=64, num_steps=8, info=("distance",), episode_info=("reached",), advantage_norm="none")
    metrics = jax.jit(purerl.make_train(cfg, env=simulator, advantage=by_distance))(KEY).metrics
    assert seen == {"distance": (8, 4), "reached": (8, 4, 2)}
    summary = purerl.summarize(metrics)
    np.testing.assert_allclose(summary["info/distance"], -summary["reward"], rtol=1e-5)


def test_log_probability_uses_the_unclipped_action_and_the_environment_the_clipped_one():
    """Act with means of 10 in bounds of -1 and 1: stored actions are near 10, and the ratio is 1."""

    class Watched(probes.boxed(probes.Constant)):
        def reward_of(self, state, action):
            return action[0]

    env = make_env("", (), {}, Watched())
    init = lambda key, obs: {"policy": jnp.full((1,), 10.0), "value": jnp.zeros(1)}

    def apply(params, carry, obs, first):
        mean = jnp.broadcast_to(params["policy"], (*first.shape, 1))
        return Outputs(DiagGaussian(mean, jnp.zeros_like(mean)), jnp.zeros(first.shape) + params["value"].sum()), carry

    network = Network(init, apply)
    params, [(_, _, rollout, _)] = rolled_out(env, network)
    steps = rollout.steps
    assert steps.action.mean() > 9
    np.testing.assert_array_equal(steps.reward, np.ones((20, 3)))
    again = network.apply(params, (), steps.obs, steps.first)[0].policy.log_prob(steps.action)
    np.testing.assert_allclose(again, steps.log_prob, atol=1e-6)


# --- recurrent networks -----------------------------------------------------------------------------------------------


class CutShort(probes.Probe):
    """An environment with truncated episodes of three steps, which observes the step, one-hot."""

    width, limit, length = 4, 3, 10**6

    def observe_state(self, state):
        return jax.nn.one_hot(state.time, 4)


def test_hidden_state_is_kept_within_and_reset_between_episodes():
    env = make_env("", (), {}, CutShort())
    network = running_sum(2, 4)
    params, found = rolled_out(env, network, num_steps=8, rollouts=3)
    for before, _, rollout, _ in found:
        np.testing.assert_array_equal(rollout.carry[0], before.carry)
        outputs, _ = network.apply(params, rollout.carry[0], rollout.steps.obs, rollout.steps.first)
        np.testing.assert_allclose(outputs.policy.log_prob(rollout.steps.action), rollout.steps.log_prob, atol=1e-6)
        np.testing.assert_allclose(outputs.value, rollout.steps.value, rtol=1e-6)
    time = np.arange(24) % 3
    memory = np.cumsum(np.eye(4), axis=0)[time]  # the sum of one-hot steps so far in the episode
    value = np.concatenate([rollout.steps.value for _, _, rollout, _ in found])
    np.testing.assert_allclose(value[:, 0], memory @ params["value"], rtol=1e-5)


def test_final_observation_is_valued_with_the_hidden_state_of_its_step():
    env = make_env("", (), {}, CutShort())
    network = running_sum(2, 4)
    params, [(_, _, rollout, _)] = rolled_out(env, network, num_steps=9)
    memory = np.cumsum(np.eye(4), axis=0)[np.arange(9) % 3 + 1]
    np.testing.assert_allclose(rollout.steps.next_value[:, 0], memory @ params["value"], rtol=1e-5)
    assert rollout.steps.truncated[2].all()


def test_recurrent_network_trains_on_whole_environment_sequences():
    """Episodes end inside the rollout, and the ratio is 1 before the first gradient step of both minibatches."""
    cfg = PPOConfig(total_timesteps=16_384, num_envs=4, num_steps=16, num_minibatches=2, gamma=0.9, lr=3e-2, value_clip="none")
    run = jax.jit(lambda cfg: purerl.make_train(cfg, env=CutShort(), network=running_sum(2, 4))(jax.random.key(0)).metrics)
    assert run(cfg.replace(lr=0.0, clip_eps=1e-5))["clip_fraction"].total.sum() == 0
    # The value is 1 / (1 - gamma), since time limits are bootstrapped from.
    np.testing.assert_allclose(purerl.summarize(run(cfg))["value"][-1], 10, atol=0.5)


def test_recurrent_minibatches_must_divide_the_environments():
    cfg = PPOConfig(num_envs=4, num_minibatches=8)
    with pytest.raises(purerl.ConfigError, match="num_minibatches"):
        purerl.make_train(cfg, env=CutShort(), network=running_sum(2, 4))
