import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purerl.learning.advantages import explained_variance, standardize
from purerl.learning.losses import approximate_kl, clip_fraction, clipped_surrogate, value_loss


@pytest.mark.parametrize("eps", [0.1, 0.2])
def test_losses_match_the_reference_vector(vectors, eps):
    given, expected = vectors["ppo_losses"]
    want = expected[f"eps_{eps}"]
    close = lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    policy = clipped_surrogate(given["logp_new"], given["logp_old"], given["advantages"], eps)
    close(policy, want["policy_loss_per_sample"])
    close(policy.mean(), want["policy_loss"])
    close(clip_fraction(given["logp_new"], given["logp_old"], eps).mean(), want["clip_fraction"])
    of = lambda mode: value_loss(given["values_new"], given["values_old"], given["value_targets"], mode, eps).mean()
    close(of("none"), want["value_loss_unclipped_half"])
    close(of("max"), want["value_loss_max_half"])
    close(2 * of("replace"), want["value_loss_replaced_full_skrl"])
    entropy = given["entropy"].mean()
    close(policy.mean() + 0.5 * of("max") - 0.01 * entropy, want["total_cleanrl"])
    close(policy.mean() + of("none") - 0.01 * entropy, want["total_rlib"])
    close(policy.mean() + 2.5 * 2 * of("replace"), want["total_skrl"])
    close(policy.mean() + 2 * of("max") - 0.01 * entropy, want["total_unilab"])


def test_kl_standardisation_and_explained_variance_match_the_reference_vector(vectors):
    given, expected = vectors["ppo_losses"]
    kl = approximate_kl(jnp.float32(given["logp_new"]), jnp.float32(given["logp_old"])).mean()
    np.testing.assert_allclose(kl, expected["kl_estimators"]["k3"], rtol=1e-5)
    advantage = standardize(jnp.float32(given["advantages"]))
    np.testing.assert_allclose(advantage, expected["minibatch_standardised_adv"]["ddof0_eps1e8"], rtol=1e-5)
    loss = clipped_surrogate(given["logp_new"], given["logp_old"], advantage, 0.2).mean()
    np.testing.assert_allclose(loss, expected["minibatch_standardised_adv"]["policy_loss_eps0_2_ddof0"], rtol=1e-5)
    share = explained_variance(jnp.float32(given["values_old"]), jnp.float32(given["value_targets"]))
    np.testing.assert_allclose(share.read(), expected["explained_variance"], rtol=1e-5)


def test_kl_estimate_of_a_small_divergence_is_not_negative():
    d = np.linspace(-1e-3, 1e-3, 2001, dtype=np.float32)
    kl = approximate_kl(jnp.asarray(d), jnp.float32(0))
    assert (kl >= 0).all()
    np.testing.assert_allclose(kl.mean(), np.square(d.astype(np.float64)).mean() / 2, rtol=1e-3)


def test_gradients_match_the_reference_vector(vectors):
    given, expected = vectors["loss_gradients"][0] | vectors["ppo_losses"][0], vectors["loss_gradients"][1]
    as32 = {name: jnp.asarray(x, jnp.float32) for name, x in given.items() if isinstance(x, np.ndarray)}
    surrogate = lambda x: clipped_surrogate(x, as32["logp_old"], as32["advantages"], given["clip"]).mean()
    got = jax.grad(surrogate)(as32["logp_new"])
    np.testing.assert_allclose(got, expected["d_policy_loss_d_logp_new"], rtol=1e-5, atol=1e-7)
    for mode, key in [("none", "unclipped"), ("max", "max"), ("replace", "replaced")]:
        of = lambda v, mode=mode: value_loss(v, as32["values_old"], as32["value_targets"], mode, given["clip"]).mean()
        got = 2 * jax.grad(of)(as32["values_new"])  # the vector has no half
        np.testing.assert_allclose(got, expected[f"d_value_{key}_d_v"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "flat"),
    [(0.5, 1, -0.5, False), (0.5, -1, 0.8, True), (1.5, 1, -1.2, True), (1.5, -1, 1.5, False)],
)
def test_surrogate_clips_ratios_by_the_sign_of_the_advantage(ratio, advantage, loss, flat):
    of = lambda log_prob: clipped_surrogate(log_prob, jnp.float32(0), jnp.float32(advantage), 0.2)
    at = jnp.log(jnp.float32(ratio))
    np.testing.assert_allclose(of(at), loss, rtol=1e-6)
    assert (jax.grad(of)(at) == 0) == flat


@pytest.mark.parametrize(("value", "old", "target", "loss"), [(1, 0, 2, 1.62), (1, 0, 0.5, 0.125), (-1, 0, 1, 2)])
def test_value_loss_takes_the_larger_of_clipped_and_unclipped_errors(value, old, target, loss):
    np.testing.assert_allclose(value_loss(jnp.float32(value), old, target, "max", 0.2), loss, rtol=1e-6)
    np.testing.assert_allclose(value_loss(jnp.float32(value), old, target, "none", 0.2), 0.5 * (value - target) ** 2)


def test_value_loss_keeps_a_stream_axis():
    value = jnp.arange(12.0).reshape(2, 3, 2)
    assert value_loss(value, value + 1, value - 1, "max", 0.2).shape == (2, 3, 2)


def test_explained_variance_of_constant_targets_is_not_counted():
    share = explained_variance(jnp.arange(4.0), jnp.ones(4))
    assert share.count == 0
    assert np.isnan(share.read())
