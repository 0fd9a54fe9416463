import jax
import jax.numpy as jnp
import numpy as np
import pytest

from purerl import PPOConfig, RNDConfig, advantages
from purerl.acting.normalize import EPSILON, RewardScale, Statistics, initial_moments, reward_sums
from purerl.core.types import Intrinsic, Rollout, TrainState, Transition
from purerl.learning.advantages import estimate, over_streams, standardize
from purerl.learning.rewards import RewardStage
from tests.helpers.tiny import PLAIN, at

gae, td_lambda = jax.jit(advantages.gae), jax.jit(advantages.td_lambda)
n_step = jax.jit(advantages.n_step, static_argnums=2)
vtrace = jax.jit(advantages.vtrace)


def steps_of(reward, value, next_value, terminated, truncated):
    as32 = lambda x: jnp.asarray(x, jnp.float32)
    flags = [jnp.asarray(x, bool) for x in (terminated, truncated)]
    return Transition((), (), (), (), as32(value), as32(reward), *flags, as32(next_value))


def successors(values, last, final, done):
    """Return next_value of a rollout: the next row's, or the final observation's if an episode ended."""
    return np.where(done, final, np.concatenate([values[1:], np.asarray(last)[None]]))


def random_steps(seed, T=64, B=7, boundaries=True):
    rng = np.random.default_rng(seed)
    flags = [rng.random((T, B)) < (0.1 if boundaries else -1) for _ in range(2)]
    value = rng.normal(size=(T, B))
    following = successors(value, rng.normal(size=B), rng.normal(size=(T, B)), flags[0] | flags[1])
    return steps_of(rng.normal(size=(T, B)), value, following, *flags)


# --- reference numbers ------------------------------------------------------------------------------------------------


def test_gae_matches_the_reference_vector(vectors):
    given, expected = vectors["gae_mixed"]
    terminated, truncated = given["terminated"] > 0, given["truncated"] > 0
    following = successors(given["values"], given["bootstrap_value"], given["final_values"], terminated | truncated)
    steps = steps_of(given["rewards"], given["values"], following, terminated, truncated)
    got = gae(steps, given["gamma"], given["lam"])
    np.testing.assert_allclose(got.advantage, expected["reference"]["advantages"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.target, expected["reference"]["returns"], rtol=1e-5, atol=1e-6)
    standardised = expected["reference"]["advantages_standardised_ddof0_eps1e8"]
    np.testing.assert_allclose(standardize(got.advantage), standardised, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("key", "estimator"),
    [
        ("window_masked", lambda s, g, lam: n_step(s, g, 0)),
        ("window_masked", lambda s, g, lam: n_step(s, g, 6)),
        ("fixed_n1", lambda s, g, lam: n_step(s, g, 1)),
        ("fixed_n2", lambda s, g, lam: n_step(s, g, 2)),
        ("fixed_n3", lambda s, g, lam: n_step(s, g, 3)),
        ("td_lambda", td_lambda),
    ],
)
def test_returns_match_the_reference_vector(vectors, key, estimator):
    given, expected = vectors["nstep_and_td_lambda"]
    done = given["done"] > 0
    following = successors(given["values"], given["bootstrap_value"], 0.0, done)
    steps = steps_of(given["rewards"], given["values"], following, done, np.zeros_like(done))
    got = estimator(steps, given["gamma"], given["lam"])
    np.testing.assert_allclose(got.target, expected[key], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.advantage, expected[key] - given["values"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["continuing", "episodic"])
def test_vtrace_matches_the_reference_vector(vectors, kind):
    given, expected = vectors[f"vtrace_{kind}"]
    nothing = np.zeros(given["rewards"].shape)
    terminated, truncated = (np.asarray(given.get(flag, nothing)) > 0 for flag in ("terminated", "truncated"))
    final = given.get("final_values", nothing)
    following = successors(given["values"], given["bootstrap_value"], final, terminated | truncated)
    steps = steps_of(given["rewards"], given["values"], following, terminated, truncated)
    log_ratio = jnp.asarray(given["target_logp"] - given["behaviour_logp"], jnp.float32)
    assert len(expected) >= 4
    for name, want in expected.items():
        if name.startswith("unilab"):
            continue  # unilab's recursion has no value of a final observation; its equal numbers are among the others
        ratio = jnp.zeros_like(log_ratio) if name.startswith("on_policy") else log_ratio
        clips = (jnp.float32(want.get(bar, 1)) for bar in ("rho_bar", "c_bar", "pg_rho_bar"))
        got = vtrace(steps, ratio, given["gamma"], jnp.float32(want["lam"]), *clips)
        np.testing.assert_allclose(got.target, want["vs"], rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(got.advantage, want["pg_advantages"], rtol=1e-5, atol=1e-6, err_msg=name)


def test_on_policy_vtrace_equals_gae():
    steps = random_steps(0)
    got, want = vtrace(steps, jnp.zeros((64, 7)), 0.97, 0.9, 1.0, 1.0, 1.0), gae(steps, 0.97, 0.9)
    np.testing.assert_allclose(got.advantage, want.advantage, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got.target, want.target, rtol=1e-5, atol=1e-5)


def test_vtrace_without_bounds_stays_finite():
    steps = random_steps(0)
    found = vtrace(steps, jnp.zeros((64, 7)).at[5].set(100.0), 0.99, 0.95, jnp.inf, jnp.inf, jnp.inf)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(found))


# gamma 0.9, lambda 0.8, terminated at step 2, truncated at step 4 with a final observation worth 4: the right numbers, and
# those of known mistakes in other libraries from the given step on.
FIXTURE = {
    "reward": [1, 0, 2, 0, -1, 3],
    "value": [0.5, 1, -0.5, 2, 1.5, -1],
    "next_value": [1, -0.5, 9, 1.5, 4, 0.7],
    "terminated": [0, 0, 1, 0, 0, 0],
    "truncated": [0, 0, 0, 0, 1, 0],
}
RIGHT = [1.652, 0.35, 2.5, 0.142, 1.1, 4.63]
MISTAKES = {
    "a time limit treated as a termination": (3, [-2.45, -2.5, 4.63]),
    "the reset observation's value": (3, [-3.098, -3.4, 4.63]),
    "the current observation's value": (3, [-1.478, -1.15, 4.63]),
    "the trace leaks into the next episode": (3, [-0.697808, -0.0664, 4.63]),
    "the advantage of the truncated step zeroed": (3, [-0.65, 0, 4.63]),
    "the termination one row late": (0, [1.838624, 0.6092, 2.86, -2, -0.0664, 4.63]),
    "the last value counted twice": (5, [5.134]),
}


def test_gae_avoids_known_mistakes():
    steps = steps_of(**{name: np.array(x)[:, None] for name, x in FIXTURE.items()})
    got = gae(steps, 0.9, 0.8)
    np.testing.assert_allclose(got.advantage[:, 0], RIGHT, atol=1e-6)
    np.testing.assert_allclose(got.target[:, 0], [2.152, 1.35, 2, 2.142, 2.6, 3.63], atol=1e-6)
    for mistake, (column, numbers) in MISTAKES.items():
        assert np.abs(np.asarray(got.advantage)[column:, 0] - numbers).max() > 0.05, mistake


# --- identities, computed without the estimators' code ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_estimators_satisfy_known_identities(seed):
    steps, open_steps = random_steps(seed), random_steps(seed, boundaries=False)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)

    discounted, total = np.zeros((64, 7)), np.asarray(open_steps.next_value[-1], np.float64)
    for t in reversed(range(64)):
        total = discounted[t] = np.asarray(open_steps.reward[t]) + 0.97 * total
    close(gae(open_steps, 0.97, 1.0).advantage, discounted - open_steps.value)

    bootstrap = np.where(steps.terminated, 0, steps.next_value)
    close(gae(steps, 0.97, 0.0).advantage, steps.reward + 0.97 * bootstrap - steps.value)
    close(gae(steps, 0.0, 0.9).advantage, steps.reward - steps.value)
    for got, want in zip(td_lambda(steps, 0.97, 0.9).__dict__.values(), gae(steps, 0.97, 0.9).__dict__.values(), strict=True):
        close(got, want)
    close(n_step(steps, 0.97, 1).target, td_lambda(steps, 0.97, 0.0).target)

    both = steps.replace(terminated=steps.terminated | steps.truncated)
    close(gae(both, 0.97, 0.9).advantage, gae(both.replace(truncated=jnp.zeros_like(both.truncated)), 0.97, 0.9).advantage)

    doubled = steps.replace(reward=2 * steps.reward, value=2 * steps.value, next_value=2 * steps.next_value)
    np.testing.assert_array_equal(gae(doubled, 0.97, 0.9).advantage, 2 * gae(steps, 0.97, 0.9).advantage)
    order = np.random.default_rng(seed).permutation(7)
    permuted = jax.tree.map(lambda x: x[:, order], steps)
    np.testing.assert_array_equal(gae(permuted, 0.97, 0.9).advantage, gae(steps, 0.97, 0.9).advantage[:, order])


@pytest.mark.parametrize("estimator", [gae, td_lambda, lambda s, g, lam: n_step(s, g, 3)])
def test_advantages_do_not_leak_across_episodes(estimator):
    steps = random_steps(3)
    env, row = np.argwhere(np.asarray(steps.terminated | steps.truncated)[10:50].T)[0] + [0, 10]
    column = jax.tree.map(lambda x: x[:, env : env + 1], steps)
    whole = estimator(column, 0.97, 0.9).advantage
    alone = [estimator(at(column, part), 0.97, 0.9).advantage for part in np.split(np.arange(64), [row + 1])]
    np.testing.assert_allclose(whole, np.concatenate(alone), atol=1e-6)


def test_gae_stays_precise_over_a_long_horizon():
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(4096, 1)) * 1e3, rng.normal(size=(4096, 1)) * 1e3
    following = successors(value, np.zeros(1), 0.0, np.zeros((4096, 1), bool))
    got = gae(steps_of(reward, value, following, np.zeros((4096, 1)), np.zeros((4096, 1))), 0.999, 1.0).advantage
    want, total = np.zeros((4096, 1)), np.zeros(1)
    for t in reversed(range(4096)):
        total = reward[t] + 0.999 * following[t] - value[t] + 0.999 * total
        want[t] = total
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    assert got.dtype == jnp.float32


def test_equal_advantages_become_zero():
    """The rounding of their mean is not a difference: without the rule, advantages of 0.1 would all become 1."""
    equal = jnp.full((37, 3), 0.1, jnp.float32)
    np.testing.assert_array_equal(standardize(equal), 0)
    np.testing.assert_array_equal(standardize(equal, axis=(0,)), 0)
    np.testing.assert_allclose(jnp.abs(standardize(equal.at[::2].add(1e-5))).mean(), 1, rtol=0.05)
    assert jnp.isnan(standardize(equal.at[0, 0].set(jnp.nan))).all()


# --- streams and transforms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [gae, td_lambda, lambda s, g, lam: n_step(s, g, 3)])
def test_reward_streams_are_estimated_along_a_trailing_axis(estimator):
    first, second = random_steps(0), random_steps(1)
    stacked = first.replace(
        **{n: jnp.stack([getattr(s, n) for s in (first, second)], -1) for n in ("reward", "value", "next_value")}
    )
    got = estimator(stacked, jnp.array([0.9, 0.99]), 0.8)
    np.testing.assert_allclose(got.advantage[..., 0], estimator(first, 0.9, 0.8).advantage, rtol=1e-6)
    second = second.replace(terminated=first.terminated, truncated=first.truncated)
    np.testing.assert_allclose(got.advantage[..., 1], estimator(second, 0.99, 0.8).advantage, rtol=1e-6)
    never_ending = jnp.stack([first.terminated, jnp.zeros_like(first.terminated)], -1)
    both = estimator(stacked.replace(terminated=never_ending), 0.9, 0.8)
    np.testing.assert_allclose(both.advantage[..., 0], estimator(first, 0.9, 0.8).advantage, rtol=1e-6)


@pytest.mark.parametrize("estimator", [gae, td_lambda, lambda s, g, lam: n_step(s, g, 3)])
def test_estimators_stop_gradients(estimator):
    steps = random_steps(0)
    moved = lambda value: estimator(steps.replace(value=value, next_value=value), 0.9, 0.8)
    gradient = jax.grad(lambda v: moved(v).advantage.sum() + moved(v).target.sum())(steps.value)
    assert not gradient.any()


def test_gae_is_the_same_jitted_and_vmapped():
    steps = random_steps(0)
    got = gae(steps, 0.97, 0.9).advantage
    np.testing.assert_allclose(advantages.gae(steps, 0.97, 0.9).advantage, got, rtol=1e-6, atol=1e-6)
    batched = jax.vmap(gae, in_axes=(None, 0, None))(steps, jnp.array([0.5, 0.97]), 0.9).advantage
    np.testing.assert_allclose(batched[1], got, rtol=1e-6, atol=1e-6)


def test_estimate_follows_the_config():
    import purerl

    steps, cfg = random_steps(0), purerl.PPOConfig(gamma=0.9, gae_lambda=0.7)
    same = lambda got, want: np.testing.assert_allclose(got.target, want.target, rtol=1e-6, atol=1e-6)
    same(estimate(steps, cfg), gae(steps, 0.9, 0.7))
    same(estimate(steps, cfg.replace(estimator="n_step", return_steps=2)), n_step(steps, 0.9, 2))
    same(estimate(steps, cfg.replace(estimator="td_lambda")), td_lambda(steps, 0.9, 0.7))


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
    rewards = RewardStage(PPOConfig(**PLAIN), intrinsic=Intrinsic(None, lambda params, kept, steps: (paid, kept, {})))
    _, rollout, _ = rewards.process(state, Rollout(steps, ()))
    steps = rollout.steps
    coefs = {"gamma_int": given["gamma_int"], "int_coef": given["int_coef"], "ext_coef": given["ext_coef"]}
    cfg = PPOConfig(gamma=given["gamma_ext"], rnd=RNDConfig(**coefs))
    got = over_streams(lambda steps, cfg: advantages.gae(steps, cfg.gamma, given["lam"]))(steps, cfg)
    np.testing.assert_allclose(got.advantage, expected["advantages"], rtol=1e-4)
    np.testing.assert_allclose(got.target[..., 0], expected["returns_ext"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got.target[..., 1], expected["returns_int"], rtol=1e-4)
    assert np.abs(got.advantage - expected["advantages_rlib"]).max() > 0.1
