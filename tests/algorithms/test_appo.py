"""APPO: acting parameters, replay, V-trace, the target network, and equality with PPO without staleness."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl import APPOConfig, RNDConfig, losses
from purerl.acting.wrappers import with_statistics as as_actors_see
from purerl.algorithms.appo import correct, move_towards, publish
from purerl.learning.replay import recompute_outputs, ring_take
from tests.helpers.appo import FRESH, KEY, MEMORY, STALE, made, updates
from tests.helpers.configs import NORMALISED, RICH
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.leaks import checking_leaks
from tests.helpers.probes import Poisoned, Rich, Varied, acting
from tests.helpers.programs import equations
from tests.helpers.tiny import CFG, at, digest

# --- equality with PPO ------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("changes", [{}, {**NORMALISED, **MEMORY}])
def test_appo_without_staleness_equals_ppo(changes):
    mine = jax.jit(made(FRESH.replace(**changes)))(KEY)
    theirs = jax.jit(purerl.make_train(CFG.replace(total_timesteps=64 * 3, **changes), env=Varied()))(KEY)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), mine.state.params, theirs.state.params)
    metrics = purerl.summarize(mine.metrics)
    np.testing.assert_allclose(metrics["rho_p99"], 1, atol=1e-5)
    np.testing.assert_allclose(metrics["effective_sample_size"], 1, atol=1e-5)
    assert metrics["data_age"].tolist() == [0] * 3


# --- actors -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.each_landing("3-1")
@pytest.mark.parametrize(("lag", "every"), [(3, 2), (0, 1), (3, 1), (1, 4), (5, 5)])
def test_actors_use_the_parameters_published_lag_updates_ago(lag, every):
    cfg = FRESH.replace(lag=lag, publish_every=every)
    state = jax.eval_shape(made(cfg).init, KEY)
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state.replace(key=()))
    for i in range(20):
        state = state.replace(params=jax.tree.map(lambda x, i=i: jnp.full_like(x, i), state.params))
        published, pair, behind = publish(cfg, state)
        version = max(i - lag, 0) // every * every
        assert {float(x.ravel()[0]) for x in jax.tree.leaves(pair["params"])} == {version}
        assert int(behind) == i - version
        clock = state.clock.replace(low=state.clock.low + 1)
        state = state.replace(clock=clock, extra={**state.extra, "published": published})


@pytest.mark.slow
def test_actors_use_the_statistics_published_with_their_parameters():
    train, states = updates(STALE.replace(normalize_obs=True, normalize_value=True), 5)
    _, pair, _ = publish(train.cfg, states[4])
    assert digest(pair) == digest({"params": states[2].params, "statistics": states[2].statistics})
    count = states[5].statistics.obs.count
    assert int(count.low) == 5 * 64  # each rollout is counted once


# --- off-policy correction --------------------------------------------------------------------------------------------


def double_sum(steps, rho, gamma, lam, rho_bar, c_bar):
    """Compute V-trace targets by their definition: for each step a sum of products over all later steps."""
    T = len(steps.reward)
    following = np.where(steps.terminated, 0, steps.next_value)
    delta = np.minimum(rho_bar, rho) * (steps.reward + gamma * following - steps.value)
    goes_on = gamma * lam * ~(steps.terminated | steps.truncated) * np.minimum(c_bar, rho)
    target = np.array(steps.value, np.float64)
    for t in range(T):
        for k in range(t, T):
            target[t] += np.prod(goes_on[t:k], axis=0) * delta[k]
    return target


def test_vtrace_targets_of_stale_data_equal_their_definition_as_a_double_sum():
    cfg = STALE.replace(lr=3e-2, vtrace_rho_clip=1.5, gae_lambda=0.9)
    train, states = updates(cfg, 6)
    state, network = states[-1], as_actors_see(train.cfg, train.network, states[-1])
    data = ring_take(state.extra["ring"], jnp.arange(3))
    steps, advantages, staleness = jax.jit(lambda s: correct(train.cfg, network, s, data, 16))(state)
    target, _ = recompute_outputs(network, state.extra["target"], data, 16)
    rho = np.exp(target.policy.log_prob(data.rollout.steps.action) - data.rollout.steps.log_prob)
    assert rho.std() > 0.1
    assert data.rollout.steps.truncated[:-1].sum() > 3
    steps = jax.tree.map(np.asarray, steps.replace(policy=(), obs=(), next_obs=()))
    want = double_sum(steps, rho, 0.99, 0.9, 1.5, 1.0)
    np.testing.assert_allclose(advantages.target, want, rtol=1e-4, atol=1e-4)
    wrong = steps.replace(next_value=np.where(steps.truncated, 0, steps.next_value))
    assert np.abs(double_sum(wrong, rho, 0.99, 0.9, 1.5, 1.0) - want).max() > 0.1
    size = np.square(rho.sum()) / (rho.size * np.square(rho).sum())
    np.testing.assert_allclose(purerl.summarize(staleness)["effective_sample_size"], size, rtol=1e-4)
    np.testing.assert_allclose(purerl.summarize(staleness)["rho_clip_fraction"], (rho > 1.5).mean(), rtol=1e-4)
    p99 = np.quantile(rho, 0.99, method="inverted_cdf")
    np.testing.assert_allclose(purerl.summarize(staleness)["rho_p99"], p99, rtol=1e-4)


def test_surrogate_matches_the_reference_vector(vectors):
    """APPO's loss is PPO's surrogate with the denominator `max(pi_T, pi_b / clip)`."""
    given, expected = vectors["impact_surrogate"]
    behaviour, target, current = (jnp.asarray(given[f"{name}_logp"], jnp.float32) for name in ("behaviour", "target", "current"))
    assert len(expected) >= 6
    for name, want in expected.items():
        _, clip, _, eps = name.split("_")
        old = jnp.maximum(target, behaviour - jnp.log(jnp.float32(clip)))
        np.testing.assert_allclose(jnp.exp(current - old), want["ratio"], rtol=1e-5)
        loss = losses.clipped_surrogate(current, old, jnp.asarray(given["advantages"], jnp.float32), jnp.float32(eps))
        np.testing.assert_allclose(loss, want["loss_per_sample"], rtol=1e-5)


# --- the target network -----------------------------------------------------------------------------------------------


def test_soft_target_update_matches_the_reference_vector(vectors):
    given, expected = vectors["soft_update"]
    target, current = (jnp.asarray(given[name], jnp.float32) for name in ("target", "current"))
    for tau, want in expected.items():
        np.testing.assert_allclose(move_towards(target, current, jnp.float32(tau)), want, rtol=1e-6)


@pytest.mark.slow
def test_target_network_is_copied_every_target_update_freq_updates():
    _, states = updates(STALE, 9)
    for i, state in enumerate(states):
        assert digest(state.extra["target"]) == digest(states[i // 4 * 4].params)
    metrics = jax.jit(made())(KEY).metrics
    assert metrics["target_updates"].total.tolist() == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0]


@pytest.mark.slow
def test_tau_moves_the_target_network_by_exponential_averaging():
    _, states = updates(STALE.replace(tau=0.25, target_update_freq=1), 3)
    want = states[0].params
    for state in states[1:]:
        want = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, want, state.params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.extra["target"], want)


def test_no_gradient_reaches_the_target_network():
    train, states = updates(STALE, 2)
    state, network = states[-1], as_actors_see(train.cfg, train.network, states[-1])
    data = ring_take(state.extra["ring"], jnp.arange(3))

    def learnt_from(target):
        _, advantages, _ = correct(train.cfg, network, state.replace(extra={"target": target}), data, 16)
        return advantages.advantage.sum() + advantages.target.sum()

    gradient = jax.grad(learnt_from)(state.extra["target"])
    assert all((g == 0).all() for g in jax.tree.leaves(gradient))


@pytest.mark.each_landing("freeze")
@pytest.mark.slow
@pytest.mark.parametrize("nonfinite", ["ignore", "freeze"])
def test_nan_update_leaves_the_target_network_until_its_next_copy(nonfinite):
    cfg = STALE.replace(env_params={"poison": 1.0}, nonfinite=nonfinite)
    _, states = updates(cfg, 4, Poisoned())
    finite = lambda tree: all(np.isfinite(x).all() for x in jax.tree.leaves(tree))
    assert digest(states[3].extra["target"]) == digest(states[0].params)
    assert finite(states[1].params) == (nonfinite == "freeze")
    assert finite(states[4].extra["target"]) == (nonfinite == "freeze")


# --- all of PPO's options ---------------------------------------------------------------------------------------------


@pytest.mark.each_landing("none")
@pytest.mark.parametrize(
    ("env", "changes"),
    [
        (Rich(), {**RICH, **MEMORY}),
        pytest.param(acting(Varied, "box")(), {"lr_schedule": "kl_adaptive"}, marks=pytest.mark.slow, id="box"),
        pytest.param(Rich(), {**RICH, "kl_penalty": "adaptive", "warmup_steps": 128}, marks=pytest.mark.slow, id="penalty"),
        pytest.param(Varied(), {"correction": "none", "lr_schedule": "kl_adaptive"}, marks=pytest.mark.slow, id="none"),
    ],
)
def test_ratio_is_one_before_the_first_gradient_step(env, changes):
    # Without correction the ratio uses the actors' log-probabilities, recorded with the actors' own statistics.
    normalised = {**NORMALISED, "normalize_obs": changes.get("correction") != "none"}
    cfg = STALE.replace(**normalised, **changes, lr=0.0, lr_min=0.0, lr_max=0.0, total_timesteps=64 * 6)
    metrics = purerl.summarize(jax.jit(made(cfg, env))(KEY).metrics)
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-6)
    assert metrics["clip_fraction"].max() == 0
    assert np.isfinite(metrics["value_loss"]).all()


@pytest.mark.long
@pytest.mark.slow
def test_uncorrected_updates_use_the_outputs_stored_by_actors():
    train, states = updates(STALE.replace(correction="none"), 3)
    steps = states[-1].extra["ring"].batch.rollout.steps
    assert steps.value.shape == (16, 3, 4)
    assert digest(states[-1].params) != digest(updates(STALE, 3)[1][-1].params)
    assert "rho_p99" not in jax.eval_shape(train.update, states[0])[1]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["memory", "two seeds"])
def test_run_resumes_bit_for_bit(kind, tmp_path):
    curious = STALE.replace(replay_order="random", rnd=RNDConfig(features=8, hidden=(16,), init_steps=64), **MEMORY)
    run = {"cfg": curious} if kind == "memory" else {"cfg": STALE, "num_seeds": 2}
    whole = fitted(**run)
    stopped(tmp_path, 6, **run)
    again = fitted(directory=tmp_path, **run)
    assert digest(again.state) == digest(whole.state)
    assert digest(again.metrics) == digest(whole.metrics)


@pytest.mark.long
def test_vmap_over_configs_and_seeds_equals_single_runs():
    sweep = jax.vmap(lambda clip: STALE.replace(vtrace_rho_clip=clip, tau=clip / 2))(jnp.array([0.5, 2.0]))
    run = jax.vmap(lambda cfg, key: made(cfg)(key), in_axes=(0, None))
    many = jax.jit(jax.vmap(run, in_axes=(None, 0)))(sweep, jax.random.split(KEY, 2))
    alone = jax.jit(made(at(sweep, 1)))(jax.random.split(KEY, 2)[1])
    got = jax.tree.map(lambda x: x[1, 1], many.state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, alone.state.params)


@pytest.mark.long
@pytest.mark.slow
def test_strict_jax_modes_pass_and_program_size_is_constant():
    train = made(STALE.replace(total_timesteps=64 * 4))
    with checking_leaks(), jax.debug_nans(True), jax.numpy_dtype_promotion("strict"):
        jax.jit(train)(KEY)
    before, (after, _) = jax.eval_shape(train.init, KEY), jax.eval_shape(train.update, jax.eval_shape(train.init, KEY))
    kind = lambda x: (x.shape, x.dtype, x.weak_type)
    assert jax.tree.map(kind, before) == jax.tree.map(kind, after)
    program = lambda **changes: equations(jax.make_jaxpr(made(STALE.replace(**changes)))(KEY).jaxpr)
    assert program(num_steps=512, replay=16, lag=100, total_timesteps=10**9) == program()


def test_minibatch_size_is_a_share_of_the_whole_ring():
    plan = made(STALE.replace(num_minibatches=6)).plan
    assert plan.minibatch_size == 3 * 64 // 6
    assert plan.gradient_steps == 10 * 2 * 6


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"estimator": "n_step"}, "estimator", "vtrace"),
        ({"truncation": "zero"}, "truncation", "vtrace"),
        ({"num_minibatches": 7}, "num_minibatches", r"num_envs \* num_steps \* replay = 192"),
        ({"replay": 0}, "replay", "between"),
        ({"tau": 1.5}, "tau", "between"),
    ],
)
def test_invalid_appo_configs_are_refused(changes, field, says):
    with pytest.raises(purerl.ConfigError, match=says) as error:
        made(STALE.replace(**changes))
    assert field in [problem.field for problem in error.value.problems]


def test_restarted_state_can_be_donated():
    train = purerl.make_train(APPOConfig(num_envs=4, num_steps=8, hidden=(8,)))
    state = train.restart(jax.jit(train.init)(jax.random.key(0)))
    pairs = zip(jax.tree.leaves(state.extra["target"]), jax.tree.leaves(state.params), strict=True)
    assert all(target.unsafe_buffer_pointer() != x.unsafe_buffer_pointer() for target, x in pairs)
