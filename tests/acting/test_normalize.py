"""Running statistics: their values, their step counts, and that acting and learning use the same statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from purerl.acting.normalize import (
    Moments,
    RewardScale,
    initial_moments,
    merge,
    restore_with,
    reward_sums,
    standardize_observations,
    standardize_with,
)
from purerl.core.keys import clock_at
from purerl.runs.storage.checkpoint import newest_readable
from purerl.runs.warm_start import warm_start
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.leaks import checking_leaks
from tests.helpers.probes import Rich, Varied
from tests.helpers.programs import equations
from tests.helpers.tiny import CFG, digest, tiny

ON = CFG.replace(normalize_obs=True, normalize_reward=True, normalize_value=True)


class Scaled(Varied):
    """The same environment with scaled rewards."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def step_env(self, key, state, action, params):
        obs, after, reward, ends, info = super().step_env(key, state, action, params)
        return obs, after, reward * jnp.float32(self.scale), ends, info


PEERS = {  # purerl's normaliser with other systems' parameters
    "running_standard_scaler_skrl": {"prior": 1.0, "ddof": 1},
    "running_mean_std_baselines": {"prior": 1e-4},
    "empirical_normalization_rsl_rl": {},
}


@pytest.mark.parametrize("name", PEERS)
def test_moments_match_the_reference_numbers_of_other_libraries(vectors, name):
    inputs, expected = vectors[name]
    moments = initial_moments((2,))
    for batch, after in zip(inputs["batches"], expected["after_each_batch"], strict=True):
        moments = merge(moments, jnp.asarray(batch, jnp.float32)[:, None], **PEERS[name])
        np.testing.assert_allclose(moments.mean, after["mean"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(moments.variance, after["var"], rtol=1e-5)
        np.testing.assert_allclose(int(moments.count) + PEERS[name].get("prior", 0), after["count"])


def test_standardised_observations_match_skrl(vectors):
    inputs, expected = vectors["running_standard_scaler_skrl"]
    last = expected["after_each_batch"][-1]
    moments = Moments(jnp.asarray(last["mean"], jnp.float32), jnp.asarray(last["var"], jnp.float32), clock_at(13))
    z = standardize_with(moments, jnp.asarray(inputs["probe"], jnp.float32)[:, None], jnp.float32(inputs["clip_threshold"]))
    np.testing.assert_allclose(z[:, 0], expected["forward_probe"], rtol=1e-5, atol=1e-6)


def test_standardising_omits_the_hundredth_that_rsl_rl_adds_to_the_deviation(vectors):
    """rsl_rl's outputs are smaller than purerl's by `std / (std + 0.01)`: by 0.3 % on these data."""
    inputs, expected = vectors["empirical_normalization_rsl_rl"]
    last = expected["after_each_batch"][-1]
    moments = Moments(jnp.asarray(last["mean"], jnp.float32), jnp.asarray(last["var"], jnp.float32), clock_at(12))
    z = standardize_with(moments, jnp.asarray(inputs["probe"], jnp.float32)[:, None], jnp.float32(jnp.inf))[:, 0]
    deviation = np.sqrt(last["var"])
    np.testing.assert_allclose(np.asarray(z) * (deviation / (deviation + 0.01))[None], expected["forward_probe"], rtol=1e-5)


@pytest.mark.slow
def test_values_and_returns_share_one_set_of_statistics(vectors):
    """skrl updates its statistics between values and returns, and so standardises an equal value and return differently."""
    _, expected = vectors["value_preprocessor_skrl"]
    theirs = [expected[f"after_{name}"] for name in ("values", "returns")]
    assert abs(theirs[0]["var"][0] - theirs[1]["var"][0]) > 1
    train = tiny(ON)
    state = jax.jit(train.update)(train.init(jax.random.key(0)))[0]
    value = jnp.array([[1.5]])
    z = standardize_with(state.statistics.value, value, jnp.float32(jnp.inf))
    np.testing.assert_allclose(restore_with(state.statistics.value, z), value, rtol=1e-5)


def test_discounted_reward_sums_match_openai(vectors):
    inputs, expected = vectors["reward_normaliser_ppg"]
    reward, first = (jnp.asarray(inputs[name], jnp.float32) for name in ("rewards", "first"))
    start = RewardScale(jnp.zeros(3), initial_moments(()))
    scale, sums = reward_sums(start, reward, first.astype(bool), jnp.float32(inputs["gamma"]), prior=1e-4)
    np.testing.assert_allclose(sums, expected["discounted_sums"], rtol=1e-5)
    np.testing.assert_allclose(scale.moments.mean, expected["rms_mean"], rtol=1e-5)
    np.testing.assert_allclose(scale.moments.variance, expected["rms_var"], rtol=1e-5)
    np.testing.assert_allclose(scale.discounted, expected["carry"], rtol=1e-5)
    scaled = reward / jnp.sqrt(scale.moments.variance + 1e-8)
    np.testing.assert_allclose(scaled, expected["normalised_rewards"], rtol=1e-5)


def test_terminal_reward_counts_for_its_own_episode():
    """The third of five rewards of 1 ends the episode; gamma is 0.5. Other libraries give 1, 1.5, 1, 1.5, 1.75."""
    first = jnp.array([True, False, False, True, False])[:, None]
    _, sums = reward_sums(RewardScale(jnp.zeros(1), initial_moments(())), jnp.ones((5, 1)), first, jnp.float32(0.5))
    np.testing.assert_allclose(sums[:, 0], [1, 1.5, 1.75, 1, 1.5])


@pytest.mark.slow
def test_moments_are_accurate_after_batches_of_any_size():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 200, 60)
    batches = [rng.normal(3, 2, (n, 16, 3)) for n in sizes]
    moments, step = initial_moments((3,)), jax.jit(merge)
    for batch in batches:
        moments = step(moments, jnp.asarray(batch, jnp.float32))
    everything = np.concatenate(batches).reshape(-1, 3)
    np.testing.assert_allclose(moments.mean, everything.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, everything.var(0), rtol=1e-5)
    assert int(moments.count) == len(everything)


def test_moments_are_accurate_far_from_zero():
    rng = np.random.default_rng(1)
    moments = initial_moments(())
    for _ in range(50):
        moments = merge(moments, jnp.asarray(1e4 + rng.normal(size=(32, 8)), jnp.float32))
    np.testing.assert_allclose(moments.variance, 1, rtol=0.02)
    far = jnp.asarray(1e4 + rng.normal(size=(32, 8)), jnp.float32)
    assert abs(float(standardize_with(moments, far, jnp.float32(10)).mean())) < 0.2


@pytest.mark.parametrize(
    ("variances", "updates"), [([1.9], 10**5), pytest.param([9.1, *[0.1] * 9], 10**6, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("merged", [10**7, 4 * 10**7])
def test_variance_does_not_drift_over_many_merges(variances, updates, merged):
    """After many merges, the share of new data is near the rounding of float32. All batches together have one variance."""
    sizes = jnp.sqrt(jnp.array(variances, jnp.float32))
    batch = lambda i: sizes[i % len(variances)] * jnp.array([[1.0], [-1.0]])
    start = initial_moments(()).replace(variance=jnp.float32(np.mean(variances)), count=clock_at(2 * merged))
    step = lambda i, moments: merge(moments, batch(i))
    moments = jax.jit(lambda start: jax.lax.fori_loop(0, updates, step, start))(start)
    np.testing.assert_allclose(moments.variance, np.mean(variances), rtol=0.01)


def test_mean_follows_the_data_after_many_merges():
    start = initial_moments(()).replace(mean=jnp.float32(5), count=clock_at(2 * 10**7))
    moments = jax.lax.fori_loop(0, 10**5, lambda _, moments: merge(moments, 6 + jnp.array([[1.0], [-1.0]])), start)
    np.testing.assert_allclose(moments.mean, 6 - np.exp(-(10**5) / 2**18), rtol=0.01)


def test_standardising_a_constant_observation_stays_finite():
    moments = merge(initial_moments((2,)), jnp.full((8, 4, 2), 7.0))
    z = standardize_with(moments, jnp.full((1, 1, 2), 7.0), jnp.float32(10))
    np.testing.assert_array_equal(z, jnp.zeros((1, 1, 2)))
    np.testing.assert_array_equal(standardize_with(moments, jnp.full((1, 1, 2), 8.0), jnp.float32(10)), jnp.full((1, 1, 2), 10.0))


@pytest.mark.parametrize("seen", [2**24 + 1, 2**31 - 5, 2**32 - 5])
def test_sample_counts_stay_exact_near_32_bits(seen):
    moments = initial_moments(()).replace(count=clock_at(seen))
    assert int(merge(moments, jnp.ones((16, 4))).count) == seen + 64


@pytest.mark.parametrize("box", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ratio_is_one_before_the_first_gradient_step(box):
    """Keep the policy still by a learning rate of 0, so that every gradient step is a first one."""
    still = ON.replace(lr=0.0, lr_final=0.0, total_timesteps=64 * 5)
    metrics = purerl.summarize(jax.jit(tiny(still, box=box))(jax.random.key(0)).metrics)
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"], 0)


def test_statistics_count_each_environment_step_once():
    train = tiny(ON)
    state, update = train.init(jax.random.key(0)), jax.jit(train.update)
    for _ in range(3):
        state, _ = update(state)
    for moments in (state.statistics.obs, state.statistics.value, state.statistics.reward.moments):
        assert int(moments.count) == 3 * 64  # each step is counted once
    assert state.statistics.obs.mean.shape == (4,)


@pytest.mark.slow
def test_evaluation_uses_the_statistics_without_changing_the_state():
    train = tiny(ON)
    state = jax.jit(train.update)(train.init(jax.random.key(0)))[0]
    before = digest(state)
    policy, obs, first = train.policy(state), state.actor.obs, jnp.zeros(4, bool)
    train.evaluate(state, jax.random.key(1), 4, max_steps=5)
    value = policy.value((), obs)
    assert digest(state) == before
    z = standardize_with(state.statistics.obs, obs[None], jnp.float32(10))
    raw = train.network.apply(state.params, (), z, first[None])[0].value[0]
    np.testing.assert_allclose(value, restore_with(state.statistics.value, raw), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.each_landing("1000.0")
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_training_is_independent_of_the_reward_scale(scale):
    """A run with scaled rewards ends with the parameters of the unscaled run, up to rounding."""

    cfg = CFG.replace(normalize_reward=True, total_timesteps=64 * 8)
    state = jax.jit(purerl.make_train(cfg, env=Scaled(scale)))(jax.random.key(0)).state
    alone = jax.jit(purerl.make_train(cfg, env=Varied()))(jax.random.key(0)).state
    for got, want in zip(jax.tree.leaves(state.params), jax.tree.leaves(alone.params), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-3)


@pytest.mark.slow
def test_rewards_are_clipped_for_learning_and_reported_raw():
    on, off = (
        jax.jit(purerl.make_train(CFG.replace(normalize_reward=mode, reward_clip=0.1), env=Scaled(1e3)))(jax.random.key(0))
        for mode in (True, False)
    )
    assert purerl.summarize(on.metrics)["reward_max"].max() == purerl.summarize(off.metrics)["reward_max"].max() >= 1e3
    assert purerl.summarize(on.metrics)["value_loss"].max() < 1 < purerl.summarize(off.metrics)["value_loss"].max()


@pytest.mark.long
def test_statistics_survive_vmap_resuming_and_warm_starts(tmp_path):
    many = jax.vmap(tiny(ON).init)(jax.random.split(jax.random.key(0), 2))
    many = jax.eval_shape(jax.vmap(tiny(ON).update), many)[0]
    assert many.statistics.obs.mean.shape == (2, 4)
    with checking_leaks(), jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(tiny(ON, box=True), jax.random.key(0))
    whole = fitted(cfg=ON)
    stopped(tmp_path, 6, cfg=ON)
    assert digest(fitted(cfg=ON, directory=tmp_path).state) == digest(whole.state)
    warm = warm_start(tiny(ON).init(jax.random.key(5)), newest_readable(tmp_path / "checkpoints"), tmp_path, "either")
    reward = whole.state.statistics.reward
    begun = reward.replace(discounted=jnp.zeros_like(reward.discounted))  # the sums belong to the other run's episodes
    assert digest(warm.statistics) == digest(whole.state.statistics.replace(reward=begun))


def test_only_named_entries_are_standardised():
    cfg = ON.replace(action_mask="legal", normalize_entries=("secret",))
    train = purerl.make_train(cfg, env=Rich())
    state = jax.jit(train)(jax.random.key(0)).state
    have_moments = {name: isinstance(x, Moments) for name, x in state.statistics.obs.items()}
    assert have_moments == {"seen": False, "index": False, "legal": False, "secret": True}
    obs = jax.tree.map(lambda x: x[None], state.actor.obs)
    shown = standardize_observations(train.cfg, state.statistics, obs)
    np.testing.assert_array_equal(shown["seen"], obs["seen"])
    assert not np.allclose(shown["secret"], obs["secret"])
    with pytest.raises(
        purerl.ConfigError, match=r"normalize_entries = 'seem': .* has no such entry; choose from 'index', 'legal'"
    ):
        purerl.make_train(cfg.replace(normalize_entries=("seem",)), env=Rich())


def test_disabled_normalisation_adds_no_state_and_no_operations():
    state = tiny().init(jax.random.key(0))
    assert jax.tree.leaves(state.statistics) == []
    assert equations(jax.make_jaxpr(tiny().update)(state).jaxpr) < equations(
        jax.make_jaxpr(tiny(ON).update)(tiny(ON).init(jax.random.key(0))).jaxpr
    )
