import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import purerl
from purerl.core.keys import clock_at, gradient_steps
from purerl.core.types import Sequences
from purerl.learning.optimizers import (
    Optimizer,
    base_optimizer,
    clip_scale,
)
from purerl.learning.phases import Phase, init_phase, run_phase
from tests.helpers.tiny import CFG, digest, tiny

KEY = jax.random.key(0)
DESCENT = Optimizer(optax.identity(), True, rate=lambda clock, step, steps: jnp.float32(1))


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


@pytest.mark.parametrize(("key", "threshold", "stop"), [("skrl", 0.01, "epoch"), ("stop_everything", 0.01, "update")])
def test_kl_stopping_matches_the_reference_vector(vectors, key, threshold, stop):
    given, expected = vectors["kl_early_stop"]
    kl = jnp.asarray(given["kl"], jnp.float32)
    moving = DESCENT._replace(target_kl=jnp.float32(threshold), kl_stop=stop)
    counts = {"epochs": kl.size // 4, "minibatches": 4}
    params, applied = {"policy": jnp.zeros(1)}, []
    state = moving.begin(moving.init(params))
    for i, reading in enumerate(kl.ravel()):
        now = {"clock": clock_at(0), "step": jnp.uint32(i), "metrics": {"approx_kl": reading}}
        updates, state = moving.update({"policy": jnp.ones(1)}, state, params, **now, **counts)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_muon_orthogonalises_the_steps_of_hidden_matrices_only():
    cfg = CFG.replace(env="Pendulum-v1", optimizer="muon", memory="gru", memory_size=8, num_minibatches=2)
    params = purerl.make_train(cfg).init(KEY).params
    optimizer = base_optimizer(purerl.config.fields.single_precision(cfg)).transformation
    gradient = jax.tree.map(lambda x: jax.random.normal(KEY, x.shape), params)
    with jax.numpy_dtype_promotion("standard"):
        step, _ = jax.jit(optimizer.update)(gradient, optimizer.init(params), params)
    policy = step["policy"]
    assert policy["memory"]["layer_0"]["bias"].ndim == 2  # a row for each gate
    for x in (policy["head"]["Linear_0"]["kernel"], policy["torso"]["Dense_0"]["bias"], policy["memory"]["layer_0"]["bias"]):
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
