"""Advantages of two reward streams."""

import jax
import jax.numpy as jnp
import numpy as np

from purerl import PPOConfig, RNDConfig
from purerl.acting.normalize import EPSILON, RewardScale, Statistics, initial_moments, reward_sums
from purerl.core.types import Intrinsic, Rollout, TrainState, Transition
from purerl.learning.advantages import gae
from purerl.learning.intrinsic import over_streams
from purerl.learning.rewards import reward_stage
from tests.helpers.tiny import PLAIN


def test_advantages_of_two_streams_match_the_reference_vector(vectors):
    given, expected = vectors["rnd_two_stream"]
    row = lambda name: jnp.asarray(given[name], jnp.float32)
    scale, filtered = reward_sums(
        RewardScale(jnp.zeros(3), initial_moments(())),
        row("intrinsic_raw"),
        jnp.zeros((4, 3), bool),
        given["gamma_int"],
        prior=1e-4,
    )
    np.testing.assert_allclose(filtered, expected["filtered"], rtol=1e-5)
    np.testing.assert_allclose(scale.moments.variance, expected["rms_var"], rtol=1e-4)
    paid = row("intrinsic_raw") * jax.lax.rsqrt(scale.moments.variance + EPSILON)
    np.testing.assert_allclose(paid, expected["intrinsic_normalised"], rtol=1e-4)

    streams = lambda kind: jnp.stack([row(f"{kind}_ext"), row(f"{kind}_int")], -1)
    values, done = streams("values"), jnp.asarray(given["done"]) > 0
    following = jnp.concatenate([values[1:], streams("bootstrap")[None]])
    steps = Transition((), (), (), (), values, row("extrinsic"), done, jnp.zeros_like(done), following)
    state = TrainState({}, {}, (), (), (), Statistics(), {"intrinsic": ()})
    rewards = reward_stage(PPOConfig(**PLAIN), intrinsic=Intrinsic(None, lambda params, kept, steps: (paid, kept, {})))
    _, rollout, _ = rewards.process(state, Rollout(steps, ()))
    steps = rollout.steps
    coefs = {"gamma_int": given["gamma_int"], "int_coef": given["int_coef"], "ext_coef": given["ext_coef"]}
    cfg = PPOConfig(gamma=given["gamma_ext"], rnd=RNDConfig(**coefs))
    got = over_streams(lambda steps, cfg: gae(steps, cfg.gamma, given["lam"]))(steps, cfg)
    np.testing.assert_allclose(got.advantage, expected["advantages"], rtol=1e-4)
    np.testing.assert_allclose(got.target[..., 0], expected["returns_ext"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got.target[..., 1], expected["returns_int"], rtol=1e-4)
    assert np.abs(got.advantage - expected["advantages_rlib"]).max() > 0.1
