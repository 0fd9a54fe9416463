"""Parts of an update: the KL penalty, and training sequences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import purerl
from purerl import PPOConfig
from purerl.learning.update import next_kl_coef, sequences
from purerl.networks.distributions import Categorical
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)


@pytest.mark.slow
def test_learning_starts_delays_parameter_updates():
    train = tiny(CFG.replace(learning_starts=100))  # two of four updates
    state, update = train.init(KEY), jax.jit(train.update)
    digests, counts = [digest(state.params)], []
    for _ in range(3):
        state, metrics = update(state)
        digests.append(digest(state.params))
        counts.append(int(metrics["policy_loss"].count))
    assert digests[0] == digests[1] == digests[2] != digests[3]
    assert counts == [0, 0, 4]


@pytest.mark.long
def test_updates_before_learning_starts_keep_penalty_and_schedule():
    late = CFG.replace(learning_starts=128, kl_penalty="adaptive", lr_schedule="polynomial")
    metrics = purerl.summarize(jax.jit(tiny(late))(KEY).metrics)
    assert metrics["kl_coef"][:3].tolist() == [1, 1, 1]
    np.testing.assert_allclose(metrics["lr"][:3], late.lr)
    assert tiny(late).plan.gradient_steps == 2 * 4
    constant = purerl.summarize(jax.jit(tiny(lr_schedule=lambda step: 1e-3))(KEY).metrics)
    np.testing.assert_allclose(constant["lr"], 1e-3)


@pytest.mark.slow
def test_extra_losses_may_read_the_old_policy():
    kl = lambda params, outputs, old, cfg: (old.policy.kl(outputs.policy).mean(), {})
    metrics = jax.eval_shape(tiny(extra_loss=kl), jax.random.key(0)).metrics
    assert "extra_loss" in metrics


def test_learning_rate_keeps_adapting_after_an_early_stop():
    cfg = CFG.replace(lr_schedule="kl_adaptive", desired_kl=1e-5, target_kl=1e-5, lr=1e-2)
    lr = purerl.summarize(jax.jit(tiny(cfg))(KEY).metrics)["lr"]
    assert lr[-1] < lr[0] < 1e-2


@pytest.mark.parametrize(("system", "tolerance", "more"), [("ppo_paper", 1.5, 2.0), ("rllib", 2.0, 1.5)])
def test_kl_coefficients_match_the_reference_vector(vectors, system, tolerance, more):
    given, expected = vectors["kl_adaptive_coefficient"]
    cfg = PPOConfig(desired_kl=given["target"], kl_coef_tolerance=tolerance, kl_coef_raise=more)
    cfg = purerl.config.fields.single_precision(cfg)
    coef, got = jnp.float32(given["initial_beta"]), []
    for kl in given["kl"]:
        coef = next_kl_coef(cfg, coef, jnp.float32(kl))
        got.append(coef)
    np.testing.assert_allclose(got, expected[system], rtol=1e-5)


def test_flat_sequences_are_time_major_samples():
    steps = jnp.arange(12).reshape(4, 3)
    data = sequences(steps, (), 1)
    np.testing.assert_array_equal(data.steps, np.arange(12)[None])


def test_full_length_sequences_are_whole_environments():
    steps, carry = jnp.arange(12).reshape(4, 3), jnp.arange(3)[None] * 10
    data = sequences(steps, carry, 4)
    np.testing.assert_array_equal(data.steps, steps)
    np.testing.assert_array_equal(data.carry, [0, 10, 20])


def test_chunks_are_contiguous_and_keep_their_own_hidden_state():
    T, B, L = 6, 3, 2
    steps = jnp.arange(T)[:, None] * 100 + jnp.arange(B)[None]
    carry = jnp.broadcast_to(steps[::L], (T // L, B))  # the hidden state of a chunk is the number of its first step
    data = sequences(steps, carry, L)
    assert data.steps.shape == (L, T * B // L)
    np.testing.assert_array_equal(data.steps[0], data.carry)
    np.testing.assert_array_equal(data.steps[1], data.carry + 100)


def test_whole_environment_sequences_match_the_reference_vector(vectors):
    given, expected = vectors["minibatch_layouts"]
    data = sequences(jnp.arange(12).reshape(given["T"], given["N"]), (), given["T"])
    np.testing.assert_array_equal(data.steps[:, 0], expected["env_columns_first_of_3"][0])


def test_changed_config_and_network_of_an_algorithm_are_those_that_are_scored():
    """A policy that was trained on standardised observations, or with other logits, must not be scored without them."""

    def changed(cfg, env, network, parts):
        def apply(params, carry, obs, first):
            outputs, carry = network.apply(params, carry, obs, first)
            return outputs._replace(policy=Categorical(-20 * outputs.policy.logits)), carry

        return purerl.ppo(cfg.replace(normalize_obs=True, num_steps=8), env, network._replace(apply=apply), parts)

    train = tiny(CFG.replace(total_timesteps=96), algorithm=changed)
    result = jax.jit(train)(jax.random.key(0))
    state, metrics = result.state, result.metrics
    assert train.plan.batch_size == 8 * CFG.num_envs
    assert int(metrics["steps"].total.sum()) == train.plan.env_steps == 96
    obs, first = jnp.ones((1, *state.actor.obs.shape)), jnp.ones((1, CFG.num_envs), bool)
    seen = obs[0] * 3
    acting = train.policy(state).outputs((), seen, first[0])[0].policy.logits
    mean, variance = (np.asarray(x) for x in (state.statistics.obs.mean, state.statistics.obs.variance))
    whitened = np.clip((np.asarray(seen) - mean) / np.sqrt(variance + 1e-8), -10, 10)
    expected = -20 * purerl.make_train(CFG, env=train.env).network.apply(state.params, (), whitened[None], first)[0].policy.logits
    np.testing.assert_allclose(acting, expected[0], rtol=1e-4)


def test_advantages_of_another_shape_are_refused_in_an_algorithm():
    def means(steps, cfg):
        found = purerl.advantages.gae(steps, cfg.gamma, cfg.gae_lambda)
        return found.replace(advantage=found.advantage.mean(1, keepdims=True))

    with pytest.raises(purerl.ConfigError, match=r"advantage = \[16, 1\]: .* must have the shape of the values"):
        tiny(algorithm=lambda cfg, env, network, parts: purerl.ppo(cfg, env, network, parts._replace(advantage=means)))


def test_function_after_learning_must_return_a_pair():
    with pytest.raises(purerl.ConfigError, match="must return a pair: the state and a dict of metrics"):
        tiny(algorithm=lambda *parts: purerl.ppo(*parts, after_learning=lambda state, rollout, advantages: state))


def test_metrics_after_learning_may_be_scalars():
    score = lambda state, rollout, advantages: (state, {"score": jnp.abs(advantages.advantage).mean()})
    metrics = jax.jit(tiny(algorithm=lambda *parts: purerl.ppo(*parts, after_learning=score)))(jax.random.key(0)).metrics
    assert (purerl.summarize(metrics)["score"] > 0).all()


def test_metrics_of_custom_code_may_be_plain_numbers():
    def algorithm(cfg, env, network, parts):
        squares = lambda params, batch: (sum(jnp.vdot(x, x) for x in jax.tree.leaves(params["policy"])), {"three": 3.0})
        options = {"follows_kl": False, "groups": ("policy",), "prefix": "small/"}
        phases = lambda learner: [*purerl.ppo_phases(learner), purerl.make_phase(learner, "small", squares, 1, **options)]
        base = purerl.ppo(cfg, env, network, parts, phases, after_learning=lambda state, *_: (state, {"one": 1.5}))

        def update(state):
            state, metrics = base.update(state)
            return state, metrics | {"two": jnp.float32(2), "four": 4}

        return base._replace(update=update)

    metrics = purerl.summarize(jax.jit(tiny(algorithm=algorithm))(jax.random.key(0)).metrics)
    assert [set(metrics[name].tolist()) for name in ("one", "two", "three", "four")] == [{1.5}, {2.0}, {3.0}, {4.0}]


def test_custom_functions_are_named_in_errors():
    def broken(*_):
        return 1 / 0

    after = lambda *parts: purerl.ppo(*parts, after_learning=broken)
    for given in ({"policy_loss": broken}, {"extra_loss": broken}, {"reward_shaper": broken}, {"algorithm": after}):
        with pytest.raises(purerl.ConfigError, match=r": broken(\(.*\))? raised ZeroDivisionError"):
            tiny(**given)

    def named(params, outputs, batch, cfg):
        return "text"

    with pytest.raises(purerl.ConfigError, match="extra_loss = str: named must return a pair"):
        tiny(extra_loss=named)
    with pytest.raises(purerl.ConfigError, match=r"algorithm = 'x': must be a number or a metric"):
        tiny(algorithm=lambda *parts: purerl.ppo(*parts)._replace(update=lambda state: (state, {"x": "text"})))


def test_update_must_keep_the_arrays_of_the_state():
    more = lambda state, rollout, advantages: (state.replace(extra={**state.extra, "n": jnp.int32(0)}), {})
    with pytest.raises(purerl.ConfigError, match=r"\.extra\['n'\] is missing before an update, int32\[\] after"):
        tiny(algorithm=lambda *parts: purerl.ppo(*parts, after_learning=more))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"optimizer": "sgd"}, "optimizer"),
        ({"normalize_reward": True}, "normalize_reward"),
        ({"hidden": (16,)}, "hidden"),
        ({"kl_penalty": "adaptive"}, "kl_penalty"),
        ({"lr_schedule": "kl_adaptive"}, "lr_schedule"),
        ({"metrics_every": 2}, "metrics_every"),
    ],
)
def test_fields_that_an_algorithm_cannot_change_are_refused(changes, field):
    with pytest.raises(purerl.ConfigError, match=f"{field} = .*: is read before the algorithm is made"):
        tiny(algorithm=lambda cfg, *parts: purerl.ppo(cfg.replace(**changes), *parts))


def test_values_that_an_algorithm_sets_are_checked():
    with pytest.raises(purerl.ConfigError, match=r"gamma = 2\.0"):
        tiny(algorithm=lambda cfg, *parts: purerl.ppo(cfg.replace(gamma=2.0), *parts))


def test_parts_of_a_network_with_the_name_of_curiositys_group_are_refused():
    class Named(nn.Module):
        streams: int

        @nn.compact
        def __call__(self, obs):
            return nn.Dense(2, name="predictor")(obs), nn.Dense(self.streams)(obs)

    cfg = CFG.replace(rnd=purerl.RNDConfig(features=4, hidden=(4,), init_steps=0))
    with pytest.raises(purerl.ConfigError, match="network = 'predictor': is the name of the parameters of rnd"):
        tiny(cfg, network=purerl.from_linen(Named(2)))
    tiny(network=purerl.from_linen(Named(1)))
