"""PPO with every option at once, and with each truncation mode: the properties of a plain run hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import purerl
from tests.helpers.configs import EVERYTHING, NORMALISED, RICH
from tests.helpers.interrupted import fitted, stopped
from tests.helpers.leaks import checking_leaks
from tests.helpers.probes import Rich, Varied, acting
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)
KINDS = {
    "everything": (EVERYTHING, Rich()),
    "multi_discrete": (CFG.replace(**NORMALISED, **RICH), Rich()),
    "multi_binary": (CFG.replace(**NORMALISED, arch="shared"), acting(Varied, "multi_binary")()),
    "mixed": (CFG.replace(**NORMALISED, std="state"), acting(Varied, "mixed")()),
    "tanh": (CFG.replace(**NORMALISED, action_distribution="tanh", log_std_init=1.0), acting(Varied, "box")()),
    "clipped": (CFG.replace(**NORMALISED, arch="detach", log_std_init=1.0), acting(Varied, "box")()),
}
SLOW = ("multi_binary", "everything", "multi_discrete", "clipped")  # everything with an RNN: in `networks/test_recurrent.py`


@pytest.mark.each_landing("everything")
@pytest.mark.parametrize("kind", ["mixed", "tanh", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW)])
def test_ratio_is_one_before_the_first_gradient_step(kind):
    """Keep the policy still by a learning rate of 0, so that every gradient step is a first one."""
    cfg, env = KINDS[kind]
    still = cfg.replace(lr=0.0, lr_final=0.0, lr_max=0.0, lr_min=0.0, warmup_steps=0, learning_starts=0, total_timesteps=64 * 5)
    result = jax.jit(purerl.make_train(still, env=env))(KEY)
    metrics = purerl.summarize(result.metrics)
    np.testing.assert_allclose(metrics["approx_kl"], 0, atol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"], 0)
    if "kl" in metrics:
        np.testing.assert_allclose(metrics["kl"], 0, atol=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_strict_jax_modes_pass_with_every_option():
    cfg, env = KINDS["everything"]
    train = purerl.make_train(cfg, env=env)
    with checking_leaks(), jax.debug_nans(True), jax.numpy_dtype_promotion("strict"):
        result = jax.jit(train)(KEY)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.metrics))
    before, (after, _) = jax.eval_shape(train.init, KEY), jax.eval_shape(train.update, jax.eval_shape(train.init, KEY))
    kind = lambda x: (x.shape, x.dtype, x.weak_type)
    assert jax.tree.map(kind, before) == jax.tree.map(kind, after)


@pytest.mark.slow
def test_invalid_actions_are_never_taken():
    """Training, warm-up and evaluation take valid actions only, sampled or most likely ones."""
    cfg = EVERYTHING.replace(learning_starts=64, total_timesteps=64 * 20, lr=1e-2)
    train = purerl.make_train(cfg, env=Rich())
    result = jax.jit(train)(KEY)
    assert purerl.summarize(result.metrics)["info/illegal"].tolist() == [0] * 20
    for deterministic in (True, False):
        episodes = train.evaluate(result.state, KEY, 64, deterministic, max_steps=6)
        assert not episodes.info["illegal"].any()
    unmasked = purerl.make_train(cfg.replace(action_mask=""), env=Rich())
    assert purerl.summarize(jax.jit(unmasked)(KEY).metrics)["info/illegal"].min() > 0.1


@pytest.mark.long
def test_run_with_every_option_resumes_bit_for_bit(tmp_path):
    whole = fitted(cfg=EVERYTHING, env=Rich())
    stopped(tmp_path, 4, cfg=EVERYTHING, env=Rich())
    again = fitted(cfg=EVERYTHING, env=Rich(), directory=tmp_path)
    assert digest(again.state) == digest(whole.state)
    assert again.state.extra["kl_coef"] != 1


@pytest.mark.slow
def test_every_option_works_under_vmap_over_configs_and_seeds():
    sweep = jax.vmap(lambda x: EVERYTHING.replace(desired_kl=x, lr=1e-3, target_kl=0.1))(jnp.array([1e-3, 1e-1]))
    run = jax.vmap(lambda cfg, key: purerl.make_train(cfg, env=Rich())(key), in_axes=(0, None))
    many = jax.jit(jax.vmap(run, in_axes=(None, 0)))(sweep, jax.random.split(KEY, 2))
    assert many.state.opt_state["ppo"].lr.shape == (2, 2)
    assert (many.state.opt_state["ppo"].lr[:, 0] != many.state.opt_state["ppo"].lr[:, 1]).all()


def test_observation_statistics_skip_categorical_entries_and_masks():
    state = purerl.make_train(EVERYTHING, env=Rich()).init(KEY)
    shapes = {name: getattr(getattr(m, "mean", None), "shape", None) for name, m in state.statistics.obs.items()}
    assert shapes == {"seen": (4,), "index": None, "legal": None, "secret": (6,)}


# --- truncation -------------------------------------------------------------------------------------------------------


@pytest.mark.each_landing("zero")
@pytest.mark.parametrize("mode", ["current_obs", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("zero", "ignore"))])
def test_every_truncation_mode_trains(mode):
    result = jax.jit(tiny(CFG.replace(truncation=mode)))(KEY)
    assert digest(result.state.params) != digest(jax.jit(tiny(CFG))(KEY).state.params)
    assert purerl.summarize(result.metrics)["episodes"].min() > 0


# --- refused configs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clip_eps": np.inf, "clip_schedule": "linear"}, "needs a finite clip_eps"),
        ({"minibatches": "time", "num_envs": 1, "num_minibatches": 16}, "minibatches of one step"),
        ({"sequence_length": 4}, "needs a recurrent network"),
    ],
)
def test_contradicting_options_are_refused(changes, says):
    with pytest.raises(purerl.ConfigError, match=says):
        tiny(CFG.replace(**changes))
