"""Random network distillation: two reward streams, frozen and trained parts, and every algorithm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

import purerl
from purerl import APPOConfig, DAACConfig, PPGConfig, PPOConfig, RNDConfig
from purerl.acting.normalize import initial_moments
from purerl.acting.rollout import collect
from purerl.algorithms.rnd import predictor_loss, rnd
from purerl.config.value_checks import problems
from purerl.core.keys import clock_at
from tests.helpers.configs import NORMALISED, RICH
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.leaks import checking_leaks
from tests.helpers.probes import Probe, Rich, Varied, boxed
from tests.helpers.programs import equations
from tests.helpers.tiny import CFG, at, digest

KEY = jax.random.key(0)
CURIOUS = RNDConfig(features=8, hidden=(16,), init_steps=100)
RND = CFG.replace(rnd=CURIOUS)
SIZES = {name: getattr(CFG, name) for name in ("total_timesteps", "num_envs", "num_steps", "num_minibatches", "hidden", "lr")}
MEMORY = {"memory": "gru", "memory_size": 8, "sequence_length": 8}
ALGORITHMS = {
    "ppo": RND,
    "memory": RND.replace(**MEMORY, **NORMALISED),
    "ppg": PPGConfig(**SIZES, n_pi=2, e_aux=1, rnd=CURIOUS),
    "ppg passes": PPGConfig(**SIZES, n_pi=2, e_aux=1, e_v=2, arch="detach", rnd=CURIOUS),
    "appo": APPOConfig(**SIZES, replay=2, lag=1, rnd=CURIOUS),
    "appo memory": APPOConfig(**SIZES, **MEMORY, **NORMALISED, replay=2, correction="none", rnd=CURIOUS),
}
SLOW = ("memory", "ppg", "ppg passes", "appo", "appo memory")
algorithms = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in ALGORITHMS]
)


def made(cfg=RND, env=None, **objects):
    return purerl.make_train(cfg, env=env or Varied(), **objects)


# --- two streams ------------------------------------------------------------------------------------------------------


def test_predictor_loss_matches_the_reference_vector(vectors):
    given, expected = vectors["rnd_predictor_loss"]
    row = lambda name: jnp.asarray(given[name], jnp.float32)
    np.testing.assert_allclose(predictor_loss(row("prediction"), row("target"), row("mask")), expected["masked_loss"], rtol=1e-5)
    assert predictor_loss(row("prediction"), row("target"), jnp.zeros(3)) == expected["masked_loss_all_zero_mask"]
    bonus = jnp.square(row("prediction") - row("target")).mean(-1)
    np.testing.assert_allclose(bonus, expected["bonus_mean_openai"], rtol=1e-5)


@pytest.mark.slow
def test_each_reward_stream_bootstraps_from_its_own_next_observation():
    """The extrinsic stream bootstraps from the observation before a reset, the intrinsic one from that after the reset."""
    train = made()
    state = train.init(KEY)
    options = {"keep_next_obs": True}
    run = jax.jit(lambda s: collect(train.env, train.network, s.params, s.actor, KEY, 64, **options))
    actor, rollout, _ = run(state)
    steps, value = rollout.steps, lambda obs: train.network.apply(state.params, (), obs, jnp.zeros((1, 4), bool))[0].value[0]
    assert steps.truncated.sum() > 5
    np.testing.assert_allclose(steps.next_value[:-1, :, 1], steps.value[1:, :, 1], atol=1e-6)
    np.testing.assert_allclose(steps.next_value[-1, :, 1], value(actor.obs[None])[:, 1], atol=1e-6)
    t, b = (int(i[0]) for i in np.nonzero(np.asarray(steps.truncated[:-1])))
    np.testing.assert_allclose(steps.next_value[t, b, 0], value(steps.next_obs[t][None])[b, 0], atol=1e-6)
    assert abs(steps.next_value[t, b, 0] - steps.value[t + 1, b, 0]) > 1e-3


# --- frozen and trained parts -----------------------------------------------------------------------------------------


@pytest.mark.each_landing("ppg passes")
@algorithms
def test_target_stays_fixed_and_predictor_is_trained(kind):
    train = made(ALGORITHMS[kind])
    start, end = jax.jit(lambda key: (train.init(key), train(key)))(KEY)
    assert digest(end.state.extra["intrinsic"].target) == digest(start.extra["intrinsic"].target)
    moved = lambda group: digest(end.state.params[group]) != digest(start.params[group])
    assert all(moved(group) for group in start.params)
    count = end.state.extra["intrinsic"].obs.count.low
    assert int(count) == 128 + 256  # two rollouts of random actions, then each step of training once
    metrics = purerl.summarize(end.metrics)
    assert all(np.isfinite(metrics[name]).all() for name in ("bonus", "predictor_loss", "value_loss", "explained_variance"))


@pytest.mark.long
def test_intrinsic_rewards_are_independent_of_extrinsic_rewards():
    cfg = RND.replace(total_timesteps=64 * 2, lr=0.0)
    run = jax.jit(lambda scale: made(cfg, reward_shaper=lambda reward, step: scale * reward)(KEY))
    both = [run(scale) for scale in (1.0, 10.0)]
    assert purerl.summarize(both[1].metrics)["value_loss"][0] > 5 * purerl.summarize(both[0].metrics)["value_loss"][0]
    one, ten = (jax.device_get(result.state.extra["intrinsic"]) for result in both)
    assert digest(one) == digest(ten)
    np.testing.assert_array_equal(*(purerl.summarize(result.metrics)["intrinsic_reward"] for result in both))


def test_predictor_observations_are_standardised_and_clipped():
    train = made()
    intrinsic = rnd(train.cfg, train.env, train.network)
    state = train.init(KEY)
    options = {"keep_next_obs": True}
    _, rollout, _ = jax.jit(lambda s: collect(train.env, train.network, s.params, s.actor, KEY, 16, **options))(state)
    training = jax.jit(lambda by: intrinsic.training(state.extra["intrinsic"], steps.replace(next_obs=by * steps.next_obs), KEY))
    steps = rollout.steps
    seen, large = training(1e6), training(1e9)
    np.testing.assert_array_equal(seen.features, large.features)
    assert seen.obs.dtype == state.actor.obs.dtype
    assert 0 < seen.counts.mean() < 0.6
    mean = state.extra["intrinsic"].obs.mean
    assert 0.1 < mean[:3].sum() < 1.01  # frequencies of the one-hot kinds under random actions


@pytest.mark.slow
def test_bonus_uses_statistics_before_the_rollout_and_predictor_loss_those_after():
    """Every new observation is 3: the rollout moves the mean to 3 after few earlier samples, and hardly after many."""
    train = made()
    intrinsic, state = rnd(train.cfg, train.env, train.network), jax.jit(train.init)(KEY)
    _, rollout, _ = jax.jit(lambda s: collect(train.env, train.network, s.params, s.actor, KEY, 16, keep_next_obs=True))(state)
    steps = rollout.steps.replace(next_obs=jnp.full_like(rollout.steps.next_obs, 3.0))
    none = state.extra["intrinsic"].replace(obs=initial_moments(steps.next_obs.shape[2:]))
    much = none.replace(obs=none.obs.replace(count=clock_at(2**40)))
    (_, after, few), (_, _, many) = (jax.jit(intrinsic.reward)(state.params, kept, steps) for kept in (none, much))
    np.testing.assert_allclose(few["bonus"].total, many["bonus"].total, rtol=1e-5)
    centred = none.replace(obs=none.obs.replace(mean=jnp.full_like(none.obs.mean, 3.0)))
    features = lambda kept: intrinsic.training(kept, steps, KEY).features
    np.testing.assert_allclose(features(after), features(centred), atol=1e-3)
    assert jnp.abs(features(none) - features(centred)).max() > 0.1
    losses = [intrinsic.loss(state.params, kept, intrinsic.training(after, steps, KEY))[0] for kept in (after, centred, none)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-2)
    assert abs(losses[2] - losses[1]) > 0.1 * losses[1]


@pytest.mark.long
def test_bonus_vanishes_for_familiar_observations():
    """Each episode shows one of two constant observations."""

    class Same(Probe):
        length, kinds = 7, 2

        def observe_state(self, state):
            return jax.nn.one_hot(state.kind, 2)

    cfg = RND.replace(total_timesteps=64 * 150, lr=3e-3, rnd=RNDConfig(features=8, hidden=(16,), init_steps=100))
    bonus = purerl.summarize(jax.jit(made(cfg, Same()))(KEY).metrics)["bonus"]
    assert 0 < bonus[-1] < 1e-3 * bonus[0]


@pytest.mark.slow
def test_each_rnd_coefficient_has_an_effect():
    run = jax.jit(lambda cfg: made(cfg)(KEY).state.params)
    with_rnd = lambda **changes: run(RND.replace(rnd=CURIOUS.__class__(**{**vars(CURIOUS), **changes})))
    base = with_rnd()
    for changes in ({"int_coef": 0.0}, {"ext_coef": 0.0}, {"gamma_int": 0.5}):
        assert digest(with_rnd(**changes)["policy"]) != digest(base["policy"])
    start = made().init(KEY).params["predictor"]
    still = with_rnd(lr_scale=0.0)["predictor"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), still, start)


# --- RND with other options -------------------------------------------------------------------------------------------


@pytest.mark.each_landing("env1")
@pytest.mark.slow
@pytest.mark.parametrize("env", [Rich(), boxed(Varied)()])
def test_ratio_is_one_before_the_first_gradient_step(env):
    rich = RICH if isinstance(env, Rich) else {}
    cfg = RND.replace(**NORMALISED, **rich, lr=0.0, total_timesteps=64 * 4)
    metrics = purerl.summarize(jax.jit(made(cfg, env))(KEY).metrics)
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-6)
    assert metrics["clip_fraction"].max() == 0


@pytest.mark.long
@pytest.mark.slow
def test_rnd_trains_on_images():
    class Pixels(Varied):
        def observe_state(self, state):
            return jnp.zeros((10, 10, 4), bool).at[state.time, 0, state.kind].set(True)

    metrics = purerl.summarize(jax.jit(made(RND, Pixels()))(KEY).metrics)
    assert np.isfinite(metrics["bonus"]).all()


@pytest.mark.long  # with a ring and an RNN: in `test_appo.py`
@pytest.mark.parametrize("kind", ["ppo", "ppg"])
def test_run_resumes_bit_for_bit(kind, tmp_path):
    run = {"cfg": ALGORITHMS[kind], "num_seeds": 2} if kind == "ppo" else {"cfg": ALGORITHMS[kind]}
    whole = fitted(**run)
    stopped(tmp_path, 5, **run)
    again = fitted(directory=tmp_path, **run)
    assert digest(again.state) == digest(whole.state)
    assert digest(again.metrics) == digest(whole.metrics)


@pytest.mark.long
@pytest.mark.slow
def test_vmap_over_configs_and_seeds_equals_single_runs():
    of = lambda coef: RND.replace(rnd=RNDConfig(features=8, hidden=(16,), init_steps=100, int_coef=coef))
    sweep = jax.vmap(of)(jnp.array([0.1, 1.0]))
    run = jax.vmap(lambda cfg, key: made(cfg)(key), in_axes=(0, None))
    many = jax.jit(jax.vmap(run, in_axes=(None, 0)))(sweep, jax.random.split(KEY, 2))
    alone = jax.jit(made(at(sweep, 1)))(jax.random.split(KEY, 2)[1])
    got = jax.tree.map(lambda x: x[1, 1], many.state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), got, alone.state.params)


@pytest.mark.long
def test_strict_jax_modes_pass_and_program_size_is_constant():
    train = made(RND.replace(total_timesteps=64 * 2))
    with checking_leaks(), jax.debug_nans(True), jax.numpy_dtype_promotion("strict"):
        jax.jit(train)(KEY)
    before, (after, _) = jax.eval_shape(train.init, KEY), jax.eval_shape(train.update, jax.eval_shape(train.init, KEY))
    kind = lambda x: (x.shape, x.dtype, x.weak_type)
    assert jax.tree.map(kind, before) == jax.tree.map(kind, after)
    program = lambda **changes: equations(jax.make_jaxpr(made(RND.replace(**changes)))(KEY).jaxpr)
    # 1024 x 4 samples are a square number, as 16 x 4: the shuffle of any other number has a few more equations
    assert program(num_steps=1024, total_timesteps=10**9) == program()


# --- custom rewards, pretraining --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_custom_count_bonus_falls_with_visits():
    def init(key, obs):
        return jnp.zeros(3, jnp.float32)

    def reward(counts, steps):
        kind = steps.next_obs[..., :3]  # one-hot
        counts = counts + kind.sum((0, 1))
        return kind @ jax.lax.rsqrt(counts), counts

    train = made(CFG, intrinsic=(init, reward))
    result = jax.jit(train)(KEY)
    assert int(result.state.extra["intrinsic"].sum()) == CFG.total_timesteps
    paid = purerl.summarize(result.metrics)["intrinsic_reward"]
    assert paid[0] > 1.5 * paid[-1] > 0
    assert "predictor" not in result.state.params
    assert made(CFG.replace(rnd=CURIOUS), intrinsic=(init, reward)).cfg.rnd.features == 8


@pytest.mark.long
@pytest.mark.slow
def test_fine_tuning_starts_from_parameters_pretrained_without_rewards(tmp_path):
    """A fine-tuned run starts with the parameters of a run that ignored extrinsic rewards."""
    of = lambda **coefs: RND.replace(rnd=RNDConfig(features=8, hidden=(16,), init_steps=0, **coefs))
    first = fitted(cfg=of(ext_coef=0.0), directory=tmp_path)
    tuned = fitted(cfg=of(int_coef=0.0, ext_coef=1.0).replace(lr=0.0), init_from=tmp_path)
    assert digest(tuned.state.params) == digest(first.state.params)


@pytest.mark.long
def test_warm_start_restores_the_predictor_with_its_target(tmp_path):
    """A warm-started run already predicts the observations of the earlier run, whatever its seed."""
    cfg = RND.replace(total_timesteps=64 * 200, lr=3e-3)
    first = fitted(200, cfg=cfg, directory=tmp_path)
    fresh = fitted(1, cfg=cfg, seed=1)
    tuned = fitted(1, cfg=cfg, init_from=tmp_path, seed=1, num_seeds=2)
    bonus = lambda result: purerl.summarize(result.metrics)["bonus"]
    assert (bonus(tuned) < 0.1 * bonus(fresh)[0]).all()
    assert bonus(first)[-1] < 0.1 * bonus(first)[0]


@pytest.mark.long
def test_command_line_pretrains_and_fine_tunes(tmp_path):
    from purerl.cli import main

    run = ["ppo", "--total-timesteps", "256", "--num-envs", "4", "--num-steps", "16", "--hidden", "8", "--rnd"]
    assert main([*run, "--rnd-ext-coef", "0", "--directory", str(tmp_path / "explored")]) == 0
    assert main([*run, "--rnd-int-coef", "0", "--init-from", str(tmp_path / "explored")]) == 0


def test_saved_state_with_rnd_is_restored(tmp_path):
    """A nested config is compared in single precision, like the outer config."""
    train = made(RND.replace(rnd=RNDConfig(features=8, hidden=(16,), init_steps=0, gamma_int=0.97)))
    state = jax.jit(train.init)(KEY)
    purerl.save(tmp_path / "a", train, state)
    assert digest(purerl.restore(tmp_path / "a", train)) == digest(state)


def test_rnd_ignores_previous_actions_and_rewards():
    cfg = RND.replace(memory="gru", memory_size=4, memory_inputs=("action", "reward"))
    state = jax.eval_shape(made(cfg).init, KEY)
    assert state.extra["intrinsic"].obs.mean.shape == (4,)


@pytest.mark.long
def test_appo_warm_start_copies_parameters_to_target_and_actors(tmp_path):
    cfg = APPOConfig(**SIZES, lag=2, target_update_freq=100)
    first = fitted(cfg=cfg, directory=tmp_path)
    tuned = fitted(1, cfg=cfg, init_from=tmp_path, num_seeds=2)
    for seed in range(2):
        target = jax.tree.map(lambda x, seed=seed: x[seed], tuned.state.extra["target"])
        assert digest(target) == digest(first.state.params)
        published = jax.tree.map(lambda x, seed=seed: x[seed, 2], tuned.state.extra["published"]["params"])
        assert digest(published) == digest(first.state.params)


# --- refused configs --------------------------------------------------------------------------------------------------


def test_invalid_rnd_configs_are_refused():
    with pytest.raises(purerl.ConfigError, match="DAAC does not support intrinsic rewards"):
        made(DAACConfig(**SIZES, rnd=CURIOUS))
    found = problems(RND.replace(rnd=RNDConfig(int_coef=-1.0, predictor_fraction=2.0, hidden=())))
    assert [problem.field for problem in found] == ["rnd.int_coef", "rnd.predictor_fraction", "rnd.hidden"]
    with pytest.raises(purerl.ConfigError, match="DAAC does not support intrinsic rewards"):
        made(DAACConfig(**SIZES), intrinsic=(lambda key, obs: (), lambda state, steps: (steps.reward, state)))
    with pytest.raises(purerl.ConfigError, match="must be a JSON object"):
        PPOConfig.from_json('{"rnd": true}')

    class Unbounded(boxed(Varied)):
        def action_space(self, params=None):
            return spaces.Box(-jnp.inf, jnp.inf, (1,))

    with pytest.raises(purerl.ConfigError, match="needs finite action bounds"):
        made(RND, Unbounded())
    made(CFG, Unbounded(), intrinsic=(lambda key, obs: (), lambda state, steps: (steps.reward, state)))
    with pytest.raises(purerl.ConfigError, match="must be a RNDConfig, or None"):
        made(RND.replace(rnd=True))
    from tests.helpers.recurrent import running_sum

    with pytest.raises(purerl.ConfigError, match="2 reward streams"):
        made(RND, network=running_sum(2, 4))


def test_nested_config_survives_json():
    assert PPOConfig.from_json(RND.to_json()) == RND
    assert PPOConfig.from_json(CFG.to_json()).rnd is None


@pytest.mark.slow
def test_aux_phase_with_a_shared_optimizer_leaves_the_predictor():
    """The predictor has no gradient in the auxiliary phase, but a shared optimizer has momentum."""
    cfg = ALGORITHMS["ppg"].replace(aux_optimizer="shared", total_timesteps=64 * 4)
    train = made(cfg)
    update, state = jax.jit(train.update), jax.jit(train.init)(KEY)
    moved = []
    for _ in range(4):
        before, (state, _) = state.params["predictor"], update(state)
        moved.append(
            max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (before, state.params["predictor"])), strict=True))
        )
    assert max(moved[1::2]) < 2 * max(moved[::2])
