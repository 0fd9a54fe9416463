import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purerl
from purerl import PPOConfig
from purerl.core.keys import clock_at, gradient_steps
from purerl.core.types import Sequences
from purerl.learning.optimizers import (
    Optimizer,
    base_optimizer,
    clip_scale,
    kl_adapted_lr,
    learning_rate,
    phase_optimizer,
    polynomial_lr,
)
from purerl.learning.phases import Phase, init_phase, run_phase
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)
DESCENT = Optimizer(optax.identity(), True, rate=lambda clock, step: jnp.float32(1))


def test_gradient_clipping_matches_the_reference_vector(vectors):
    given, expected = vectors["gradient_clipping"]
    norm = jnp.sqrt(sum(jnp.sum(jnp.float32(g) ** 2) for g in given["grads"]))
    np.testing.assert_allclose(norm, expected["global_norm"], rtol=1e-6)
    for gradient, want in zip(given["grads"], expected["optax"], strict=True):
        np.testing.assert_allclose(gradient * clip_scale(norm, given["max_norm"]), want, rtol=1e-5)


def test_clip_scale_is_one_for_norms_within_the_limit():
    assert clip_scale(jnp.float32(0), jnp.float32(0.5)) == 1
    assert clip_scale(jnp.float32(1e9), jnp.float32(jnp.inf)) == 1
    assert clip_scale(jnp.float32(0.4), jnp.float32(0.5)) == 1


def test_linear_schedule_matches_the_reference_vector(vectors):
    given, expected = vectors["lr_schedules"][0]["linear"], vectors["lr_schedules"][1]["linear"]
    rate = lambda i: learning_rate(clock_at(int(i) - 1), int(given["n"]), jnp.float32(given["lr"]), jnp.float32(0), "linear")
    np.testing.assert_allclose([rate(i) for i in given["iterations"]], expected, rtol=1e-5)


def test_linear_schedule_decreases_in_equal_steps():
    rate = lambda i: learning_rate(clock_at(i), 8, jnp.float32(2.5e-4), jnp.float32(0), "linear")
    np.testing.assert_allclose([rate(i) for i in range(8)], 2.5e-4 - 3.125e-5 * np.arange(8), rtol=1e-5)
    assert learning_rate(clock_at(7), 8, jnp.float32(2.5e-4), jnp.float32(0), "constant") == np.float32(2.5e-4)
    halfway = learning_rate(clock_at(4), 8, jnp.float32(1e-3), jnp.float32(5e-4), "linear")
    np.testing.assert_allclose(halfway, 7.5e-4, rtol=1e-6)


def test_polynomial_schedule_matches_the_reference_vector(vectors):
    given, expected = vectors["lr_schedules"][0]["poly"], vectors["lr_schedules"][1]["poly"]
    cfg = PPOConfig(lr_schedule="polynomial", lr=given["lr"], lr_final=given["lr_final"], decay_steps=int(given["decay_steps"]))
    cfg = cfg.replace(num_epochs=1, num_minibatches=2)  # step s is the (s % 2)-th of update s // 2
    got = []
    for step in map(int, given["steps"]):
        moving = phase_optimizer(cfg, Optimizer(optax.identity(), True), None, cfg.num_epochs)
        got.append(moving.rate(clock_at(step // 2), jnp.uint32(step % 2)))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    np.testing.assert_allclose(polynomial_lr(jnp.float32(0.5), jnp.float32(1), jnp.float32(0), jnp.float32(2)), 0.25)


@pytest.mark.parametrize("system", ["skrl", "rsl_rl", "unilab"])
def test_kl_adaptive_rates_match_the_reference_vector(vectors, system):
    given, expected = vectors["kl_adaptive_lr"]
    params = expected[system]["params"]
    cfg = PPOConfig(
        desired_kl=params.get("desired_kl", params.get("kl_threshold")),
        lr_kl_tolerance=params["kl_factor"],
        lr_kl_factor=params["lr_factor"],
        lr_min=params["min_lr"],
        lr_max=params["max_lr"],
        lr_kl_every="minibatch" if params["need_positive"] else "epoch",
    )
    cfg = purerl.config.fields.single_precision(cfg)
    lr, got = jnp.float32(given["initial_lr"]), []
    for kl in given["kl"]:
        lr = kl_adapted_lr(cfg, lr, jnp.float32(kl))
        got.append(lr)
    np.testing.assert_allclose(got, expected[system]["lr"], rtol=1e-5)


def test_kl_adaptive_rates_stay_within_their_bounds(vectors):
    _, expected = vectors["kl_adaptive_lr"]
    cfg = purerl.config.fields.single_precision(PPOConfig(lr_kl_every="epoch"))
    for name, kl in (("clamp_low_skrl", 1.0), ("clamp_high_skrl", 0.0)):
        lr = expected[name][0]
        for want in expected[name][1:]:
            lr = kl_adapted_lr(cfg, jnp.float32(lr), jnp.float32(kl))
            np.testing.assert_allclose(lr, want, rtol=1e-5)


@pytest.mark.parametrize(("key", "threshold", "stop"), [("skrl", 0.01, "epoch"), ("stop_everything", 0.01, "update")])
def test_kl_stopping_matches_the_reference_vector(vectors, key, threshold, stop):
    given, expected = vectors["kl_early_stop"]
    kl = jnp.asarray(given["kl"], jnp.float32)
    period = kl.size if stop == "update" else 4
    moving = DESCENT._replace(target_kl=jnp.float32(threshold), period=period)
    params, applied = {"policy": jnp.zeros(1)}, []
    state = moving.begin(moving.init(params))
    for i, reading in enumerate(kl.ravel()):
        now = {"clock": clock_at(0), "step": jnp.uint32(i), "metrics": {"approx_kl": reading}}
        updates, state = moving.update({"policy": jnp.ones(1)}, state, params, **now)
        applied.append(-updates["policy"][0])
    np.testing.assert_array_equal(np.reshape(applied, kl.shape), expected[key])


def test_per_group_clipping_matches_the_reference_vector(vectors):
    given, expected = vectors["gradient_clipping"]
    gradients = dict(zip(("policy", "value"), (jnp.asarray(g, jnp.float32) for g in given["grads"]), strict=True))
    params = jax.tree.map(jnp.zeros_like, gradients)
    loss = lambda params, batch: (sum((params[g] * gradients[g]).sum() for g in gradients), {})
    phase = Phase("p", loss, DESCENT, None, 1, 1, jnp.float32(given["max_norm"]), joint=False)
    moved, _, metrics = run_phase(phase, clock_at(0), KEY, params, init_phase(phase, params), Sequences(jnp.zeros((1, 4)), ()))
    for group, want in zip(("policy", "value"), expected["per_group"], strict=True):
        np.testing.assert_allclose(moved[group], -np.asarray(want), rtol=1e-5)
    assert metrics["grad_norm"].read() == expected["global_norm"]


def test_gradient_step_count_saturates_at_the_largest_int32():
    at = lambda updates, step: int(gradient_steps(clock_at(updates), 16, jnp.uint32(step)))
    assert [at(0, 0), at(0, 15), at(3, 1), at(2**27 - 2, 15)] == [0, 15, 49, 2**31 - 17]
    assert at(2**27, 0) == at(2**40, 3) == 2**31 - 1


def rates(cfg=CFG, **objects):
    return purerl.summarize(jax.jit(tiny(cfg, **objects))(KEY).metrics)["lr"]


@pytest.mark.slow
def test_optax_schedules_are_accepted():
    """The schedule counts gradient steps, four in an update of this config."""
    got = rates(lr_schedule=optax.cosine_decay_schedule(1.0, 16))
    np.testing.assert_allclose(got, [optax.cosine_decay_schedule(1.0, 16)(i) for i in (0, 4, 8, 12)], rtol=1e-5)


def test_optax_transformations_are_scaled_by_the_configs_learning_rate():
    """One step of the gradient's sign moves every parameter with a gradient by the learning rate."""
    cfg = CFG.replace(total_timesteps=64, num_epochs=1, num_minibatches=1, lr=1e-3)
    train = tiny(cfg, optimizer=optax.scale_by_sign())
    start, end = jax.jit(lambda key: (train.init(key).params, train(key).state.params))(KEY)
    moved = np.concatenate([np.ravel(a - b) for a, b in zip(*map(jax.tree.leaves, (start, end)), strict=True)])
    np.testing.assert_allclose(np.abs(moved[moved != 0]), 1e-3, rtol=1e-3)
    assert (moved != 0).mean() > 0.9


@pytest.mark.slow
def test_parameter_groups_may_have_their_own_transformations():
    parts = {"policy": optax.set_to_zero(), "value": optax.scale_by_adam()}
    train = tiny(optimizer=optax.multi_transform(parts, {"policy": "policy", "value": "value"}))
    start, end = jax.jit(lambda key: (train.init(key).params, train(key).state.params))(KEY)
    assert digest(start["policy"]) == digest(end["policy"])
    assert digest(start["value"]) != digest(end["value"])


def test_critic_lr_scale_sets_the_value_networks_learning_rate():
    both = jax.jit(lambda cfg, key: (tiny(cfg).init(key).params, tiny(cfg)(key).state.params))
    start, end = both(CFG.replace(critic_lr_scale=0.0), KEY)
    assert digest(start["value"]) == digest(end["value"])
    assert digest(start["policy"]) != digest(end["policy"])


@pytest.mark.parametrize("optimizer", [optax.adam(1e-3), optax.chain(optax.scale_by_adam(), optax.scale(-1e-3)), 3])
def test_transformation_with_its_own_learning_rate_is_refused(optimizer):
    with pytest.raises(purerl.ConfigError, match="optimizer"):
        tiny(optimizer=optimizer)


@pytest.mark.parametrize("name", ["adam", "adamw", "muon", "rmsprop", "sgd"])
def test_every_named_optimizer_descends(name):
    gives = base_optimizer(purerl.config.fields.single_precision(CFG.replace(optimizer=name))).transformation
    params = {"policy": jnp.ones(3)}
    with jax.numpy_dtype_promotion("standard"):
        step, _ = gives.update({"policy": jnp.array([1.0, 2, 3])}, gives.init(params), params)
    assert (step["policy"] > 0).all()


def test_muon_orthogonalises_the_steps_of_hidden_matrices_only():
    cfg = CFG.replace(env="Pendulum-v1", optimizer="muon", memory="gru", memory_size=8, num_minibatches=2)
    params = purerl.make_train(cfg).init(KEY).params
    optimizer = base_optimizer(purerl.config.fields.single_precision(cfg)).transformation
    gradient = jax.tree.map(lambda x: jax.random.normal(KEY, x.shape), params)
    with jax.numpy_dtype_promotion("standard"):
        step, _ = jax.jit(optimizer.update)(gradient, optimizer.init(params), params)
    policy = step["policy"]
    for x in (policy["head"]["Linear_0"]["kernel"], policy["torso"]["Dense_0"]["bias"]):
        np.testing.assert_allclose(jnp.abs(x), 0.9 / (1 + 0.9) + 1, atol=1e-2)  # the first step of adam with Nesterov momentum
    kernel = policy["torso"]["Dense_0"]["kernel"]
    values = jnp.linalg.svd(kernel, compute_uv=False) / (0.2 * np.sqrt(max(kernel.shape)))
    assert ((values > 0.6) & (values < 1.3)).all()  # five Newton-Schulz iterations bring singular values near 1


@pytest.mark.slow
def test_target_kl_stops_learning_early():
    free, stopped = (jax.jit(tiny(CFG.replace(lr=3e-2, target_kl=x)))(KEY) for x in (10.0, 1e-4))
    free, stopped = purerl.summarize(free.metrics), purerl.summarize(stopped.metrics)
    assert not free["stopped"].any()
    assert (stopped["stopped"] > 0).all()
    assert stopped["approx_kl"].mean() < free["approx_kl"].mean()
    np.testing.assert_array_equal(stopped["lr"], free["lr"])  # a stop does not shift the schedule of later updates


@pytest.mark.long
def test_learning_rate_and_penalty_adapt_to_the_kl_divergence():
    cfg = CFG.replace(lr_schedule="kl_adaptive", kl_penalty="adaptive", lr=1e-3)
    near = purerl.summarize(jax.jit(tiny(cfg.replace(desired_kl=10.0)))(KEY).metrics)
    np.testing.assert_allclose(near["lr"], [1e-3 * 1.5**3, 1e-2, 1e-2, 1e-2], rtol=1e-5)  # three of the four minibatches raise it
    assert (np.diff(near["kl_coef"]) < 0).all()
    far = purerl.summarize(jax.jit(tiny(cfg.replace(desired_kl=1e-9)))(KEY).metrics)
    assert (np.diff(far["lr"]) < 0).all()
    assert (np.diff(far["kl_coef"]) > 0).all()
    np.testing.assert_allclose(near["kl_coef"], [1, 0.5, 0.25, 0.125])


@pytest.mark.slow
def test_adaptive_learning_rates_differ_between_seeds():
    cfg = CFG.replace(lr_schedule="kl_adaptive", lr_kl_every="epoch", desired_kl=1e-4, lr=1e-3)
    state = jax.jit(jax.vmap(tiny(cfg)))(jax.random.split(KEY, 8)).state
    assert len(set(np.asarray(state.opt_state["ppo"].lr).tolist())) > 1
